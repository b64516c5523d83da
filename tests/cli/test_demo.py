"""``arena demo``: one program on one card, with CuPy's pool and with the arena."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from arena import DriverError, Trace, _core
from arena._cli.demo import next_step
from arena._demo import CAP
from arena._demo.cupy_pool import CuPyPool, play, smallest_device
from arena._demo.side_by_side import TRACE
from arena._util import files

from ..installed_driver import nothing_installed
from ..programs import ROOT
from .command import run_arena

MIB = 1 << 20
RATIOS = {
    "vgg": 1.050,
    "gpt2": 1.094,
    "science": 1.401,
    "pipeline": 1.526,
}  # benchmarks/traces/README.md, from another model


def test_the_demo_shows_both_allocators_and_writes_a_page_in_time(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    begin = time.monotonic()
    done = run_arena("demo", "--save", page)
    assert time.monotonic() - begin < 20
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "CuPy's pool fails at event" in words
    assert "arena runs it to the end: at most 448 MiB reserved" in words
    assert "426 MiB of a cap of 448 MiB is reserved" in words
    assert f"wrote {page}: this report as a page\nNext: " in done.stdout
    assert page.stat().st_size > 100_000


def test_the_next_step_of_the_demo_works_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(choice: str) -> None:
        raise DriverError(f"there is no driver {choice}")

    monkeypatch.setattr(_core, "Driver", SimpleNamespace(open=fail))
    assert next_step() == (
        "on a machine with a GPU, arena run --record run.arena YOUR_SCRIPT.py; then, on any machine, "
        "arena fit run.arena"
    )
    monkeypatch.setattr(_core, "Driver", SimpleNamespace(open=lambda choice: choice))
    assert next_step() == "arena run --cap 80% --report out.html YOUR_SCRIPT.py"


@nothing_installed
def test_without_a_gpu_the_demo_does_not_suggest_running_a_script_here(tmp_path: Path) -> None:
    done = run_arena("demo", "--save", tmp_path / "page.html")
    assert done.stdout.splitlines()[-1].startswith("Next: on a machine with a GPU, arena run --record ")


def test_the_figures_agree_with_each_other(tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    facts = json.loads(run_arena("demo", "--save", saved, "--json").stdout)
    cupy, stats = facts["cupy"], facts["arena"]["stats"]
    assert cupy["largest"] < cupy["requested"] < cupy["free"]  # failed because of fragmentation
    assert stats["peak_live"] < stats["peak_reserved"] <= facts["cap"] == CAP < cupy["needs"]
    assert (stats["failures"], facts["events"], facts["report"]) == (0, 42_484, str(saved))
    report = json.loads(saved.read_text())
    # The report is of the event at which CuPy's pool fails. The arena has served that request, so it counts as live.
    trace = Trace.read(TRACE)
    assert trace[cupy["event"]].size == cupy["requested"]
    assert report["account"]["live"] - -(-cupy["requested"] // 512) * 512 == CAP - cupy["free"]


def test_the_page_gets_a_free_name_unless_one_is_given(tmp_path: Path) -> None:
    def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "arena", "demo", "--json", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    names = [json.loads(demo(*arguments).stdout)["report"] for arguments in ((), (), ("--force",))]
    assert names == ["arena-demo.html", "arena-demo-2.html", "arena-demo.html"]
    refused = demo("--save", "arena-demo.html")
    assert (refused.returncode, refused.stderr) == (
        1,
        "arena: arena-demo.html already exists; choose another name, or pass --force\n",
    )
    assert demo("--save", "x.pdf").stderr.startswith("arena: 'x.pdf' does not end with .html")


def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    done = run_arena("demo", "--save", tmp_path / "p.html", "--open", BROWSER=f"{browser} %s")
    assert done.returncode == 0
    assert opened.read_text() == f"file://{tmp_path / 'p.html'}\n"


@pytest.mark.parametrize("name", RATIOS)
def test_the_model_of_cupys_pool_agrees_with_another_model(name: str) -> None:
    events = list(Trace.read(ROOT / f"benchmarks/traces/{name}.csv.gz"))
    live = peak = 0
    sizes: dict[int, int] = {}
    for event in events:
        if event.kind == "allocate":
            sizes[event.block] = max(512, -(-event.size // 512) * 512)
            live += sizes[event.block]
        else:
            live -= sizes.pop(event.block)
        peak = max(peak, live)
    assert smallest_device(events, peak, 2 * peak, MIB // 2) / peak == pytest.approx(RATIOS[name], rel=0.005)
    assert play(events, 4 * peak) is None


@pytest.mark.parametrize("seed", range(6))
def test_cupys_pool_fails_whichever_chunk_of_a_size_it_takes(seed: int) -> None:
    events = list(Trace.read(TRACE))
    death = play(events, CAP, seed)
    assert death is not None
    assert death.largest < death.requested < death.free


def test_the_model_does_what_cupys_pool_does() -> None:
    pool = CuPyPool(10 * MIB)
    assert pool.allocate(1, 4 * MIB, 0)
    assert pool.allocate(2, 1, 0)
    assert pool.used == 4 * MIB + 512
    pool.free(1)
    assert pool.allocate(3, 3 * MIB, 0)  # split off the first
    assert pool.taken == 4 * MIB + 512
    assert pool.allocate(4, MIB, 1)  # the rest belongs to the other stream
    assert pool.taken == 5 * MIB + 512
    assert not pool.allocate(5, 6 * MIB, 0)
    assert pool.largest(0) == 5 * MIB - 512
    pool.free(3)  # whole again, and freed because memory is short
    assert pool.allocate(5, 6 * MIB, 1)
    assert pool.taken == 7 * MIB + 512


def test_the_model_keeps_its_own_account() -> None:
    numbers, pool, alive = random.Random(1), CuPyPool(64 * MIB), set[int]()
    for block in range(5000):
        if pool.allocate(block, numbers.choice((1, 5000, 70_000, 3 * MIB)), numbers.randrange(2)):
            alive.add(block)
        for victim in numbers.sample(sorted(alive), min(len(alive), numbers.randrange(3))):
            alive.remove(victim)
            pool.free(victim)
        free = sum(size * len(same) for f in pool.streams.values() for size, same in f.by_size.items())
        assert pool.used + free == pool.taken <= pool.device
    for block in alive:
        pool.free(block)
    pool.give_back()
    assert (pool.used, pool.taken) == (0, 0)


def test_the_trace_is_in_the_package_once() -> None:
    link = ROOT / "benchmarks/traces/pipeline.csv.gz"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "python/arena/_demo/pipeline.csv.gz"


def test_free_names_are_counted_from_two(tmp_path: Path) -> None:
    (tmp_path / "a-2.html").touch()
    assert files.free_name(tmp_path / "a.html") == tmp_path / "a-3.html"

"""``arena measure``, and the commands that use what it writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arena import sim

from ..programs import ROOT, clean_environment, run
from .command import DEFAULTS, TRACE, run_arena

QUICK = ("--rounds", "4")
MARKER = b"\0cudasimError\0"  # the function by which arena recognises the simulated driver


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prices") / "small.prices"
    assert run_arena("measure", *QUICK, "--save", file, CUDASIM_PRICES="small").returncode == 0
    return file


def test_prices_are_shown_and_saved(tmp_path: Path) -> None:
    file = tmp_path / "my card.prices"
    done = run_arena("measure", *QUICK, "--save", file, COLUMNS="80")
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["idle", "2", "MiB", "8", "MiB", "32", "MiB", "64", "MiB", "spread"] in rows
    assert ["cuMemCreate", "193.0", "195.4", "205.0", "217.8", "0%"] in rows
    assert ["cuMemUnmap", "26.0", "26.0", "26.0", "26.0", "0%", "no"] in rows
    assert "cuMemSetAccess and cuMemUnmap never waited for queued work." in done.stdout
    assert "simulated: these are prices from its price table" in done.stdout
    assert done.stdout.endswith(f"wrote {file}\nNext: arena fit TRACE --prices '{file}'\n")
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()[:-2]) <= 80
    assert (done.stderr, "\x1b" in done.stdout) == ("", False)
    assert file.read_text().startswith("arena-prices 1\n")


def test_the_document_shows_the_printed_output_and_a_file_that_is_accepted(tmp_path: Path) -> None:
    text = (ROOT / "docs/prices.md").read_text()
    blocks = [block for block in re.findall(r"(?:^(?:    .*)?\n)+", text, re.M) if block.strip()]
    shown = {line.strip() for line in run_arena("measure", "--save", tmp_path / "p").stdout.splitlines()}
    promised = {
        line.strip() for block in blocks if "cuMem" in block and "arena-" not in block for line in block.splitlines()
    }
    assert len(promised) > 20
    assert {line for line in promised - shown if not line.startswith("platform: ")} == set()
    (file,) = [block for block in blocks if "arena-prices 1" in block]
    (tmp_path / "sample").write_text("\n".join(line.strip() for line in file.strip().splitlines()))
    code = "from arena import sim; import sys; sim.configure(prices=sys.argv[1]); print(sim.prices().label)"
    assert run(code, str(tmp_path / "sample")).stdout == "sample (NVIDIA GeForce RTX 4090, 2026-11-18)\n"


def test_calls_that_wait_are_reported(tmp_path: Path) -> None:
    done = run_arena("measure", *QUICK, "--save", tmp_path / "p", CUDASIM_SYNC_UNMAP="1")
    text = " ".join(done.stdout.split())
    assert "cuMemSetAccess, cuMemUnmap and cuMemFree waited for work queued in another stream" in text
    assert "never waited" not in text


def test_json_has_every_figure(tmp_path: Path) -> None:
    found = json.loads(run_arena("measure", *QUICK, "--save", tmp_path / "p", "--json").stdout)
    assert found["wrote"] == str(tmp_path / "p")
    assert (found["simulated"], found["virtual_memory"]) == (True, True)
    assert found["facts"]["device"] == "Simulated CUDA device"
    create = [row for row in found["prices"] if row["call"] == "cuMemCreate"]
    assert [row["size"] >> 20 for row in create] == [2, 8, 32, 64]
    assert create[0]["idle"] == {"median": 193.0, "low": 193.0, "high": 193.0, "rounds": 4}
    assert (create[0]["load"]["rounds"], create[0]["waited"]) == (3, 0)


def test_files_are_overwritten_only_with_force_and_a_free_name_is_found(tmp_path: Path) -> None:
    file = tmp_path / "arena.prices"
    file.write_text("precious")
    done = run_arena("measure", *QUICK, "--save", file)
    assert (done.returncode, done.stderr) == (
        1,
        f"arena: {file} already exists; choose another name, or pass --force\n",
    )
    environment = {**clean_environment(), **DEFAULTS, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "arena", "measure", *QUICK]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (file.read_text(), (tmp_path / "arena-2.prices").exists()) == ("precious", True)
    assert run_arena("measure", *QUICK, "--save", file, "--force").returncode == 0
    assert file.read_text() != "precious"


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (("--rounds", "2"), {}, "--rounds 2 is not accepted; write a number from 3 to 100000"),
        (("--seconds", "nan"), {}, "--seconds nan is not accepted; write a number from 0 to 86400"),
        (("--device", "7"), {}, "device=7 does not exist; this machine has 1 device"),
        (("--device", "gpu"), {}, "device='gpu' is not accepted"),
        (("--device", "sim:64MiB"), {}, "has 64 MiB free, but measuring needs 128 MiB; stop other programs on it"),
        (("--save", "/nowhere/p"), {}, "/nowhere/p cannot be written: the folder /nowhere does not exist"),
        (
            QUICK,
            {"CUDASIM_FAIL": "cuMemUnmap:9:801"},
            "the measurement stopped, and nothing was written: cuMemUnmap failed",
        ),
        (QUICK, {"CUDASIM_ADDRESS_SPACE": "64MiB"}, "each round reserves 1 GiB of addresses"),
    ],
)
def test_errors_are_one_line_and_write_nothing(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], text: str
) -> None:
    file = tmp_path / "p.prices"
    given = arguments if "--save" in arguments else (*arguments, "--save", file)
    done = run_arena("measure", *given, **environment)
    assert done.returncode == 1
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arena", "measure", "--rounds", "100000", "--save", str(tmp_path / "p")]
    environment = {**clean_environment(), **DEFAULTS, "CUDASIM_DEAD": "abort"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        while "libcudasim" not in Path(f"/proc/{process.pid}/maps").read_text():  # it is measuring, or about to
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert text.splitlines()[-1] == "arena: interrupted; nothing was written, and nothing is left on the device"
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_is_not_simulated_is_timed_by_the_hosts_clock(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(sim.library().read_bytes().replace(MARKER, MARKER.upper()))
    file = tmp_path / "p.prices"
    settings = {"ARENA_DRIVER": str(library), "CUDASIM_DELAY": "500", "CUDASIM_SYNC_UNMAP": "1"}
    found = json.loads(run_arena("measure", *QUICK, "--save", file, "--json", **settings).stdout)
    assert (found["simulated"], found["facts"]["clock"]) == (False, "monotonic")
    times = {(row["call"], row["size"] >> 20): row for row in found["prices"]}
    assert 0 < times["cuMemSetAccess", 2]["idle"]["median"] < 5000
    unmap = times["cuMemUnmap", 64]
    assert (unmap["load"]["median"] > 1000, unmap["waited"]) == (True, unmap["load"]["rounds"])
    used = run_arena("replay", TRACE, "--cap", "600MiB", "--prices", file)
    assert "ms of driver time by the price table p.prices (Simulated CUDA device, " in used.stdout


def test_fit_and_replay_use_the_table_and_name_it(small: Path) -> None:
    name = "small.prices (Simulated CUDA device, "
    runs = {
        table: json.loads(run_arena("fit", TRACE, "--prices", table, "--json").stdout)
        for table in ("a100", "small", small)
    }
    assert runs["a100"]["prices"] == "a100"
    assert runs[small]["prices"].startswith(name)
    times = {table: [point["priced_ms"] for point in found["points"]] for table, found in runs.items()}
    assert times[small] == pytest.approx(times["small"], rel=1e-3)
    assert times["a100"][0] > 2 * times["small"][0]
    shown = run_arena("fit", TRACE, "--prices", small)
    assert f"\nby the price table {name}" in shown.stdout
    following = shown.stdout.splitlines()[-1].split()
    assert following[following.index("--prices") + 1] == str(small)
    again = run_arena(*following[2:-2], "--json")
    assert json.loads(again.stdout)["prices"].startswith(name)
    assert "by the price table a100\n" in run_arena("fit", TRACE).stdout
    assert "by the price table small\n" in run_arena("replay", TRACE, CUDASIM_PRICES="small").stdout


def test_runs_side_by_side_say_whose_prices_they_use(small: Path) -> None:
    both = run_arena("replay", TRACE, "--cap", "600MiB", "--prices", "a100", "--prices", small, "--json")
    found = json.loads(both.stdout)
    assert [run["name"] for run in found["runs"]] == ["prices a100", "prices small.prices"]
    assert found["runs"][0]["priced_ms"] > 2 * found["runs"][1]["priced_ms"]
    assert "Driver time uses different price tables: A a100, B small.prices" in found["caption"]
    same = run_arena("replay", TRACE, "--cap", "600MiB", "--cap", "700MiB", "--prices", small)
    assert "Driver time uses the price table small.prices" in " ".join(same.stdout.split())


def test_a_table_without_the_needed_prices_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plain.prices"
    measured = run_arena("measure", *QUICK, "--save", file, CUDASIM_VMM="0")
    assert "no virtual memory on this device" in measured.stdout
    for command in ("fit", "replay"):
        done = run_arena(command, TRACE, "--prices", file)
        assert done.returncode == 1
        assert f"{file} has no price for cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap, cuMemRelease" in done.stderr
        assert "use --plain" in done.stderr
    assert run_arena("replay", TRACE, "--plain", "--prices", file).returncode == 0


@pytest.mark.parametrize("command", ["fit", "replay"])
def test_an_invalid_price_option_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    file = tmp_path / "bad.prices"
    file.write_text("arena-prices 1\ncuMemCreate 2MiB cheap\n")
    for prices, text in (
        (file, f"arena: prices: {file}, line 2: 'cheap' of cuMemCreate is not accepted; write microseconds"),
        ("h100", "arena: prices: 'h100' is not accepted; write a100, small, free, or the path of a file"),
        ("README.md", f"arena: prices: {ROOT / 'README.md'} is not a price file"),
        ("docs", f"arena: prices: {ROOT / 'docs'} is not a regular file"),
        ("", "arena: prices: '' is not accepted"),
    ):
        done = run_arena(command, TRACE, "--prices", prices)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(text)
        assert len(done.stderr.splitlines()) == 1


def test_a_real_device_has_no_prices(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(sim.library().read_bytes().replace(MARKER, MARKER.upper()))
    done = run_arena("replay", TRACE, "--device", "0", "--prices", "small", ARENA_DRIVER=str(library))
    assert "arena: prices='small': only simulated devices have prices" in done.stderr

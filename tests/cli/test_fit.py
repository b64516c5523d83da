"""``arena fit``, as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from arena import Trace

from ..programs import ROOT, run
from .command import run_arena
from .test_failed_runs import record_death

TRACE = ROOT / "benchmarks/traces/pipeline.csv.gz"
PEAK = 415_225_856  # live bytes, whatever the arena does

PROGRAM = """
import arena, sys
arena.trace_lines(True)
def step(pool, batch):
    weights = pool.allocate(50 << 20)
    activations = [pool.allocate(batch << 18) for _ in range(8)]
for batch in (8, 16, 24):
    pool = arena.Arena(device="sim:8GiB")
    with pool.record(f"{sys.argv[1]}/b{batch}.arena"):
        step(pool, batch)
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recordings")
    run(PROGRAM, str(folder), check=True)
    return [folder / f"b{batch}.arena" for batch in (8, 16, 24)]


@pytest.fixture(scope="module")
def smallest() -> int:
    """The smallest cap of the trace, found by trying one after the other: it changes as the arena improves."""
    trace = Trace.read(TRACE)
    return next(cap for cap in range(PEAK >> 21 << 21, 1 << 30, 2 << 20) if trace.replay(cap=cap, compact=True).fits)


def test_without_moving_live_data_the_smallest_cap_differs_and_the_answer_says_so(smallest: int) -> None:
    moving, still = (json.loads(run_arena("fit", TRACE, "--json", *more).stdout) for more in ([], ["--no-compact"]))
    assert (moving["compact"], moving["smallest_cap"]) == (True, smallest)
    assert still["compact"] is False
    assert still["smallest_cap"] > smallest
    assert not any(point["rebacked"] for point in still["points"])
    done = run_arena("fit", TRACE, "--no-compact").stdout.splitlines()
    assert done[1] == "live data is never moved (--no-compact)"
    assert "--no-compact" in done[-1]
    assert run_arena(*done[-1].split()[2:-2], "--json").returncode == 0  # the suggested command works


def test_a_replay_moves_live_data_only_if_allowed(smallest: int) -> None:
    cap = f"{smallest >> 20}MiB"
    moving, still = run_arena("replay", TRACE, "--cap", cap), run_arena("replay", TRACE, "--cap", cap, "--no-compact")
    assert (moving.returncode, still.returncode) == (0, 3)
    assert "live data may be moved, as in single-threaded programs (otherwise: --no-compact)" in moving.stdout
    assert "live data is never moved (--no-compact)" in still.stdout
    assert "0 re-backings" in still.stdout
    assert re.search(
        r"re-backing not allowed; the largest request that would have passed is [\d.]+ MiB\n"
        r"that is without moving live data; with moving it is [\d.]+ MiB\n"
        r"moving would have freed [\d.]+ MiB, and this request would have passed\n",
        still.stdout,
    )
    lines = [line for line in still.stdout.splitlines() if not line.startswith("Next: ")]  # a command, with a path
    assert max(map(len, lines)) <= 80
    assert still.stdout.splitlines()[-1] == f"Next: arena fit {TRACE} --no-compact"
    both = run_arena("replay", TRACE, "--cap", cap, "--compact", "--no-compact").stdout
    assert "A  with moving live data" in both
    assert "B  without moving" in both


def test_fit_shows_the_smallest_cap_and_what_larger_ones_save(smallest: int) -> None:
    done = run_arena("fit", TRACE)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "42,484 events, 395.99 MiB live at the peak" in lines[0]
    row = f"{smallest >> 20} MiB {smallest / PEAK:.3f} the smallest cap that works"
    assert row in [" ".join(line.split()) for line in lines]
    cards = lines.index("cards that are large enough, with 339 MiB for everything else:")
    assert lines[cards + 1] == "  gtx1650 (3.81 GiB) and larger"
    assert max(map(len, lines[:-1])) <= 80
    assert "…" not in done.stdout
    assert lines[-1].startswith(f"Next: arena replay {TRACE} --cap ")
    assert run_arena(*lines[-1].split()[2:-2], "--json").returncode == 0  # the suggested command works
    assert run_arena("fit", TRACE, COLUMNS="40").stdout == done.stdout


def test_exit_codes_say_whether_it_fits(recordings: list[Path], smallest: int) -> None:
    tight = run_arena("fit", TRACE, "--cap", "400MiB")
    assert (tight.returncode, tight.stderr) == (3, "")
    assert f"does not fit within 400 MiB: it needs {smallest >> 20} MiB" in tight.stdout
    card = run_arena("fit", TRACE, "--device", "1GiB", "--outside", "500MiB", "--json")
    facts = json.loads(card.stdout)
    assert (card.returncode, facts["fits"], facts["limit"]) == (0, True, 524 << 20)
    assert facts["smallest_cap"] == smallest
    assert facts["points"][0]["cap"] == smallest
    none = run_arena("fit", *recordings[:2], "--batch-from", "8,16", "--batch-to", "100,200", "--cap", "100MiB")
    assert none.returncode == 3
    assert "does not fit" in none.stdout


def test_batches_are_predicted(recordings: list[Path]) -> None:
    done = run_arena("fit", *recordings, "--batch-from", "8,16,24", "--batch-to", "32, 64", "--cap", "150MiB")
    assert done.returncode == 0
    words = [line.split() for line in done.stdout.splitlines()]
    assert "batches 8, 16, 24: 100% of the bytes are in all runs, by line" in done.stdout
    assert any(row[:3] == ["2,097,152", "0", "<string>:6"] for row in words)
    (small,) = (row for row in words if row[:1] == ["32"])
    (large,) = (row for row in words if row[:1] == ["64"])
    assert (small[1:5], small[-1]) == (["114", "MiB", "114", "MiB"], "fits")
    assert (large[1:3], large[-3:]) == (["178", "MiB"], ["does", "not", "fit"])
    assert "within 150 MiB: the largest batch is 50 (" in done.stdout
    least, most = re.findall(r"largest_batch\(function, (\d+), (\d+), ", done.stdout)[0]
    assert int(least) <= 50 <= int(most)
    next_step = f'  arena.largest_batch(function, {least}, {most}, pool=arena.Arena(cap="150MiB"))'
    assert done.stdout.splitlines()[-2:] == ["Next: try it for real, in Python:", next_step]
    assert max(map(len, done.stdout.splitlines())) <= 80
    two = run_arena("fit", *recordings[:2], "--batch-from", "8,16", "--cap", "150MiB", "--json")
    assert json.loads(two.stdout)["largest"]["batch"] == 50
    assert "a third recording would show" in run_arena("fit", *recordings[:2], "--batch-from", "8,16").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--batch-to", "32"), "one trace cannot show what grows with the batch; record the program a second time"),
        (("--batch-from", "8"), "one trace cannot show what grows with the batch"),
        ((TRACE,), "2 traces, but 0 batch sizes"),
        ((TRACE, "--batch-from", "8;16"), "--batch-from 8;16: write batch sizes with commas between them: 8,16"),
        ((TRACE, "--batch-from", "8,8"), "two different batch sizes are needed"),
        (
            (TRACE, "--batch-from", "8,9", "--batch-to", f"{10**17}"),
            f"--batch-to={10**17} is not accepted; write batch",
        ),
        (("--device", "gpu"), "there is no card 'gpu'"),
        (("--outside", "some"), "outside='some' is not a size"),
        (("--growth", "some"), "growth='some' is not a size"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(arguments: tuple[object, ...], text: str) -> None:
    done = run_arena("fit", TRACE, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_truncated_recording_is_fitted_as_far_as_it_goes(recordings: list[Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.arena"
    cut.write_bytes(recordings[0].read_bytes()[:-30])
    done = run_arena("fit", cut)
    assert done.returncode == 0
    assert "cut.arena" in done.stderr
    assert "the smallest cap that works" in done.stdout


def test_the_figures_in_the_document_are_those_printed(tmp_path: Path) -> None:
    text = (ROOT / "docs/fit.md").read_text()
    shown = {line.strip() for block in re.findall(r"(?:^    .*\n|^\n)+", text, re.M) for line in block.splitlines()}
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "p.py").write_text(program)
    code = "import os, runpy, sys; os.chdir(sys.argv[1]); runpy.run_path('p.py')"
    run(code, str(tmp_path), check=True, ARENA_DRIVER="sim")
    paths = [tmp_path / f"b{batch}.arena" for batch in (8, 16, 24)]
    one = run_arena("fit", TRACE.relative_to(ROOT))
    many = run_arena("fit", *paths, "--batch-from", "8,16,24", "--batch-to", "64", "--cap", "1GiB")
    dead = run_arena("fit", record_death(tmp_path))
    printed = {line.strip() for line in (one.stdout + many.stdout + dead.stdout).splitlines()}
    code_lines = {line.strip() for line in program.splitlines()}
    assert len(shown - code_lines) > 20
    assert shown - code_lines - printed == set()

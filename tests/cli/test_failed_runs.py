"""What commands say about a recording that ended with a failed request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .command import run_arena

MIB = 1 << 20
DIES = """
import arena
def load(size):
    return pool.allocate(size << 20)
pool = arena.default_arena()
kept = [load(40) for _ in range(5)]
load(294)
"""
ENDED = (
    "The recorded run did not finish: event 10 of 11, a request of 294 MiB from train.py:4 in load, failed "
    "(cap reached). 200 MiB was live, so it needs at least 494 MiB to continue. What it needs after that is not in the "
    "recording."
)


def record_death(folder: Path) -> Path:
    (folder / "train.py").write_text(DIES)
    path = folder / "run.arena"
    options = ("--device", "sim:8GiB", "--cap", "256MiB", "--lines", "--record", path)
    done = run_arena("run", *options, folder / "train.py")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"Next: arena fit {path}")
    return path


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_death(tmp_path_factory.mktemp("died"))


def test_fit_says_where_the_run_failed_and_how_much_it_needs_at_least_and_exits_with_4(died: Path) -> None:
    done = run_arena("fit", died)
    assert done.returncode == 4
    assert " ".join(done.stdout.split("\n\n")[0].split()) == ENDED
    assert " 494 MiB   1.000  the smallest cap that gets past it" in done.stdout
    assert "that works" not in done.stdout
    again = f"arena run --cap 494MiB --record again.arena {died.with_name('train.py')} ..."
    assert done.stdout.splitlines()[-1] == f"Next: record it again with at least that much: {again}"
    facts = json.loads(run_arena("fit", died, "--json").stdout)
    assert (facts["fits"], facts["smallest_cap"], facts["ended_by"]["needed"]) == (None, 494 * MIB, 494 * MIB)


@pytest.mark.parametrize(("cap", "code", "verdict"), [("300MiB", 3, "does not fit"), ("1GiB", 4, "may fit")])
def test_fit_judges_a_limit_by_what_is_known(died: Path, cap: str, code: int, verdict: str) -> None:
    done = run_arena("fit", died, "--cap", cap)
    shown = cap.replace("MiB", " MiB").replace("GiB", " GiB")
    assert (done.returncode, f"\n{verdict} within {shown}: it needs at least 494 MiB\n" in done.stdout) == (code, True)


@pytest.mark.parametrize(
    ("cap", "code", "first"),
    [
        ("244MiB", 3, "does not fit under a cap of 244 MiB: event 10, a request of 294 MiB, fails"),
        ("600MiB", 4, "fits under a cap of 600 MiB as far as it was recorded; the rest is unknown"),
    ],
)
def test_replay_does_not_claim_that_it_fits(died: Path, cap: str, code: int, first: str) -> None:
    done = run_arena("replay", died, "--cap", cap)
    assert (done.returncode, done.stdout.splitlines()[0]) == (code, first)
    assert ENDED in " ".join(done.stdout.split())
    facts = json.loads(run_arena("replay", died, "--cap", cap, "--json").stdout)
    assert facts["fits"] is (False if code == 3 else None)
    assert facts["ended_by"]["where"] == "train.py:4 in load"


def test_a_comparison_exits_with_4_if_it_is_not_known_whether_a_run_fits(died: Path) -> None:
    done = run_arena("replay", died, "--cap", "500MiB", "--cap", "600MiB")
    assert done.returncode == 4
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("fits "))
    assert row.split() == ["fits", "unknown", "unknown"]


def test_convert_says_that_the_run_did_not_finish(died: Path, tmp_path: Path) -> None:
    done = run_arena("convert", died, tmp_path / "run.trace", "--json")
    assert (done.returncode, json.loads(done.stdout)["ended_by"]["requested"]) == (0, 294 * MIB)
    assert done.stderr.startswith(f"arena: {ENDED}")
    again = run_arena("fit", tmp_path / "run.trace")
    assert again.returncode == 4
    assert again.stdout.startswith("The recorded run ended with a failed request: event 5 of 6, a request of")

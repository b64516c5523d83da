"""Recorded runs in which a request failed: those that ended there, and those that continued."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

import arena
from arena import OutOfMemoryError, Trace, UsageError, fit

from ..arena.conftest import MIB, MakeArena
from ..programs import run
from .samples import same

DIES = """
import arena, sys
arena.trace_lines(True)
pool = arena.Arena(cap="256MiB", device="sim:1GiB")
recording = pool.record(sys.argv[1])
kept = [pool.allocate(40 << 20) for _ in range(5)]
pool.allocate(294 << 20)
"""


def record_death(pool: arena.Arena, path: Path) -> Trace:
    """200 MiB are live when 294 MiB are requested."""

    def program() -> None:
        with pool.record(path):
            kept = [pool.allocate(40 * MIB) for _ in range(5)]
            pool.allocate(294 * MIB)
        del kept

    with pytest.raises(OutOfMemoryError):
        program()
    return Trace.read(path)


@pytest.fixture
def died(make: MakeArena, tmp_path: Path) -> Trace:
    return record_death(make(cap="256MiB"), tmp_path / "died.arena")


def test_a_run_that_failed_says_which_request_ended_it_and_what_it_needs_to_continue(died: Trace) -> None:
    (failure,) = died.failures
    ended_by = died.ended_by
    assert ended_by is not None
    assert died[ended_by.event].kind == "failure"
    assert dataclasses.replace(ended_by, verdict="", certain=False) == failure
    assert (ended_by.requested, ended_by.live, ended_by.needed) == (294 * MIB, 200 * MIB, 494 * MIB)
    assert (ended_by.certain, ended_by.verdict) == (True, "cap reached")
    assert died.survived.count == 0


def test_a_failed_run_does_not_fit_where_it_failed_and_elsewhere_only_as_far_as_it_goes(died: Trace) -> None:
    assert died.ended_by is not None
    under = died.replay(cap="256MiB")
    assert (under.fits, under.events - 1) == (False, died.ended_by.event)
    assert under.error is not None
    assert under.error.requested == 294 * MIB
    assert died.replay(cap="492MiB").fits is False
    above = died.replay(cap="496MiB")
    assert (above.fits, above.error, above.peak_live) == (None, None, 494 * MIB)
    assert "failed in the recorded run, but passed here" in above.report.moment
    assert above.ended_by == died.ended_by


def test_the_fit_of_a_failed_run_is_a_lower_bound(died: Trace) -> None:
    found = fit(died)
    assert (found.smallest_cap, found.fits, found.ended_by) == (494 * MIB, None, died.ended_by)
    assert fit(died, cap="256MiB").fits is False
    assert fit(died, cap="1GiB").fits is None


def test_batches_are_not_predicted_from_a_failed_run(make: MakeArena, died: Trace, tmp_path: Path) -> None:
    pool = make(cap="256MiB")
    with pool.record(tmp_path / "b8.arena"):
        for _ in range(5):
            pool.allocate(20 * MIB).free()
    with pytest.raises(UsageError, match=r"batch 16 cannot be compared. The recorded run did not finish: event "):
        fit([tmp_path / "b8.arena", died], batch_from=[8, 16], batch_to=[32])


def test_a_comparison_does_not_claim_that_a_failed_run_fits(died: Trace, tmp_path: Path) -> None:
    found = arena.compare(died, cap=["496MiB", "600MiB"])
    assert found.fits is None
    assert [run.verdict for run in found.runs] == ["unknown", "unknown"]
    assert found.caption.startswith("A and B fit as far as they were recorded. The recorded run did not finish: event ")
    assert [run["fits"] for run in found.to_dict()["runs"]] == [None, None]
    assert "Both fit" not in str(found)
    page = found.save(tmp_path / "compare.html").read_text()
    assert page.count("<td>unknown</td>") == 2
    assert page.count('"fits": true') + page.count('"fits":true') == 2  # no cross where nothing failed
    assert arena.compare(died, cap=["256MiB", "600MiB"]).fits is False


@pytest.mark.parametrize("to", ["copy.arena", "copy.trace", "copy.csv"])
def test_the_request_that_ended_a_run_is_known_in_other_formats(died: Trace, tmp_path: Path, to: str) -> None:
    copy = Trace.read(died.save(tmp_path / to))
    assert died.ended_by is not None
    assert copy.ended_by is not None
    assert (copy.ended_by.requested, copy.ended_by.live) == (died.ended_by.requested, died.ended_by.live)
    assert copy.ended_by.certain is (to == "copy.arena")  # others do not say it, so it is derived from the events
    assert copy.replay(cap="256MiB").fits is False
    if to == "copy.arena":
        assert same(died, copy)


def test_counters_for_perfetto_mark_where_the_run_failed(died: Trace, tmp_path: Path) -> None:
    assert '"the recorded run failed: a request of 294 MiB"' in died.save(tmp_path / "run.json").read_text()


@pytest.mark.parametrize("handles", [False, True])
def test_a_program_that_ends_with_an_uncaught_error_counts_as_failed(tmp_path: Path, handles: bool) -> None:
    """Even if it allocates before it gives up, to save its work."""
    code = DIES
    if handles:
        last = "pool.allocate(294 << 20)"
        code = code.replace(last, f"try:\n    {last}\nexcept MemoryError:\n    pool.allocate(1 << 20)\n    raise")
    done = run(code, str(tmp_path / "run.arena"))
    assert (done.returncode, done.stderr.count("OutOfMemoryError")) == (1, 1)
    trace = Trace.read(tmp_path / "run.arena")
    assert trace.ended_by is not None
    assert (trace.ended_by.certain, trace.ended_by.needed, trace.problem) == (True, 494 * MIB, "")
    assert trace.ended_by.where == f"<string>:{8 if handles else 7} in <module>"
    assert trace.replay(cap="1GiB").fits is None


def test_a_request_that_passes_when_repeated_does_not_matter(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    with pool.record(tmp_path / "run.arena"):
        first = pool.allocate(40 * MIB)
        with pytest.raises(OutOfMemoryError):
            pool.allocate(50 * MIB)
        first.free()
        pool.allocate(50 * MIB).free()
    trace = Trace.read(tmp_path / "run.arena")
    assert (trace.ended_by, trace.survived.count, trace.survived.retried) == (None, 1, 1)
    assert trace.survived.sentences() == ""
    done = trace.replay(cap="50MiB")
    assert (done.fits, done.events) == (True, len(trace))


def test_a_failed_request_that_the_program_survived_is_mentioned_and_not_replayed(
    make: MakeArena, tmp_path: Path
) -> None:
    pool = make(cap="64MiB")
    with pool.record(tmp_path / "run.arena"):
        for size in (80 * MIB, 90 * MIB):
            with pytest.raises(OutOfMemoryError):
                pool.allocate(size)
        pool.allocate(40 * MIB).free()
    trace = Trace.read(tmp_path / "run.arena")
    assert trace.ended_by is None
    assert [failure.requested for failure in trace.failures] == [80 * MIB, 90 * MIB]
    assert trace.survived == arena._trace.Survived(2, 0, trace.failures[1])
    done = trace.replay(cap="40MiB")
    assert (done.fits, done.survived.count, done.peak_live) == (True, 2, 40 * MIB)
    found = fit(trace)
    assert (found.smallest_cap, found.survived.largest) == (40 * MIB, trace.failures[1])
    assert "90 MiB" in found.survived.sentences()


def test_a_failure_at_the_end_is_survived_if_the_recorded_block_completed(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")

    def record(path: Path) -> arena.Recording:
        recording = pool.record(path)
        pool.allocate(40 * MIB).free()
        with pytest.raises(OutOfMemoryError):
            pool.allocate(80 * MIB)
        return recording

    with record(tmp_path / "ended.arena"):
        pass
    record(tmp_path / "stopped.arena").stop()  # who caught it, and why, is unknown
    ended, stopped = (Trace.read(tmp_path / f"{name}.arena") for name in ("ended", "stopped"))
    assert (ended.ended_by, ended.survived.count, ended.replay(cap="40MiB").fits) == (None, 1, True)
    assert stopped.ended_by is not None
    assert not stopped.ended_by.certain
    assert stopped.ended_by.sentences(2).startswith("The recorded run ended with a failed request: ")


def test_a_run_that_continued_in_other_threads_did_not_end_with_the_failure(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    recording = pool.record(tmp_path / "run.arena")
    with pytest.raises(OutOfMemoryError):
        pool.allocate(80 * MIB)
    thread = threading.Thread(target=lambda: pool.allocate(80 << 10).free())
    thread.start()
    thread.join()
    recording.stop()
    trace = Trace.read(tmp_path / "run.arena")
    assert (trace.ended_by, trace.survived.count, trace.survived.retried) == (None, 1, 0)

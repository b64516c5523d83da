"""Workspaces that are estimates make the verdict a range, and both ends are tried."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from arena._cards import context_range, find_card
from arena._dryrun.run import Outcome
from arena._dryrun.trials import settle
from arena._dryrun.workspaces import Estimate, estimates_in, library_names, spans

from .conftest import Runs
from .outcomes import out_of_memory, outcome, plan
from .program import GIB, MIB, dry, facts_of

T4 = find_card("t4")
CONTEXT = context_range(T4)

# Transforms so many rows of 1,009 complex numbers, a prime: the work area is 1 to 8 times the data, and likely 4 times.
TRANSFORM = """
import ctypes
import sys
import arena

try:
    cufft = ctypes.CDLL("libcufft.so.12")
except OSError:
    cufft = ctypes.CDLL("libcufft.so.11")
rows, pool = int(sys.argv[1]), arena.default_arena()
size = ctypes.c_size_t()
assert cufft.cufftEstimate1d(1009, 0x29, rows, ctypes.byref(size)) == 0
data = pool.allocate(8 * 1009 * rows)
area = pool.allocate(size.value)
area.free()
"""


def rows_for(size: int) -> int:
    """As many as make data of that size."""
    return size // (8 * 1009)


def test_what_a_program_needs_is_a_range_if_workspaces_are_estimates(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, TRANSFORM, rows_for(GIB), options=("--card", "t4", "--json")))
    low, high = facts["range"]
    assert facts["verdict"] == "fits"
    assert low - CONTEXT.low == pytest.approx(2 * GIB, abs=128 * MIB)  # the data, and as much again
    assert high - CONTEXT.high == pytest.approx(9 * GIB, abs=128 * MIB)
    (one,) = facts["workspaces"]
    assert (one["library"], one["high"], one["likely"]) == ("cuFFT", 8 * one["low"], 4 * one["low"])


def test_the_verdict_says_which_part_of_the_range_they_are(tmp_path: Path) -> None:
    done = dry(tmp_path, TRANSFORM, rows_for(GIB), options=("--card", "t4"))
    assert "arena: fits on t4: needs 2." in done.stderr
    assert "; workspaces of cuFFT, which are estimates, make " in done.stderr


def test_it_is_unsure_if_only_smaller_ones_fit(tmp_path: Path) -> None:
    done = dry(tmp_path, TRANSFORM, rows_for(2 * GIB), options=("--card", "t4"))
    assert done.returncode == 4
    assert "(385 MiB) and workspaces of cuFFT are the largest, it needs " in done.stderr
    assert "In this run it fits" in done.stderr


def test_it_is_unsure_if_only_the_smallest_fit(tmp_path: Path) -> None:
    done = dry(tmp_path, TRANSFORM, rows_for(4 * GIB), options=("--card", "t4"))
    assert "unsure whether it fits on t4: with the smallest workspaces that cuFFT may want it fits" in done.stderr
    once = facts_of(dry(tmp_path, TRANSFORM, rows_for(4 * GIB), options=("--card", "t4", "--no-second-run", "--json")))
    assert (once["verdict"], once["because"]) == ("unsure", "workspaces of cuFFT may be smaller")


def test_it_does_not_fit_if_not_even_the_smallest_do(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, TRANSFORM, rows_for(8 * GIB), options=("--card", "t4", "--json")))
    assert facts["verdict"] == "does not fit"


def test_a_size_that_is_set_leaves_nothing_open(tmp_path: Path) -> None:
    options = ("--card", "t4", "--json")
    facts = facts_of(dry(tmp_path, TRANSFORM, rows_for(GIB), options=options, CUDASIM_WORKSPACE_CUFFT="1GiB"))
    assert facts["workspaces"] == []
    assert facts["range"][1] - facts["range"][0] == CONTEXT.span


def with_estimate(found: Outcome, *, low: int = 0, likely: int = GIB, high: int = 2 * GIB) -> Outcome:
    return dataclasses.replace(found, workspaces=(Estimate("cuFFT", low, likely, high),))


def test_both_ends_are_tried_and_the_range_is_what_they_took(runs: Runs) -> None:
    plans = runs(with_estimate(outcome(peak=3 * GIB)), outcome(peak=2 * GIB), outcome(peak=5 * GIB))
    verdict = settle(plan())
    assert [one.workspaces for one in plans] == ["likely", "least", "most"]
    assert (verdict.word, verdict.low, verdict.high) == ("fits", 2 * GIB, 5 * GIB + CONTEXT.span)


def test_one_run_alone_counts_each_estimate_once(runs: Runs) -> None:
    runs(with_estimate(outcome(peak=3 * GIB)))
    verdict = settle(plan(), again=False)
    assert (verdict.word, verdict.low, verdict.high) == ("fits", 2 * GIB, 4 * GIB + CONTEXT.span)


def test_a_run_that_fails_with_the_most_makes_it_unsure_although_one_workspace_more_would_fit(runs: Runs) -> None:
    failed = outcome(peak=14 * GIB, exit_code=1, failure=out_of_memory())
    plans = runs(with_estimate(outcome(peak=3 * GIB)), outcome(peak=2 * GIB), failed, failed)
    verdict = settle(plan())
    assert (verdict.word, verdict.fits) == ("unsure", None)
    assert plans[-1].most_on_top
    assert plans[-1].workspaces == "most"


def test_an_allocator_that_makes_do_fits_with_the_most(runs: Runs) -> None:
    runs(
        with_estimate(outcome(peak=13 * GIB)),
        outcome(peak=12 * GIB),
        outcome(peak=int(14.6 * GIB)),
        outcome(peak=14 * GIB),
    )
    verdict = settle(plan())
    assert (verdict.word, verdict.high) == ("fits", T4.memory)


def test_of_each_library_the_least_certain_estimate_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("CUFFT 0 2097152 2097152\nCUDNN 0 0 4194304\nCUFFT 0 4194304 4194304\nCUSPARSE 0 10 20\n")
    found = estimates_in(log)
    assert found == (Estimate("cuFFT", 0, 4 * MIB, 4 * MIB), Estimate("cuDNN", 0, 0, 4 * MIB))
    assert spans(found) == (4 * MIB, 4 * MIB)
    assert library_names(found) == "cuFFT and cuDNN"
    assert estimates_in(tmp_path / "none") == ()

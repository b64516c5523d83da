"""Values of CuPy in dry runs: those of NumPy, for every area of what is computed, and none that costs memory."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from .dry_process import needs_cupy, run_dry
from .value_cases import AREAS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_cupy]

READ_VALUES = ("bincount", "choose", "nanmax", "putmask")  # CuPy checks or counts values for these


@functools.cache
def facts_of(what: str, values: str) -> dict[str, Any]:
    done = run_dry("-m", "tests.dryrun_cupy.value_worker", what, values=values)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no warning of NumPy's either
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Of small arrays all is computed by default, of large ones only with `--values all`.
@pytest.mark.parametrize(("what", "values", "cases"), [("small", "control", 20), ("big", "all", 2)])
@pytest.mark.parametrize("area", AREAS)
def test_values_are_those_of_numpy(area: str, what: str, values: str, cases: int) -> None:
    found = facts_of(what, values)[area]
    assert found["wrong"] == {}
    assert found["compared"] > cases * len(AREAS[area][0])


@pytest.mark.parametrize("area", [area for area in AREAS if area != "sizes"])
def test_results_hold_the_same_memory_whether_they_are_computed_or_not(area: str) -> None:
    computed, skipped = facts_of("held", "control")[area], facts_of("held", "none")[area]
    assert {
        case: (computed[case], held)
        for case, held in skipped.items()
        if computed[case] != held and not case.startswith(READ_VALUES)
    } == {}


@pytest.mark.parametrize("values", ["control", "all"])
def test_programs_find_values_where_they_should_be_and_zeros_elsewhere(values: str) -> None:
    done = run_dry("-W", "ignore::FutureWarning", "-m", "tests.dryrun_cupy.value_programs", values=values)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts["wrong"] == {}
    assert len(facts["run"]) > 15

"""Runs that end as a test says, for what follows from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from arena._dryrun import trials
from arena._dryrun.run import Outcome, Plan

Runs = Callable[..., list[Plan]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """Have runs end as given, in this order; returns the plans that they had."""
    left: list[Outcome] = []

    def script(*outcomes: Outcome) -> list[Plan]:
        plans: list[Plan] = []
        left.extend(outcomes)

        def run(made: Plan, **_: object) -> Outcome:
            plans.append(made)
            return dataclasses.replace(left.pop(0), plan=made)

        monkeypatch.setattr(trials, "run_dry", run)
        return plans

    yield script
    assert not left, "a run that was expected did not happen"

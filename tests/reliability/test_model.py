"""The arena against a model: random programs, of which every step is checked. See machine.py for what they do.

10,000 steps by default, the same in every run (the profile `ci`). `ARENA_STEPS=1000000 pytest tests/reliability/test_model.py`
takes so many, at random (the profile `long`), and prints how to repeat a failure. `make long` does that for about an hour.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import arena

from . import machine

EACH = 100  # steps of one program
SHARES = {machine.Stitched: 0.6, machine.Plain: 0.2, machine.FromUpstream: 0.2}
STEPS = os.environ.get("ARENA_STEPS")

common = settings(stateful_step_count=EACH, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
settings.register_profile("ci", common, max_examples=100, derandomize=True, database=None)
settings.register_profile("long", common, max_examples=int(STEPS or 0) // EACH or 1)


@pytest.mark.timeout(0 if STEPS else 180)
@pytest.mark.parametrize("kind", SHARES, ids=lambda kind: kind.__name__)
def test_random_programs_find_what_the_model_says(kind: type[machine.Steps], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    profile = settings.get_profile("long" if STEPS else "ci")
    kind.taken = 0
    run_state_machine_as_test(kind, settings=settings(profile, max_examples=int(profile.max_examples * SHARES[kind]) or 1))
    assert kind.taken >= 0.9 * EACH * int(profile.max_examples * SHARES[kind])

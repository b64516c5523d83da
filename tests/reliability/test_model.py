"""The arena against a model: random programs in which every step is checked. random_programs.py has the steps.

10,000 steps by default, the same programs in every run (the profile `ci`). `ARENA_STEPS=1000000` runs that many at
random (the profile `long`) and prints how to reproduce a failure. `make long` does that for about an hour.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import arena

from ..simulated.conftest import fresh
from . import random_programs

EACH = 100  # steps of one program
AT_ONCE = 500  # programs: Hypothesis keeps all that it has tried, half a megabyte each
SHARES = {random_programs.Stitched: 0.6, random_programs.Plain: 0.2, random_programs.FromUpstream: 0.2}
STEPS = os.environ.get("ARENA_STEPS")

common = settings(stateful_step_count=EACH, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
settings.register_profile("ci", common, max_examples=110, derandomize=True, database=None)
settings.register_profile("long", common, max_examples=max(10, int(STEPS or 0) // EACH))


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    yield
    # The exception keeps a machine that found something. Its arena would end later, and destroy the context of the test
    # that uses the driver then.
    gc.unfreeze()
    gc.collect()
    fresh()


def run(kind: type[random_programs.Steps], chosen: settings) -> None:
    random_programs.Steps.errors.clear()
    try:
        run_state_machine_as_test(kind, settings=chosen)
    except Exception as error:
        raise AssertionError("\n".join(random_programs.Steps.errors[:1]) or str(error)) from error


@pytest.mark.slow
@pytest.mark.timeout(0 if STEPS else 600)
@pytest.mark.parametrize("kind", SHARES, ids=lambda kind: kind.__name__)
def test_random_programs_match_the_model(kind: type[random_programs.Steps]) -> None:
    profile = settings.get_profile("long" if STEPS else "ci")
    programs = int(profile.max_examples * SHARES[kind])
    kind.taken = 0
    for done in range(0, programs, AT_ONCE):
        run(kind, settings(profile, max_examples=min(AT_ONCE, programs - done)))
    assert kind.taken >= 0.7 * EACH * programs  # a few are short


class TooSmall(random_programs.Stitched):
    """An arena that refuses what it should give."""

    says = "AssertionError: .* bytes: out of memory"

    def make(self, **settings: Any) -> arena.Arena:
        return super().make(**{**settings, "cap": settings["cap"] - 8 * self.granule})


class TooLarge(random_programs.Plain):
    """An arena that takes more than it may."""

    says = "sim.used|sim.peak"

    def make(self, **settings: Any) -> arena.Arena:
        return super().make(**{**settings, "cap": settings["cap"] + 8 * self.granule})


class Careless(random_programs.Stitched):
    """An arena that does not know which other streams use a block: it reuses it, or unmaps it under them."""

    says = "is not ordered after|CUDA_ERROR_ILLEGAL_ADDRESS|bytes are not all"

    def record_use(self, block: random_programs.Held, user: int) -> None:
        pass


class Forgetful(random_programs.Stitched):
    """An arena that loses the contents of a block."""

    says = "bytes are not all|is not ordered after"  # the race checker may be first

    def free_block(self, block: random_programs.Held, fault: random_programs.Fault | None) -> None:
        if block.nbytes and block.stream is not None:
            self.queue.fill(block.ptr + block.nbytes - 1, 1, 0, block.stream)
        super().free_block(block, fault)


@pytest.mark.findings("race", "removed")
@pytest.mark.parametrize("kind", [TooSmall, TooLarge, Careless, Forgetful], ids=lambda kind: kind.__name__)
def test_the_model_notices_a_faulty_arena(kind: Any) -> None:
    # Whether a race shows in a program depends on timing, so it stops at the first that does.
    quick = settings(settings.get_profile("ci"), max_examples=400, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=kind.says):
        run(kind, quick)

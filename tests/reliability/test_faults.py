"""Every driver call that an arena makes is made to fail, with every error that is documented for it.

Each of the first 50 calls of each function fails with each of its errors; with ``ARENA_FAULTS=all`` (``make faults``)
every call does. Then the failed step of the program is repeated and must pass. With one error for each call, the
program is run to its end.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator

import pytest

import arena
from arena import DriverError, OutOfMemoryError, UsageError, sim

from ..simulated.conftest import fresh
from .documented_errors import BESIDES, ERRORS
from .every_driver_call import CAP, OWN_CALLS, Machine, Program, handle

FIRST = sys.maxsize if os.environ.get("ARENA_FAULTS") == "all" else 50
TRIES = 5  # these queries depend on how long the device takes, so a call may not be repeated
TIMED = {"cuEventQuery"}  # above all this one
CAPTURED = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
KINDS = ["virtual", "plain"]


@pytest.fixture
def machine() -> Iterator[Machine]:
    gc.collect()
    gc.freeze()  # a failing request collects garbage, and pytest keeps many live objects
    with pytest.MonkeyPatch.context() as patch:
        made = Machine()
        driver = arena.Driver.open("sim")  # what is done only once is not counted
        patch.setattr(arena._core, "default_driver", lambda: driver)
        yield made
    gc.unfreeze()
    sim.reset(settings=True)


def check(program: Program) -> None:
    """The account adds up, matches the driver's own count, and is under the cap."""
    pool = program.arena
    if pool._core is None:
        return
    pool.validate()
    s = pool.stats()
    assert s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare
    assert s.reserved == sim.used()
    assert s.peak_reserved <= 3 * CAP * program.unit


def play(
    machine: Machine,
    kind: str,
    goes_on: Callable[[], bool] = lambda: True,
    before_end: Callable[[], None] = lambda: None,
) -> list[Exception]:
    """Run the program and return the refused calls. Afterwards everything is as before."""
    before = sim.census()
    program = Program(machine, vmm=kind == "virtual", before_end=before_end)
    program.run(check, goes_on)
    refused: list[Exception] = [*program.refused]
    del program
    assert sim.census() == before
    assert (sim.used(), sim.races()) == (0, [])
    assert machine.has_no_context()
    return refused


def count_calls(machine: Machine, kind: str, *, end: bool = True) -> dict[str, int]:
    """How often the arena calls each function when nothing fails; with `end`, including its own end."""
    sim.reset_counts()
    calls: dict[str, int] = {}
    assert play(machine, kind, before_end=lambda: calls.update(sim.call_table())) == []
    if end:
        calls = sim.call_table()
    return {name: calls[name] for name in calls if name not in OWN_CALLS and not name.startswith("cuGetErr")}


def test_the_program_makes_all_the_calls_that_are_made_to_fail_and_no_others(machine: Machine) -> None:
    called = {name for kind in KINDS for name in count_calls(machine, kind)}
    assert called == set(ERRORS)


def faults(machine: Machine, function: str, kind: str) -> Iterator[tuple[int, str, bool]]:
    """Which call fails, with which error, and whether the whole program follows (with the first error of each call)."""
    errors = [f"CUDA_ERROR_{name}" for name in f"{ERRORS[function]} {BESIDES.get(function, '')}".split()]
    for error in errors:
        # An arena that meets a capture at its end keeps its memory, which has a test of its own.
        calls = count_calls(machine, kind, end=error != CAPTURED).get(function, 0)
        yield from ((nth, error, error == errors[0]) for nth in range(1, min(calls, FIRST) + 1))


def play_until_it_fails(
    machine: Machine, kind: str, function: str, error: str, nth: int, to_its_end: bool
) -> list[Exception]:
    for _ in range(TRIES):
        sim.fail(function, error, nth=nth)
        refused = play(machine, kind, lambda: to_its_end or sim.planned() != [])
        if sim.planned() == []:
            return refused
        assert refused == []
        sim.clear_planned()
    assert function in TIMED, "that many calls are made when nothing fails"
    return []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:arena on device 0. the driver reserves")  # less, after it has refused more
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", ERRORS)
@pytest.mark.timeout(120 if FIRST == 50 else 0)
def test_a_failing_call_is_reported_or_recovered_and_nothing_is_lost(
    machine: Machine, function: str, kind: str
) -> None:
    for nth, error, to_its_end in faults(machine, function, kind):
        try:
            refused = play_until_it_fails(machine, kind, function, error, nth, to_its_end)
        except BaseException as problem:
            problem.args = (f"{function}, call {nth}, {error}: {problem}",)
            raise
        assert not machine.is_relaxed()
        assert len(refused) <= 1, (nth, error, refused)
        for said in refused:
            if isinstance(said, DriverError):
                assert (said.call, said.name) == (function, error)
            elif (
                "STREAM_CAPTURE" in error
            ):  # trim(compact=True) is refused, and so are requests, because graphs keep memory
                assert isinstance(said, (OutOfMemoryError, UsageError)), (nth, said)
                keeps = isinstance(said, OutOfMemoryError) and said.account["captured"] > 0
                assert "a stream is being captured" in str(said) or keeps, (nth, said)
            else:
                assert (type(said), error) == (OutOfMemoryError, "CUDA_ERROR_OUT_OF_MEMORY"), (nth, said)


def test_a_capture_survives_where_the_driver_cannot_report_it(machine: Machine) -> None:
    pool = arena.Arena(cap="8MiB")
    stream, graph = handle(machine.streams[1]), ctypes.c_void_p()
    machine(("cuStreamBeginCapture", stream, 0))
    sim.fail("cuThreadExchangeStreamCaptureMode", "CUDA_ERROR_UNKNOWN", times=2)
    with pytest.raises(DriverError, match="cuThreadExchangeStreamCaptureMode failed"):
        pool.allocate(1000)
    pool.allocate(1000).free()
    machine(("cuStreamEndCapture", stream, ctypes.byref(graph)), ("cuGraphDestroy", graph))  # or it would be refused
    pool.close()


def test_an_arena_that_ends_during_a_capture_leaves_its_memory_and_the_capture_alone(machine: Machine) -> None:
    pool = arena.Arena(cap="8MiB")
    stream, graph = handle(machine.streams[1]), ctypes.c_void_p()
    pool.allocate(1000, machine.streams[1]).free()  # an object: the arena can query it about captures
    used = sim.used()
    machine(("cuStreamBeginCapture", stream, 0))
    pool.close()
    del pool
    assert sim.used() == used > 0
    machine(("cuStreamEndCapture", stream, ctypes.byref(graph)), ("cuGraphDestroy", graph))


def test_a_primary_context_whose_release_fails_is_released_later() -> None:
    fresh()
    pool = arena.Arena(cap="8MiB", device="sim:1GiB")
    assert sim.census().contexts == 1
    sim.fail("cuDevicePrimaryCtxRelease", "CUDA_ERROR_UNKNOWN")
    pool.close()
    del pool
    assert sim.census().contexts == 0
    sim.reset(settings=True)

"""Every call of the driver that an arena makes is made to fail, with every error that it is documented to give.

Each of the first 50 calls of each function fails twice, by turns with each of its errors. With ``ARENA_FAULTS=all``
every call fails with every error; ``make faults`` does that.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator

import pytest

import arena
from arena import DriverError, OutOfMemoryError, sim

from ..simulated.conftest import fresh
from .busy import CAP, OWN_CALLS, Machine, Program

ALL = os.environ.get("ARENA_FAULTS") == "all"
FIRST = 50

# From memory of NVIDIA's documents, not compared with cuda.h; LAUNCH_FAILED where errors of work that was queued before
# may be returned. Left out are those that every function can give when the driver was never there, or is gone:
# NOT_INITIALIZED and DEINITIALIZED for most.
ERRORS = {
    "cuDeviceGetCount": "INVALID_VALUE DEINITIALIZED",
    "cuDeviceGet": "INVALID_VALUE INVALID_DEVICE INVALID_CONTEXT",
    "cuDeviceGetName": "INVALID_VALUE INVALID_DEVICE INVALID_CONTEXT",
    "cuDeviceGetAttribute": "INVALID_VALUE INVALID_DEVICE INVALID_CONTEXT",
    "cuDeviceTotalMem": "INVALID_VALUE INVALID_DEVICE INVALID_CONTEXT",
    "cuDevicePrimaryCtxRetain": "OUT_OF_MEMORY INVALID_DEVICE INVALID_VALUE INVALID_CONTEXT UNKNOWN",
    "cuDevicePrimaryCtxRelease": "INVALID_DEVICE INVALID_CONTEXT DEINITIALIZED",
    "cuCtxGetCurrent": "DEINITIALIZED NOT_INITIALIZED",
    "cuCtxPushCurrent": "INVALID_CONTEXT INVALID_VALUE",
    "cuCtxPopCurrent": "INVALID_CONTEXT DEINITIALIZED",
    "cuCtxSynchronize": "INVALID_CONTEXT LAUNCH_FAILED UNKNOWN",
    "cuMemGetInfo": "INVALID_CONTEXT INVALID_VALUE LAUNCH_FAILED",
    "cuMemAlloc": "OUT_OF_MEMORY INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuMemFree": "INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuMemAddressReserve": "OUT_OF_MEMORY INVALID_VALUE NOT_PERMITTED NOT_SUPPORTED",
    "cuMemAddressFree": "INVALID_VALUE NOT_PERMITTED NOT_SUPPORTED",
    "cuMemCreate": "OUT_OF_MEMORY INVALID_VALUE INVALID_DEVICE NOT_PERMITTED NOT_SUPPORTED",
    "cuMemRelease": "INVALID_VALUE NOT_PERMITTED NOT_SUPPORTED UNKNOWN",
    "cuMemMap": "OUT_OF_MEMORY INVALID_VALUE INVALID_DEVICE NOT_PERMITTED ILLEGAL_STATE",
    "cuMemUnmap": "INVALID_VALUE NOT_PERMITTED NOT_SUPPORTED UNKNOWN",
    "cuMemSetAccess": "OUT_OF_MEMORY INVALID_VALUE INVALID_DEVICE NOT_SUPPORTED",
    "cuMemGetAllocationGranularity": "INVALID_VALUE NOT_PERMITTED NOT_SUPPORTED",
    "cuMemcpyDtoH": "INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuMemcpyHtoD": "INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuStreamWaitEvent": "INVALID_HANDLE INVALID_CONTEXT LAUNCH_FAILED",
    "cuStreamIsCapturing": "INVALID_HANDLE STREAM_CAPTURE_IMPLICIT INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuThreadExchangeStreamCaptureMode": "INVALID_VALUE INVALID_CONTEXT",
    "cuEventCreate": "OUT_OF_MEMORY INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuEventDestroy": "INVALID_HANDLE INVALID_CONTEXT LAUNCH_FAILED",
    "cuEventRecord": "INVALID_HANDLE INVALID_VALUE INVALID_CONTEXT LAUNCH_FAILED",
    "cuEventQuery": "INVALID_HANDLE INVALID_VALUE LAUNCH_FAILED",
    "cuEventSynchronize": "INVALID_HANDLE INVALID_CONTEXT LAUNCH_FAILED",
}
CAPTURED = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
KINDS = ["virtual", "plain"]


@pytest.fixture
def machine() -> Iterator[Machine]:
    gc.collect()
    gc.freeze()  # a request that fails collects garbage, and all that pytest has is none
    with pytest.MonkeyPatch.context() as patch:
        made = Machine()
        driver = arena.Driver.open("sim")  # what is done once is not counted
        patch.setattr(arena._core, "default_driver", lambda: driver)
        yield made
    gc.unfreeze()
    sim.reset(settings=True)


def check(program: Program) -> None:
    """The account adds up, is the driver's own, and under the cap."""
    pool = program.arena
    if pool._core is None:
        return
    pool.validate()
    s = pool.stats()
    assert s.reserved == s.requested + s.rounding + s.pending + s.releasable + s.stranded + s.spare
    assert s.reserved == sim.used()
    assert s.peak_reserved <= 3 * CAP * program.unit


def play(machine: Machine, kind: str) -> list[Exception]:
    """Run the program; return what was refused. Everything is as before it then."""
    before = sim.census()
    program = Program(machine, vmm=kind == "virtual")
    program.run(check)
    refused: list[Exception] = [*program.refused]
    del program
    assert sim.census() == before
    assert (sim.used(), sim.races()) == (0, [])
    assert machine.has_no_context()
    return refused


def count_calls(machine: Machine, kind: str) -> dict[str, int]:
    """How often the arena calls each function when nothing fails."""
    sim.reset_counts()
    assert play(machine, kind) == []
    calls = sim.call_table()
    return {name: calls[name] for name in calls if name not in OWN_CALLS and not name.startswith("cuGetErr")}


def test_the_program_calls_all_that_is_made_to_fail_and_nothing_else(machine: Machine) -> None:
    called = {name for kind in KINDS for name in count_calls(machine, kind)}
    assert called == set(ERRORS)


def faults(function: str, calls: int) -> Iterator[tuple[int, str]]:
    errors = [f"CUDA_ERROR_{name}" for name in ERRORS[function].split()]
    if ALL:
        pairs = [(nth, error) for nth in range(1, calls + 1) for error in errors]
        # An arena that is told of a capture at its end leaves its memory as it is, as it should.
        yield from (pair for pair in pairs if pair[0] <= FIRST or pair[1] != CAPTURED)
    else:
        for nth in range(1, min(calls, FIRST) + 1):
            yield from {(nth, errors[nth % len(errors)]), (nth, errors[(nth + 1) % len(errors)])}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", ERRORS)
@pytest.mark.timeout(0 if ALL else 60)
def test_a_call_that_fails_is_told_or_made_good_and_nothing_is_lost(machine: Machine, function: str, kind: str) -> None:
    for nth, error in faults(function, count_calls(machine, kind).get(function, 0)):
        sim.fail(function, error, nth=nth)
        try:
            refused = play(machine, kind)
        except BaseException as problem:
            problem.args = (f"{function}, call {nth}, {error}: {problem}",)
            raise
        assert sim.planned() == []
        assert not machine.is_relaxed()
        assert len(refused) <= 1, (nth, error, refused)
        for said in refused:
            if isinstance(said, DriverError):
                assert (said.call, said.name) == (function, error)
            else:
                assert isinstance(said, OutOfMemoryError), (nth, error, said)
                if error != "CUDA_ERROR_OUT_OF_MEMORY":
                    assert (error, said.verdict) == (CAPTURED, "a stream is being captured"), nth


def test_a_capture_is_not_spoiled_where_the_driver_cannot_be_told_of_it(machine: Machine) -> None:
    pool = arena.Arena(cap="8MiB")
    stream, graph = machine.streams[1], ctypes.c_void_p()
    machine("cuStreamBeginCapture", stream, 0)
    sim.fail("cuThreadExchangeStreamCaptureMode", "CUDA_ERROR_UNKNOWN", times=2)
    with pytest.raises(DriverError, match="cuThreadExchangeStreamCaptureMode failed"):
        pool.allocate(1000)
    pool.allocate(1000).free()
    machine("cuStreamEndCapture", stream, ctypes.byref(graph))  # or it would be refused
    machine("cuGraphDestroy", graph)
    pool.close()


def test_a_primary_context_that_is_not_released_at_once_is_released_after_all() -> None:
    fresh()
    pool = arena.Arena(cap="8MiB", device="sim:1GiB")
    assert sim.census().contexts == 1
    sim.fail("cuDevicePrimaryCtxRelease", "CUDA_ERROR_UNKNOWN")
    pool.close()
    del pool
    assert sim.census().contexts == 0
    sim.reset(settings=True)

"""Findings: uses of handles that are undefined on hardware, and the reuse of handles."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

import pytest

from arena import sim

from ..findings import expect
from ..programs import run
from .cu import INVALID_VALUE, MIB, NOT_READY, SUCCESS, Cu, Location, PoolProps
from .test_capture import begin, end
from .test_streams import SLOW

INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"


def graph(cu: Cu) -> int:
    stream, address = cu.stream(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", address, 1, 512, stream)
    return end(cu, stream)[1]


def stream_id(cu: Cu, stream: int) -> int:
    number = ctypes.c_uint64()
    cu.ok("cuStreamGetId", stream, ctypes.byref(number))
    return number.value


STREAM_CALLS = {
    "cuStreamQuery": lambda cu, s: cu.cuStreamQuery(s),
    "cuStreamSynchronize": lambda cu, s: cu.cuStreamSynchronize(s),
    "cuStreamDestroy": lambda cu, s: cu.cuStreamDestroy(s),
    "cuStreamGetId": lambda cu, s: cu.cuStreamGetId(s, ctypes.byref(ctypes.c_uint64())),
    "cuStreamGetCtx": lambda cu, s: cu.cuStreamGetCtx(s, ctypes.byref(ctypes.c_uint64()), None),
    "cuStreamGetFlags": lambda cu, s: cu.cuStreamGetFlags(s, ctypes.byref(ctypes.c_uint())),
    "cuStreamIsCapturing": lambda cu, s: cu.cuStreamIsCapturing(s, ctypes.byref(ctypes.c_uint())),
    "cuStreamBeginCapture": lambda cu, s: cu.cuStreamBeginCapture(s, 0),
    "cuStreamWaitEvent": lambda cu, s: cu.cuStreamWaitEvent(s, cu.event(), 0),
    "cuEventRecord": lambda cu, s: cu.cuEventRecord(cu.event(), s),
    "cuMemsetD8Async": lambda cu, s: cu.cuMemsetD8Async(cu.alloc(512), 1, 1, s),
    "cuMemAllocAsync": lambda cu, s: cu.cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), 512, s),
}


@pytest.mark.parametrize("call", STREAM_CALLS)
def test_using_a_destroyed_stream_is_a_finding(cu: Cu, call: str) -> None:
    stream = cu.stream()
    cu.ok("cuStreamDestroy", stream)
    assert STREAM_CALLS[call](cu, stream) == INVALID_HANDLE
    [found] = expect("dead stream")
    assert (found.call, found.handle, found.destroyed_by) == (call, stream, "cuStreamDestroy")
    assert found.race is None


EVENT_CALLS = {
    "cuEventQuery": lambda cu, e: cu.cuEventQuery(e),
    "cuEventSynchronize": lambda cu, e: cu.cuEventSynchronize(e),
    "cuEventRecord": lambda cu, e: cu.cuEventRecord(e, 0),
    "cuEventDestroy": lambda cu, e: cu.cuEventDestroy(e),
    "cuEventElapsedTime": lambda cu, e: cu.cuEventElapsedTime(ctypes.byref(ctypes.c_float()), e, e),
    "cuStreamWaitEvent": lambda cu, e: cu.cuStreamWaitEvent(0, e, 0),
    "cuCtxRecordEvent": lambda cu, e: cu.cuCtxRecordEvent(cu.out("cuCtxGetCurrent"), e),
    "cuCtxWaitEvent": lambda cu, e: cu.cuCtxWaitEvent(cu.out("cuCtxGetCurrent"), e),
}


@pytest.mark.parametrize("call", EVENT_CALLS)
def test_using_a_destroyed_event_is_a_finding(cu: Cu, call: str) -> None:
    event = cu.event()
    cu.ok("cuEventDestroy", event)
    assert EVENT_CALLS[call](cu, event) == INVALID_HANDLE
    [found] = expect("dead event")
    assert (found.call, found.handle, found.destroyed_by) == (call, event, "cuEventDestroy")


def test_using_a_destroyed_graph_is_a_finding(cu: Cu) -> None:
    made = graph(cu)
    launched = cu.out("cuGraphInstantiateWithFlags", made, 0)
    cu.ok("cuGraphDestroy", made)
    assert cu.cuGraphInstantiateWithFlags(ctypes.byref(ctypes.c_uint64()), made, 0) == INVALID_VALUE
    assert cu.cuGraphDestroy(made) == INVALID_VALUE
    cu.ok("cuGraphExecDestroy", launched)
    assert cu.cuGraphLaunch(launched, 0) == cu.cuGraphExecDestroy(launched) == INVALID_VALUE
    found = expect("dead graph", "dead graph", "dead graph exec", "dead graph exec")
    assert [f.handle for f in found] == [made, made, launched, launched]


def test_a_graph_that_is_still_being_captured_is_refused_without_a_finding(cu: Cu) -> None:
    stream, status, number, captured = cu.stream(), ctypes.c_uint(), ctypes.c_uint64(), ctypes.c_uint64()
    begin(cu, stream)
    cu.ok("cuStreamGetCaptureInfo", stream, *map(ctypes.byref, (status, number, captured)), None, None)
    assert cu.cuGraphInstantiateWithFlags(ctypes.byref(ctypes.c_uint64()), captured.value, 0) == INVALID_VALUE
    assert end(cu, stream) == (SUCCESS, captured.value)


def test_using_a_destroyed_pool_is_a_finding_while_its_memory_lives_and_after(cu: Cu) -> None:
    pool = cu.out("cuMemPoolCreate", ctypes.byref(PoolProps(1, 0, Location(1, 0), None, 0)))
    address = cu.out("cuMemAllocFromPoolAsync", 512, pool, 0)
    cu.ok("cuMemPoolDestroy", pool)
    assert cu.cuMemPoolTrimTo(pool, 0) == INVALID_VALUE
    cu.ok("cuMemFreeAsync", address, 0)
    cu.ok("cuStreamSynchronize", 0)
    assert cu.cuMemPoolTrimTo(pool, 0) == INVALID_VALUE
    assert {found.destroyed_by for found in expect("dead pool", "dead pool")} == {"cuMemPoolDestroy"}


def test_objects_of_a_destroyed_context_are_dead(cu: Cu) -> None:
    first = cu.out("cuCtxGetCurrent")
    context = cu.out("cuCtxCreate", 0, 0)
    stream, event = cu.stream(), cu.event()
    cu.ok("cuCtxDestroy", context)
    assert cu.out("cuCtxGetCurrent") == first
    assert cu.cuStreamQuery(stream) == cu.cuEventQuery(event) == INVALID_HANDLE
    assert cu.cuCtxSynchronize_v2(context) == "CUDA_ERROR_INVALID_CONTEXT"
    found = expect("dead stream", "dead event", "dead context")
    assert {f.destroyed_by for f in found} == {"cuCtxDestroy"}


def test_a_handle_that_never_existed_is_a_finding_and_null_is_not(cu: Cu) -> None:
    assert cu.cuStreamQuery(0xDEAD) == cu.cuEventQuery(0xDEAD) == INVALID_HANDLE
    found = expect("unknown handle", "unknown handle")
    assert [f.call for f in found] == ["cuStreamQuery", "cuEventQuery"]
    assert "uses stream 0xdead, which never existed" in found[0].text
    assert cu.cuEventQuery(0) == INVALID_HANDLE
    assert [cu.cuStreamDestroy(number) for number in (0, 1, 2)] == [INVALID_HANDLE] * 3
    assert sim.finding_count() == 0


def test_a_finding_says_who_destroyed_the_object_and_how_long_ago(cu: Cu) -> None:
    stream = cu.stream()
    threads: list[int] = []

    def destroy() -> None:
        threads.append(threading.get_native_id())
        assert cu.lib.cuStreamDestroy_v2(ctypes.c_uint64(stream)) == 0

    thread = threading.Thread(target=destroy)
    thread.start()
    thread.join()
    cu.lib.cuStreamQuery(ctypes.c_uint64(0))
    cu.lib.cuStreamQuery(ctypes.c_uint64(stream))
    [found] = expect("dead stream")
    me = threading.get_native_id()
    assert (found.number - found.destroyed_number, found.destroyed_thread, found.thread) == (2, threads[0], me)
    assert str(found) == (
        f"dead stream: cuStreamQuery (call {found.number}, thread {me}) uses stream {stream:#x}, which cuStreamDestroy "
        f"destroyed 2 calls earlier (call {found.destroyed_number}, thread {threads[0]})"
    )


def test_races_are_findings_too_in_the_order_in_which_they_happened(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(512)
    mapped, _ = cu.mapped()
    cu.ok("cuMemsetD8Async", address, 1, 512, one)
    cu.ok("cuMemsetD8Async", address, 1, 512, two)
    cu.cuEventQuery(0xDEAD)
    cu.ok("cuMemsetD8Async", mapped, 1, 512, one)
    cu.ok("cuMemUnmap", mapped, 2 * MIB)
    found = sim.findings()
    assert [f.kind for f in found] == ["race", "unknown handle", "removed"]
    assert [f.race for f in found if f.race] == sim.races()
    assert (found[0].call, found[0].handle, found[2].call) == ("cuMemsetD8Async", two, "cuMemUnmap")
    assert str(found[0]) == str(found[0].race)
    sim.clear_races()
    assert [f.kind for f in sim.findings()] == ["unknown handle"]
    sim.clear_findings()
    assert (sim.finding_count(), sim.findings()) == (0, [])


def test_findings_can_be_read_while_the_race_checker_is_off(cu: Cu) -> None:
    sim.configure(races=False)
    assert (sim.finding_count(), sim.findings()) == (0, [])


def test_the_first_thousand_findings_are_kept_and_all_are_counted(cu: Cu) -> None:
    for _ in range(1100):
        cu.lib.cuEventQuery(ctypes.c_uint64(0xDEAD))
    assert (sim.finding_count(), len(sim.findings())) == (1100, 1000)
    sim.clear_findings()


def test_a_reset_forgets_findings(cu: Cu) -> None:
    cu.cuEventQuery(0xDEAD)
    sim.reset()
    assert sim.findings() == []


USES_A_DEAD_STREAM = """
from tests.simulated.cu import Cu
cu = Cu()
cu.start()
stream = cu.stream()
cu.ok("cuStreamDestroy", stream)
print(cu.cuStreamQuery(stream), flush=True)
"""


@pytest.mark.parametrize("dead", ["report", "print", "abort"])
def test_a_dead_handle_is_reported_printed_or_ends_the_process(dead: str) -> None:
    done = run(USES_A_DEAD_STREAM, CUDASIM_DEAD=dead)
    assert done.returncode == (-signal.SIGABRT if dead == "abort" else 0)
    assert done.stdout == ("" if dead == "abort" else INVALID_HANDLE + "\n")
    text = "which cuStreamDestroy destroyed 1 call earlier"
    assert (text in done.stderr) == (dead != "report")
    assert done.stderr.startswith("" if dead == "report" else "cudasim: dead stream: cuStreamQuery (call ")


def test_the_next_stream_gets_the_handle_of_the_last_one_destroyed(cu: Cu) -> None:
    streams = [cu.stream() for _ in range(3)]
    ids = [stream_id(cu, stream) for stream in streams]
    for stream in streams:
        cu.ok("cuStreamDestroy", stream)
    again = [cu.stream() for _ in range(4)]
    assert again[:3] == streams[::-1]
    assert again[3] not in streams
    assert len({*ids, *(stream_id(cu, stream) for stream in again)}) == 7  # ids are never reused


def test_events_graphs_and_pools_get_old_handles_too(cu: Cu) -> None:
    event = cu.event()
    cu.ok("cuEventDestroy", event)
    assert cu.event() == event
    made = graph(cu)
    launched = cu.out("cuGraphInstantiateWithFlags", made, 0)
    cu.ok("cuGraphExecDestroy", launched)
    assert cu.out("cuGraphInstantiateWithFlags", made, 0) == launched
    cu.ok("cuGraphDestroy", made)
    assert graph(cu) == made
    props = PoolProps(1, 0, Location(1, 0), None, 0)
    pool = cu.out("cuMemPoolCreate", ctypes.byref(props))
    cu.ok("cuMemPoolDestroy", pool)
    assert cu.out("cuMemPoolCreate", ctypes.byref(props)) == pool


def test_a_stale_handle_whose_number_was_reused_means_the_new_object(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 512, stream)
    cu.ok("cuStreamDestroy", stream)
    assert cu.stream() == stream  # while the old stream's work is still queued
    assert cu.cuStreamQuery(stream) == SUCCESS  # of the new stream, which has none
    assert cu.read(address, 1) == b"\0"
    cu.ok("cuCtxSynchronize_v2", 0)  # includes the old one
    assert cu.read(address, 1) == b"\x01"
    expect("race")  # the first query did not wait for the old stream


def test_two_streams_with_the_same_number_race_as_two(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    old = stream_id(cu, stream)
    cu.ok("cuMemsetD8Async", address, 1, 512, stream)
    cu.ok("cuStreamDestroy", stream)
    assert cu.stream() == stream
    cu.ok("cuMemsetD8Async", address, 2, 512, stream)
    [found] = expect("race")
    assert found.race is not None
    assert (found.race.first.stream_id, found.race.second.stream_id) == (old, stream_id(cu, stream))
    assert f"stream {stream:#x} with id {old})" in found.text


def test_an_ending_context_spares_a_stream_that_reuses_the_number_of_one_of_its_own(cu: Cu) -> None:
    first = cu.out("cuCtxGetCurrent")
    context = cu.out("cuCtxCreate", 0, 0)
    stream, address = cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=1000):
        cu.ok("cuMemsetD8Async", address, 1, 512, stream)
    cu.ok("cuStreamDestroy", stream)
    cu.ok("cuCtxSetCurrent", first)
    assert cu.stream() == stream
    cu.ok("cuCtxDestroy", context)
    assert cu.cuStreamQuery(stream) == SUCCESS


def test_without_reuse_no_number_comes_back(cu: Cu) -> None:
    sim.configure(reuse=False)
    stream = cu.stream()
    cu.ok("cuStreamDestroy", stream)
    assert cu.stream() != stream
    assert cu.cuStreamQuery(stream) == INVALID_HANDLE
    expect("dead stream")


def test_handles_from_before_a_reset_are_refused_without_a_finding(cu: Cu) -> None:
    context, stream, event = cu.out("cuCtxGetCurrent"), cu.stream(), cu.event()
    sim.reset()
    cu.start()
    assert cu.cuCtxPushCurrent(context) == cu.cuCtxSynchronize_v2(context) == "CUDA_ERROR_INVALID_CONTEXT"
    assert cu.cuStreamQuery(stream) == cu.cuEventDestroy(event) == INVALID_HANDLE


def test_numbers_from_before_a_reset_are_not_reused(cu: Cu) -> None:
    stream = cu.stream()
    cu.ok("cuStreamDestroy", stream)
    sim.reset()
    cu.start()
    assert cu.stream() > stream


def thread_names() -> list[str]:
    return [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]


def test_worker_threads_are_named(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 512, stream)
        named = False
        while cu.cuStreamQuery(stream) == NOT_READY:  # the thread may not have started yet
            named = named or "cudasim" in thread_names()
    assert named

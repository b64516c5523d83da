"""Stream capture and graphs: what is recorded, what is refused, what invalidates a capture."""

from __future__ import annotations

import ctypes
import threading

import pytest

from arena import sim

from ..findings import expect
from .cu import ILLEGAL_ADDRESS, LEGACY, MIB, NOT_READY, PER_THREAD, SUCCESS, Cu
from .test_streams import SLOW

CAPTURE_UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
CAPTURE_INVALIDATED = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
GLOBAL_MODE, THREAD_LOCAL_MODE, RELAXED_MODE = 0, 1, 2


def begin(cu: Cu, stream: int, mode: int = GLOBAL_MODE) -> None:
    cu.ok("cuStreamBeginCapture", stream, mode)


def end(cu: Cu, stream: int) -> tuple[str, int]:
    graph = ctypes.c_uint64()
    return cu.cuStreamEndCapture(stream, ctypes.byref(graph)), graph.value


def test_captured_work_runs_when_its_graph_is_launched(cu: Cu) -> None:
    stream, side, fork, join, address = cu.stream(), cu.stream(), cu.event(), cu.event(), cu.alloc(4096)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", address, 7, 64, stream)
    cu.ok("cuEventRecord", fork, stream)
    cu.ok("cuStreamWaitEvent", side, fork, 0)
    cu.ok("cuMemcpyDtoDAsync", address + 1024, address, 64, side)
    cu.ok("cuEventRecord", join, side)
    cu.ok("cuStreamWaitEvent", stream, join, 0)
    status = ctypes.c_uint()
    cu.ok("cuStreamIsCapturing", side, ctypes.byref(status))
    assert status.value == 1
    result, graph = end(cu, stream)
    assert result == SUCCESS
    assert cu.read(address, 64) == bytes(64)  # nothing has run yet
    launched = cu.out("cuGraphInstantiateWithFlags", graph, 0)
    cu.ok("cuGraphLaunch", launched, stream)
    cu.ok("cuStreamSynchronize", stream)
    assert cu.read(address + 1024, 64) == b"\x07" * 64
    cu.ok("cuGraphExecDestroy", launched)
    cu.ok("cuGraphDestroy", graph)


@pytest.mark.parametrize(
    "call",
    [
        lambda cu, stream: cu.cuStreamSynchronize(stream),
        lambda cu, stream: cu.cuStreamQuery(stream),
        lambda cu, stream: cu.cuCtxSynchronize_v2(0),
        lambda cu, stream: cu.cuEventQuery(cu.event()),
        lambda cu, stream: cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512),
        lambda cu, stream: cu.cuMemcpyHtoD(cu.reserve(2 * MIB), b"x", 1),
    ],
    ids=["stream synchronize", "stream query", "context synchronize", "event query", "allocate", "copy"],
)
def test_waiting_and_querying_are_refused_while_a_stream_is_captured(cu: Cu, call: object) -> None:
    stream = cu.stream()
    begin(cu, stream)
    assert call(cu, stream) == CAPTURE_UNSUPPORTED  # type: ignore[operator]
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


@pytest.mark.parametrize("call", ["cuMemPoolGetAttribute", "cuMemPoolSetAttribute"])
def test_a_pools_attributes_are_not_looked_at_while_a_stream_is_captured(cu: Cu, call: str) -> None:
    release_threshold, value = 4, ctypes.c_uint64()
    stream, pool = cu.stream(), cu.out("cuDeviceGetDefaultMemPool", 0)
    begin(cu, stream)
    assert getattr(cu, call)(pool, release_threshold, ctypes.byref(value)) == CAPTURE_UNSUPPORTED
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


def test_memory_is_created_and_mapped_while_a_stream_is_captured(cu: Cu) -> None:
    """PyTorch's expandable segments grow during captures, in global mode, as its own tests do on GPUs."""
    stream, address = cu.stream(), cu.reserve(2 * MIB)
    begin(cu, stream)
    cu.ok("cuMemMap", address, 2 * MIB, 0, cu.create(), 0)
    assert cu.allow(address) == SUCCESS
    cu.reserve(2 * MIB)
    cu.ok("cuMemsetD8Async", address, 1, 512, stream)
    assert end(cu, stream)[0] == SUCCESS


def test_unmapping_is_refused_while_a_stream_is_captured(cu: Cu) -> None:
    stream = cu.stream()
    mapped, _ = cu.mapped()
    begin(cu, stream)
    assert cu.cuMemUnmap(mapped, 2 * MIB) == CAPTURE_UNSUPPORTED
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


def test_a_thread_in_relaxed_mode_may_unmap_and_allocate_while_a_stream_is_captured(cu: Cu) -> None:
    stream, mode = cu.stream(), ctypes.c_uint(RELAXED_MODE)
    mapped, _ = cu.mapped()
    begin(cu, stream)
    cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == GLOBAL_MODE
    cu.ok("cuMemUnmap", mapped, 2 * MIB)
    cu.alloc(512)
    cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert end(cu, stream)[0] == SUCCESS


@pytest.mark.parametrize("call", ["cuEventQuery", "cuEventSynchronize"])
def test_querying_a_captured_event_is_refused_and_invalidates_the_capture(cu: Cu, call: str) -> None:
    stream, event, ask = cu.stream(), cu.event(), getattr(cu, call)
    begin(cu, stream, RELAXED_MODE)
    cu.ok("cuEventRecord", event, stream)
    assert ask(event) == "CUDA_ERROR_CAPTURED_EVENT"
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED
    begin(cu, stream, RELAXED_MODE)
    assert ask(event) == "CUDA_ERROR_CAPTURED_EVENT"  # its capture is over, so it harms no other
    assert end(cu, stream)[0] == SUCCESS


def test_the_legacy_stream_is_not_captured_and_does_not_wait_for_a_captured_stream(cu: Cu) -> None:
    stream, address = cu.stream(non_blocking=False), cu.alloc(512)
    assert cu.cuStreamBeginCapture(LEGACY, 0) == CAPTURE_UNSUPPORTED
    begin(cu, stream, RELAXED_MODE)
    assert cu.cuMemsetD8Async(address, 1, 1, LEGACY) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


def test_the_legacy_stream_knows_of_captures_that_it_would_wait_for(cu: Cu) -> None:
    status = ctypes.c_uint()
    for stream in (cu.stream(non_blocking=False), PER_THREAD):
        begin(cu, stream)
        assert cu.cuStreamIsCapturing(LEGACY, ctypes.byref(status)) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        info = cu.cuStreamGetCaptureInfo(LEGACY, ctypes.byref(status), None, None, None, None)
        assert info == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        assert end(cu, stream)[0] == SUCCESS  # querying invalidates nothing
    other = cu.stream()
    begin(cu, other)
    assert (cu.cuStreamIsCapturing(LEGACY, ctypes.byref(status)), status.value) == (SUCCESS, 0)
    assert end(cu, other)[0] == SUCCESS


@pytest.mark.parametrize("of_the_capture", [True, False])
def test_a_streams_properties_may_be_queried_while_one_is_captured(cu: Cu, of_the_capture: bool) -> None:
    stream, other, answer = cu.stream(), cu.stream(), ctypes.c_uint64()
    begin(cu, stream)
    for call in ("cuStreamGetId", "cuStreamGetFlags", "cuStreamGetPriority", "cuStreamGetDevice"):
        cu.ok(call, stream if of_the_capture else other, ctypes.byref(answer))
    cu.ok("cuStreamGetCtx", stream if of_the_capture else other, ctypes.byref(answer), None)
    assert end(cu, stream)[0] == SUCCESS


def test_a_stream_forked_into_a_capture_must_be_joined(cu: Cu) -> None:
    stream, side, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    cu.ok("cuStreamWaitEvent", side, event, 0)
    cu.ok("cuMemsetD8Async", address, 1, 1, side)
    assert end(cu, stream)[0] == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
    assert cu.cuStreamSynchronize(stream) == SUCCESS  # the capture is over


@pytest.mark.parametrize("joined", [True, False])
def test_a_stream_may_leave_a_capture_when_it_was_joined(cu: Cu, joined: bool) -> None:
    """cuda.core destroys the stream of a branch as soon as the branch is joined."""
    stream, side, fork, join, address = cu.stream(), cu.stream(), cu.event(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuEventRecord", fork, stream)
    cu.ok("cuStreamWaitEvent", side, fork, 0)
    cu.ok("cuMemsetD8Async", address, 7, 64, side)
    cu.ok("cuEventRecord", join, side)
    if joined:
        cu.ok("cuStreamWaitEvent", stream, join, 0)
    cu.ok("cuStreamDestroy", side)
    result, graph = end(cu, stream)
    assert result == (SUCCESS if joined else CAPTURE_INVALIDATED)
    if joined:
        launched = cu.out("cuGraphInstantiateWithFlags", graph, 0)
        cu.ok("cuGraphLaunch", launched, stream)
        cu.ok("cuStreamSynchronize", stream)
        assert cu.read(address, 64) == b"\x07" * 64


def test_captured_work_may_not_depend_on_work_outside(cu: Cu) -> None:
    stream, other, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    cu.ok("cuMemsetD8Async", address, 1, 1, other)
    cu.ok("cuEventRecord", event, other)
    begin(cu, stream)
    assert cu.cuStreamWaitEvent(stream, event, 0) == "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"


def test_a_capture_is_ended_where_it_began(cu: Cu) -> None:
    stream, side, event = cu.stream(), cu.stream(), cu.event()
    assert end(cu, stream)[0] == "CUDA_ERROR_ILLEGAL_STATE"
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    cu.ok("cuStreamWaitEvent", side, event, 0)
    assert end(cu, side)[0] == "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
    begin(cu, third := cu.stream(), THREAD_LOCAL_MODE)
    results: list[str] = []
    context = cu.out("cuCtxGetCurrent")

    def elsewhere() -> None:
        cu.ok("cuCtxSetCurrent", context)
        results.append(end(cu, third)[0])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert results == ["CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"]


@pytest.mark.parametrize("what", ["stream", "context"])
def test_a_capture_ends_with_its_stream_or_context(cu: Cu, what: str) -> None:
    context = cu.out("cuCtxCreate", 0, 0)
    stream = cu.stream()
    begin(cu, stream)
    if what == "stream":
        cu.ok("cuStreamDestroy", stream)
    cu.ok("cuCtxDestroy", context)
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == SUCCESS


def test_an_event_of_a_finished_capture_does_not_draw_other_streams_in(cu: Cu) -> None:
    stream, other, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    assert end(cu, stream)[0] == SUCCESS
    assert cu.cuStreamWaitEvent(other, event, 0) == "CUDA_ERROR_CAPTURED_EVENT"
    cu.ok("cuMemsetD8Async", address, 1, 1, other)
    assert cu.cuStreamSynchronize(other) == SUCCESS


def test_a_synchronous_call_is_refused_in_a_captured_stream(cu: Cu) -> None:
    address = cu.alloc(512)
    begin(cu, PER_THREAD, RELAXED_MODE)
    found = ctypes.c_void_p()
    cu.lib.cuGetProcAddress_v2(b"cuMemsetD8", ctypes.byref(found), 13000, ctypes.c_uint64(2), None)
    assert found.value is not None
    fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t)(found.value)
    assert cu.name(fill(address, 1, 512)) == CAPTURE_UNSUPPORTED
    assert end(cu, PER_THREAD)[0] == CAPTURE_INVALIDATED


def test_two_launches_of_one_graph_run_one_after_the_other(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(512)
    begin(cu, one)
    cu.ok("cuMemsetD8Async", address, 1, 512, one)
    graph = cu.out("cuGraphInstantiateWithFlags", end(cu, one)[1], 0)
    cu.ok("cuGraphLaunch", graph, one)
    cu.ok("cuGraphLaunch", graph, two)
    cu.ok("cuCtxSynchronize_v2", 0)
    assert sim.races() == []


def test_a_graph_whose_memory_is_gone_is_launched_and_faults_when_it_runs(cu: Cu) -> None:
    stream, first, second = cu.stream(), cu.alloc(512), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", first, 1, 512, stream)
    cu.ok("cuMemsetD8Async", second, 1, 512, stream)
    graph = cu.out("cuGraphInstantiateWithFlags", end(cu, stream)[1], 0)
    cu.ok("cuMemFree", second)
    with sim.temporarily(delay=SLOW):
        assert cu.cuGraphLaunch(graph, stream) == SUCCESS
        assert cu.cuStreamQuery(stream) == NOT_READY
        [found] = expect("graph memory gone")
        assert (found.call, found.handle) == ("cuGraphLaunch", graph)
        assert f"cuMemsetD8Async in it touches [{second:#x}, {second + 512:#x})" in found.text
        assert cu.cuStreamSynchronize(stream) == ILLEGAL_ADDRESS
    assert cu.cuStreamQuery(stream) == ILLEGAL_ADDRESS  # permanently

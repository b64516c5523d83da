"""Captured graphs: their memory is there at every launch, and what is allowed during a capture."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import pytest

from ..simulated.cu import READ_WRITE, SUCCESS, Access, Location
from .conftest import KINDS, MIB, Gpu, check

GLOBAL, RELAXED = 0, 2
NONE, ACTIVE = 0, 1
LEGACY = 1
IMPLICIT = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
SIZE = 3 * MIB


class Graph:
    """Captures what a stream does in a ``with`` block, to be launched later."""

    def __init__(self, gpu: Gpu, stream: int) -> None:
        self.gpu, self.stream, self._launchable = gpu, stream, 0

    @contextlib.contextmanager
    def captured(self, mode: int = GLOBAL) -> Iterator[None]:
        cu, graph = self.gpu.cu, ctypes.c_uint64()
        cu.ok("cuStreamBeginCapture", self.stream, mode)
        try:
            yield
        finally:
            ended = cu.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        assert ended == SUCCESS
        self._launchable = cu.out("cuGraphInstantiateWithFlags", graph.value, 0)
        cu.ok("cuGraphDestroy", graph.value)

    def launch(self) -> None:
        self.gpu.cu.ok("cuGraphLaunch", self._launchable, self.stream)

    def destroy(self) -> None:
        self.gpu.cu.ok("cuStreamSynchronize", self.stream)
        self.gpu.cu.ok("cuGraphExecDestroy", self._launchable)


def capture_of(gpu: Gpu, stream: int) -> tuple[int, int]:
    """The status and id of a stream's capture. The other parameters may be null, and older drivers lack them."""
    status, id_ = ctypes.c_int(), ctypes.c_uint64()
    gpu.cu.ok("cuStreamGetCaptureInfo", stream, ctypes.byref(status), ctypes.byref(id_), None, None, None)
    return status.value, id_.value


@KINDS
@pytest.mark.parametrize("named", [True, False], ids=["graph()", "no graph()"])
def test_a_graph_replays_after_its_memory_was_freed(gpu: Gpu, vmm: bool, named: bool) -> None:
    pool = gpu.arena(cap="128MiB", growth="4MiB", vmm=vmm, compact=True)
    stream, other = gpu.stream(), gpu.stream()
    source, result = (pool.allocate(SIZE, stream) for _ in range(2))
    holes = [pool.allocate(SIZE, other) for _ in range(6)]
    graph = Graph(gpu, stream)
    with pool.graph() if named else contextlib.nullcontext() as memory, graph.captured():
        before = source
        for _ in range(3):
            temporary = pool.allocate(SIZE, stream)
            gpu.cu.ok("cuMemcpyDtoDAsync", temporary.ptr, before.ptr, SIZE, stream)
            before = temporary  # which frees the one before
        gpu.cu.ok("cuMemcpyDtoDAsync", result.ptr, before.ptr, SIZE, stream)
        del temporary, before
    del holes[::2]
    pool.allocate(512, stream).free()  # the arena sees that the capture of this stream, given as a number, is over
    others = [pool.allocate(SIZE, other) for _ in range(10)]
    for value, buffer in enumerate(others, 100):
        gpu.fill(buffer.ptr, value, buffer.nbytes, other)
    del others[::3]
    pool.trim(compact=True)
    for value in range(1, 11):
        gpu.fill(source.ptr, value, SIZE, stream)
        graph.launch()
        assert gpu.holds(result.ptr, value, SIZE, stream)
    values = [value for value in range(100, 110) if (value - 100) % 3]
    assert all(gpu.holds(buffer.ptr, value, SIZE, other) for value, buffer in zip(values, others, strict=True))
    assert check(pool).captured > 0
    graph.destroy()
    if memory is not None:
        memory.release()
    else:
        pool.release_graphs()
    pool.trim()
    assert check(pool).captured == 0


def test_every_capture_has_an_id_of_its_own(gpu: Gpu) -> None:
    gpu.needs("cuStreamGetCaptureInfo")
    one, two, address = gpu.stream(), gpu.stream(), gpu.cu.alloc(512)
    fork, join = gpu.cu.event(), gpu.cu.event()
    ids = []
    for _ in range(3):
        assert capture_of(gpu, one)[0] == NONE
        graph = Graph(gpu, one)
        with graph.captured():
            status, id_ = capture_of(gpu, one)
            assert status == ACTIVE
            gpu.cu.ok("cuEventRecord", fork, one)
            gpu.cu.ok("cuStreamWaitEvent", two, fork, 0)
            assert capture_of(gpu, two) == (ACTIVE, id_)  # a stream that joins has the same id
            gpu.fill(address, 1, 512, two)
            gpu.cu.ok("cuEventRecord", join, two)
            gpu.cu.ok("cuStreamWaitEvent", one, join, 0)
        ids.append(id_)
        graph.launch()
        graph.destroy()
    assert len(set(ids)) == len(ids)
    assert gpu.holds(address, 1, 512, one)
    for event in (fork, join):
        gpu.cu.ok("cuEventDestroy", event)
    gpu.cu.ok("cuMemFree", address)


@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non-blocking"])
def test_a_capture_survives_questions(gpu: Gpu, non_blocking: bool) -> None:
    gpu.needs("cuStreamGetId", "cuStreamGetCtx")
    stream, other, address = gpu.stream(non_blocking=non_blocking), gpu.stream(), gpu.cu.alloc(512)
    status, flags, id_ = ctypes.c_int(), ctypes.c_uint(), ctypes.c_ulonglong()
    context, green = ctypes.c_uint64(), ctypes.c_uint64()
    graph = Graph(gpu, stream)
    with graph.captured():
        gpu.fill(address, 4, 512, stream)
        # The legacy stream would wait for a blocking stream, so the driver says that it must not be used.
        legacy = gpu.cu.cuStreamIsCapturing(LEGACY, ctypes.byref(status))
        assert legacy == (SUCCESS if non_blocking else IMPLICIT)
        for asked in (stream, other):
            gpu.cu.ok("cuStreamIsCapturing", asked, ctypes.byref(status))
            assert status.value == (ACTIVE if asked == stream else NONE)
            gpu.cu.ok("cuStreamGetId", asked, ctypes.byref(id_))
            gpu.cu.ok("cuStreamGetFlags", asked, ctypes.byref(flags))
            assert flags.value == (1 if asked == other else int(non_blocking))
            gpu.cu.ok("cuStreamGetCtx", asked, ctypes.byref(context), ctypes.byref(green))
            assert context.value == gpu.context
    graph.launch()
    assert gpu.holds(address, 4, 512, stream)
    graph.destroy()
    gpu.cu.ok("cuMemFree", address)


def test_memory_is_mapped_during_a_capture_by_a_thread_in_relaxed_mode(gpu: Gpu) -> None:
    """No document says that this is allowed. The arena does it to give memory to a stream that is being captured."""
    gpu.needs_virtual_memory()
    gpu.needs("cuThreadExchangeStreamCaptureMode")
    stream, granule, cu = gpu.stream(), gpu.granule, gpu.cu
    address, mode = cu.reserve(2 * granule), ctypes.c_int(RELAXED)
    graph = Graph(gpu, stream)
    with graph.captured():
        cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        assert mode.value == GLOBAL
        handle = cu.create(granule)
        cu.map(address, handle, granule)
        desc = Access(Location(1, 0), READ_WRITE)
        assert cu.cuMemSetAccess(address, granule, ctypes.byref(desc), 1) == SUCCESS
        cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        assert mode.value == RELAXED
        gpu.fill(address, 9, granule, stream)
    graph.launch()
    assert gpu.holds(address, 9, granule, stream)
    graph.destroy()
    cu.ok("cuMemUnmap", address, granule)
    cu.ok("cuMemRelease", handle)
    cu.ok("cuMemAddressFree", address, 2 * granule)


@pytest.mark.parametrize("call", ["cuCtxRecordEvent", "cuCtxSynchronize"])
def test_waiting_for_the_whole_context_is_refused_during_a_capture(gpu: Gpu, call: str) -> None:
    """The arena recognises the error, and takes another way."""
    gpu.needs(call)
    stream, event, graph = gpu.stream(), gpu.cu.event(), ctypes.c_uint64()
    gpu.cu.ok("cuStreamBeginCapture", stream, GLOBAL)
    result = getattr(gpu.cu, call)(gpu.context, *([event] if call == "cuCtxRecordEvent" else []))
    ended = gpu.cu.cuStreamEndCapture(stream, ctypes.byref(graph))
    gpu.note("errors", f"{result}, then {ended} at the end of the capture")
    assert result.startswith("CUDA_ERROR_STREAM_CAPTURE_")
    if graph.value:
        gpu.cu.ok("cuGraphDestroy", graph.value)
    gpu.cu.ok("cuEventDestroy", event)
    gpu.synchronize()  # the context still works

"""NVIDIA's cuda-bindings on the simulated driver: devices, contexts, streams, events, graphs, and planned failures.

Every call is the client's own: it looks functions up, converts arguments, and knows nothing of a simulation.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
from cuda.bindings import driver as cu

from arena import sim

from ...findings import expect
from ..process import run_client
from .client import (
    BLOCKING,
    GIB,
    LEGACY,
    MIB,
    NON_BLOCKING,
    SLOW,
    Attribute,
    Code,
    PointerAttribute,
    host_view,
    ok,
    properties,
    read,
    some_bytes,
)

# The driver and its devices


def test_nothing_works_before_initialisation() -> None:
    assert cu.cuDeviceGetCount()[0] == Code.CUDA_ERROR_NOT_INITIALIZED
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_NOT_INITIALIZED
    assert ok(cu.cuDriverGetVersion()) == 13000
    ok(cu.cuInit(0))
    assert ok(cu.cuDeviceGetCount()) == 1
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_INVALID_CONTEXT


def test_a_device_describes_itself() -> None:
    sim.configure(memory=["8GiB", "24GiB"])
    ok(cu.cuInit(0))
    assert ok(cu.cuDeviceGetCount()) == 2
    first, second = ok(cu.cuDeviceGet(0)), ok(cu.cuDeviceGet(1))
    name = ok(cu.cuDeviceGetName(64, first)).split(b"\0")[0]
    assert name == b"Simulated CUDA device"
    assert ok(cu.cuDeviceGetName(10, first)) == b"Simulated\0"
    assert [ok(cu.cuDeviceTotalMem(device)) for device in (first, second)] == [8 * GIB, 24 * GIB]
    uuids = [ok(cu.cuDeviceGetUuid(device)).bytes for device in (first, second)]
    assert [len(uuid) for uuid in uuids] == [16, 16]
    assert uuids[0] != uuids[1]
    assert ok(cu.cuDeviceGetPCIBusId(13, second)) == b"0000:02:00.0\0"
    assert cu.cuDeviceGet(2)[0] == Code.CUDA_ERROR_INVALID_DEVICE


def test_a_device_has_attributes() -> None:
    ok(cu.cuInit(0))
    expected = {
        Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 8,
        Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
        Attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE: 32,
        Attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: 1,
        Attribute.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: 1,
        Attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
        Attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: 1,
    }
    assert {what: ok(cu.cuDeviceGetAttribute(what, 0)) for what in expected} == expected
    known = [what for what in Attribute if what != Attribute.CU_DEVICE_ATTRIBUTE_MAX]
    assert [what for what in known if cu.cuDeviceGetAttribute(what, 0)[0] != Code.CUDA_SUCCESS] == []


def test_errors_have_the_names_that_the_client_knows() -> None:
    codes = [code for code in Code if cu.cuGetErrorName(code)[0] == Code.CUDA_SUCCESS]
    assert [cu.cuGetErrorName(code)[1].decode() for code in codes] == [code.name for code in codes]
    assert all(ok(cu.cuGetErrorString(code)) for code in codes)
    assert cu.cuGetErrorName(123456) == (Code.CUDA_ERROR_INVALID_VALUE, None)


def test_undocumented_tables_are_refused() -> None:
    ok(cu.cuInit(0))
    assert cu.cuGetExportTable(cu.CUuuid()) == (Code.CUDA_ERROR_NOT_FOUND, None)


def test_calling_a_function_that_is_not_simulated_raises_an_exception(context: Any) -> None:
    with pytest.raises(RuntimeError, match="cuTexObjectCreate"):
        cu.cuTexObjectCreate(cu.CUDA_RESOURCE_DESC(), cu.CUDA_TEXTURE_DESC(), None)


# Contexts


def test_the_primary_context_is_shared_and_counted(context: Any) -> None:
    assert int(ok(cu.cuDevicePrimaryCtxRetain(0))) == int(context)
    assert ok(cu.cuDevicePrimaryCtxGetState(0)) == (0, 1)
    ok(cu.cuDevicePrimaryCtxRelease(0))
    assert ok(cu.cuDevicePrimaryCtxGetState(0)) == (0, 1)
    assert int(ok(cu.cuCtxGetCurrent())) == int(context)
    assert int(ok(cu.cuCtxGetDevice())) == 0
    assert sim.census().contexts == 1


def test_contexts_are_pushed_and_popped(contexts: tuple[Any, Any]) -> None:
    first, second = contexts
    ok(cu.cuCtxPushCurrent(second))
    assert int(ok(cu.cuCtxGetDevice())) == 1
    assert int(ok(cu.cuCtxPopCurrent())) == int(second)
    assert int(ok(cu.cuCtxGetCurrent())) == int(first)


def test_a_context_is_current_in_its_own_thread_only(context: Any) -> None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(cu.cuMemAlloc(4096)))
    thread.start()
    thread.join()
    assert answers[0][0] == Code.CUDA_ERROR_INVALID_CONTEXT


def test_a_primary_context_is_destroyed_by_a_reset_until_it_is_retained_again(context: Any) -> None:
    ok(cu.cuMemAlloc(4096))
    stream = ok(cu.cuStreamCreate(NON_BLOCKING))
    number = ok(cu.cuCtxGetId(context))
    ok(cu.cuDevicePrimaryCtxReset(0))
    assert (sim.used(), sim.census().streams, sim.census().contexts) == (0, 0, 0)
    assert ok(cu.cuDevicePrimaryCtxGetState(0)) == (0, 0)
    assert int(ok(cu.cuCtxGetCurrent())) == int(context)
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_CONTEXT_IS_DESTROYED
    ok(cu.cuCtxSetCurrent(context))
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_CONTEXT_IS_DESTROYED
    again = ok(cu.cuDevicePrimaryCtxRetain(0))
    assert int(again) == int(context)
    assert int(ok(cu.cuCtxGetId(again))) != int(number)
    ok(cu.cuMemFree(ok(cu.cuMemAlloc(4096))))
    assert cu.cuStreamSynchronize(stream)[0] == Code.CUDA_ERROR_INVALID_HANDLE
    expect("dead stream")
    ok(cu.cuDevicePrimaryCtxRelease(0))


# Streams and events


def test_streams_know_their_priority_and_kind(context: Any) -> None:
    least, greatest = ok(cu.cuCtxGetStreamPriorityRange())
    assert greatest < least
    urgent = ok(cu.cuStreamCreateWithPriority(NON_BLOCKING, greatest))
    plain = ok(cu.cuStreamCreate(BLOCKING))
    assert [ok(cu.cuStreamGetPriority(stream)) for stream in (urgent, plain)] == [greatest, least]
    assert [ok(cu.cuStreamGetFlags(stream)) for stream in (urgent, plain)] == [NON_BLOCKING, BLOCKING]
    assert len({int(ok(cu.cuStreamGetId(stream))) for stream in (urgent, plain, LEGACY)}) == 3
    assert sim.census().streams == 2
    for stream in (urgent, plain):
        ok(cu.cuStreamDestroy(stream))
    assert cu.cuStreamQuery(urgent)[0] == Code.CUDA_ERROR_INVALID_HANDLE
    expect("dead stream")


@pytest.mark.parametrize(("flags", "waits"), [(BLOCKING, True), (NON_BLOCKING, False)])
def test_the_default_stream_waits_for_blocking_streams_only(context: Any, flags: int, waits: bool) -> None:
    stream, address = ok(cu.cuStreamCreate(flags)), ok(cu.cuMemAlloc(8192))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 1, 4096, stream))
    ok(cu.cuMemsetD8Async(int(address) + 4096, 2, 4096, LEGACY))
    ok(cu.cuStreamSynchronize(LEGACY))
    done = cu.cuStreamQuery(stream)[0]
    assert done == (Code.CUDA_SUCCESS if waits else Code.CUDA_ERROR_NOT_READY)
    ok(cu.cuStreamSynchronize(stream))
    assert read(address, 8192) == b"\x01" * 4096 + b"\x02" * 4096
    ok(cu.cuStreamDestroy(stream))
    ok(cu.cuMemFree(address))


def test_an_event_completes_when_the_work_before_it_is_done(stream: Any) -> None:
    begin, finish, untimed = (ok(cu.cuEventCreate(flags)) for flags in (0, 0, 2))
    address = ok(cu.cuMemAlloc(4096))
    ok(cu.cuEventQuery(begin))  # never recorded: nothing to wait for
    ok(cu.cuEventRecord(begin, stream))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 1, 4096, stream))
        ok(cu.cuEventRecord(finish, stream))
        ok(cu.cuEventRecord(untimed, stream))
        assert cu.cuEventQuery(finish)[0] == Code.CUDA_ERROR_NOT_READY
        assert cu.cuEventElapsedTime(begin, finish)[0] == Code.CUDA_ERROR_NOT_READY
        ok(cu.cuEventSynchronize(untimed))
    ok(cu.cuEventQuery(finish))
    took = ok(cu.cuEventElapsedTime(begin, finish))
    assert SLOW / 1000 <= took < 10_000
    assert ok(cu.cuEventElapsedTime(finish, begin)) == -took
    assert cu.cuEventElapsedTime(begin, untimed)[0] == Code.CUDA_ERROR_INVALID_HANDLE
    assert sim.census().events == 3
    for event in (begin, finish, untimed):
        ok(cu.cuEventDestroy(event))
    ok(cu.cuMemFree(address))


def test_an_event_orders_two_streams(stream: Any) -> None:
    other, event = ok(cu.cuStreamCreate(NON_BLOCKING)), ok(cu.cuEventCreate(2))
    address = ok(cu.cuMemAlloc(8192))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 0x33, 4096, stream))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuStreamWaitEvent(other, event, 0))
        ok(cu.cuMemcpyDtoDAsync(int(address) + 4096, address, 4096, other))
        ok(cu.cuStreamSynchronize(other))
    assert read(address, 8192) == b"\x33" * 8192
    ok(cu.cuEventDestroy(event))
    ok(cu.cuStreamDestroy(other))
    ok(cu.cuMemFree(address))


def test_a_client_that_forgets_the_event_gets_a_race_report(stream: Any) -> None:
    other, address = ok(cu.cuStreamCreate(NON_BLOCKING)), ok(cu.cuMemAlloc(8192))
    ok(cu.cuMemsetD8Async(address, 0x33, 4096, stream))
    ok(cu.cuMemcpyDtoDAsync(int(address) + 4096, address, 4096, other))
    [race] = sim.races()
    assert (race.first.operation, race.first.access) == ("cuMemsetD8Async", "write")
    assert (race.second.operation, race.second.access) == ("cuMemcpyDtoDAsync", "read")
    assert (race.first.stream, race.second.stream) == (int(stream), int(other))
    assert (race.first.begin, race.first.end) == (int(address), int(address) + 4096)
    sim.clear_races()
    ok(cu.cuStreamDestroy(other))
    ok(cu.cuMemFree(address))


def test_a_host_function_runs_in_stream_order(stream: Any) -> None:
    pinned, address = ok(cu.cuMemAllocHost(8)), ok(cu.cuMemAlloc(8))
    seen: list[tuple[int, bytes, int]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def look(data: int) -> None:
        refused = cu.cuMemAlloc(4096)[0]  # driver calls are not permitted in here
        seen.append((data, bytes(host_view(pinned, 8)), int(refused)))

    function = cu.CUhostFn(ctypes.cast(look, ctypes.c_void_p).value)
    host_view(pinned, 8)[:] = bytes(8)
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 9, 8, stream))
        ok(cu.cuMemcpyDtoHAsync(pinned, address, 8, stream))
        ok(cu.cuLaunchHostFunc(stream, function, 4711))
        assert seen == []
        ok(cu.cuStreamSynchronize(stream))
    assert seen == [(4711, b"\x09" * 8, int(Code.CUDA_ERROR_NOT_PERMITTED))]
    ok(cu.cuMemFree(address))
    ok(cu.cuMemFreeHost(pinned))


PER_THREAD = """
import threading
from arena import sim
sim.configure(races=True)
sim.enable()
from cuda.bindings import driver as cu

def ok(answer):
    assert answer[0] == cu.CUresult.CUDA_SUCCESS, answer
    return answer[-1]

cu.cuInit(0)
context = ok(cu.cuDevicePrimaryCtxRetain(0))
ok(cu.cuCtxSetCurrent(context))
address = ok(cu.cuMemAlloc(8192))
ids, queries, there = {}, {}, threading.Barrier(2)

def work(number):
    ok(cu.cuCtxSetCurrent(context))
    ids[number] = int(ok(cu.cuStreamGetId(cu.CUstream(0))))
    there.wait()
    if number == 0:
        with sim.temporarily(delay=200_000):
            ok(cu.cuMemsetD8Async(address, 1, 4096, cu.CUstream(0)))
    there.wait()
    queries[number] = cu.cuStreamQuery(cu.CUstream(0))[0]
    there.wait()

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ids["main"] = int(ok(cu.cuStreamGetId(cu.CUstream(0))))
ids["legacy"] = int(ok(cu.cuStreamGetId(cu.CUstream(cu.CU_STREAM_LEGACY))))
ok(cu.cuMemFree(address))
print(len(set(ids.values())), queries[0].name, queries[1].name, len(sim.races()), sim.used())
"""


def test_with_per_thread_default_streams_each_thread_has_its_own() -> None:
    output = run_client(PER_THREAD, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1")
    assert output.split() == ["4", "CUDA_ERROR_NOT_READY", "CUDA_SUCCESS", "0", "0"]
    # Without the variable, all threads share the legacy stream, and both find it busy.
    output = run_client(PER_THREAD)
    assert output.split() == ["1", "CUDA_ERROR_NOT_READY", "CUDA_ERROR_NOT_READY", "0", "0"]


# Graphs


@pytest.mark.parametrize("flags", [True, False], ids=["with flags", "with parameters"])
def test_a_captured_graph_does_its_work_at_each_launch(stream: Any, flags: bool) -> None:
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    status = cu.CUstreamCaptureStatus
    address, pinned = ok(cu.cuMemAlloc(4096)), ok(cu.cuMemAllocHost(4096))
    ok(cu.cuMemsetD8(address, 0xEE, 4096))
    host_view(pinned, 4096)[:] = bytes(4096)
    ok(cu.cuStreamBeginCapture(stream, mode))
    assert ok(cu.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_ACTIVE
    under_way = ok(cu.cuStreamGetCaptureInfo(stream))[2]
    ok(cu.cuMemsetD8Async(address, 0x42, 2048, stream))
    ok(cu.cuMemcpyDtoHAsync(pinned, address, 4096, stream))
    graph = ok(cu.cuStreamEndCapture(stream))
    assert int(graph) == int(under_way)
    assert ok(cu.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_NONE
    assert read(address, 4096) == b"\xee" * 4096  # nothing has run yet
    how = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    executable = ok(cu.cuGraphInstantiate(graph, 0) if flags else cu.cuGraphInstantiateWithParams(graph, how))
    assert how.result_out == cu.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_SUCCESS
    ok(cu.cuGraphDestroy(graph))
    for last in (0xEE, 0x11):
        ok(cu.cuMemsetD8(address, last, 4096))
        ok(cu.cuCtxSynchronize())
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
        assert bytes(host_view(pinned, 4096)) == b"\x42" * 2048 + bytes([last]) * 2048
    ok(cu.cuGraphExecDestroy(executable))
    assert cu.cuGraphLaunch(executable, stream)[0] == Code.CUDA_ERROR_INVALID_VALUE
    expect("dead graph exec")
    ok(cu.cuMemFree(address))
    ok(cu.cuMemFreeHost(pinned))


def test_an_allocation_invalidates_a_capture(stream: Any) -> None:
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert cu.cuStreamEndCapture(stream) == (Code.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None)


# Several devices


def test_memory_is_copied_between_devices(contexts: tuple[Any, Any]) -> None:
    first, second = contexts
    data = some_bytes(MIB)
    here = ok(cu.cuMemAlloc(MIB))
    ok(cu.cuMemcpyHtoD(here, data, MIB))
    ok(cu.cuCtxPushCurrent(second))
    there = ok(cu.cuMemAlloc(MIB))
    ok(cu.cuCtxPopCurrent())
    assert (sim.used(0), sim.used(1)) == (MIB, MIB)
    ok(cu.cuMemcpyPeer(there, second, here, first, MIB))
    assert read(there, MIB) == data
    ordinal = PointerAttribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert [ok(cu.cuPointerGetAttribute(ordinal, pointer)) for pointer in (here, there)] == [0, 1]
    ok(cu.cuMemFree(here))
    ok(cu.cuMemFree(there))


def test_work_on_another_devices_memory_needs_peer_access(contexts: tuple[Any, Any]) -> None:
    _, second = contexts
    ok(cu.cuCtxPushCurrent(second))
    there = ok(cu.cuMemAlloc(4096))
    ok(cu.cuCtxPopCurrent())
    assert ok(cu.cuDeviceCanAccessPeer(0, 1)) == 1
    assert cu.cuMemsetD8(there, 5, 4096)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS
    ok(cu.cuCtxEnablePeerAccess(second, 0))
    assert cu.cuCtxEnablePeerAccess(second, 0)[0] == Code.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    ok(cu.cuMemsetD8(there, 5, 4096))
    assert read(there, 4096) == b"\x05" * 4096
    ok(cu.cuCtxDisablePeerAccess(second))
    ok(cu.cuMemFree(there))


# Planned failures


def test_a_planned_failure_reaches_the_client_once(context: Any) -> None:
    sim.fail("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
    calls = sim.calls("cuMemAlloc")
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
    assert sim.used() == 0
    address = ok(cu.cuMemAlloc(4096))
    assert sim.calls("cuMemAlloc") == calls + 2
    ok(cu.cuMemFree(address))


def test_failures_are_planned_ahead(context: Any) -> None:
    sim.fail("cuMemCreate", "CUDA_ERROR_DEVICE_UNAVAILABLE", nth=2, times=2)
    answers = [cu.cuMemCreate(2 * MIB, properties(), 0) for _ in range(4)]
    unavailable = Code.CUDA_ERROR_DEVICE_UNAVAILABLE
    assert [code for code, _ in answers] == [Code.CUDA_SUCCESS, unavailable, unavailable, Code.CUDA_SUCCESS]
    assert sim.used() == 4 * MIB
    for _, handle in (answers[0], answers[3]):
        ok(cu.cuMemRelease(handle))

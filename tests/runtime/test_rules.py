"""What NVIDIA's documents say about the runtime, rule by rule."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest

from arena import sim

from ..simulated.cu import Cu
from .rt import D2D, D2H, DEFAULT, H2D, SUCCESS, Rt

MIB = 1 << 20
PER_THREAD = 2


def text(rt: Rt, function: str, *arguments: int) -> bytes:
    return bytes(getattr(rt.lib, function)(*arguments))


def test_the_version_is_that_of_the_library(rt: Rt) -> None:
    assert rt.out("cudaRuntimeGetVersion", kind=ctypes.c_int) // 1000 == rt.major
    assert rt.out("cudaDriverGetVersion", kind=ctypes.c_int) == 13000


def test_a_driver_of_an_older_major_version_is_insufficient(rt: Rt) -> None:
    sim.reset()
    sim.configure(version=11080)
    assert rt.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())) == "cudaErrorInsufficientDriver"


def test_errors_have_names_and_texts(rt: Rt) -> None:
    assert text(rt, "cudaGetErrorName", 2) == b"cudaErrorMemoryAllocation"
    assert text(rt, "cudaGetErrorName", 98) == b"cudaErrorInvalidDeviceFunction"
    assert text(rt, "cudaGetErrorName", 77777) == b"unrecognized error code"
    assert b"profiling" in text(rt, "cudaGetErrorString", 5)


@pytest.mark.parametrize(
    ("code", "known"),
    [
        (1, b"invalid argument"),
        (2, b"out of memory"),
        (98, b"invalid device function"),
        (100, b"no CUDA-capable device is detected"),
        (101, b"invalid device ordinal"),
        (400, b"invalid resource handle"),
        (600, b"device not ready"),
        (700, b"an illegal memory access was encountered"),
        (704, b"peer access is already enabled"),
        (710, b"device-side assert triggered"),
        (716, b"misaligned address"),
        (719, b"unspecified launch failure"),
        (801, b"operation not supported"),
        (900, b"operation not permitted when stream is capturing"),
        (901, b"operation failed due to a previous error during capture"),
    ],
)
def test_texts_that_programs_compare_are_those_of_cuda(rt: Rt, code: int, known: bytes) -> None:
    """Programs look for them: ``"out of memory" in str(error)``."""
    assert text(rt, "cudaGetErrorString", code) == known


def test_the_last_error_stays_until_it_is_taken(rt: Rt) -> None:
    assert rt.cudaMalloc(ctypes.byref(ctypes.c_uint64()), 1 << 50) == "cudaErrorMemoryAllocation"
    rt.malloc(512)  # a success does not clear it
    assert rt.cudaPeekAtLastError() == "cudaErrorMemoryAllocation"
    assert rt.cudaGetLastError() == "cudaErrorMemoryAllocation"
    assert rt.cudaGetLastError() == SUCCESS


def test_the_last_error_belongs_to_a_thread(rt: Rt) -> None:
    seen: list[str] = []
    assert rt.cudaSetDevice(7) == "cudaErrorInvalidDevice"
    thread = threading.Thread(target=lambda: seen.append(rt.cudaGetLastError()))
    thread.start()
    thread.join()
    assert (seen, rt.cudaGetLastError()) == ([SUCCESS], "cudaErrorInvalidDevice")


def test_not_ready_is_remembered_like_an_error(rt: Rt) -> None:
    stream, data = rt.stream(), rt.malloc(512)
    with sim.temporarily(delay=50_000):
        rt.ok("cudaMemsetAsync", data, 1, 512, stream)
        assert rt.cudaStreamQuery(stream) == "cudaErrorNotReady"
    assert rt.cudaGetLastError() == "cudaErrorNotReady"
    rt.ok("cudaStreamSynchronize", stream)


@pytest.mark.findings("removed")
def test_an_error_of_the_device_stays_until_the_device_is_reset(rt: Rt) -> None:
    cu, stream = Cu(), rt.stream()
    address, handle = cu.reserve(2 * MIB), cu.create()
    cu.map(address, handle)
    cu.allow(address)
    with sim.temporarily(delay=50_000):
        rt.ok("cudaMemsetAsync", address, 1, 512, stream)
        cu.ok("cuMemUnmap", address, 2 * MIB)
        assert rt.cudaStreamSynchronize(stream) == "cudaErrorIllegalAddress"
    assert rt.cudaGetLastError() == "cudaErrorIllegalAddress"
    assert rt.cudaMalloc(ctypes.byref(ctypes.c_uint64()), 512) == "cudaErrorIllegalAddress"
    rt.ok("cudaDeviceReset")
    rt.cudaGetLastError()
    rt.ok("cudaFree", rt.malloc(512))


def test_the_first_call_that_needs_one_makes_the_primary_context(rt: Rt) -> None:
    cu = Cu()
    rt.out("cudaGetDeviceCount", kind=ctypes.c_int)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    cu.ok("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 0
    rt.ok("cudaFree", 0)
    cu.ok("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 1


def test_choosing_a_device_makes_its_context_current(two: Rt) -> None:
    cu = Cu()
    two.ok("cudaSetDevice", 1)
    device = ctypes.c_int()
    assert cu.lib.cuCtxGetDevice(ctypes.byref(device)) == 0
    assert device.value == 1
    assert two.out("cudaGetDevice", kind=ctypes.c_int) == 1
    assert two.cudaSetDevice(2) == "cudaErrorInvalidDevice"
    assert two.out("cudaGetDevice", kind=ctypes.c_int) == 1


def test_the_device_is_that_of_the_drivers_current_context(two: Rt) -> None:
    cu = Cu()
    two.ok("cudaSetDevice", 0)
    context = cu.out("cuDevicePrimaryCtxRetain", 1)
    cu.ok("cuCtxPushCurrent", context)
    assert two.out("cudaGetDevice", kind=ctypes.c_int) == 1
    data = two.malloc(512)
    assert two.describe(data).device == 1
    two.ok("cudaFree", data)
    cu.ok("cuCtxPopCurrent", ctypes.byref(ctypes.c_uint64()))
    cu.ok("cuDevicePrimaryCtxRelease", 1)
    assert two.out("cudaGetDevice", kind=ctypes.c_int) == 0


def test_each_thread_has_a_device_of_its_own(two: Rt) -> None:
    seen: list[int] = []
    two.ok("cudaSetDevice", 1)
    thread = threading.Thread(target=lambda: seen.append(two.out("cudaGetDevice", kind=ctypes.c_int)))
    thread.start()
    thread.join()
    assert seen == [0]


def test_a_reset_device_is_used_again_in_a_new_context(rt: Rt) -> None:
    rt.malloc(4 * MIB)
    rt.ok("cudaDeviceReset")
    assert sim.used() == 0
    rt.ok("cudaFree", rt.malloc(512))


def test_nothing_is_allocated_for_nothing(rt: Rt) -> None:
    assert rt.malloc(0) == 0
    rt.ok("cudaFree", 0)
    assert rt.out("cudaMallocHost", 0) == 0
    rt.ok("cudaFreeHost", 0)


def test_memory_that_was_freed_is_refused(rt: Rt) -> None:
    data = rt.malloc(512)
    rt.ok("cudaFree", data)
    assert rt.cudaFree(data) == "cudaErrorInvalidValue"


def test_out_of_memory_is_reported_and_changes_nothing(rt: Rt) -> None:
    before = sim.used()
    where = ctypes.c_uint64(123)
    assert rt.cudaMalloc(ctypes.byref(where), 9 << 30) == "cudaErrorMemoryAllocation"
    assert sim.used() == before


def test_rows_begin_at_multiples_of_the_pitch(rt: Rt) -> None:
    pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    rt.ok("cudaMallocPitch", ctypes.byref(pointer), ctypes.byref(pitch), 1000, 10)
    assert (pitch.value, pointer.value % 512) == (1024, 0)
    rt.ok("cudaFree", pointer.value)


def test_copies_go_in_each_direction(rt: Rt) -> None:
    data, host, back = rt.malloc(64), ctypes.create_string_buffer(b"x" * 64), ctypes.create_string_buffer(64)
    rt.ok("cudaMemcpy", data, host, 64, H2D)
    rt.ok("cudaMemcpy", back, data, 64, D2H)
    assert back.raw == b"x" * 64
    rt.ok("cudaMemset", data, ord("y"), 32)
    rt.ok("cudaMemcpy", back, data, 64, DEFAULT)
    assert back.raw == b"y" * 32 + b"x" * 32
    assert rt.cudaMemcpy(back, data, 64, 5) == "cudaErrorInvalidMemcpyDirection"


def test_rows_are_copied_with_their_pitches(rt: Rt) -> None:
    pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    rt.ok("cudaMallocPitch", ctypes.byref(pointer), ctypes.byref(pitch), 8, 4)
    host, back = ctypes.create_string_buffer(bytes(range(32)), 32), ctypes.create_string_buffer(32)
    rt.ok("cudaMemcpy2D", pointer.value, pitch.value, host, 8, 8, 4, H2D)
    rt.ok("cudaMemcpy2D", back, 8, pointer.value, pitch.value, 8, 4, D2H)
    assert back.raw == bytes(range(32))
    assert rt.cudaMemcpy2D(back, 4, pointer.value, pitch.value, 8, 4, D2H) == "cudaErrorInvalidPitchValue"


def test_pointers_are_described(rt: Rt) -> None:
    data, host = rt.malloc(512), ctypes.create_string_buffer(8)
    on_device = rt.describe(data)
    assert (on_device.type, on_device.device, on_device.device_pointer) == (2, 0, data)
    unknown = rt.describe(ctypes.addressof(host))
    assert (unknown.type, unknown.device, unknown.device_pointer) == (0, -2, 0)
    pinned = rt.out("cudaMallocHost", 4096)
    assert (rt.describe(pinned).type, rt.describe(pinned).host_pointer) == (1, pinned)
    rt.ok("cudaFreeHost", pinned)


def test_the_null_stream_of_a_per_thread_function_is_the_threads_own(rt: Rt) -> None:
    data = rt.malloc(512)
    with sim.temporarily(delay=100_000):
        rt.ok("cudaMemsetAsync_ptsz", data, 1, 512, 0)
        assert rt.cudaStreamQuery(PER_THREAD) == "cudaErrorNotReady"
    rt.ok("cudaStreamSynchronize_ptsz", 0)
    rt.ok("cudaStreamQuery", PER_THREAD)
    rt.ok("cudaMemset_ptds", data, 1, 512)
    rt.cudaGetLastError()


def test_events_measure_time_between_them(rt: Rt) -> None:
    stream, start, end, data = rt.stream(), rt.event(), rt.event(), rt.malloc(512)
    with sim.temporarily(delay=20_000):
        rt.ok("cudaEventRecord", start, stream)
        rt.ok("cudaMemsetAsync", data, 1, 512, stream)
        rt.ok("cudaEventRecord", end, stream)
        rt.ok("cudaEventSynchronize", end)
    elapsed = ctypes.c_float()
    rt.ok("cudaEventElapsedTime", ctypes.byref(elapsed), start, end)
    assert elapsed.value >= 20
    untimed = rt.event(flags=2)
    rt.ok("cudaEventRecord", untimed, stream)
    rt.ok("cudaEventSynchronize", untimed)
    assert rt.cudaEventElapsedTime(ctypes.byref(elapsed), start, untimed) == "cudaErrorInvalidResourceHandle"


def test_a_stream_waits_for_an_event_of_another(rt: Rt) -> None:
    first, second, event, data = rt.stream(), rt.stream(), rt.event(2), rt.malloc(64)
    back = ctypes.create_string_buffer(64)
    with sim.temporarily(delay=20_000):
        rt.ok("cudaMemsetAsync", data, 7, 64, first)
        rt.ok("cudaEventRecord", event, first)
        rt.ok("cudaStreamWaitEvent", second, event, 0)
        rt.ok("cudaMemcpyAsync", back, data, 64, D2H, second)
        rt.ok("cudaStreamSynchronize", second)
    assert back.raw == b"\x07" * 64


def test_host_functions_run_in_stream_order(rt: Rt) -> None:
    stream, data, order = rt.stream(), rt.malloc(512), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def called(argument: int) -> None:
        order.append("host")

    with sim.temporarily(delay=10_000):
        rt.ok("cudaMemsetAsync", data, 1, 512, stream)
        rt.ok("cudaLaunchHostFunc", stream, called, 0)
        order.append("queued")
        rt.ok("cudaStreamSynchronize", stream)
    assert order == ["queued", "host"]


def test_pool_memory_is_allocated_in_stream_order(rt: Rt) -> None:
    stream = rt.stream()
    data = rt.out("cudaMallocAsync", 4 * MIB, stream)
    rt.ok("cudaMemsetAsync", data, 1, 4 * MIB, stream)
    rt.ok("cudaFreeAsync", data, stream)
    rt.ok("cudaStreamSynchronize", stream)
    pool = rt.out("cudaDeviceGetDefaultMemPool", 0)
    rt.ok("cudaMemPoolTrimTo", pool, 0)
    assert sim.used() == 0


def test_a_capture_becomes_a_graph_that_can_be_launched(rt: Rt) -> None:
    stream, data, back = rt.stream(), rt.malloc(64), ctypes.create_string_buffer(64)
    rt.ok("cudaStreamBeginCapture", stream, 0)
    rt.ok("cudaMemsetAsync", data, 9, 64, stream)
    status = ctypes.c_uint()
    rt.ok("cudaStreamIsCapturing", stream, ctypes.byref(status))
    assert status.value == 1
    graph = ctypes.c_uint64()
    rt.ok("cudaStreamEndCapture", stream, ctypes.byref(graph))
    exec_ = rt.out("cudaGraphInstantiate", graph.value, 0)
    rt.ok("cudaGraphLaunch", exec_, stream)
    rt.ok("cudaMemcpyAsync", back, data, 64, D2H, stream)
    rt.ok("cudaStreamSynchronize", stream)
    assert back.raw == b"\x09" * 64
    rt.ok("cudaGraphExecDestroy", exec_)
    rt.ok("cudaGraphDestroy", graph.value)


def test_a_call_that_a_capture_forbids_invalidates_it(rt: Rt) -> None:
    stream = rt.stream()
    rt.ok("cudaStreamBeginCapture", stream, 0)
    assert rt.cudaDeviceSynchronize() == "cudaErrorStreamCaptureUnsupported"
    assert rt.cudaStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64())) == "cudaErrorStreamCaptureInvalidated"
    rt.cudaGetLastError()


def test_a_destroyed_stream_is_reported(rt: Rt) -> None:
    stream = rt.stream()
    rt.ok("cudaStreamDestroy", stream)
    sim.configure(reuse=False)
    assert rt.cudaStreamSynchronize(stream) != SUCCESS
    assert [finding.kind for finding in sim.findings()] == ["dead stream"]
    sim.clear_findings()
    rt.cudaGetLastError()


def test_functions_of_the_driver_are_looked_up(rt: Rt) -> None:
    found, status = ctypes.c_uint64(), ctypes.c_uint(9)
    rt.ok("cudaGetDriverEntryPointByVersion", b"cuMemAlloc", ctypes.byref(found), 12000, 0, ctypes.byref(status))
    assert (found.value != 0, status.value) == (True, 0)
    rt.ok("cudaGetDriverEntryPointByVersion", b"cuNonsense", ctypes.byref(found), 12000, 0, ctypes.byref(status))
    assert (found.value, status.value) == (0, 1)


def test_what_is_not_simulated_is_not_supported(rt: Rt) -> None:
    assert rt.cudaMallocArray(0, 0, 0, 0, 0) == "cudaErrorNotSupported"
    assert rt.cudaGetLastError() == "cudaErrorNotSupported"


def test_a_call_takes_little_time(rt: Rt) -> None:
    """Frameworks ask for the device before each operation. A generous bound, to notice a lock or a search."""
    rt.ok("cudaFree", 0)
    device = ctypes.c_int()
    begin = time.perf_counter()
    for _ in range(1000):
        rt.lib.cudaGetDevice(ctypes.byref(device))
    assert time.perf_counter() - begin < 1


def test_a_context_of_the_driver_stays_current_when_another_device_is_reset(two: Rt) -> None:
    cu = Cu()
    two.ok("cudaSetDevice", 0)
    context = cu.out("cuDevicePrimaryCtxRetain", 1)
    cu.ok("cuCtxPushCurrent", context)

    def reset_the_first() -> None:
        two.ok("cudaFree", 0)
        two.ok("cudaDeviceReset")

    thread = threading.Thread(target=reset_the_first)
    thread.start()
    thread.join()
    data = two.malloc(512)
    assert two.describe(data).device == 1
    two.ok("cudaFree", data)
    cu.ok("cuCtxPopCurrent", ctypes.byref(ctypes.c_uint64()))
    cu.ok("cuDevicePrimaryCtxRelease", 1)


def test_a_device_whose_context_the_driver_made_is_reset(rt: Rt) -> None:
    cu = Cu()
    cu.ok("cuInit", 0)
    cu.ok("cuCtxSetCurrent", cu.out("cuDevicePrimaryCtxRetain", 0))
    rt.ok("cudaDeviceReset")
    rt.ok("cudaFree", rt.malloc(512))


def test_a_context_that_the_driver_made_after_the_simulation_was_reset_is_found(rt: Rt) -> None:
    rt.ok("cudaFree", 0)
    sim.reset()
    cu = Cu()
    cu.ok("cuInit", 0)
    context = cu.out("cuDevicePrimaryCtxRetain", 0)
    rt.ok("cudaFree", rt.malloc(512))
    assert cu.out("cuCtxGetCurrent") == context


def test_a_device_is_no_peer_of_itself(two: Rt) -> None:
    two.ok("cudaSetDevice", 1)
    assert two.cudaDeviceEnablePeerAccess(1, 0) == "cudaErrorInvalidDevice"
    two.ok("cudaDeviceEnablePeerAccess", 0, 0)
    two.ok("cudaDeviceDisablePeerAccess", 0)
    two.cudaGetLastError()


def test_valid_devices_are_listed_or_all(two: Rt) -> None:
    devices = (ctypes.c_int * 3)(1, 0, 1)
    two.ok("cudaSetValidDevices", devices, 2)
    assert two.out("cudaGetDevice", kind=ctypes.c_int) == 1
    two.ok("cudaSetValidDevices", None, 0)  # the default again
    assert two.out("cudaGetDevice", kind=ctypes.c_int) == 0
    assert two.cudaSetValidDevices(devices, 3) == "cudaErrorInvalidValue"  # more than there are
    assert two.cudaSetValidDevices(None, 1) == "cudaErrorInvalidValue"
    two.cudaGetLastError()


def test_memory_is_prefetched_only_to_the_host_or_to_a_device(rt: Rt) -> None:
    if rt.major >= 13:
        pytest.skip("takes a location, which the driver checks")
    data = rt.out("cudaMallocManaged", 4096, 1)
    rt.ok("cudaMemPrefetchAsync", data, 4096, ctypes.c_int(-1), 0)
    assert rt.cudaMemPrefetchAsync(data, 4096, ctypes.c_int(-5), 0) == "cudaErrorInvalidDevice"
    rt.ok("cudaFree", data)
    rt.cudaGetLastError()


def test_functions_of_the_driver_take_the_callers_default_stream(rt: Rt) -> None:
    found = {}
    for name in ("cudaGetDriverEntryPointByVersion", "cudaGetDriverEntryPointByVersion_ptsz"):
        for flags in (0, 1, 2):  # default, legacy stream, per-thread stream
            function = ctypes.c_uint64()
            rt.ok(name, b"cuMemcpyHtoDAsync", ctypes.byref(function), 12000, flags, None)
            found[name[-5:], flags] = function.value
    assert found["rsion", 0] == found["rsion", 1] == found["_ptsz", 1]
    assert found["_ptsz", 0] == found["_ptsz", 2] == found["rsion", 2]
    assert found["_ptsz", 0] != found["rsion", 0]


class ChannelFormat(ctypes.Structure):
    _fields_ = [("bits", ctypes.c_int * 4), ("kind", ctypes.c_uint)]


def test_a_channel_format_is_returned_by_value(rt: Rt) -> None:
    create = rt.lib.cudaCreateChannelDesc
    create.restype = ChannelFormat
    found = create(32, 16, 8, 0, 2)
    assert (list(found.bits), found.kind) == ([32, 16, 8, 0], 2)


def test_a_library_is_not_loaded_from_a_directory(rt: Rt, tmp_path: Path) -> None:
    library = ctypes.c_uint64()
    path = str(tmp_path).encode()
    assert rt.cudaLibraryLoadFromFile(ctypes.byref(library), path, 0, 0, 0, 0, 0, 0) == "cudaErrorFileNotFound"
    rt.cudaGetLastError()


def test_a_height_that_no_memory_has_is_refused(rt: Rt) -> None:
    data, host = rt.malloc(512), ctypes.create_string_buffer(64)
    for rows in (1 << 20, 1 << 40):
        assert rt.cudaMemset2D(data, 2, 0, 1, rows) == "cudaErrorIllegalAddress"
        assert rt.cudaMemcpy2D(host, 2, data, 2, 1, rows, D2H) == "cudaErrorIllegalAddress"
        assert rt.cudaMemcpy2D(data, 2, data, 2, 1, rows, D2D) == "cudaErrorIllegalAddress"
    rt.cudaGetLastError()

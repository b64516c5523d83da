"""Launches: what is checked, how they are ordered, and what occupancy says. No code runs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import pytest

from arena import sim

from ..findings import expect
from .cu import INVALID_VALUE, NOT_READY, SUCCESS, Cu
from .images import Kernel, cubin
from .test_capture import begin, end
from .test_modules import INVALID_HANDLE, MAX_DYNAMIC, function, load, load_library
from .test_streams import SLOW

OUT_OF_RESOURCES = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
INVALID_CLUSTER = "CUDA_ERROR_INVALID_CLUSTER_SIZE"
IMAGE = cubin(
    Kernel("free"),
    Kernel("bounded", max_threads=128),
    Kernel("greedy", registers=200),
    Kernel("given", params=(8, 4)),
    Kernel("sharing", shared=1024),
)
COOPERATIVE, CLUSTER, SYNC_POLICY, PROGRAMMATIC_EVENT, DEVICE_UPDATABLE = 2, 4, 3, 7, 13


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


Three = tuple[int, int, int]
ONE: Three = (1, 1, 1)


@pytest.fixture
def kernel(cu: Cu) -> Callable[[str], int]:
    module = load(cu, IMAGE)
    return lambda name: function(cu, module, name.encode())


def launch(
    cu: Cu, kernel: int, grid: Three = ONE, block: Three = ONE, shared: int = 0, stream: int = 0, params: object = None
) -> str:
    return cu.cuLaunchKernel(kernel, *grid, *block, shared, stream, params, None)


def config(stream: int = 0, grid: Three = ONE, **attributes: list[int]) -> Config:
    ids = {"cooperative": 2, "policy": 3, "cluster": 4, "event": 7, "priority": 8, "updatable": 13}
    made = [Attribute(ids[name], 0, (ctypes.c_uint * 16)(*value)) for name, value in attributes.items()]
    return Config(grid, ONE, 0, stream, (Attribute * len(made))(*made), len(made))


def launch_ex(cu: Cu, kernel: int, given: Config) -> str:
    return cu.cuLaunchKernelEx(ctypes.byref(given), kernel, None, None)


def test_a_launch_is_ordered_in_its_stream_and_has_no_effect(cu: Cu, kernel: Callable[[str], int]) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 7, 8, stream)
        assert launch(cu, kernel("free"), stream=stream) == SUCCESS
        cu.ok("cuEventRecord", event := cu.event(), stream)
        assert cu.cuEventQuery(event) == NOT_READY
        begin_time = time.perf_counter()
        cu.ok("cuEventSynchronize", event)
        assert time.perf_counter() - begin_time > 2 * SLOW * 1e-6  # the fill, the launch, the event
    assert cu.read(address, 8) == b"\x07" * 8
    assert sim.calls("cuLaunchKernel") == 1


def test_launches_are_counted_and_priced(cu: Cu, kernel: Callable[[str], int]) -> None:
    free = kernel("free")
    sim.reset_counts()
    launch(cu, free)
    cu.ok("cuLaunchCooperativeKernel", free, 1, 1, 1, 1, 1, 1, 0, 0, None)
    assert launch_ex(cu, free, config()) == SUCCESS
    assert sim.clock() == 3 * sim.price("cuLaunchKernel") > 0


@pytest.mark.parametrize(
    ("grid", "block", "shared", "result"),
    [
        ((0x7FFFFFFF, 65535, 65535), ONE, 0, SUCCESS),
        ((0, 1, 1), ONE, 0, INVALID_VALUE),
        ((0x80000000, 1, 1), ONE, 0, INVALID_VALUE),
        ((1, 65536, 1), ONE, 0, INVALID_VALUE),
        (ONE, (1024, 1, 1), 0, SUCCESS),
        (ONE, (1, 0, 1), 0, INVALID_VALUE),
        (ONE, (1025, 1, 1), 0, INVALID_VALUE),
        (ONE, (1, 1, 65), 0, INVALID_VALUE),
        (ONE, (64, 32, 1), 0, INVALID_VALUE),
        (ONE, ONE, 48 << 10, SUCCESS),
        (ONE, ONE, (48 << 10) + 1, INVALID_VALUE),
    ],
)
def test_a_launch_keeps_to_the_devices_limits(
    cu: Cu, kernel: Callable[[str], int], grid: Three, block: Three, shared: int, result: str
) -> None:
    assert launch(cu, kernel("free"), grid, block, shared) == result


def test_a_launch_keeps_to_its_kernels_limits(cu: Cu, kernel: Callable[[str], int]) -> None:
    assert launch(cu, kernel("bounded"), block=(128, 1, 1)) == SUCCESS
    assert launch(cu, kernel("bounded"), block=(129, 1, 1)) == OUT_OF_RESOURCES
    assert launch(cu, kernel("greedy"), block=(320, 1, 1)) == SUCCESS  # 65,536 registers, 6,400 for each warp
    assert launch(cu, kernel("greedy"), block=(352, 1, 1)) == OUT_OF_RESOURCES
    assert launch(cu, kernel("sharing"), shared=47 << 10) == SUCCESS
    assert launch(cu, kernel("sharing"), shared=(47 << 10) + 1) == INVALID_VALUE
    cu.ok("cuFuncSetAttribute", kernel("sharing"), MAX_DYNAMIC, 100 << 10)
    assert launch(cu, kernel("sharing"), shared=100 << 10) == SUCCESS


def test_a_launch_needs_the_parameters_of_its_kernel(cu: Cu, kernel: Callable[[str], int]) -> None:
    values = (ctypes.c_uint64(1), ctypes.c_uint(2))
    params = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    given = kernel("given")
    assert launch(cu, given, params=params) == SUCCESS
    assert launch(cu, given) == INVALID_VALUE
    buffer, size = ctypes.create_string_buffer(12), ctypes.c_size_t(12)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), None)
    call = lambda params: cu.cuLaunchKernel(given, 1, 1, 1, 1, 1, 1, 0, 0, params, extra)  # noqa: E731
    assert call(None) == SUCCESS
    assert call(params) == INVALID_VALUE  # both
    size.value = 11
    assert call(None) == INVALID_VALUE


def test_a_kernel_of_a_library_is_launched_without_asking_for_its_function(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, second = two_devices
    kernel = cu.out("cuLibraryGetKernel", load_library(cu, IMAGE), b"free")
    assert launch(cu, kernel) == SUCCESS
    cu.ok("cuCtxSetCurrent", second)
    assert launch(cu, kernel, stream=cu.stream()) == SUCCESS
    assert sim.census().modules == 2
    assert cu.out("cuFuncGetAttribute", 4, kernel, kind=ctypes.c_int) == 16


def test_a_function_is_launched_in_its_own_context(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, second = two_devices
    free = function(cu, load(cu, IMAGE), b"free")
    cu.ok("cuCtxSetCurrent", second)
    assert launch(cu, free) == INVALID_HANDLE


def test_what_is_dead_or_unknown_is_not_launched(cu: Cu, kernel: Callable[[str], int]) -> None:
    module = load(cu, IMAGE)
    free = function(cu, module, b"free")
    cu.ok("cuModuleUnload", module)
    assert launch(cu, free) == launch(cu, 0x123) == launch(cu, 0) == INVALID_HANDLE
    stream = cu.stream()
    cu.ok("cuStreamDestroy", stream)
    assert launch(cu, kernel("free"), stream=stream) == INVALID_HANDLE
    expect("dead function", "unknown handle", "dead stream")


def test_unloading_a_module_under_queued_launches_faults(cu: Cu) -> None:
    module = load(cu, IMAGE)
    free = function(cu, module, b"free")
    launch(cu, free)
    cu.ok("cuModuleUnload", module)  # that launch is over
    module = load(cu, IMAGE)
    with sim.temporarily(delay=SLOW):
        launch(cu, function(cu, module, b"free"), stream=cu.stream())
        cu.ok("cuModuleUnload", module)
    expect("module gone")
    assert cu.cuCtxSynchronize_v2(0) == "CUDA_ERROR_ILLEGAL_INSTRUCTION"


def test_a_captured_launch_is_part_of_the_graph(cu: Cu, kernel: Callable[[str], int]) -> None:
    stream, free = cu.stream(), kernel("free")
    begin(cu, stream)
    assert launch(cu, free, stream=stream) == SUCCESS
    result, graph = end(cu, stream)
    assert result == SUCCESS
    launched = cu.out("cuGraphInstantiateWithFlags", graph, 0)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuGraphLaunch", launched, stream)
        assert cu.cuStreamQuery(stream) == NOT_READY
        cu.ok("cuStreamSynchronize", stream)


def test_a_cooperative_launch_fits_on_the_device_at_once(cu: Cu, kernel: Callable[[str], int]) -> None:
    free = kernel("free")
    blocks = cu.out("cuOccupancyMaxActiveBlocksPerMultiprocessor", free, 256, 0, kind=ctypes.c_int)
    most = blocks * 108
    call = lambda blocks: cu.cuLaunchCooperativeKernel(free, blocks, 1, 1, 256, 1, 1, 0, 0, None)  # noqa: E731
    assert (blocks, call(most)) == (8, SUCCESS)
    assert call(most + 1) == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
    too_large = config(grid=(32 * 108 + 1, 1, 1), cooperative=[1])
    assert launch_ex(cu, free, too_large) == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"


def test_launch_attributes_are_checked(cu: Cu, kernel: Callable[[str], int]) -> None:
    free = kernel("free")
    assert launch_ex(cu, free, config(priority=[0])) == SUCCESS
    assert launch_ex(cu, free, config(policy=[1])) == INVALID_VALUE  # of streams
    assert launch_ex(cu, free, config(cluster=[1, 1, 1])) == SUCCESS
    assert launch_ex(cu, free, config(grid=(2, 1, 1), cluster=[2, 1, 1])) == INVALID_CLUSTER  # from 9.0 on
    assert launch_ex(cu, free, config(cluster=[1, 0, 1])) == INVALID_CLUSTER
    assert launch_ex(cu, free, config(updatable=[1])) == "CUDA_ERROR_NOT_SUPPORTED"
    timed, untimed = cu.event(), cu.out("cuEventCreate", 2)
    words = lambda event: [event & 0xFFFFFFFF, event >> 32]  # noqa: E731
    assert launch_ex(cu, free, config(event=words(timed))) == INVALID_VALUE
    with sim.temporarily(delay=SLOW):
        assert launch_ex(cu, free, config(cu.stream(), event=words(untimed))) == SUCCESS
        assert cu.cuEventQuery(untimed) == NOT_READY
    cu.ok("cuEventSynchronize", untimed)


def test_occupancy_is_limited_by_threads_registers_and_shared_memory(cu: Cu, kernel: Callable[[str], int]) -> None:
    def blocks(name: str, size: int, shared: int = 0) -> int:
        ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return cu.out(ask, kernel(name), size, shared, kind=ctypes.c_int)

    assert blocks("free", 1024) == 2  # 2,048 threads
    assert blocks("free", 32) == 32  # blocks
    assert blocks("greedy", 256) == 1  # registers
    assert blocks("free", 32, 40 << 10) == 4  # 164 KiB of shared memory
    assert blocks("bounded", 256) == 0
    assert blocks("sharing", 32, (1 << 64) - 1024) == 0  # with its own shared memory, 2**64 bytes
    assert (
        cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(ctypes.c_int()), kernel("free"), 0, 0)
        == INVALID_VALUE
    )
    flags = cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    assert flags(ctypes.byref(ctypes.c_int()), kernel("free"), 32, 0, 2) == INVALID_VALUE
    room = cu.out("cuOccupancyAvailableDynamicSMemPerBlock", kernel("sharing"), 4, 32, kind=ctypes.c_size_t)
    assert (40 << 10) - 1024 >= room > 38 << 10
    assert blocks("sharing", 32, room) >= 4


def test_the_best_block_size_is_found_and_the_program_may_call_the_driver(cu: Cu, kernel: Callable[[str], int]) -> None:
    asked = []

    @ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)
    def shared_for(size: int) -> int:
        asked.append(size)
        cu.ok("cuCtxGetDevice", ctypes.byref(ctypes.c_int()), 0)
        return size * 64

    grid, block = ctypes.c_int(), ctypes.c_int()
    best = lambda name, shared_for, limit: cu.ok(  # noqa: E731
        "cuOccupancyMaxPotentialBlockSize", ctypes.byref(grid), ctypes.byref(block), kernel(name), shared_for, 0, limit
    )
    best("free", None, 0)
    assert (grid.value, block.value) == (2 * 108, 1024)
    best("bounded", None, 0)
    assert block.value == 128
    best("free", None, 100)
    assert block.value == 64  # 32 blocks of it are 2,048 threads; 20 of 100 are fewer
    best("free", shared_for, 0)
    assert asked
    assert asked[0] == 1024


def test_clusters_need_a_device_that_has_them(cu: Cu, kernel: Callable[[str], int]) -> None:
    size, count, given = ctypes.c_int(), ctypes.c_int(), config(cluster=[2, 1, 1])
    cu.ok("cuOccupancyMaxPotentialClusterSize", ctypes.byref(size), kernel("free"), ctypes.byref(given))
    assert size.value == 1
    ask = cu.cuOccupancyMaxActiveClusters
    assert ask(ctypes.byref(count), kernel("free"), ctypes.byref(given)) == INVALID_CLUSTER
    assert ask(ctypes.byref(count), kernel("free"), ctypes.byref(config(cluster=[1, 1, 1]))) == SUCCESS
    assert count.value == 32 * 108

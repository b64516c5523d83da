"""numba-cuda on the simulated driver: arrays on devices, in pinned, mapped and managed memory, and its memory plug-ins.

No kernels: compiling one needs NVRTC, and running one needs a GPU. Assigning to a device array is a kernel, too.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cuda.bindings import driver as cu
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError, device_memset

from arena import sim

from .process import run_client

MIB = 1 << 20
GIB = 1 << 30
SLOW = 150_000  # microseconds: longer than any call takes, even on a busy machine


def flush() -> None:
    """Free what numba has deferred: it frees in batches."""
    gc.collect()
    context = cuda.current_context()
    for put_off in (context.deallocations, context.memory_manager.deallocations):
        put_off.clear()


@pytest.fixture
def context() -> Iterator[Any]:
    yield cuda.current_context()
    flush()


@pytest.fixture
def two_devices() -> Iterator[None]:
    sim.configure(memory=["8GiB", "24GiB"])
    yield
    for device in cuda.gpus:
        with device:
            flush()


def numbers(count: int = 100_000) -> Any:
    return np.random.default_rng(1).standard_normal(count)


def test_numba_finds_the_devices(two_devices: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda.is_available()
    assert [device.id for device in cuda.gpus] == [0, 1]
    assert [device.compute_capability for device in cuda.gpus] == [(8, 0), (8, 0)]
    assert {device.name for device in cuda.gpus} == {"Simulated CUDA device"}
    assert len({device.uuid for device in cuda.gpus}) == 2
    assert cuda.detect()
    assert "2/2 devices are supported" in capsys.readouterr().out
    assert sim.census().contexts == 0  # all without a context


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10, dtype=np.int8),
        np.arange(60_000, dtype=np.complex128).reshape(200, 300),
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([], dtype=np.float64),
    ],
    ids=["bytes", "a large matrix", "by columns", "records", "nothing"],
)
def test_numba_copies_an_array_there_and_back(context: Any, array: Any) -> None:
    on_device = cuda.to_device(array)
    assert (on_device.shape, on_device.dtype) == (array.shape, array.dtype)
    assert sim.census().allocations == (1 if array.size else 0)
    assert sim.used() >= array.nbytes
    found = on_device.copy_to_host()
    np.testing.assert_array_equal(found, array)
    assert found.flags.f_contiguous == array.flags.f_contiguous
    again = cuda.device_array_like(array)
    again.copy_to_device(on_device)
    np.testing.assert_array_equal(again.copy_to_host(), array)


def test_a_slice_is_a_view_of_the_same_memory(context: Any) -> None:
    array = numbers()
    whole = cuda.to_device(array)
    part = whole[1000:2000]
    assert sim.census().allocations == 1
    np.testing.assert_array_equal(part.copy_to_host(), array[1000:2000])
    part.copy_to_device(np.zeros(1000))
    array[1000:2000] = 0
    np.testing.assert_array_equal(whole.copy_to_host(), array)
    del whole
    flush()
    assert sim.census().allocations == 1  # the view keeps it alive
    np.testing.assert_array_equal(part.copy_to_host(), np.zeros(1000))


def test_memory_is_freed_in_batches(context: Any) -> None:
    arrays = [cuda.device_array(MIB, np.uint8) for _ in range(3)]
    assert sim.used() == 3 * MIB
    arrays.clear()
    put_off = context.memory_manager.deallocations
    assert (len(put_off), sim.used(), sim.calls("cuMemFree")) == (3, 3 * MIB, 0)
    flush()
    assert (len(put_off), sim.used(), sim.calls("cuMemFree")) == (0, 0, 3)
    with cuda.defer_cleanup():
        for _ in range(20):
            cuda.device_array(MIB, np.uint8)
        assert sim.used() == 20 * MIB
    for _ in range(20):  # at some point numba flushes by itself
        cuda.device_array(MIB, np.uint8)
    assert sim.used() < 20 * MIB


def test_numba_reports_how_much_memory_is_free(context: Any) -> None:
    assert context.get_memory_info() == (8 * GIB, 8 * GIB)
    array = cuda.device_array(GIB, np.uint8)
    assert context.get_memory_info() == (7 * GIB, 8 * GIB)
    with sim.temporarily(other="2GiB"):
        assert context.get_memory_info() == (5 * GIB, 8 * GIB)
    del array


def test_copies_in_a_stream_are_asynchronous_with_pinned_arrays(context: Any) -> None:
    stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
    source, target = (cuda.pinned_array(100_000) for _ in range(2))
    source[:] = numbers()
    target[:] = 0
    on_device = cuda.device_array(100_000, stream=stream)
    begin.record(stream)
    with sim.temporarily(delay=SLOW):
        on_device.copy_to_device(source, stream=stream)
        on_device.copy_to_host(target, stream=stream)
        end.record(stream)
        assert not end.query()
        assert not target.any()
        stream.synchronize()
    assert end.query()
    np.testing.assert_array_equal(target, numbers())
    assert 2 * SLOW / 1000 <= begin.elapsed_time(end) < 10_000
    assert (sim.census().streams, sim.census().events) == (1, 2)


def test_an_event_orders_two_streams(context: Any) -> None:
    one, two, event = cuda.stream(), cuda.stream(), cuda.event(timing=False)
    first, second = (cuda.device_array(4096, np.uint8) for _ in range(2))
    with sim.temporarily(delay=SLOW):
        device_memset(first, 7, 4096, stream=one)
        event.record(one)
        event.wait(two)
        second.copy_to_device(first, stream=two)
        assert not event.query()
        two.synchronize()
    np.testing.assert_array_equal(second.copy_to_host(), np.full(4096, 7, np.uint8))


def test_the_default_stream_of_numba_waits_for_its_other_streams(context: Any) -> None:
    stream, array = cuda.stream(), cuda.device_array(4096, np.uint8)  # numba's streams are blocking ones
    with sim.temporarily(delay=SLOW):
        device_memset(array, 9, 4096, stream=stream)
        found = array.copy_to_host()
    np.testing.assert_array_equal(found, np.full(4096, 9, np.uint8))


def test_a_mapped_array_is_shared_by_host_and_device(context: Any) -> None:
    array = cuda.mapped_array(1000, np.int32)
    assert sim.used() == 0
    array[:] = np.arange(1000)
    seen = cuda.as_cuda_array(array)
    np.testing.assert_array_equal(seen.copy_to_host(), np.arange(1000))
    device_memset(array, 1, 400)
    np.testing.assert_array_equal(array[:100], np.full(100, 0x01010101))
    np.testing.assert_array_equal(array[100:], np.arange(100, 1000))
    assert sim.calls("cuMemHostGetDevicePointer") >= 1


def test_a_managed_array_is_shared_by_host_and_device(context: Any) -> None:
    array = cuda.managed_array(1000, np.int32)
    assert sim.calls("cuMemAllocManaged") == 1
    array[:] = np.arange(1000)
    np.testing.assert_array_equal(cuda.as_cuda_array(array).copy_to_host(), np.arange(1000))
    device_memset(array, 2, 400)
    np.testing.assert_array_equal(array[:100], np.full(100, 0x02020202))
    np.testing.assert_array_equal(array[100:], np.arange(100, 1000))


def test_the_programs_arrays_are_pinned_and_mapped_temporarily(context: Any) -> None:
    array = numbers()
    with cuda.pinned(array):
        assert sim.census().allocations == 1
        assert (sim.calls("cuMemHostRegister"), sim.calls("cuMemHostUnregister")) == (1, 0)
    assert sim.census().allocations == 0
    with cuda.mapped(array) as on_device:
        np.testing.assert_array_equal(on_device.copy_to_host(), numbers())
        device_memset(on_device, 0, 80)
    assert (sim.calls("cuMemHostRegister"), sim.calls("cuMemHostUnregister")) == (2, 2)
    assert not array[:10].any()
    np.testing.assert_array_equal(array[10:], numbers()[10:])


def test_arrays_are_on_their_device(two_devices: None) -> None:
    array = numbers()
    with cuda.gpus[1]:
        there = cuda.to_device(array)
        assert cuda.get_current_device().id == 1
    with cuda.gpus[0]:
        here = cuda.to_device(array[:1000])
    assert (sim.used(0), sim.used(1)) == (8192, 802_816)  # in whole pages
    with cuda.gpus[1]:
        np.testing.assert_array_equal(there.copy_to_host(), array)
    with cuda.gpus[0]:
        assert cuda.current_context().can_access_peer(1)
        np.testing.assert_array_equal(here.copy_to_host(), array[:1000])
    assert sim.census().contexts == 2


def test_numba_frees_deferred_memory_and_retries_when_out_of_memory(context: Any) -> None:
    array = cuda.device_array(GIB, np.uint8)
    del array  # deferred, so the next one has no room at first
    assert sim.used() == GIB
    array = cuda.device_array(7 * GIB + 1, np.uint8)
    assert (sim.calls("cuMemAlloc"), sim.calls("cuMemFree")) == (3, 1)
    assert sim.used() == 7 * GIB + 4096
    with pytest.raises(CudaAPIError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        cuda.device_array(GIB, np.uint8)
    assert sim.used() == 7 * GIB + 4096
    del array


def test_a_planned_failure_raises_numbas_exception(context: Any) -> None:
    sim.fail("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", times=2)
    with pytest.raises(CudaAPIError) as caught:
        cuda.device_array(1000)
    assert caught.value.code == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    sim.fail("cuMemcpyDtoH", "CUDA_ERROR_LAUNCH_FAILED")
    array = cuda.to_device(numbers())
    with pytest.raises(CudaAPIError, match="CUDA_ERROR_LAUNCH_FAILED"):
        array.copy_to_host()
    np.testing.assert_array_equal(array.copy_to_host(), numbers())


def test_a_handle_for_another_process_is_not_opened_in_this_one(context: Any) -> None:
    array = cuda.to_device(numbers())
    with pytest.raises(Exception, match="from original process"):  # numba says so before the driver can
        array.get_ipc_handle().open()


class Counting(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """A memory manager that hands out one large allocation piece by piece, and frees it when all pieces are free."""

    SIZE: ClassVar[int] = 64 * MIB
    base: ClassVar[int] = 0
    live: ClassVar[dict[int, int]] = {}
    given: ClassVar[int] = 0

    def initialize(self) -> None:
        pass

    def memalloc(self, size: int) -> cuda.MemoryPointer:
        kind = type(self)
        if kind.base == 0:
            code, pointer = cu.cuMemAlloc(kind.SIZE)
            assert code == cu.CUresult.CUDA_SUCCESS
            kind.base = int(pointer)
        address = kind.base + kind.given * MIB
        kind.given += 1
        kind.live[address] = size
        return cuda.MemoryPointer(
            weakref.proxy(self.context), cu.CUdeviceptr(address), size, finalizer=kind.giver_back(address)
        )

    @classmethod
    def giver_back(cls, address: int) -> Callable[[], None]:
        def give_back() -> None:
            del cls.live[address]
            if not cls.live:
                cu.cuMemFree(cls.base)
                cls.base = 0

        return give_back

    def get_memory_info(self) -> cuda.MemoryInfo:
        return cuda.MemoryInfo(free=self.SIZE - sum(self.live.values()), total=self.SIZE)

    @property
    def interface_version(self) -> int:
        return 1


def test_a_plug_in_serves_numbas_device_memory() -> None:
    cuda.set_memory_manager(Counting)
    array = numbers()
    first, second = cuda.to_device(array), cuda.to_device(array[:1000])
    assert sim.calls("cuMemAlloc") == 1
    assert sorted(Counting.live.values()) == [8000, 800_000]
    assert second.gpu_data.device_pointer_value - first.gpu_data.device_pointer_value == MIB
    np.testing.assert_array_equal(first.copy_to_host(), array)
    np.testing.assert_array_equal(second.copy_to_host(), array[:1000])
    assert cuda.current_context().get_memory_info() == (64 * MIB - 808_000, 64 * MIB)
    pinned = cuda.pinned_array(10)  # still numba's own business
    assert sim.calls("cuMemHostAlloc") == 1
    del first
    assert list(Counting.live.values()) == [8000]
    assert sim.used() == 64 * MIB
    del second, pinned
    assert (Counting.live, Counting.given, sim.used()) == ({}, 2, 0)
    flush()


PLUG_IN = """
import weakref
from cuda.bindings import driver as cu
from numba import cuda

class Manager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    sizes = []
    interface_version = 1
    def initialize(self): pass
    def memalloc(self, size):
        self.sizes.append(size)
        code, pointer = cu.cuMemAlloc(size)
        return cuda.MemoryPointer(weakref.proxy(self.context), pointer, size, finalizer=lambda: cu.cuMemFree(pointer))
    def get_memory_info(self):
        raise NotImplementedError

_numba_memory_manager = Manager
"""


def test_a_plug_in_is_selected_by_its_environment_variable(tmp_path: Path) -> None:
    (tmp_path / "plug_in.py").write_text(PLUG_IN)
    program = """
from arena import sim
sim.configure(races=True)
sim.enable()
import numpy as np
from numba import cuda
array = cuda.to_device(np.arange(1000))
import plug_in
print(plug_in.Manager.sizes, array.copy_to_host().sum(), len(sim.races()))
"""
    output = run_client(program, NUMBA_CUDA_MEMORY_MANAGER="plug_in", PYTHONPATH=str(tmp_path))
    assert output == "[8000] 499500 0\n"


def test_closing_destroys_the_context_and_everything_in_it() -> None:
    array, stream, event = cuda.to_device(numbers()), cuda.stream(), cuda.event()
    pinned, managed = cuda.pinned_array(1000), cuda.managed_array(1000)
    assert (sim.census().contexts, sim.census().allocations) == (1, 3)
    cuda.close()
    assert (sim.census().contexts, sim.census().allocations, sim.used()) == (0, 0, 0)
    # numba has freed them with no context current, except for the pinned one, whose finalizer is still to come.
    assert (sim.calls("cuMemFree"), sim.calls("cuMemFreeHost")) == (2, 0)
    del array, stream, event, pinned, managed
    gc.collect()
    assert (sim.census().contexts, sim.census().allocations) == (0, 0)
    # cuda-core, on which numba is built, keeps the context that is gone.
    with pytest.raises(CudaAPIError, match="CUDA_ERROR_CONTEXT_IS_DESTROYED"):
        cuda.device_array(1000)


def test_a_plug_ins_memory_outlives_a_close() -> None:
    cuda.set_memory_manager(Counting)
    array = cuda.to_device(numbers())
    assert Counting.live
    cuda.close()
    del array  # cuMemFree without a context
    assert Counting.live == {}
    assert (sim.census().contexts, sim.used()) == (0, 0)


def test_a_program_with_live_arrays_exits_cleanly() -> None:
    program = """
from arena import sim
sim.enable()
import numpy as np
from numba import cuda
stream = cuda.stream()
array = cuda.to_device(np.arange(100_000), stream=stream)
pinned, mapped, managed = (make(1000) for make in (cuda.pinned_array, cuda.mapped_array, cuda.managed_array))
event = cuda.event()
sim.configure(delay=50_000)
array.copy_to_host(stream=stream)
device = cuda.device_array_like(array)
device.copy_to_device(array, stream=stream)
event.record(stream)
print(event.query())
"""
    assert run_client(program) == "False\n"

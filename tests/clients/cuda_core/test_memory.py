"""NVIDIA's cuda-core on the simulated driver: buffers from each of its memory resources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    ManagedMemoryResource,
    MemoryResource,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    Stream,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

from arena import sim

from .client import GIB, MIB, SLOW, SUCCESS, pinned, read, some_bytes, trim, write


def test_bytes_go_to_a_device_buffer_and_come_back(stream: Stream) -> None:
    data = some_bytes(MIB + 3)
    buffer = DeviceMemoryResource(0).allocate(len(data), stream=stream)
    assert (buffer.size, buffer.device_id) == (len(data), 0)
    assert (buffer.is_device_accessible, buffer.is_host_accessible, buffer.is_managed) == (True, False, False)
    write(buffer, data, stream)
    copy = buffer.copy_to(stream=stream)  # a new buffer of the same resource
    assert copy.memory_resource is buffer.memory_resource
    assert int(copy.handle) != int(buffer.handle)
    assert read(copy, stream) == data
    for each in (buffer, copy):
        each.close()
        assert each.is_closed


@pytest.mark.parametrize("pattern", [b"\x12", b"\x12\x34", b"\x12\x34\x56\x78"])
def test_a_buffer_is_filled_with_a_pattern(stream: Stream, device: Device, pattern: bytes) -> None:
    buffer = device.allocate(8192, stream=stream)
    buffer.fill(pattern, stream=stream)
    assert read(buffer, stream) == pattern * (8192 // len(pattern))
    assert sim.calls(f"cuMemsetD{8 * len(pattern)}Async") == 1
    buffer.close()


def test_the_devices_pool_keeps_what_is_freed_and_reuses_it(stream: Stream) -> None:
    resource = DeviceMemoryResource(0)
    assert not resource.is_handle_owned
    first = resource.allocate(4 * MIB, stream=stream)
    address = int(first.handle)
    assert (resource.attributes.used_mem_current, sim.used()) == (4 * MIB, 4 * MIB)
    first.close()
    stream.sync()
    # cuda-core raises the threshold of this pool, so that a synchronisation releases nothing.
    assert (resource.attributes.used_mem_current, resource.attributes.reserved_mem_current) == (0, 4 * MIB)
    second = resource.allocate(4 * MIB, stream=stream)
    assert int(second.handle) == address
    second.close()
    stream.sync()
    assert sim.used() == 4 * MIB
    trim()
    assert (resource.attributes.reserved_mem_current, sim.used()) == (0, 0)


def test_a_custom_pool_ends_at_its_size_and_with_its_resource(stream: Stream) -> None:
    resource = DeviceMemoryResource(0, DeviceMemoryResourceOptions(max_size=2 * MIB))
    assert resource.is_handle_owned
    buffer = resource.allocate(MIB, stream=stream)
    with pytest.raises(Exception, match="CUDA_ERROR_OUT_OF_MEMORY"):
        resource.allocate(2 * MIB, stream=stream)
    assert sim.used() == MIB
    buffer.close()
    stream.sync()
    resource.close()
    assert resource.is_closed
    assert sim.calls("cuMemPoolDestroy") == 1
    assert sim.used() == 0


def test_a_buffer_closed_behind_queued_work_still_serves_it(stream: Stream, device: Device) -> None:
    source, target = (device.allocate(MIB, stream=stream) for _ in range(2))
    with sim.temporarily(delay=SLOW):
        source.fill(0x77, stream=stream)
        target.copy_from(source, stream=stream)
        source.close()  # in stream order: after the copy
        target.fill(0x11, stream=stream)
        host, array = pinned(MIB)
        host.copy_from(target, stream=stream)
        target.close()
        stream.sync()
    assert array.tobytes() == b"\x11" * MIB
    del array
    host.close()


def test_legacy_pinned_memory_is_an_array_for_numpy(stream: Stream, device: Device) -> None:
    source, here = pinned(MIB)
    target, there = pinned(MIB)
    assert sim.census().allocations == 2
    assert sim.used() == 0
    assert source.__dlpack_device__()[0] == 3  # DLPack's name for pinned host memory
    assert (here.size, here.ctypes.data) == (MIB, int(source.handle))
    here[:] = np.frombuffer(some_bytes(MIB), np.uint8)
    buffer = device.allocate(MIB, stream=stream)
    buffer.copy_from(source, stream=stream)
    buffer.copy_to(target, stream=stream)
    stream.sync()
    assert there.tobytes() == some_bytes(MIB)
    del here, there
    for each in (buffer, source, target):
        each.close()


def test_device_memory_is_no_array_for_numpy(stream: Stream, device: Device) -> None:
    buffer = device.allocate(4096, stream=stream)
    assert buffer.__dlpack_device__() == (2, 0)  # DLPack's name for CUDA device memory
    with pytest.raises((RuntimeError, BufferError), match=r"[Dd]evice"):
        np.from_dlpack(buffer)
    buffer.close()


@pytest.mark.parametrize("options", [None, PinnedMemoryResourceOptions()], ids=["the host's pool", "a new pool"])
def test_pinned_memory_comes_from_a_pool_in_stream_order(stream: Stream, device: Device, options: Any) -> None:
    resource = PinnedMemoryResource(options)
    assert resource.is_handle_owned == (options is not None)
    host = resource.allocate(MIB, stream=stream)
    assert host.is_host_accessible
    assert resource.attributes.used_mem_current == MIB
    assert sim.used() == 0  # the host's bytes, not the device's
    array = np.from_dlpack(host).view(np.uint8)
    array[:] = np.frombuffer(some_bytes(MIB), np.uint8)
    buffer = device.allocate(MIB, stream=stream)
    buffer.copy_from(host, stream=stream)
    stream.sync()
    array[:] = 0
    host.copy_from(buffer, stream=stream)
    stream.sync()
    assert array.tobytes() == some_bytes(MIB)
    del array
    host.close()
    buffer.close()
    stream.sync()
    assert (resource.attributes.used_mem_current, resource.attributes.reserved_mem_current) == (0, 0)
    resource.close()


def test_pools_of_managed_memory_are_reported_as_unsupported(device: Device) -> None:
    with pytest.raises(Exception, match="CUDA_ERROR_NOT_SUPPORTED"):
        ManagedMemoryResource()


def give_back(buffer: Buffer) -> None:
    """Close a buffer of virtual memory, and release its handles, which cuda-core 1.2 forgets (its issue 2882)."""
    place, handles = int(buffer.handle), set()
    for offset in range(0, buffer.size, 2 * MIB):
        code, handle = cu.cuMemRetainAllocationHandle(place + offset)
        assert code == SUCCESS
        handles.add(int(handle))
    assert len(handles) == sim.census().handles
    buffer.close()
    assert (sim.census().mappings, sim.census().reservations) == (0, 0)
    for handle in handles:
        while cu.cuMemRelease(handle)[0] == SUCCESS:
            pass


def test_virtual_memory_is_rounded_up_mapped_and_released(stream: Stream) -> None:
    resource = VirtualMemoryResource(0)
    buffer = resource.allocate(3 * MIB)
    assert (buffer.size, sim.used()) == (4 * MIB, 4 * MIB)
    assert (sim.census().mappings, sim.census().reservations, sim.census().allocations) == (1, 1, 0)
    write(buffer, some_bytes(4 * MIB), stream)
    assert read(buffer, stream) == some_bytes(4 * MIB)
    give_back(buffer)
    assert sim.used() == 0


def test_virtual_memory_grows_and_keeps_its_bytes(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    resource = VirtualMemoryResource(0, VirtualMemoryResourceOptions(handle_type=None))
    small = resource.allocate(2 * MIB)
    write(small, some_bytes(2 * MIB), stream)
    large = resource.modify_allocation(small, 6 * MIB)
    assert (large.size, sim.used()) == (6 * MIB, 6 * MIB)
    assert sim.census().mappings == 2
    assert read(large, stream)[: 2 * MIB] == some_bytes(2 * MIB)
    write(large, some_bytes(6 * MIB), stream)
    assert read(large, stream) == some_bytes(6 * MIB)
    give_back(large)
    assert sim.used() == 0
    # cuda-core 1.2 tries to free the old addresses again, and warns that it could not (its issue 2877).
    assert [line for line in capfd.readouterr().err.splitlines() if "mr.deallocate() failed" not in line] == []


class Counting(MemoryResource):  # type: ignore[misc]
    """A custom memory resource on top of plain allocations."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.total = 0

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        code, pointer = cu.cuMemAlloc(size)
        if code != SUCCESS:
            raise MemoryError(code.name)
        self.live[int(pointer)] = size
        self.total += 1
        return Buffer.from_handle(int(pointer), size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Stream) -> None:
        stream.sync()
        assert self.live.pop(int(ptr)) == size
        assert cu.cuMemFree(int(ptr))[0] == SUCCESS

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def is_managed(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return 0


def test_a_custom_resource_serves_the_device(stream: Stream, device: Device) -> None:
    resource = device.memory_resource = Counting()
    buffer = device.allocate(MIB, stream=stream)
    assert buffer.memory_resource is resource
    assert resource.live == {int(buffer.handle): MIB}
    write(buffer, some_bytes(MIB), stream)
    copy = buffer.copy_to(stream=stream)
    assert (resource.total, sim.used()) == (2, 2 * MIB)
    assert read(copy, stream) == some_bytes(MIB)
    copy.close()
    assert list(resource.live) == [int(buffer.handle)]
    del buffer  # even without a close
    assert resource.live == {}
    assert sim.calls("cuMemAllocFromPoolAsync") == 0
    assert sim.calls("cuMemFree") == 2
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(8 * GIB + 1, stream=stream)


def test_the_default_stream_orders_allocations_too(device: Device) -> None:
    buffer = device.allocate(4096, stream=LEGACY_DEFAULT_STREAM)
    buffer.fill(9, stream=device.default_stream)
    assert read(buffer, LEGACY_DEFAULT_STREAM) == b"\x09" * 4096
    buffer.close(LEGACY_DEFAULT_STREAM)

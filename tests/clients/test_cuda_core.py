"""NVIDIA's cuda-core on the simulated driver: devices, streams, events, and buffers from each of its memory resources.

What cuda-core asks of NVML, of NVRTC and, in a few places, of the CUDA runtime is not here: those are other libraries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    EventOptions,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    MemoryResource,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    Stream,
    StreamOptions,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

from arena import sim

MIB = 1 << 20
GIB = 1 << 30
SLOW = 150_000  # microseconds: longer than any call takes, also on a busy machine
SUCCESS = cu.CUresult.CUDA_SUCCESS


@pytest.fixture
def device(capfd: pytest.CaptureFixture[str]) -> Iterator[Device]:
    """The current device. What its pool keeps is given back, and the client has found nothing to warn of."""
    current = Device(0)
    current.set_current()
    yield current
    synchronise()
    for number in range(len(Device.get_all_devices())):
        trim(number)
    assert capfd.readouterr().err == ""


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    made = device.create_stream()
    yield made
    made.close()


def synchronise() -> None:
    """In place of `Device.sync`, which calls the runtime."""
    assert cu.cuCtxSynchronize()[0] == SUCCESS


def trim(number: int = 0) -> None:
    code, pool = cu.cuDeviceGetMemPool(number)
    assert code == SUCCESS
    assert cu.cuMemPoolTrimTo(pool, 0)[0] == SUCCESS


def pinned(size: int, fill: int = 0) -> tuple[Buffer, Any]:
    """A buffer in pinned memory, and its bytes as an array."""
    buffer = LegacyPinnedMemoryResource().allocate(size)
    array = np.from_dlpack(buffer).view(np.uint8)
    array[:] = fill
    return buffer, array


def read(buffer: Buffer, stream: Stream) -> bytes:
    host, array = pinned(buffer.size)
    host.copy_from(buffer, stream=stream)
    stream.sync()
    found = array.tobytes()
    del array
    host.close()
    return found


def write(buffer: Buffer, data: bytes, stream: Stream) -> None:
    host, array = pinned(len(data))
    array[:] = np.frombuffer(data, np.uint8)
    buffer.copy_from(host, stream=stream)
    stream.sync()
    del array
    host.close()


def some_bytes(size: int) -> bytes:
    return np.random.default_rng(1).bytes(size)


# Devices, streams and events


def test_devices_describe_themselves() -> None:
    sim.configure(memory=["8GiB", "24GiB"])
    devices = Device.get_all_devices()
    assert [device.device_id for device in devices] == [0, 1]
    assert {device.name for device in devices} == {"Simulated CUDA device"}
    assert len({device.uuid for device in devices}) == 2
    assert [tuple(device.compute_capability) for device in devices] == [(8, 0)] * 2
    assert [device.arch for device in devices] == ["80"] * 2
    assert devices[0].can_access_peer(devices[1])
    with pytest.raises(ValueError, match=r"\[0, 2\)"):
        Device(2)


def test_every_property_of_a_device_can_be_read(device: Device) -> None:
    names = [name for name in dir(device.properties) if not name.startswith("_")]
    assert len(names) > 100
    values = {name: getattr(device.properties, name) for name in names}
    assert values["warp_size"] == 32
    assert values["memory_pools_supported"]
    assert values["host_memory_pools_supported"]
    assert values["virtual_memory_management_supported"]
    assert not values["integrated"]


def test_the_current_device_has_its_primary_context_current(device: Device) -> None:
    assert sim.census().contexts == 1
    assert int(device.context.handle) == int(cu.cuCtxGetCurrent()[1])
    assert Device() is device
    device.set_current()  # again changes nothing
    assert sim.census().contexts == 1
    assert sim.calls("cuDevicePrimaryCtxRetain") == 1


def test_streams_have_their_options_and_are_closed(device: Device) -> None:
    plain = device.create_stream()
    urgent = device.create_stream(options=StreamOptions(nonblocking=False, priority=-3))
    assert (plain.is_nonblocking, plain.priority) == (True, 0)
    assert (urgent.is_nonblocking, urgent.priority) == (False, -3)
    assert plain.device is urgent.device is device
    assert sim.census().streams == 2
    for stream in (plain, urgent):
        stream.close()
    assert sim.census().streams == 0
    with pytest.raises(RuntimeError, match="closed"):
        plain.sync()


def test_a_stream_of_another_library_is_borrowed(stream: Stream, device: Device) -> None:
    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, int(stream.handle)

    borrowed = device.create_stream(Foreign())
    assert int(borrowed.handle) == int(stream.handle)
    borrowed.close()
    assert sim.census().streams == 1
    stream.sync()


def test_an_event_is_done_when_the_work_before_it_is(stream: Stream, device: Device) -> None:
    buffer = device.allocate(4096, stream=stream)
    timed = EventOptions(timing_enabled=True)
    begin = stream.record(options=timed)
    with sim.temporarily(delay=SLOW):
        buffer.fill(1, stream=stream)
        end = stream.record(options=timed)
        assert not end.is_done
        called = time.perf_counter()
        end.sync()
        assert time.perf_counter() - called > SLOW / 1e6 / 2
    assert end.is_done
    assert SLOW / 1000 <= end - begin < 10_000
    assert sim.census().events == 2
    with pytest.raises(RuntimeError, match="timing"):
        _ = stream.record() - begin
    begin.close()
    end.close()
    buffer.close()


@pytest.mark.parametrize("by", ["event", "stream"])
def test_one_stream_waits_for_another(stream: Stream, device: Device, by: str) -> None:
    other = device.create_stream()
    first, second = (device.allocate(4096, stream=stream) for _ in range(2))
    with sim.temporarily(delay=SLOW):
        first.fill(0x5A, stream=stream)
        other.wait(stream.record() if by == "event" else stream)
        second.copy_from(first, stream=other)
    assert read(second, other) == b"\x5a" * 4096
    first.close(other)
    second.close(other)
    other.close()


def test_a_missing_wait_is_found_as_a_race(stream: Stream, device: Device) -> None:
    other = device.create_stream()
    buffer = device.allocate(4096, stream=stream)
    stream.sync()
    buffer.fill(1, stream=stream)
    buffer.fill(2, stream=other)
    [race] = sim.races()
    assert (race.kind, race.first.stream, race.second.stream) == ("race", int(stream.handle), int(other.handle))
    assert race.first.operation == race.second.operation == "cuMemsetD8Async"
    sim.clear_races()
    synchronise()
    buffer.close(stream)
    other.close()


def test_what_cuda_core_asks_of_the_runtime_is_an_error(device: Device) -> None:
    with pytest.raises(Exception, match="cudaErrorSymbolNotFound"):
        device.sync()
    with pytest.raises(Exception, match="cudaErrorSymbolNotFound"):
        _ = device.pci_bus_id


# Memory resources


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


def test_the_devices_pool_keeps_what_is_freed_and_hands_it_out_again(stream: Stream) -> None:
    resource = DeviceMemoryResource(0)
    assert not resource.is_handle_owned
    first = resource.allocate(4 * MIB, stream=stream)
    address = int(first.handle)
    assert (resource.attributes.used_mem_current, sim.used()) == (4 * MIB, 4 * MIB)
    first.close()
    stream.sync()
    # cuda-core raises the threshold of this pool, so that a synchronisation takes nothing away.
    assert (resource.attributes.used_mem_current, resource.attributes.reserved_mem_current) == (0, 4 * MIB)
    second = resource.allocate(4 * MIB, stream=stream)
    assert int(second.handle) == address
    second.close()
    stream.sync()
    assert sim.used() == 4 * MIB
    trim()
    assert (resource.attributes.reserved_mem_current, sim.used()) == (0, 0)


def test_a_pool_of_ones_own_ends_at_its_size_and_with_its_resource(stream: Stream) -> None:
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
    assert source.__dlpack_device__()[0] == 3  # pinned host memory, says DLPack
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
    assert buffer.__dlpack_device__() == (2, 0)  # CUDA device memory, says DLPack
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


def test_pools_of_managed_memory_are_said_to_be_unsupported(device: Device) -> None:
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


def test_virtual_memory_is_rounded_up_mapped_and_given_back(stream: Stream) -> None:
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
    """A memory resource of the program's own, by plain allocations."""

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


def test_a_resource_of_the_programs_own_serves_the_device(stream: Stream, device: Device) -> None:
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
    del buffer  # without a close, too
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


# Errors, and several devices


def test_errors_of_the_driver_are_exceptions(stream: Stream, device: Device) -> None:
    with pytest.raises(Exception, match="CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(8 * GIB + 1, stream=stream)
    sim.fail("cuMemAllocFromPoolAsync", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(Exception, match="CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(4096, stream=stream)
    buffer = device.allocate(4096, stream=stream)
    buffer.close()
    sim.fail("cuStreamCreateWithPriority", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(Exception, match="CUDA_ERROR_UNKNOWN"):
        device.create_stream()


@pytest.fixture
def two_devices() -> None:
    sim.configure(memory=["8GiB", "24GiB"])


def test_a_pool_is_opened_to_another_device(two_devices: None, stream: Stream) -> None:
    second = Device(1)
    resource = DeviceMemoryResource(0)
    buffer = resource.allocate(MIB, stream=stream)
    write(buffer, some_bytes(MIB), stream)
    second.set_current()
    theirs = second.create_stream()
    with pytest.raises(Exception, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        buffer.fill(1, stream=theirs)
    resource.peer_accessible_by = {1}
    assert set(resource.peer_accessible_by) == {second}
    own = second.allocate(MIB, stream=theirs)
    assert (sim.used(0), sim.used(1)) == (MIB, MIB)
    own.copy_from(buffer, stream=theirs)
    assert read(own, theirs) == some_bytes(MIB)
    buffer.fill(1, stream=theirs)
    theirs.sync()
    own.close()
    theirs.close()
    Device(0).set_current()
    assert read(buffer, stream) == b"\x01" * MIB
    buffer.close()

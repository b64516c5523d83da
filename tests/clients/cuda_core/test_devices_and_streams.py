"""NVIDIA's cuda-core on the simulated driver: devices, streams, events, and errors.

cuda-core's use of NVML, NVRTC and, in a few places, the CUDA runtime is not covered: those are other libraries.
"""

from __future__ import annotations

import time

import pytest
from cuda.bindings import driver as cu
from cuda.core import (
    Device,
    DeviceMemoryResource,
    EventOptions,
    Stream,
    StreamOptions,
)

from arena import sim

from .client import GIB, MIB, SLOW, read, some_bytes, synchronise, write

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
    device.set_current()  # a second time changes nothing
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


def test_a_missing_wait_is_reported_as_a_race(stream: Stream, device: Device) -> None:
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


def test_what_needs_the_runtime_is_an_error(device: Device) -> None:
    with pytest.raises(Exception, match="cudaErrorSymbolNotFound"):
        device.sync()
    with pytest.raises(Exception, match="cudaErrorSymbolNotFound"):
        _ = device.pci_bus_id


# Errors, and several devices


def test_driver_errors_are_exceptions(stream: Stream, device: Device) -> None:
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


def test_a_pool_can_be_made_accessible_to_another_device(two_devices: None, stream: Stream) -> None:
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

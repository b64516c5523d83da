"""Several devices: which may access the memory, whose context is touched, and whose work is waited for."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import arena
from arena import UsageError, sim

from ..simulated.conftest import fresh
from ..simulated.cu import ILLEGAL_ADDRESS, SUCCESS, Cu
from ..simulated.test_streams import SLOW
from .conftest import GIB, MIB, MakeArena

Machine = Callable[..., "Devices"]
RDMA_CAPABLE = 15  # a pointer attribute


class Devices:
    """A machine with several devices, whose primary contexts are started on first use."""

    def __init__(self, make: MakeArena) -> None:
        self.cu = Cu()
        self.cu.ok("cuInit", 0)
        self.make = make
        self.contexts: dict[int, int] = {}

    def use(self, device: int) -> Cu:
        if device not in self.contexts:
            self.contexts[device] = self.cu.start(device)
        self.cu.ok("cuCtxSetCurrent", self.contexts[device])
        return self.cu

    def fill_from(self, device: int, buffer: arena.Buffer) -> str:
        """The result of a kernel on a device that writes to the buffer."""
        cu = self.use(device)
        result = cu.cuMemsetD8Async(buffer.ptr, 1, buffer.nbytes, 0)
        return result if result != SUCCESS else cu.cuStreamSynchronize(0)

    def active(self) -> list[int]:
        """The devices whose primary context is active."""
        return [device for device in range(sim.settings().devices) if self._is_active(device)]

    def _is_active(self, device: int) -> bool:
        flags, is_active = ctypes.c_uint(), ctypes.c_int()
        self.cu.ok("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(is_active))
        return bool(is_active.value)


@pytest.fixture
def machine(make: MakeArena) -> Machine:
    def build(**settings: Any) -> Devices:
        fresh(**settings)
        return Devices(make)

    return build


@pytest.mark.parametrize("count", [2, 8])
def test_every_capable_device_can_access_the_memory(machine: Machine, count: int) -> None:
    devices = machine(devices=count)
    buffer = devices.make(device=1, cap="64MiB").allocate(4 * MIB)
    for device in range(count):
        assert devices.fill_from(device, buffer) == SUCCESS
    others = [device for device in range(count) if device != 1]
    assert devices.make(device=1, cap="64MiB").peers == others


@pytest.mark.parametrize("peers", [[], [2]])
def test_only_the_chosen_peers_can_access_the_memory(machine: Machine, peers: list[int]) -> None:
    devices = machine(devices=3)
    pool = devices.make(cap="64MiB", peers=peers)
    buffer = pool.allocate(MIB)
    assert pool.peers == peers
    for device in (1, 2):
        assert devices.fill_from(device, buffer) == (SUCCESS if device in peers else ILLEGAL_ADDRESS)


def test_devices_without_peer_access_are_left_out(machine: Machine) -> None:
    devices = machine(devices=4, peers=[(0, 1), (2, 3)])
    buffer = devices.make(device=2, cap="64MiB").allocate(MIB)
    assert [devices.make(device=device, cap="64MiB").peers for device in range(4)] == [[1], [0], [3], [2]]
    assert devices.fill_from(3, buffer) == SUCCESS
    assert devices.fill_from(0, buffer) == ILLEGAL_ADDRESS


def test_moved_and_later_memory_is_open_to_peers_as_well(machine: Machine) -> None:
    devices = machine(devices=2)
    pool = devices.make(cap="128MiB", growth="8MiB", compact=True)
    first = pool.allocate(2 * MIB)
    pool.trim(compact=True)
    later = pool.allocate(16 * MIB)
    assert pool.stats().rebacked == 1
    assert [devices.fill_from(1, block) for block in (first, later)] == [SUCCESS, SUCCESS]


@pytest.mark.parametrize(
    ("peers", "text"),
    [
        ([3], r"peers=\[3\]: 3 is not the number of another device; there are 3, counted from 0, .* on device 0"),
        ([0], r"peers=\[0\]: 0 is not the number of another device"),
        ([True], r"peers=\[True\]: True is not the number of another device"),
        (["1"], r"peers=\['1'\]: '1' is not the number of another device"),
        (1, r"peers=1 is not accepted; write numbers of other devices: \[1, 2\], or \[\]"),
        ([2], r"peers: device 2 cannot access the memory of device 0; devices that can: 1"),
    ],
)
def test_an_invalid_peer_is_named(machine: Machine, peers: Any, text: str) -> None:
    devices = machine(devices=3, peers=[(0, 1)])
    with pytest.raises(UsageError, match=text):
        devices.make(peers=peers)


def test_an_arena_touches_no_device_but_its_own(machine: Machine) -> None:
    devices = machine(devices=8, exclusive=[5])
    buffer = devices.make(device=3, cap="64MiB").allocate(MIB)
    assert devices.active() == [3]
    assert devices.fill_from(3, buffer) == SUCCESS


def test_a_device_used_exclusively_by_another_process_is_no_peer(machine: Machine) -> None:
    devices = machine(devices=3, exclusive=[1])
    pool = devices.make(cap="64MiB")
    buffer = pool.allocate(MIB)
    assert pool.peers == [2]
    assert devices.fill_from(2, buffer) == SUCCESS
    with pytest.raises(arena.DriverError, match="DEVICE_UNAVAILABLE"):
        devices.make(cap="64MiB", peers=[1]).allocate(MIB)


def test_an_unavailable_device_is_described_all_the_same(machine: Machine) -> None:
    machine(devices=3, exclusive=[1])
    free, taken, other = arena.Driver.open("sim").devices()
    assert taken.free is None
    assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in taken.problem
    assert (taken.total, taken.peers) == (8 * GIB, [0, 2])
    assert (free.free, free.problem, other.free) == (8 * GIB, "", 8 * GIB)


@pytest.mark.parametrize("call", ["cuDeviceCanAccessPeer", "cuDeviceGetAttribute"])
def test_a_device_whose_peer_query_fails_is_no_peer(machine: Machine, call: str) -> None:
    devices = machine(devices=3)
    pool = devices.make(cap="64MiB")
    before = sim.call_table()
    arena._core.describe_device(arena.Driver.open("sim"), 0)
    asked = sim.call_table()[call] - before[call]
    sim.fail(call, "CUDA_ERROR_UNKNOWN", nth=asked)  # the last query is about device 2
    assert arena._core.describe_device(arena.Driver.open("sim"), 0).peers == [1]
    assert pool.peers == [1, 2]


def test_work_of_another_device_is_waited_for_before_data_is_moved(machine: Machine) -> None:
    devices = machine(devices=3)
    pool = devices.make(cap="128MiB", growth="8MiB", compact=True)
    block = pool.allocate(2 * MIB)
    assert pool.stats().reserved == 8 * MIB
    cu = devices.use(1)
    stream = cu.stream()
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", block.ptr, 7, block.nbytes, stream)
    devices.use(0)
    pool.trim(compact=True)
    assert (pool.stats().rebacked, pool.stats().reserved) == (1, 2 * MIB)
    assert cu.read(block.ptr, block.nbytes) == b"\7" * block.nbytes
    assert devices.active() == [0, 1]
    devices.use(1).ok("cuStreamDestroy", stream)


class Capture:
    """A blocking stream of device 1 that is being captured."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        cu = devices.use(1)
        self.stream = cu.stream(non_blocking=False)
        cu.ok("cuStreamBeginCapture", self.stream, 2)
        devices.use(0)

    def end(self) -> str:
        cu, graph = self.devices.use(1), ctypes.c_uint64()
        result = cu.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        if graph.value:
            cu.ok("cuGraphDestroy", graph.value)
        cu.ok("cuStreamDestroy", self.stream)
        self.devices.use(0)
        return result


def test_a_capture_on_another_device_survives_when_data_cannot_be_moved(machine: Machine) -> None:
    devices = machine(devices=2)
    pool = devices.make(cap="16MiB", growth="8MiB", compact=True)
    blocks = [pool.allocate(2 * MIB) for _ in range(8)]
    del blocks[1::2]
    capture = Capture(devices)
    with pytest.raises(UsageError, match="a stream is being captured"):
        pool.trim(compact=True)
    assert capture.end() == SUCCESS
    pool.trim(compact=True)
    assert pool.stats().reserved == 8 * MIB


def test_a_capture_on_another_device_survives_when_its_streams_memory_is_needed(machine: Machine) -> None:
    devices = machine(devices=2)
    pool = devices.make(cap="4MiB", growth="2MiB")
    user = devices.use(1).stream()
    devices.use(0)
    block = pool.allocate(4 * MIB)
    block.record_stream(user)
    capture = Capture(devices)
    block.free()
    with pytest.raises(arena.OutOfMemoryError, match="a stream is being captured"):
        pool.allocate(4 * MIB)
    assert capture.end() == SUCCESS
    pool.allocate(4 * MIB).free()
    devices.use(1).ok("cuStreamDestroy", user)


@pytest.mark.parametrize("rdma", [True, False])
def test_memory_is_created_for_rdma_where_the_device_supports_it(machine: Machine, rdma: bool) -> None:
    devices = machine(rdma=rdma)
    pool = devices.make(cap="64MiB")
    buffer = pool.allocate(MIB)
    assert is_for_rdma(devices.use(0), buffer) == rdma


def is_for_rdma(cu: Cu, buffer: arena.Buffer) -> bool:
    value = ctypes.c_int()
    cu.ok("cuPointerGetAttribute", ctypes.byref(value), RDMA_CAPABLE, buffer.ptr)
    return bool(value.value)


@pytest.mark.parametrize("reserve", [0, "4MiB"])
def test_if_rdma_memory_is_refused_the_arena_does_without(machine: Machine, reserve: Any) -> None:
    devices = machine(rdma="broken", devices=2)
    pool = devices.make(cap="64MiB", reserve=reserve)
    buffer = pool.allocate(MIB)
    assert not is_for_rdma(devices.use(0), buffer)
    assert devices.fill_from(1, buffer) == SUCCESS
    assert pool.stats().reserved == sim.used()
    assert pool.peers == [1]
    pool.validate()


def test_the_arena_does_without_rdma_even_if_releasing_a_handle_fails_at_first(machine: Machine) -> None:
    devices = machine(rdma="broken")
    pool = devices.make(cap="64MiB", reserve="4MiB")
    sim.fail("cuMemRelease", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(arena.DriverError, match="cuMemRelease"):
        pool.allocate(MIB)
    buffer = pool.allocate(MIB)
    assert not is_for_rdma(devices.use(0), buffer)
    pool.validate()


@pytest.mark.parametrize(
    ("peers", "vmm", "warns"),
    [("none", True, True), ("none", False, False), ("all", True, False)],
    ids=["no peers", "no peers, plain segments", "peers"],
)
def test_cupy_on_a_second_device_that_is_no_peer_is_warned_of_copies(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, peers: str, vmm: bool, warns: bool
) -> None:
    """CuPy copies between devices by cudaMemcpy, which faults on virtual memory there."""
    bridge = pytest.importorskip("arena._cupy.bridge")
    machine(devices=2, peers=peers)
    monkeypatch.setattr(bridge, "_used", set())
    pools = [arena.Arena(device=number, cap="8MiB", vmm=vmm) for number in range(2)]
    monkeypatch.setattr(bridge, "default_arena", pools.__getitem__)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for device in (0, 0, 1, 1):
            monkeypatch.setattr(bridge, "current_device", lambda device=device: device)
            assert bridge.default_pool() is pools[device]
    assert [("GPU 0 and GPU 1 cannot" in str(one.message)) for one in given] == ([True] if warns else [])
    for pool in pools:
        pool.close()


def test_a_copy_between_devices_that_are_no_peers_needs_plain_segments_or_a_peer_copy(machine: Machine) -> None:
    """What the warning says: cuMemcpy and cuMemcpyAsync fault, as a framework's own copies would."""
    devices = machine(devices=2, peers="none")
    for vmm in (True, False):
        buffers = [devices.make(device=number, cap="8MiB", vmm=vmm).allocate(MIB) for number in range(2)]
        cu = devices.use(0)
        contexts = [devices.contexts.get(number) or cu.start(number) for number in range(2)]
        cu.ok("cuCtxSetCurrent", contexts[0])
        result = cu.cuMemcpyAsync(buffers[1].ptr, buffers[0].ptr, MIB, 0)
        assert result == (ILLEGAL_ADDRESS if vmm else SUCCESS)
        cu.ok("cuMemcpyPeer", buffers[1].ptr, contexts[1], buffers[0].ptr, contexts[0], MIB)

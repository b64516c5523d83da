"""Machines unlike those in a data centre: few addresses, no peers, integrated or busy devices, slow unmapping."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from arena import UsageError, sim

from ..findings import expect
from ..threads import run_together
from .cu import (
    GIB,
    ILLEGAL_ADDRESS,
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    Access,
    Cu,
    Location,
    PoolProps,
    Prop,
    prop,
)
from .test_capture import CAPTURE_UNSUPPORTED, GLOBAL_MODE, begin
from .test_streams import SLOW

INTEGRATED, COMPUTE_MODE, RDMA_WITH_VMM = 18, 20, 110
RDMA_CAPABLE = 15  # a pointer attribute
EXCLUSIVE_PROCESS = 3
UNAVAILABLE = "CUDA_ERROR_DEVICE_UNAVAILABLE"
INVALID_DEVICE = "CUDA_ERROR_INVALID_DEVICE"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"


def attribute(cu: Cu, which: int, device: int = 0) -> int:
    return cu.out("cuDeviceGetAttribute", which, device, kind=ctypes.c_int)


def free_bytes(cu: Cu) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cu.ok("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value


# Addresses


def test_reservations_are_limited_by_the_address_space(cu: Cu) -> None:
    sim.configure(address_space="32GiB")
    reserve = lambda size: cu.cuMemAddressReserve(ctypes.byref(ctypes.c_uint64()), size, 0, 0, 0)  # noqa: E731
    assert reserve(33 * GIB) == OUT_OF_MEMORY
    address = cu.reserve(30 * GIB)
    assert [reserve(3 * GIB), reserve(2 * GIB), reserve(2 * MIB)] == [OUT_OF_MEMORY, SUCCESS, OUT_OF_MEMORY]
    cu.ok("cuMemAddressFree", address, 30 * GIB)
    assert reserve(30 * GIB) == SUCCESS
    assert cu.alloc(512) > 0  # which is no reservation
    sim.configure(address_space=0)
    assert reserve(100 * GIB) == SUCCESS


# Failures


@pytest.mark.parametrize("error", [NOT_READY, NOT_SUPPORTED])
def test_virtual_memory_calls_can_fail_for_good(cu: Cu, error: str) -> None:
    address, handle = cu.reserve(4 * MIB), cu.create()
    calls = {
        "cuMemCreate": lambda: cu.cuMemCreate(ctypes.byref(ctypes.c_uint64()), 2 * MIB, ctypes.byref(prop()), 0),
        "cuMemMap": lambda: cu.cuMemMap(address, 2 * MIB, 0, handle, 0),
        "cuMemSetAccess": lambda: cu.allow(address),
    }
    for name, call in calls.items():
        sim.fail(name, error, times=1 << 62)
        assert {call() for _ in range(100)} == {error}
        assert f"{name}:1:{error}:{(1 << 62) - 100}" in sim.planned()
    assert sim.used() == 2 * MIB
    sim.clear_planned()
    assert [call() for call in calls.values()] == [SUCCESS] * 3


# Devices used by another process


def test_a_device_used_exclusively_by_another_process_is_unavailable(machine: None) -> None:
    sim.configure(devices=2, exclusive=[1])
    cu, context = Cu(), ctypes.byref(ctypes.c_uint64())
    cu.start(0)
    assert cu.cuDevicePrimaryCtxRetain(context, 1) == cu.cuCtxCreate(context, 0, 1) == UNAVAILABLE
    assert (attribute(cu, COMPUTE_MODE, 0), attribute(cu, COMPUTE_MODE, 1)) == (0, EXCLUSIVE_PROCESS)
    assert cu.out("cuDeviceTotalMem", 1) == 8 * GIB  # it can still be queried
    sim.configure(exclusive=[])
    cu.start(1)
    assert sim.settings().exclusive == ()


def test_a_device_used_exclusively_by_another_process_gets_no_access(machine: None) -> None:
    sim.configure(devices=2)
    cu = Cu()
    cu.start(1)
    cu.start(0)
    mapped, _ = cu.mapped()
    sim.configure(exclusive=[1])
    assert cu.allow(mapped, device=1) == SUCCESS  # a context of this process has it
    cu.ok("cuDevicePrimaryCtxRelease", 1)
    assert cu.allow(mapped, device=1) == UNAVAILABLE


def test_an_existing_context_stays_when_its_device_becomes_exclusive(cu: Cu) -> None:
    with sim.temporarily(exclusive="0"):
        assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_uint64()), 0) == SUCCESS
        assert cu.cuCtxCreate(ctypes.byref(ctypes.c_uint64()), 0, 0) == UNAVAILABLE


# Peers


@pytest.fixture
def four(machine: None) -> Cu:
    sim.configure(devices=4, peers=[(0, 1), (2, 3)])
    driver = Cu()
    driver.start()
    return driver


def can(cu: Cu, device: int, peer: int) -> int:
    return cu.out("cuDeviceCanAccessPeer", device, peer, kind=ctypes.c_int)


def test_devices_say_which_peers_they_can_access(four: Cu) -> None:
    pairs = {(a, b) for a in range(4) for b in range(4) if can(four, a, b)}
    assert pairs == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert four.cuDeviceCanAccessPeer(ctypes.byref(ctypes.c_int()), 0, 4) == INVALID_DEVICE
    assert sim.settings().peers == "0-1,2-3"


@pytest.mark.parametrize(("peers", "expected"), [("all", 1), ("none", 0), ([], 0)])
def test_all_or_no_devices_can_be_peers(machine: None, peers: str, expected: int) -> None:
    sim.configure(devices=2, peers=peers)
    cu = Cu()
    cu.start()
    assert (can(cu, 0, 1), can(cu, 0, 0)) == (expected, 0)


def test_peer_access_is_enabled_only_where_it_is_supported(four: Cu) -> None:
    contexts = [four.out("cuDevicePrimaryCtxRetain", device) for device in range(3)]
    assert four.cuCtxEnablePeerAccess(contexts[1], 0) == SUCCESS
    assert four.cuCtxEnablePeerAccess(contexts[2], 0) == "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
    assert four.cuCtxEnablePeerAccess(contexts[0], 0) == "CUDA_ERROR_INVALID_CONTEXT"  # the current one


def test_mapped_memory_is_shared_with_peers_only(four: Cu) -> None:
    address, _ = four.mapped()
    assert four.allow(address, device=1) == SUCCESS
    assert four.allow(address, device=2) == INVALID_DEVICE
    pool = four.out("cuMemPoolCreate", ctypes.byref(PoolProps(1, 0, Location(1, 0), None, 0)))
    for device, flags, result in ((1, 3, SUCCESS), (2, 3, INVALID_DEVICE), (1, 0, SUCCESS), (0, 0, INVALID_DEVICE)):
        desc = Access(Location(1, device), flags)
        assert four.cuMemPoolSetAccess(pool, ctypes.byref(desc), 1) == result


def test_a_peer_copy_needs_no_access_and_a_plain_copy_does(four: Cu) -> None:
    first = four.out("cuCtxGetCurrent")
    here, _ = four.mapped()
    four.write(here, b"hello")
    four.ok("cuStreamSynchronize", 0)
    third = four.start(2)
    there, handle = four.reserve(2 * MIB), four.create(device=2)
    four.map(there, handle)
    assert four.allow(there, device=2) == SUCCESS
    stream = four.stream()
    assert four.cuMemcpyDtoDAsync(there, here, 5, stream) == ILLEGAL_ADDRESS
    assert four.cuMemcpyAsync(there, here, 5, stream) == ILLEGAL_ADDRESS
    assert four.cuMemsetD8Async(here, 1, 5, stream) == ILLEGAL_ADDRESS
    four.ok("cuMemcpyPeerAsync", there, third, here, first, 5, stream)
    four.ok("cuStreamSynchronize", stream)
    assert four.read(there, 5) == b"hello"


# Contexts


def test_the_state_of_a_primary_context_is_known_before_it_is_retained(machine: None) -> None:
    cu, flags, active = Cu(), ctypes.c_uint(), ctypes.c_int()

    def state() -> tuple[int, int]:
        cu.ok("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        return flags.value, active.value

    cu.ok("cuInit", 0)
    assert state() == (0, 0)
    cu.ok("cuDevicePrimaryCtxSetFlags", 0, 4)
    assert state() == (4, 0)
    cu.start()
    assert state() == (4, 1)
    cu.ok("cuDevicePrimaryCtxRelease", 0)
    assert state() == (4, 0)
    assert cu.cuDevicePrimaryCtxGetState(1, ctypes.byref(flags), ctypes.byref(active)) == INVALID_DEVICE


# Integrated devices and RDMA


def test_the_page_cache_of_an_integrated_device_is_not_counted_as_free_but_can_be_allocated(machine: None) -> None:
    sim.configure(integrated=True, page_cache="5GiB")
    cu = Cu()
    cu.start()
    assert attribute(cu, INTEGRATED) == 1
    assert free_bytes(cu) == 3 * GIB
    cu.alloc(4 * GIB)  # the host drops its cache
    assert free_bytes(cu) == 0
    sim.configure(page_cache=0)
    assert free_bytes(cu) == 4 * GIB


def test_a_discrete_device_has_no_page_cache(cu: Cu) -> None:
    sim.configure(page_cache="5GiB")
    assert (attribute(cu, INTEGRATED), free_bytes(cu)) == (0, 8 * GIB)


def rdma_prop() -> Prop:
    made = prop()
    made.flags[1] = 1  # gpuDirectRDMACapable
    return made


def test_memory_for_rdma_is_created_where_the_device_supports_it(cu: Cu) -> None:
    assert attribute(cu, RDMA_WITH_VMM) == 1
    address, capable = cu.reserve(4 * MIB), ctypes.c_int()
    for at, described, expected in ((address, rdma_prop(), 1), (address + 2 * MIB, prop(), 0)):
        cu.map(at, cu.out("cuMemCreate", 2 * MIB, ctypes.byref(described), 0))
        assert cu.allow(at) == SUCCESS
        cu.ok("cuPointerGetAttribute", ctypes.byref(capable), RDMA_CAPABLE, at)
        assert capable.value == expected


def test_memory_for_rdma_is_refused_where_the_device_does_not_support_it(machine: None) -> None:
    sim.configure(rdma=False)
    cu = Cu()
    cu.start()
    assert attribute(cu, RDMA_WITH_VMM) == 0
    created = ctypes.c_uint64()
    assert cu.cuMemCreate(ctypes.byref(created), 2 * MIB, ctypes.byref(rdma_prop()), 0) == NOT_SUPPORTED
    assert cu.create() > 0


def test_memory_for_rdma_may_fail_only_when_access_is_set(machine: None) -> None:
    sim.configure(rdma="broken")
    cu = Cu()
    cu.start()
    assert attribute(cu, RDMA_WITH_VMM) == 1
    address, handle = cu.reserve(2 * MIB), cu.out("cuMemCreate", 2 * MIB, ctypes.byref(rdma_prop()), 0)
    cu.map(address, handle)
    assert cu.allow(address) == "CUDA_ERROR_UNKNOWN"
    cu.ok("cuMemUnmap", address, 2 * MIB)
    cu.map(address, cu.create())
    assert cu.allow(address) == SUCCESS


# Unmapping that waits


@pytest.mark.parametrize("call", ["unmap", "set access"])
def test_unmapping_and_setting_access_may_wait_for_all_queued_work(cu: Cu, call: str) -> None:
    busy, address = cu.stream(), cu.alloc(512)
    mapped, _ = cu.mapped()
    sim.configure(sync_unmap=True)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 512, busy)  # unrelated to what is unmapped
    result = cu.cuMemUnmap(mapped, 2 * MIB) if call == "unmap" else cu.allow(mapped)
    assert (result, cu.cuStreamQuery(busy)) == (SUCCESS, SUCCESS)
    stalled = sim.stalled()
    assert stalled.count == 1
    assert 0 < stalled.microseconds < 20 * SLOW
    assert cu.allow(cu.mapped()[0]) == SUCCESS  # nothing is queued
    assert sim.stalled() == stalled
    sim.reset_counts()
    assert sim.stalled() == sim.Stalls(0, 0)


def test_without_the_setting_nothing_waits(cu: Cu) -> None:
    busy, address = cu.stream(), cu.alloc(512)
    mapped, _ = cu.mapped()
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 512, busy)
    cu.ok("cuMemUnmap", mapped, 2 * MIB)
    assert cu.cuStreamQuery(busy) == NOT_READY
    assert sim.stalled().count == 0


def test_an_unmap_that_happens_to_wait_is_still_reported_if_the_program_did_not_wait(cu: Cu) -> None:
    stream = cu.stream()
    mapped, _ = cu.mapped()
    sim.configure(sync_unmap=True)
    with sim.temporarily(delay=1000):
        cu.ok("cuMemsetD8Async", mapped, 1, 512, stream)
    cu.ok("cuMemUnmap", mapped, 2 * MIB)
    assert cu.cuStreamSynchronize(stream) == SUCCESS  # the work was done in time
    expect("removed")


def mapped_beside_slow_work(cu: Cu) -> int:
    """A mapped address, on a device that waits for queued work before it unmaps anything, and has some."""
    busy, address = cu.stream(), cu.alloc(512)
    mapped, _ = cu.mapped()
    sim.configure(sync_unmap=True)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 512, busy)
    return mapped


def test_other_threads_continue_while_an_unmap_waits(cu: Cu) -> None:
    context, free, address = cu.out("cuCtxGetCurrent"), cu.stream(), cu.alloc(4096)
    mapped = mapped_beside_slow_work(cu)
    results: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(cu.cuMemUnmap(mapped, 2 * MIB)))
    waiting.start()
    calls = 0
    while waiting.is_alive():
        cu.ok("cuCtxSetCurrent", context)
        cu.ok("cuMemsetD8Async", address, 1, 512, free)  # does not delay the unmap forever
        calls += 1
        time.sleep(0.001)
    waiting.join()
    assert results == [SUCCESS]
    assert calls > 1


def test_an_unmap_that_waited_notices_what_another_thread_unmapped(cu: Cu) -> None:
    mapped = mapped_beside_slow_work(cu)
    results = run_together(*[lambda: cu.cuMemUnmap(mapped, 2 * MIB)] * 2)
    assert sorted(map(str, results)) == ["CUDA_ERROR_INVALID_VALUE", SUCCESS]


def test_a_reset_ends_an_unmap_that_waits(cu: Cu) -> None:
    mapped = mapped_beside_slow_work(cu)
    results: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(cu.cuMemUnmap(mapped, 2 * MIB)))
    waiting.start()
    while sim.calls("cuMemUnmap") == 0:
        time.sleep(0.001)
    sim.reset()
    waiting.join()
    assert results == ["CUDA_ERROR_NOT_INITIALIZED"]


def test_a_capture_is_refused_before_any_wait(cu: Cu) -> None:
    captured, mapped = cu.stream(), mapped_beside_slow_work(cu)
    begin(cu, captured, GLOBAL_MODE)
    assert cu.cuMemUnmap(mapped, 2 * MIB) == CAPTURE_UNSUPPORTED
    assert sim.stalled().count == 0


# Settings from Python


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peers": [(0, 1, 2)]}, "peers: '0-1-2' is not accepted; write all, none, or pairs of devices"),
        ({"exclusive": [99]}, "exclusive: '99' is not accepted; write numbers of devices"),
        ({"exclusive": 1.5}, "exclusive: 1.5 is a float; write a number or a string, or a list of them"),
        ({"dead": "ignore"}, "dead: 'ignore' is not accepted; write report, print"),
    ],
)
def test_an_invalid_description_of_a_machine_is_named(machine: None, change: dict[str, object], text: str) -> None:
    before = sim.settings()
    with pytest.raises(UsageError) as caught:
        sim.configure(**change)  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)
    assert sim.settings() == before

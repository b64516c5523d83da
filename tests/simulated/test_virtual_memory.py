"""Virtual memory management: every documented rule, broken on purpose."""

from __future__ import annotations

import ctypes
import os

import pytest

from arena import sim

from ..programs import run
from .cu import (
    GIB,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    MIB,
    NO_ACCESS,
    OUT_OF_MEMORY,
    READ_ONLY,
    READ_WRITE,
    SUCCESS,
    Access,
    Cu,
    Location,
    prop,
)

GRANULE = 2 * MIB


def reserve(cu: Cu, size: int, alignment: int = 0, hint: int = 0, flags: int = 0) -> str:
    return cu.cuMemAddressReserve(ctypes.byref(ctypes.c_uint64()), size, alignment, hint, flags)


def create(cu: Cu, size: int = GRANULE, flags: int = 0, **properties: int) -> str:
    return cu.cuMemCreate(ctypes.byref(ctypes.c_uint64()), size, ctypes.byref(prop(**properties)), flags)


def test_a_reservation_is_a_multiple_of_the_host_page(cu: Cu) -> None:
    assert reserve(cu, 4096) == SUCCESS
    assert reserve(cu, 4095) == INVALID_VALUE
    assert reserve(cu, 0) == INVALID_VALUE


def test_a_reservations_hint_is_a_multiple_of_the_host_page(cu: Cu) -> None:
    assert reserve(cu, GRANULE, hint=4097) == INVALID_VALUE


def test_a_reservations_alignment_is_zero_or_a_power_of_two(cu: Cu) -> None:
    assert reserve(cu, GRANULE, alignment=3 * MIB) == INVALID_VALUE
    assert cu.reserve(GRANULE, alignment=GIB) % GIB == 0


def test_a_reservations_flags_are_zero(cu: Cu) -> None:
    assert reserve(cu, GRANULE, flags=1) == INVALID_VALUE


def test_a_reservations_address_is_only_a_hint(cu: Cu) -> None:
    first = cu.reserve(64 * MIB)
    assert cu.reserve(GRANULE, hint=first) != first  # taken
    cu.ok("cuMemAddressFree", first, 64 * MIB)
    assert cu.reserve(GRANULE, hint=first + 2 * GRANULE) == first + 2 * GRANULE  # free: honoured


def test_reserving_more_addresses_than_there_are_is_out_of_memory(cu: Cu) -> None:
    assert reserve(cu, 1 << 46) == OUT_OF_MEMORY
    assert reserve(cu, 1 << 62) == OUT_OF_MEMORY


def test_a_reservation_is_freed_with_exactly_its_address_and_size(cu: Cu) -> None:
    address = cu.reserve(8 * MIB)
    assert cu.cuMemAddressFree(address, 4 * MIB) == INVALID_VALUE
    assert cu.cuMemAddressFree(address + GRANULE, 6 * MIB) == INVALID_VALUE
    assert cu.cuMemAddressFree(address, 8 * MIB) == SUCCESS
    assert cu.cuMemAddressFree(address, 8 * MIB) == INVALID_VALUE


def test_a_reservation_with_something_mapped_is_not_freed(cu: Cu) -> None:
    address, _ = cu.mapped()
    assert cu.cuMemAddressFree(address, GRANULE) == INVALID_VALUE
    cu.ok("cuMemUnmap", address, GRANULE)
    assert cu.cuMemAddressFree(address, GRANULE) == SUCCESS


def test_a_plain_allocation_is_not_a_reservation(cu: Cu) -> None:
    address = cu.alloc(GRANULE)
    assert cu.cuMemAddressFree(address, GRANULE) == INVALID_VALUE
    assert cu.cuMemUnmap(address, GRANULE) == INVALID_VALUE
    assert cu.allow(address) == INVALID_VALUE


def test_a_handle_is_a_multiple_of_the_granularity(cu: Cu) -> None:
    assert create(cu, GRANULE + 4096) == INVALID_VALUE
    assert create(cu, 4096) == INVALID_VALUE
    assert create(cu, 0) == INVALID_VALUE
    assert create(cu, 3 * GRANULE) == SUCCESS


def test_the_granularity_is_what_is_configured(machine: None) -> None:
    sim.configure(granularity="64KiB")
    cu = Cu()
    cu.start()
    assert cu.out("cuMemGetAllocationGranularity", ctypes.byref(prop()), 0) == 64 << 10
    assert create(cu, 64 << 10) == SUCCESS
    assert create(cu, 32 << 10) == INVALID_VALUE


def test_a_handle_needs_a_valid_description(cu: Cu) -> None:
    assert create(cu, flags=1) == INVALID_VALUE
    assert create(cu, kind=0) == INVALID_VALUE
    assert create(cu, where=0) == INVALID_VALUE
    assert create(cu, device=7) == "CUDA_ERROR_INVALID_DEVICE"
    assert cu.cuMemCreate(ctypes.byref(ctypes.c_uint64()), GRANULE, None, 0) == INVALID_VALUE
    assert cu.cuMemCreate(None, GRANULE, ctypes.byref(prop()), 0) == INVALID_VALUE


def test_a_handle_beyond_the_devices_memory_is_out_of_memory(cu: Cu) -> None:
    handle = cu.create(8 * GIB)
    assert create(cu) == OUT_OF_MEMORY
    assert sim.used() == 8 * GIB
    cu.ok("cuMemRelease", handle)
    assert sim.used() == 0
    assert create(cu) == SUCCESS


def test_memory_of_another_process_is_not_available(cu: Cu) -> None:
    with sim.temporarily(other="7GiB"):
        assert create(cu, GIB + GRANULE) == OUT_OF_MEMORY
        assert create(cu, GIB) == SUCCESS
    assert create(cu, 7 * GIB) == SUCCESS


def test_a_handle_is_mapped_from_offset_zero_only(cu: Cu) -> None:
    address, handle = cu.reserve(8 * MIB), cu.create(4 * MIB)
    assert cu.cuMemMap(address, GRANULE, GRANULE, handle, 0) == INVALID_VALUE


def test_a_handle_is_mapped_whole(cu: Cu) -> None:
    address, handle = cu.reserve(8 * MIB), cu.create(4 * MIB)
    assert cu.cuMemMap(address, GRANULE, 0, handle, 0) == INVALID_VALUE
    assert cu.cuMemMap(address, 8 * MIB, 0, handle, 0) == INVALID_VALUE
    assert cu.cuMemMap(address, 4 * MIB, 0, handle, 0) == SUCCESS


def test_a_handle_is_mapped_at_a_multiple_of_the_granularity(cu: Cu) -> None:
    address, handle = cu.reserve(8 * MIB), cu.create()
    assert cu.cuMemMap(address + 4096, GRANULE, 0, handle, 0) == INVALID_VALUE


def test_mapping_flags_are_zero(cu: Cu) -> None:
    address, handle = cu.reserve(GRANULE), cu.create()
    assert cu.cuMemMap(address, GRANULE, 0, handle, 1) == INVALID_VALUE


def test_a_handle_is_mapped_onto_unmapped_addresses_only(cu: Cu) -> None:
    address, _ = cu.mapped(4 * MIB)
    other = cu.create()
    assert cu.cuMemMap(address, GRANULE, 0, other, 0) == INVALID_VALUE
    assert cu.cuMemMap(address + GRANULE, GRANULE, 0, other, 0) == INVALID_VALUE


def test_a_handle_is_mapped_inside_one_reservation(cu: Cu) -> None:
    address, handle = cu.reserve(GRANULE), cu.create(4 * MIB)
    assert cu.cuMemMap(address, 4 * MIB, 0, handle, 0) == INVALID_VALUE
    assert cu.cuMemMap(address + 64 * GIB, 4 * MIB, 0, handle, 0) == INVALID_VALUE
    plain = cu.alloc(8 * MIB)
    assert cu.cuMemMap(plain, 4 * MIB, 0, handle, 0) == INVALID_VALUE


def test_only_a_live_handle_is_mapped(cu: Cu) -> None:
    address, handle = cu.reserve(GRANULE), cu.create()
    cu.ok("cuMemRelease", handle)
    assert cu.cuMemMap(address, GRANULE, 0, handle, 0) == INVALID_VALUE
    assert cu.cuMemMap(address, GRANULE, 0, 12345, 0) == INVALID_VALUE


def test_nothing_is_accessible_before_access_is_set(cu: Cu) -> None:
    address, handle = cu.reserve(GRANULE), cu.create()
    cu.map(address, handle)
    assert cu.cuMemsetD8(address, 1, GRANULE) == ILLEGAL_ADDRESS
    assert cu.allow(address) == SUCCESS
    assert cu.cuMemsetD8(address, 1, GRANULE) == SUCCESS


def test_access_is_lost_at_unmap(cu: Cu) -> None:
    address, handle = cu.mapped()
    cu.ok("cuMemUnmap", address, GRANULE)
    assert cu.cuMemsetD8(address, 1, 1) == ILLEGAL_ADDRESS
    cu.map(address, handle)
    assert cu.cuMemsetD8(address, 1, 1) == ILLEGAL_ADDRESS
    assert cu.out("cuMemGetAccess", ctypes.byref(Location(1, 0)), address) == NO_ACCESS


def test_access_is_set_for_fully_mapped_ranges_only(cu: Cu) -> None:
    address, handle = cu.reserve(6 * MIB), cu.create()
    cu.map(address, handle)
    assert cu.allow(address, 4 * MIB) == INVALID_VALUE
    assert cu.allow(address + GRANULE) == INVALID_VALUE
    cu.map(address + 2 * GRANULE, cu.create())
    assert cu.allow(address, 6 * MIB) == INVALID_VALUE  # a hole in the middle


def test_access_is_set_for_whole_mappings_only(cu: Cu) -> None:
    address, handle = cu.reserve(4 * MIB), cu.create(4 * MIB)
    cu.map(address, handle, 4 * MIB)
    assert cu.allow(address, GRANULE) == INVALID_VALUE
    assert cu.allow(address + GRANULE, GRANULE) == INVALID_VALUE


def test_one_call_sets_access_for_a_run_of_mappings(cu: Cu) -> None:
    address = cu.reserve(8 * MIB)
    for i in range(4):
        cu.map(address + i * GRANULE, cu.create())
    before = sim.calls("cuMemSetAccess")
    assert cu.allow(address, 8 * MIB) == SUCCESS
    assert sim.calls("cuMemSetAccess") == before + 1
    cu.write(address + GRANULE - 3, b"across")
    assert cu.read(address + GRANULE - 3, 6) == b"across"


def test_access_needs_a_valid_description(cu: Cu) -> None:
    address, _ = cu.mapped()
    assert cu.allow(address, flags=2) == INVALID_VALUE
    assert cu.allow(address, device=5) == "CUDA_ERROR_INVALID_DEVICE"
    assert cu.cuMemSetAccess(address, GRANULE, None, 1) == INVALID_VALUE
    desc = Access(Location(1, 0), READ_WRITE)
    assert cu.cuMemSetAccess(address, GRANULE, ctypes.byref(desc), 0) == INVALID_VALUE
    host = Access(Location(2, 0), READ_WRITE)
    assert cu.cuMemSetAccess(address, GRANULE, ctypes.byref(host), 1) == INVALID_VALUE


def test_a_refused_change_of_access_changes_nothing(cu: Cu) -> None:
    address, _ = cu.mapped()
    descs = (Access * 2)(Access(Location(1, 0), NO_ACCESS), Access(Location(1, 5), READ_WRITE))
    assert cu.cuMemSetAccess(address, GRANULE, descs, 2) == "CUDA_ERROR_INVALID_DEVICE"
    assert cu.cuMemsetD8(address, 1, 1) == SUCCESS


def test_read_only_memory_can_be_read_and_not_written(cu: Cu) -> None:
    address, _ = cu.mapped()
    cu.write(address, b"kept")
    assert cu.allow(address, flags=READ_ONLY) == SUCCESS
    assert cu.read(address, 4) == b"kept"
    assert cu.cuMemsetD8(address, 1, 1) == ILLEGAL_ADDRESS
    assert cu.out("cuMemGetAccess", ctypes.byref(Location(1, 0)), address) == READ_ONLY


def test_a_part_of_a_mapping_is_not_unmapped(cu: Cu) -> None:
    address, _ = cu.mapped(4 * MIB)
    assert cu.cuMemUnmap(address, GRANULE) == INVALID_VALUE
    assert cu.cuMemUnmap(address + GRANULE, GRANULE) == INVALID_VALUE
    assert cu.cuMemUnmap(address, 4 * MIB) == SUCCESS
    assert cu.cuMemUnmap(address, 4 * MIB) == INVALID_VALUE


def test_one_call_unmaps_several_adjacent_mappings(cu: Cu) -> None:
    address = cu.reserve(8 * MIB)
    for i in range(3):
        cu.map(address + i * GRANULE, cu.create())
    assert cu.cuMemUnmap(address, 8 * MIB) == INVALID_VALUE  # the last granule is not mapped
    assert cu.cuMemUnmap(address, 6 * MIB) == SUCCESS
    assert sim.census().mappings == 0


def test_memory_stays_until_the_last_mapping_and_the_last_handle_are_gone(cu: Cu) -> None:
    address, handle = cu.mapped()
    cu.write(address, b"alive")
    cu.ok("cuMemRelease", handle)
    assert cu.read(address, 5) == b"alive"
    assert sim.used() == GRANULE
    cu.ok("cuMemUnmap", address, GRANULE)
    assert sim.used() == 0


def test_a_handle_keeps_its_memory_when_it_is_unmapped(cu: Cu) -> None:
    address, handle = cu.mapped()
    elsewhere = cu.reserve(GRANULE)
    cu.write(address, b"moved")
    cu.ok("cuCtxSynchronize_v2", 0)
    cu.ok("cuMemUnmap", address, GRANULE)
    assert sim.used() == GRANULE
    cu.map(elsewhere, handle)
    assert cu.allow(elsewhere) == SUCCESS
    assert cu.read(elsewhere, 5) == b"moved"


def test_a_handle_is_released_once(cu: Cu) -> None:
    handle = cu.create()
    assert cu.cuMemRelease(handle) == SUCCESS
    assert cu.cuMemRelease(handle) == INVALID_VALUE
    assert cu.cuMemRelease(0) == INVALID_VALUE


def test_a_retained_handle_is_released_once_more(cu: Cu) -> None:
    address, handle = cu.mapped()
    assert cu.out("cuMemRetainAllocationHandle", ctypes.c_void_p(address)) == handle
    assert cu.cuMemRelease(handle) == SUCCESS
    assert cu.cuMemRelease(handle) == SUCCESS
    assert cu.cuMemRelease(handle) == INVALID_VALUE
    assert cu.out("cuMemRetainAllocationHandle", ctypes.c_void_p(address)) == handle  # the mapping still holds it


def test_one_handle_is_mapped_at_several_addresses(cu: Cu) -> None:
    address, handle = cu.mapped()
    alias = cu.reserve(GRANULE)
    cu.map(alias, handle)
    assert cu.allow(alias) == SUCCESS
    cu.write(address, b"one")
    assert cu.read(alias, 3) == b"one"
    cu.ok("cuMemUnmap", address, GRANULE)
    assert cu.read(alias, 3) == b"one"
    assert sim.used() == GRANULE


def test_peer_access_does_not_reach_mapped_memory(two_devices: tuple[Cu, int, int]) -> None:
    cu, first, second = two_devices
    address, _ = cu.mapped()
    plain = cu.alloc(GRANULE)
    cu.ok("cuCtxSetCurrent", second)
    assert cu.cuMemsetD8(plain, 1, 1) == ILLEGAL_ADDRESS
    cu.ok("cuCtxEnablePeerAccess", first, 0)
    assert cu.cuMemsetD8(plain, 1, 1) == SUCCESS
    assert cu.cuMemsetD8(address, 1, 1) == ILLEGAL_ADDRESS


def test_access_set_for_a_device_reaches_its_peers_memory(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, second = two_devices
    address, _ = cu.mapped()
    assert cu.allow(address, device=1) == SUCCESS
    cu.ok("cuCtxSetCurrent", second)
    assert cu.cuMemsetD8(address, 7, 4) == SUCCESS
    assert cu.read(address, 4) == bytes([7] * 4)


def test_only_memory_created_for_it_is_shared_with_another_process(cu: Cu) -> None:
    handle = cu.create()
    shared = ctypes.c_int()
    assert cu.cuMemExportToShareableHandle(ctypes.byref(shared), handle, 1, 0) == INVALID_VALUE
    assert create(cu, handle_types=8) == "CUDA_ERROR_NOT_SUPPORTED"  # fabric
    assert create(cu, where=2, handle_types=1) == INVALID_VALUE  # host memory is not shareable


IMPORTER = """
import ctypes, sys
from tests.simulated.cu import Cu, SUCCESS, MIB
cu = Cu()
cu.start()
handle = cu.out("cuMemImportFromShareableHandle", ctypes.c_void_p(int(sys.argv[1])), 1)
address = cu.reserve(2 * MIB)
cu.map(address, handle)
assert cu.allow(address) == SUCCESS
assert cu.read(address, 5) == b"there"
cu.write(address, b"again")
"""


def test_shared_memory_is_the_same_memory_in_another_process(cu: Cu) -> None:
    address = cu.reserve(GRANULE)
    handle = cu.out("cuMemCreate", GRANULE, ctypes.byref(prop(handle_types=1)), 0)
    cu.map(address, handle)
    assert cu.allow(address) == SUCCESS
    cu.write(address, b"there")
    shared = cu.out("cuMemExportToShareableHandle", handle, 1, 0, kind=ctypes.c_int)
    os.set_inheritable(shared, True)
    run(IMPORTER, str(shared), check=True)
    assert cu.read(address, 5) == b"again"
    os.close(shared)


def test_a_descriptor_that_is_no_memory_is_not_imported(cu: Cu) -> None:
    imported = ctypes.c_uint64()
    for descriptor in (0, -1, 9999):
        wrong = ctypes.c_void_p(descriptor)
        assert cu.cuMemImportFromShareableHandle(ctypes.byref(imported), wrong, 1) == INVALID_VALUE


def test_a_device_without_virtual_memory_says_so_and_refuses(machine: None) -> None:
    sim.configure(vmm=False)
    cu = Cu()
    cu.start()
    assert cu.out("cuDeviceGetAttribute", 102, 0, kind=ctypes.c_int) == 0
    assert reserve(cu, GRANULE) == "CUDA_ERROR_NOT_SUPPORTED"
    assert create(cu) == "CUDA_ERROR_NOT_SUPPORTED"
    assert cu.alloc(GRANULE)


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"])
def test_out_of_memory_can_come_from_the_host(cu: Cu, function: str) -> None:
    # The host's addresses and mappings run out too: the code is the same, but the device has room.
    address, handle = cu.reserve(GRANULE), cu.create()
    sim.fail(function, OUT_OF_MEMORY)
    results = {
        "cuMemCreate": lambda: create(cu),
        "cuMemMap": lambda: cu.cuMemMap(address, GRANULE, 0, handle, 0),
        "cuMemSetAccess": lambda: cu.allow(address),
        "cuMemAddressReserve": lambda: reserve(cu, GRANULE),
    }
    assert results[function]() == OUT_OF_MEMORY
    assert sim.used() == GRANULE


HOST_ACCESS = """
import ctypes, sys
from tests.simulated.cu import Cu, MIB
cu = Cu()
cu.start()
address, handle = cu.mapped()
cu.write(address, b"x")
assert ctypes.string_at(address, 1) == b"x"  # while it is mapped the host sees it
{change}
print("before", flush=True)
ctypes.string_at(address, 1)
print("after", flush=True)
"""


@pytest.mark.parametrize(
    "change",
    [
        'cu.ok("cuMemUnmap", address, 2 * MIB)',
        "cu.allow(address, flags=0)",
        "address += 2 * MIB",
    ],
)
def test_the_host_faults_on_memory_that_is_not_mapped_or_not_accessible(change: str) -> None:
    done = run(HOST_ACCESS.format(change=change))
    assert (done.stdout, done.returncode) == ("before\n", -11), done.stderr

"""Managed memory and advice about it; memory of another process; what of sharing is not simulated."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from arena import sim

from .cu import INVALID_VALUE, SUCCESS, Cu, Location
from .test_stream_values import NOT_SUPPORTED

HOST, DEVICE = 2, 1
INT = ctypes.c_int
READ_MOSTLY, PREFERRED, ACCESSED_BY, PREFETCHED = 1, 2, 3, 4


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def ask(cu: Cu, what: int, address: int, count: int, numbers: int = 1) -> list[int]:
    data = (INT * numbers)()
    cu.ok("cuMemRangeGetAttribute", data, ctypes.sizeof(data), what, address, count)
    return list(data)


def advise(cu: Cu, address: int, count: int, advice: int, place: Location) -> str:
    return cu.cuMemAdvise(address, count, advice, place)


def test_advice_is_kept_for_each_part_of_managed_memory(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, _ = two_devices
    managed = cu.out("cuMemAllocManaged", 5 * 4096, 1)
    assert ask(cu, PREFERRED, managed, 4096) == ask(cu, PREFETCHED, managed, 4096) == [-2]
    assert advise(cu, managed + 4096, 2 * 4096, 1, Location(0, 0)) == SUCCESS
    assert ask(cu, READ_MOSTLY, managed + 4096, 8192) == [1]
    assert ask(cu, READ_MOSTLY, managed, 8192) == ask(cu, READ_MOSTLY, managed + 8192, 8192) == [0]
    assert advise(cu, managed, 5 * 4096, 3, Location(DEVICE, 1)) == SUCCESS
    assert ask(cu, PREFERRED, managed, 5 * 4096) == [1]
    assert advise(cu, managed, 100, 3, Location(HOST, 7)) == SUCCESS  # the whole page
    assert (ask(cu, PREFERRED, managed, 4096), ask(cu, PREFERRED, managed, 4097)) == ([-1], [-2])
    for device in (0, 1):
        assert advise(cu, managed, 4096, 5, Location(DEVICE, device)) == SUCCESS
    assert ask(cu, ACCESSED_BY, managed, 4096, 3) == [0, 1, -2]
    assert advise(cu, managed, 4096, 6, Location(DEVICE, 0)) == SUCCESS
    assert ask(cu, ACCESSED_BY, managed, 4096, 3) == [1, -2, -2]
    assert ask(cu, ACCESSED_BY, managed, 8192, 1) == [-2]


def test_prefetching_moves_nothing_and_is_remembered(cu: Cu) -> None:
    managed, stream = cu.out("cuMemAllocManaged", 8192, 1), cu.stream()
    cu.write(managed, b"abc")
    cu.ok("cuMemPrefetchAsync", managed, 4096, Location(DEVICE, 0), 0, stream)
    assert (ask(cu, PREFETCHED, managed, 4096), ask(cu, PREFETCHED, managed, 8192)) == ([0], [-2])
    cu.ok("cuStreamSynchronize", stream)
    assert ctypes.string_at(managed, 3) == b"abc"
    values, sizes, kinds = (INT * 1)(), (ctypes.c_size_t * 2)(4, 4), (ctypes.c_uint * 2)(READ_MOSTLY, PREFETCHED)
    second = (INT * 1)()
    data = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(second))
    cu.ok("cuMemRangeGetAttributes", data, sizes, kinds, 2, managed, 4096)
    assert (values[0], second[0]) == (0, 0)


def test_only_managed_memory_is_advised_on_and_prefetched(cu: Cu) -> None:
    device, managed = cu.alloc(8192), cu.out("cuMemAllocManaged", 8192, 1)
    here = Location(DEVICE, 0)
    assert advise(cu, device, 4096, 1, here) == advise(cu, managed, 0, 1, here) == INVALID_VALUE
    assert advise(cu, managed, 8193, 1, here) == advise(cu, managed, 4096, 9, here) == INVALID_VALUE
    assert advise(cu, managed, 4096, 3, Location(DEVICE, 5)) == "CUDA_ERROR_INVALID_DEVICE"
    assert (
        cu.cuMemPrefetchAsync(device, 4096, here, 0, 0)
        == cu.cuMemPrefetchAsync(managed, 4096, here, 1, 0)
        == INVALID_VALUE
    )
    assert cu.cuMemPrefetchAsync(managed, 4096, Location(0, 0), 0, 0) == INVALID_VALUE
    number = INT()
    assert cu.cuMemRangeGetAttribute(ctypes.byref(number), 8, READ_MOSTLY, managed, 4096) == INVALID_VALUE
    assert cu.cuMemRangeGetAttribute(ctypes.byref(number), 4, 99, managed, 4096) == INVALID_VALUE


OTHER = """
import ctypes, sys
from tests.simulated.cu import Cu
from tests.simulated.test_sharing import Handle
cu = Cu()
cu.start()
handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(sys.stdin.readline())))
address, again = ctypes.c_uint64(), ctypes.c_uint64()
print(cu.cuIpcOpenMemHandle(ctypes.byref(address), handle, 0))
cu.ok("cuIpcOpenMemHandle", ctypes.byref(address), handle, 1)
cu.ok("cuIpcOpenMemHandle", ctypes.byref(again), handle, 1)
print(address.value == again.value, cu.read(address.value, 5))
cu.write(address.value, b"there")
print(cu.cuMemFree(address.value))
print(*(cu.cuIpcCloseMemHandle(address.value) for _ in range(3)))
"""


def test_memory_is_shared_with_another_process_by_a_handle(cu: Cu) -> None:
    address, handle = cu.alloc(1 << 20), Handle()
    cu.write(address, b"here.")
    cu.ok("cuIpcGetMemHandle", ctypes.byref(handle), address)
    done = subprocess.run(
        [sys.executable, "-c", OTHER], input=bytes(handle.bytes).hex() + "\n", capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        INVALID_VALUE,  # without the flag that is required
        "True b'here.'",
        INVALID_VALUE,  # it is not the opener's to free
        f"{SUCCESS} {SUCCESS} {INVALID_VALUE}",
    ], done.stderr
    assert cu.read(address, 5) == b"there"


def test_a_handle_of_memory_is_for_other_processes_only(cu: Cu) -> None:
    handle, address = Handle(), cu.alloc(4096)
    cu.ok("cuIpcGetMemHandle", ctypes.byref(handle), address)
    assert cu.out("cuPointerGetAttribute", 10, address, kind=INT) == 1
    opened = ctypes.c_uint64()
    assert cu.cuIpcOpenMemHandle(ctypes.byref(opened), handle, 1) == "CUDA_ERROR_INVALID_CONTEXT"
    assert cu.cuIpcOpenMemHandle(ctypes.byref(opened), Handle(), 1) == "CUDA_ERROR_INVALID_HANDLE"
    assert cu.cuIpcCloseMemHandle(address) == INVALID_VALUE
    for other in (cu.out("cuMemAllocManaged", 4096, 1), cu.mapped()[0], 0x1000):
        assert cu.cuIpcGetMemHandle(ctypes.byref(handle), other) == INVALID_VALUE
    first = bytes(handle.bytes)
    cu.ok("cuMemFree", address)
    address = cu.alloc(4096)
    cu.ok("cuIpcGetMemHandle", ctypes.byref(handle), address)
    assert bytes(handle.bytes) != first  # even at the same place


@pytest.mark.parametrize(
    "symbol", ["cuMulticastCreate", "cuMulticastBindMem", "cuMulticastAddDevice", "cuIpcGetEventHandle"]
)
def test_what_is_not_simulated_is_found_and_not_supported(cu: Cu, symbol: str) -> None:
    found = ctypes.c_void_p()
    assert cu.lib.cuGetProcAddress_v2(symbol.encode(), ctypes.byref(found), 13000, ctypes.c_uint64(0), None) == 0
    assert found.value is not None
    assert getattr(cu, symbol)(*([0] * 7)) == NOT_SUPPORTED
    assert [cu.out("cuDeviceGetAttribute", what, 0, kind=INT) for what in (125, 132)] == [0, 0]


def test_pools_are_not_shared(cu: Cu) -> None:
    pool = cu.out("cuDeviceGetDefaultMemPool", 0)
    assert cu.cuMemPoolExportToShareableHandle(ctypes.byref(INT()), pool, 1, 0) == NOT_SUPPORTED
    assert cu.cuMemPoolImportFromShareableHandle(ctypes.byref(ctypes.c_uint64()), None, 1, 0) == NOT_SUPPORTED
    assert sim.findings() == []

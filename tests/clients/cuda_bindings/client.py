"""The calls of cuda-bindings that the tests are made of."""

from __future__ import annotations

import ctypes
import random
from typing import Any

from cuda.bindings import driver as cu

from arena import sim

from ..conftest import assert_nothing_is_left

MIB = 1 << 20
GIB = 1 << 30
SLOW = 150_000  # microseconds: longer than any call takes, even on a busy machine
Code = cu.CUresult
Attribute = cu.CUdevice_attribute
PoolAttribute = cu.CUmemPool_attribute
PointerAttribute = cu.CUpointer_attribute
Location = cu.CUmemLocationType
LEGACY = cu.CUstream(cu.CU_STREAM_LEGACY)
BLOCKING = cu.CUstream_flags.CU_STREAM_DEFAULT.value
NON_BLOCKING = cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value


def ok(answer: tuple[Any, ...]) -> Any:
    """What a call returned beside its code, which must be success."""
    code, *values = answer
    assert code == Code.CUDA_SUCCESS
    return values[0] if len(values) == 1 else tuple(values)


def start(device: int) -> Any:
    """Make the primary context of a device the current one."""
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(device))
    ok(cu.cuCtxSetCurrent(context))
    return context


def end(*devices: int) -> None:
    """Objects left in a context are destroyed with it, so check for them first."""
    assert_nothing_is_left()
    ok(cu.cuCtxSetCurrent(cu.CUcontext(0)))
    for device in devices:
        ok(cu.cuDevicePrimaryCtxRelease(device))
    assert sim.census().contexts == 0


def some_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def read(address: Any, size: int) -> bytes:
    found = bytearray(size)
    ok(cu.cuMemcpyDtoH(found, address, size))
    return bytes(found)


def host_view(address: int, size: int) -> Any:
    return (ctypes.c_ubyte * size).from_address(int(address))


def device_location(device: int = 0) -> Any:
    location = cu.CUmemLocation()
    location.type = Location.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


def properties(device: int = 0) -> Any:
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location = device_location(device)
    return prop


def allow(address: Any, size: int, device: int = 0) -> None:
    access = cu.CUmemAccessDesc()
    access.location = device_location(device)
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemSetAccess(address, size, [access], 1))


def new_pool(max_size: int = 0) -> Any:
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location = device_location()
    props.maxSize = max_size
    return ok(cu.cuMemPoolCreate(props))


def pool_counts(pool: Any) -> tuple[int, int]:
    """Bytes in use, and bytes held."""
    used = ok(cu.cuMemPoolGetAttribute(pool, PoolAttribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
    held = ok(cu.cuMemPoolGetAttribute(pool, PoolAttribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT))
    return int(used), int(held)

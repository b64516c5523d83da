"""The calls of cuda-core that the tests are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda.bindings import driver as cu
from cuda.core import (
    Buffer,
    LegacyPinnedMemoryResource,
    Stream,
)

MIB = 1 << 20
GIB = 1 << 30
SLOW = 150_000  # microseconds: longer than any call takes, even on a busy machine
SUCCESS = cu.CUresult.CUDA_SUCCESS


def synchronise() -> None:
    """Replaces `Device.sync`, which calls the runtime."""
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

"""The C functions that PyTorch calls, for tests without PyTorch that run in a process of their own."""

from __future__ import annotations

import ctypes
from typing import Any

import arena
from arena import _core, sim


class TorchFunctions:
    """Allocates as PyTorch does, from the arena given."""

    def __init__(self, pool: arena.Arena) -> None:
        _core.connect_torch(lambda device: pool, lambda device, stream: True, lambda fraction, device: None)
        library = ctypes.CDLL(_core.__file__)
        self.allocate: Any = library.arena_torch_alloc
        self.allocate.restype = ctypes.c_void_p
        self.allocate.argtypes = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        self.free: Any = library.arena_torch_free
        self.free.restype = None
        self.free.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        self.pool = pool

    def miss(self, count: int, stream: int | None = None) -> tuple[int, int, int]:
        """Make requests that are misses; return how many were, slow requests, and how often the GIL was taken."""
        before = self._counts()
        for number in range(count):
            address = self.allocate((number % 7 + 1) << 21, 0, stream)
            self.free(address, 0, 0, stream)
            self.pool.trim()
        after = self._counts()
        return after[0] - before[0], after[1] - before[1], after[2] - before[2]

    def _counts(self) -> tuple[int, int, int]:
        stats = self.pool.stats()
        return stats.allocations - stats.hits, _core.slow_requests(), _core.torch_python_calls()


def refuse_virtual_memory() -> None:
    """Let the platform refuse virtual memory from now on, so that an arena falls back to plain segments."""
    sim.fail("cuMemCreate", "CUDA_ERROR_NOT_SUPPORTED", times=1 << 62)

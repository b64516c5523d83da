"""Memory for Numba from an arena: ``arena.numba.use(pool)``, or ``NUMBA_CUDA_MEMORY_MANAGER=arena.numba``.

.. code-block:: python

    import arena, arena.numba
    from numba import cuda

    arena.numba.use(arena.Arena(cap="4GiB"))
    array = cuda.device_array(1000)

Numba does not say which streams use an array. So the memory of one that is gone is not reused before all streams of the
device have done the work that they had then. Drivers before CUDA 12.5 cannot say when that is: with them, dropping an
array waits for the device, as it does with Numba's own memory manager.

Do not drop arrays while another library captures a graph, unless the stream it captures has used memory of the same
arena: the driver would invalidate the capture. Numba's own memory manager has the same effect in captures of the usual,
global, mode.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

from . import errors
from ._inspect.lines import pass_over
from ._pool.arena import Arena
from ._pool.defaults import default_arena
from .errors import ArenaError, UsageError

try:
    import numba
    from numba import cuda
    from numba.cuda.cudadrv import driver as _driver
except ImportError as error:
    raise ArenaError(
        f"arena.numba needs numba-cuda, which cannot be imported ({error}); pip install numba-cuda"
    ) from error

__all__ = ["ArenaMemoryManager", "OutOfMemoryError", "is_in_use", "use"]

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_lock = threading.Lock()
_given: dict[int, Arena] = {}  # by device; devices without one use their default arena


class OutOfMemoryError(errors.OutOfMemoryError, _driver.CudaAPIError):  # type: ignore[misc]
    """What a request of Numba raises: also Numba's own error, which it handles in places."""

    def __init__(self, *args: Any) -> None:
        errors.OutOfMemoryError.__init__(self, *args)
        self.code, self.msg = _OUT_OF_MEMORY, str(args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return errors.OutOfMemoryError, self.args  # a process that unpickles it may have no Numba


class ArenaMemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Numba's External Memory Management plugin. Numba makes one for each context."""

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface for plugins."""
        return 1

    def initialize(self) -> None:
        """Called by Numba before each allocation."""

    def memalloc(self, size: int) -> Any:
        """Allocate device memory in the current context."""
        pool = _arena_of(self.context.device.id)
        buffer = self._attempt_allocation(lambda: _allocate(pool, size))
        return _driver.MemoryPointer(
            weakref.proxy(self.context), ctypes.c_void_p(buffer.ptr), size, finalizer=buffer.free
        )

    def get_memory_info(self) -> Any:
        """What this process can still allocate on the device, and the cap."""
        stats = _arena_of(self.context.device.id).stats()
        return cuda.MemoryInfo(free=stats.cap - stats.live, total=stats.cap)


_numba_memory_manager = ArenaMemoryManager  # Numba looks for this name


def use(pool: Arena | None = None) -> None:
    """Give Numba the memory of an arena from now on; without an argument, of each device's default arena.

    Call it before Numba first uses a device: a context that exists keeps its allocator, which is a :class:`UsageError`.
    """
    if pool is not None and not isinstance(pool, Arena):
        raise UsageError(f"pool={pool!r} is not accepted; give an arena.Arena")
    with _lock:
        current = _driver._memory_manager
        if current is None:
            cuda.set_memory_manager(ArenaMemoryManager)
        elif current is not ArenaMemoryManager:
            raise UsageError(
                f"Numba uses {current.__name__} already; call arena.numba.use() before Numba first uses a device"
            )
        if pool is not None:
            if _given.get(pool.device, pool) is not pool:
                raise UsageError(f"Numba uses another arena on device {pool.device} already")
            _given[pool.device] = pool


def is_in_use() -> bool:
    """Whether Numba gets its memory from arena."""
    return _driver._memory_manager is ArenaMemoryManager


def _arena_of(device: int) -> Arena:
    return _given.get(device) or default_arena(device)


def _allocate(pool: Arena, size: int) -> Any:
    try:
        return pool._allocate_for("Numba", size, None)  # any stream
    except errors.OutOfMemoryError as error:
        raise OutOfMemoryError(*error.args) from None


for _module in (numba, cuda):
    pass_over(getattr(_module, "__file__", None))

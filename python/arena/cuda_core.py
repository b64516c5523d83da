"""Memory for cuda.core from an arena.

.. code-block:: python

    import arena
    from arena.cuda_core import MemoryResource
    from cuda.core import Device

    device = Device()
    device.set_current()
    device.memory_resource = MemoryResource(arena.Arena(cap="4GiB"))
    buffer = device.allocate(1 << 20, stream=device.create_stream())

Or ``arena.cuda_core.use(pool)`` before all that, for the devices that are given no memory resource of their own.

A buffer belongs to the stream that it is allocated for. One that is closed on another stream is not reused before that
stream has passed, too.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from . import errors
from ._inspect.lines import pass_over
from ._pool.arena import Arena
from ._pool.buffer import Buffer
from ._pool.defaults import default_arena
from ._util.arguments import as_stream
from .errors import ArenaError, UsageError

try:
    import cuda.core as _cuda_core
except ImportError as error:
    raise ArenaError(
        f"arena.cuda_core needs cuda-core, which cannot be imported ({error}); pip install cuda-core"
    ) from error

__all__ = ["MemoryResource", "is_in_use", "use"]

_lock = threading.Lock()
_given: dict[int, Arena] = {}  # by device; devices without one use their default arena
_resources: dict[int, MemoryResource] = {}  # that devices were given by use()
_own = vars(_cuda_core.Device).get("memory_resource")  # cuda.core's property


class MemoryResource(_cuda_core.MemoryResource):  # type: ignore[misc]
    """Device memory of an arena, as cuda.core wants it: ``device.memory_resource = MemoryResource(pool)``.

    Without an argument it is the default arena of device 0. Out of memory is an :class:`arena.OutOfMemoryError`, which
    is a MemoryError.
    """

    def __init__(self, pool: Arena | None = None) -> None:
        if pool is not None and not isinstance(pool, Arena):
            raise UsageError(f"pool={pool!r} is not accepted; give an arena.Arena")
        self._pool = pool or default_arena()
        self._live: dict[int, Buffer] = {}
        self._lock = threading.Lock()

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        """Allocate a buffer for use on a stream; without one, on the default stream."""
        buffer: Buffer = self._pool._allocate_for("cuda.core", size, _stream(stream))
        with self._lock:
            self._live[buffer.ptr] = buffer
        try:
            return _cuda_core.Buffer.from_handle(buffer.ptr, size, mr=self, stream=stream)
        except BaseException:
            self._take(buffer.ptr)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        """Give a buffer back, after what is queued on the stream. Called by cuda.core."""
        buffer = self._take(int(ptr))
        if buffer is None:
            raise UsageError(f"{int(ptr):#x} is not a live buffer of this memory resource")
        if stream is not None:
            # A stream that is gone by now cannot be waited for any more, and has done its work.
            with contextlib.suppress(errors.DriverError):
                buffer.record_stream(_stream(stream))
        buffer.free()

    @property
    def pool(self) -> Arena:
        """The arena."""
        return self._pool

    @property
    def is_device_accessible(self) -> bool:
        """True: it is memory of the device."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False: the host cannot read it."""
        return False

    @property
    def is_managed(self) -> bool:
        """False: it stays on the device."""
        return False

    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._pool.device

    def _take(self, address: int) -> Buffer | None:
        with self._lock:
            return self._live.pop(address, None)


def use(pool: Arena | None = None) -> None:
    """Give cuda.core's devices the memory of an arena from now on; without an argument, of their default arenas.

    Devices with a ``memory_resource`` keep it, and a program may still set another. Call it before the first
    allocation: cuda.core gives a device its own memory resource then.
    """
    if pool is not None and not isinstance(pool, Arena):
        raise UsageError(f"pool={pool!r} is not accepted; give an arena.Arena")
    device = _cuda_core.Device
    if not isinstance(_own, property) or not hasattr(device, "_memory_resource"):
        raise ArenaError(
            "this cuda.core keeps its memory resources in another way; give them to each device: "
            "Device().memory_resource = arena.cuda_core.MemoryResource(pool)"
        )
    with _lock:
        if pool is not None:
            if _given.get(pool.device, pool) is not pool:
                raise UsageError(f"cuda.core uses another arena on device {pool.device} already")
            _given[pool.device] = pool
        device.memory_resource = property(_resource_of, _own.fset, _own.fdel, _own.__doc__)


def is_in_use() -> bool:
    """Whether cuda.core's devices get their memory from arena, unless the program gives them another resource."""
    return vars(_cuda_core.Device).get("memory_resource") is not _own


def _resource_of(device: Any) -> Any:
    """The memory resource of a device, where cuda.core would make one of its own."""
    if device._memory_resource is None:
        with _lock:
            number = device.device_id
            if number not in _resources:
                _resources[number] = MemoryResource(_given.get(number) or default_arena(number))
            device._memory_resource = _resources[number]
    return device._memory_resource


def _stream(stream: Any) -> int:
    """The number of a stream. The arena borrows it: cuda.core's can be closed while memory freed on them is pending."""
    return 0 if stream is None else as_stream(stream)


pass_over(getattr(_cuda_core, "__file__", None))

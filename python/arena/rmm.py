"""Memory for RMM from an arena, and with it for cuDF, cuML and the other libraries that use RMM.

.. code-block:: python

    import arena, rmm

    pool = arena.Arena(cap="8GiB")
    arena.rmm.use(pool)  # or rmm.mr.set_current_device_resource(arena.rmm.resource(pool))
    buffer = rmm.DeviceBuffer(size=1 << 20)
    print(pool.report())

Out of memory is a MemoryError with arena's text. RMM raises it, so it has none of the attributes of
:class:`arena.OutOfMemoryError`; :meth:`arena.Arena.on_oom` functions get those. RMM's adaptors work on top of the
resource: a ``FailureCallbackResourceAdaptor`` sees arena's failures.
"""

from __future__ import annotations

import contextlib
from typing import Any

from . import _core
from ._inspect.lines import pass_over
from ._pool.arena import Arena
from ._pool.buffer import Buffer
from ._pool.defaults import default_arena
from ._util.arguments import as_stream
from .errors import ArenaError, UsageError

try:
    import rmm
    from rmm._cuda.gpu import CUDARuntimeError, getDevice
    from rmm.pylibrmm.stream import Stream
except ImportError as error:
    raise ArenaError(
        f"arena.rmm needs RMM, which cannot be imported ({error}); pip install rmm-cu13, or rmm-cu12 for CUDA 12"
    ) from error

__all__ = ["is_in_use", "resource", "use"]

_PER_THREAD = 2  # the thread's own default stream

# By arena, or by device for default arenas. RMM's C++ code copies a resource without keeping the Python functions
# behind it alive, so these live forever.
_resources: dict[Arena | int, Any] = {}


def use(pool: Arena | None = None) -> None:
    """Give RMM the memory of an arena on the arena's device; without an argument, the default arena of the current one.

    Call it before RMM's first allocation on the device: memory that RMM has allocated stays where it is.
    """
    device = _current_device() if pool is None else checked(pool).device
    rmm.mr.set_per_device_resource(device, resource(pool) if pool is not None else default_resource(device))


def is_in_use() -> bool:
    """Whether RMM gets its memory from arena on some device: the memory of its resource there, below any adaptors."""
    devices = {key if isinstance(key, int) else key.device for key in list(_resources)}
    return any(_lowest(rmm.mr.get_per_device_resource(device)) in _resources.values() for device in devices)


def resource(pool: Arena | None = None) -> Any:
    """Return an arena's memory as an RMM memory resource, for ``rmm.mr.set_current_device_resource``.

    Without an argument it is the default arena of the current device, with the settings in force at the first
    allocation. A second call returns the same resource. Resource and arena live until the process ends, even if you
    drop both: RMM keeps copies that Python does not see. :meth:`arena.Arena.close` gives the memory back.

    It is an ``rmm.mr.CallbackMemoryResource``: RMM calls a Python function for every allocation and every free, with
    its stream. Memory that is freed on another stream than it was allocated on is not reused before both have passed.
    """
    if pool is None:
        return default_resource(_current_device())
    return _resource(checked(pool), pool.device)


def default_resource(device: int) -> Any:
    """The resource of a device's default arena. Opens no driver: the arena is created at the first allocation."""
    return _resource(device, device)


def _resource(key: Arena | int, device: int) -> Any:
    if not hasattr(Stream, "__cuda_stream__"):
        raise ArenaError(f"arena.rmm needs RMM 25.12 or later, and this is {rmm.__version__}; upgrade it")
    if key not in _resources:
        callbacks = _Callbacks(key if isinstance(key, Arena) else None, device)
        _resources.setdefault(key, rmm.mr.CallbackMemoryResource(callbacks.allocate, callbacks.deallocate))
    return _resources[key]


def _lowest(found: Any) -> Any:
    """The resource below all adaptors."""
    while hasattr(found, "get_upstream"):
        found = found.get_upstream()
    return found


class _Callbacks:
    """The functions behind a resource. RMM calls them with the GIL, in any thread."""

    def __init__(self, pool: Arena | None, device: int) -> None:
        self._pool = pool  # None: the default arena of the device
        self._device = device
        # By address. No lock: each operation on it is atomic, and an address is removed before it can be reused.
        self._live: dict[int, tuple[Buffer, int]] = {}

    def allocate(self, size: int, stream: Any) -> int:
        number, pool = as_stream(stream), checked(self._pool or default_arena(self._device))
        # RMM's CUDA runtime does not start on the simulated driver.
        if not pool.is_simulated and (current := getDevice()) != self._device:
            # RMM leaves this undefined. Stream 0 would be another device's.
            raise UsageError(
                f"the current device is {current}, and this RMM resource has memory of device {self._device}; use "
                f"rmm.mr.set_per_device_resource({self._device}, ...), or create an arena on device {current}"
            )
        # The stream as a number: this object of RMM's does not keep it alive.
        buffer: Buffer = pool._allocate_for("RMM", size, number)
        self._live[buffer.ptr] = buffer, number
        return buffer.ptr

    def deallocate(self, address: int, size: int, stream: Any) -> None:
        """Free a block after what is queued on the stream.

        Must not raise: RMM's C++ code would leave the exception set, to surface anywhere later.
        """
        try:
            self._free(address, as_stream(stream))
        except BaseException as error:
            _core.show_unraisable(error, self.deallocate)

    def _free(self, address: int, stream: int) -> None:
        buffer, allocated = self._live.pop(address, (None, 0))
        if buffer is None:
            raise UsageError(f"{address:#x} is not live memory of this RMM resource")
        try:
            if stream != allocated or stream == _PER_THREAD:  # which another thread may have allocated on
                # A stream that is gone by now cannot be waited for any more, and has done its work. In a forked child
                # nothing can be waited for, and the free does nothing.
                with contextlib.suppress(ArenaError):
                    buffer.record_stream(stream)
        finally:
            buffer.free()


def checked(pool: object) -> Arena:
    """An arena that RMM can use."""
    if not isinstance(pool, Arena):
        raise UsageError(f"pool={pool!r} is not accepted; give an arena.Arena")
    if pool.is_simulated and _core.is_real_driver_here():
        raise UsageError(
            "this arena is simulated, and RMM runs on a real device, where simulated addresses are invalid; use an "
            "arena of that device: arena.Arena(device=0)"
        )
    return pool


def _current_device() -> int:
    """RMM's current device; 0 on the simulated driver, on which RMM's CUDA runtime does not start."""
    try:
        return int(getDevice())
    except CUDARuntimeError:
        if not _core.default_driver().is_simulated:
            raise
        return 0


pass_over(rmm.__file__)

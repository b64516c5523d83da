"""Memory for RMM from an arena, and with it for cuDF, cuML and the other libraries that use RMM.

.. code-block:: python

    import arena, rmm

    pool = arena.Arena(cap="8GiB")
    rmm.mr.set_current_device_resource(arena.rmm.resource(pool))
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

__all__ = ["resource"]

_PER_THREAD = 2  # the thread's own default stream

# RMM's C++ code copies a resource without keeping the Python functions behind it alive, so these live forever.
_resources: dict[Arena, Any] = {}


def resource(pool: Arena | None = None) -> Any:
    """Return an arena's memory as an RMM memory resource, for ``rmm.mr.set_current_device_resource``.

    Without an argument it is the default arena of the current device. A second call with the same arena returns the
    same resource. Resource and arena live until the process ends, even if you drop both: RMM keeps copies that Python
    does not see. :meth:`arena.Arena.close` gives the memory back.

    It is an ``rmm.mr.CallbackMemoryResource``: RMM calls a Python function for every allocation and every free, with
    its stream. Memory that is freed on another stream than it was allocated on is not reused before both have passed.
    """
    if not hasattr(Stream, "__cuda_stream__"):
        raise ArenaError(f"arena.rmm needs RMM 25.12 or later, and this is {rmm.__version__}; upgrade it")
    if pool is None:
        pool = default_arena(_current_device())
    _check(pool)
    if pool not in _resources:
        callbacks = _Callbacks(pool)
        _resources.setdefault(pool, rmm.mr.CallbackMemoryResource(callbacks.allocate, callbacks.deallocate))
    return _resources[pool]


class _Callbacks:
    """The functions behind a resource. RMM calls them with the GIL, in any thread."""

    def __init__(self, pool: Arena) -> None:
        self._pool = pool
        self._has_runtime = not pool.is_simulated  # RMM's CUDA runtime does not start on the simulated driver
        # By address. No lock: each operation on it is atomic, and an address is removed before it can be reused.
        self._live: dict[int, tuple[Buffer, int]] = {}

    def allocate(self, size: int, stream: Any) -> int:
        number = as_stream(stream)
        if self._has_runtime and (current := getDevice()) != self._pool.device:
            # RMM leaves this undefined. Stream 0 would be another device's.
            raise UsageError(
                f"the current device is {current}, and this RMM resource has memory of device {self._pool.device}; "
                f"use rmm.mr.set_per_device_resource({self._pool.device}, ...), or create an arena on device {current}"
            )
        # As a number: this object of RMM's does not keep the stream alive.
        buffer: Buffer = self._pool._allocate_for("RMM", size, number)
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


def _check(pool: object) -> None:
    if not isinstance(pool, Arena):
        raise UsageError(f"pool={pool!r} is not accepted; give an arena.Arena")
    if pool.is_simulated and _core.is_real_driver_here():
        raise UsageError(
            "this arena is simulated, and RMM runs on a real device, where simulated addresses are invalid; use an "
            "arena of that device: arena.Arena(device=0)"
        )


def _current_device() -> int:
    """RMM's current device; 0 on the simulated driver, on which RMM's CUDA runtime does not start."""
    try:
        return int(getDevice())
    except CUDARuntimeError:
        if not _core.default_driver().is_simulated:
            raise
        return 0


pass_over(rmm.__file__)

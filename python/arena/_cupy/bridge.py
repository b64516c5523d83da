"""The bridge to CuPy, as far as it is written in Python. Imported when CuPy first requests memory.

The compiled core serves requests, and takes memory back, without a line of Python. It is connected to CuPy here. The
rest is for memory hooks, for errors, and for a CuPy with unexpected internals.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from .. import _core, errors
from .._inspect.lines import pass_over
from .._pool.arena import Arena
from .._pool.buffer import Buffer
from .._pool.defaults import default_arena
from .._pool.registry import open_arenas
from .._util.arguments import as_size
from . import POOL_UNIT

try:
    import cupy
    from cupy.cuda import memory
except ImportError as error:
    raise errors.ArenaError(
        f"malloc() gives memory to CuPy, which cannot be imported ({error}); install it (pip install cupy-cuda13x, "
        "or cupy-cuda12x for CUDA 12), or use allocate(), which needs no framework"
    ) from error

_used: set[int] = set()  # devices whose default arena CuPy takes memory of
_MODULES = ("cupy_backends.cuda.stream", "cupy.cuda.device", "cupy.cuda.memory_hook")
# cudaErrorInsufficientDriver, NoDevice and SymbolNotFound, which the runtime reports for the simulated driver. All
# three are permanent.
_NO_RUNTIME = (35, 100, 500)


class OutOfMemoryError(errors.OutOfMemoryError, memory.OutOfMemoryError):  # type: ignore[misc]
    """What malloc() raises under CuPy, which catches its own class in places."""

    def __init__(self, *args: Any) -> None:
        errors.OutOfMemoryError.__init__(self, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that unpickles it may have no CuPy.
        return errors.OutOfMemoryError, self.args


def current_device() -> int:
    """CuPy's current device; 0 on the simulated driver, without a CUDA runtime that could have changed it."""
    return int(_ask_runtime(cupy.cuda.runtime.getDevice, lambda: _core.default_driver().is_simulated))


def current_stream(device: int) -> Any:
    """CuPy's current stream on a device.

    The object owns the stream: CuPy destroys the stream with it. So the arena keeps it as long as it needs the stream.
    """
    return cupy.cuda.get_current_stream(device)


def stream_of(pool: Arena) -> Any:
    """CuPy's current stream on the arena's device; 0, the null stream, where no CUDA runtime runs."""
    return _ask_runtime(lambda: current_stream(pool.device), lambda: pool.is_simulated)


def default_pool() -> Arena:
    """The default arena of CuPy's current device."""
    pool = default_arena(current_device())
    if pool.device not in _used:
        _used.add(pool.device)
        _warn_of_copies(pool)
    return pool


def _warn_of_copies(pool: Arena) -> None:
    """Warn when CuPy begins to use a device whose virtual memory it could not copy to or from those used before.

    CuPy copies between devices by cudaMemcpy, which reaches virtual memory only with access to it, and there is no way
    to make it use cudaMemcpyPeer, which needs none. Most programs on such machines use one device, and profit from
    virtual memory there. So it stays the default, and only a program that uses a second device is warned.
    """
    for other in open_arenas():
        if other.device != pool.device and other.device in _used and _needs_access(pool, other):
            warnings.warn(
                f"GPU {other.device} and GPU {pool.device} cannot access each other's memory, so CuPy's copies from "
                "one to the other would fault on virtual memory; use arena.Arena(device=..., vmm=False) on both, or "
                "copy through the host: cupy.asarray(cupy.asnumpy(x))",
                RuntimeWarning,
                stacklevel=2,
            )
            return


def _needs_access(pool: Arena, other: Arena) -> bool:
    """Whether a copy between two arenas could fault."""
    with contextlib.suppress(errors.UsageError):  # one is closed by now
        are_peers = pool.device in other.peers and other.device in pool.peers
        return (pool.vmm or other.vmm) and not are_peers
    return False


def malloc(pool: Arena, size: SupportsIndex) -> Any:
    """A block of the arena as CuPy's MemoryPointer. It is given back when the last array that views it is gone.

    Without CuPy's memory hooks: where there are some, the core calls them, and the functions below one by one.
    """
    check_device(pool)
    return malloc_unhooked(pool, as_size(size))


def sizes_of(size: SupportsIndex) -> tuple[int, int]:
    """The requested size, and the one that hooks see: what CuPy's own pool would take for it."""
    requested = as_size(size)
    return requested, max(POOL_UNIT, -(-requested // POOL_UNIT) * POOL_UNIT)


def check_device(pool: Arena) -> None:
    """Refuse memory that kernels on CuPy's current device could not use."""
    current, is_known = None, True
    try:
        current = int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError as error:  # no runtime or no device; other problems show up later
        is_known = getattr(error, "status", None) in _NO_RUNTIME  # otherwise a real device may be used later
    if current is not None and pool.is_simulated and _core.is_real_driver_here():
        raise errors.UsageError(
            "this arena is simulated, and CuPy runs on a real device, where simulated addresses are invalid; "
            "use an arena of that device: arena.Arena(device=0), or arena.malloc without ARENA_DRIVER=sim"
        )
    if current is not None and current != pool.device:
        raise errors.UsageError(
            f"CuPy's current device is {current}, and this arena's memory is on device {pool.device}; use it in "
            f"`with cupy.cuda.Device({pool.device}):`, create an arena on device {current}, or give CuPy arena.malloc, "
            "which serves the current device"
        )
    if pool.is_simulated and is_known:
        _core.allow_simulation()


def malloc_unhooked(pool: Arena, size: int) -> Any:
    """The same without a check of the device."""
    made = pool._allocate_for_cupy(size, stream_of(pool))
    return memory.MemoryPointer(GenericMemory(made, pool.device), 0) if isinstance(made, Buffer) else made


def _call_hooks(name: str, device: int, size: int, address: int, number: int) -> None:
    for hook in (memory_hooks() or {}).values():
        getattr(hook, name)(device_id=device, mem_size=size, mem_ptr=address, pmem_id=number)


class GenericMemory(memory.UnownedMemory):  # type: ignore[misc]
    """A buffer for a CuPy with an unexpected BaseMemory. Given back with the last array; calls the hooks."""

    def __init__(self, buffer: Buffer, device: int) -> None:
        super().__init__(buffer.ptr, buffer.size, buffer, device)
        self._facts = device, buffer.size, buffer.ptr, id(self)
        self._buffer: Buffer | None = buffer

    def free(self) -> None:
        """Give the memory back now. Arrays that view it must not be used afterwards."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        try:
            _call_hooks("free_preprocess", *self._facts)
        finally:
            with contextlib.suppress(errors.ArenaError):
                buffer.free()
            _call_hooks("free_postprocess", *self._facts)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.free()


def _ask_runtime(question: Callable[[], Any], is_simulated: Callable[[], bool]) -> Any:
    """What CuPy answers; 0 where it has no CUDA runtime and the driver is simulated."""
    try:
        return question()
    except (cupy.cuda.runtime.CUDARuntimeError, IndexError) as error:  # or the runtime has fewer devices
        if not is_simulated():
            raise
        if getattr(error, "status", None) in _NO_RUNTIME:
            _core.has_no_runtime()
        return 0


def memory_hooks() -> Mapping[str, Any] | None:
    """The memory hooks of this thread. CuPy creates the dictionary at the first call."""
    has_hooks: Callable[[], bool] = getattr(cupy.cuda.memory_hook, "_has_memory_hooks", lambda: True)
    hooks: Mapping[str, Any] | None = cupy.cuda.memory_hook.get_memory_hooks() if has_hooks() else None
    return hooks


def _watch_hooks() -> None:
    """Notify the core when a hook is registered: asking CuPy each time would double the time of a hit."""
    try:
        hook = cupy.cuda.memory_hook.MemoryHook
        enter = hook.__enter__

        @functools.wraps(enter)
        def enter_and_notify(self: Any) -> Any:
            _core.notice_hooks()
            return enter(self)

        hook.__enter__ = enter_and_notify
    except (AttributeError, TypeError):
        _core.notice_hooks()


def _capsules() -> dict[str, Any]:
    """The C functions that CuPy's modules offer each other."""
    found: dict[str, Any] = {}
    for name in _MODULES:
        with contextlib.suppress(ImportError, AttributeError):
            found.update(importlib.import_module(name).__pyx_capi__)
    return found


for _package in ("cupy", "cupyx", "cupy_backends"):
    pass_over(getattr(sys.modules.get(_package), "__file__", None))
_watch_hooks()
way = _core.connect_cupy(memory, _capsules(), OutOfMemoryError)

"""The bridge to CuPy, as far as it need not be quick. Imported when CuPy first asks for memory.

What is quick is in the compiled core, which is told here what CuPy has: a block that is there already is handed out,
and taken back, without a line of Python. This is for all else, and for a CuPy whose internals are not as expected.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from . import _core, errors
from ._arena import Arena
from ._buffer import Buffer
from ._lines import pass_over
from ._numbers import as_size

try:
    import cupy
    from cupy.cuda import memory
except ImportError as error:
    raise errors.ArenaError(
        f"malloc() gives memory to CuPy, which cannot be imported ({error}); install it (pip install cupy-cuda13x, "
        "or cupy-cuda12x for CUDA 12), or use allocate(), which needs no framework"
    ) from error

_MODULES = ("cupy_backends.cuda.stream", "cupy.cuda.device", "cupy.cuda.memory_hook")
# cudaErrorInsufficientDriver, NoDevice and SymbolNotFound, which the runtime says of the simulated driver. All three
# are for as long as the process lives.
_NO_RUNTIME = (35, 100, 500)


class OutOfMemoryError(errors.OutOfMemoryError, memory.OutOfMemoryError):  # type: ignore[misc]
    """What malloc() raises under CuPy: CuPy itself catches its own class in places."""

    def __init__(self, *args: Any) -> None:
        errors.OutOfMemoryError.__init__(self, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever unpickles it may have no CuPy.
        return errors.OutOfMemoryError, self.args


def current_device() -> int:
    """CuPy's current device; 0 on the simulated driver, where no CUDA runtime runs that could have changed it."""
    return int(_ask(cupy.cuda.runtime.getDevice, lambda: _core.default_driver().is_simulated))


def stream_of(pool: Arena) -> Any:
    """CuPy's current stream on the arena's device; 0, the null one, where no CUDA runtime runs that could have others.

    The object, which owns the stream. CuPy destroys the stream with it, so the arena keeps it as long as it needs to.
    """
    return _ask(lambda: cupy.cuda.get_current_stream(pool.device), lambda: pool.is_simulated)


def malloc(pool: Arena, size: SupportsIndex) -> Any:
    """A block of the arena as CuPy's MemoryPointer. It goes back when the last array that views it goes."""
    _check_device(pool)
    bytes_, hooks = as_size(size), _hooks()
    return _malloc_hooked(pool, bytes_, hooks) if hooks else _malloc(pool, bytes_)


def _check_device(pool: Arena) -> None:
    """Refuse memory that CuPy's kernels, which run on its current device, could not use."""
    current, is_known = None, True
    try:
        current = int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError as error:  # no runtime, no device; or what follows will say so
        is_known = getattr(error, "status", None) in _NO_RUNTIME  # otherwise it may run a real device later
    if current is not None and pool.is_simulated and _core.is_real_driver_here():
        raise errors.UsageError(
            "this arena is simulated, and CuPy runs on a real device, to which simulated addresses mean nothing; "
            "use an arena of that device: arena.Arena(device=0), or arena.malloc without ARENA_DRIVER=sim"
        )
    if current is not None and current != pool.device:
        raise errors.UsageError(
            f"CuPy's current device is {current}, and this arena's memory is on device {pool.device}; use it in "
            f"`with cupy.cuda.Device({pool.device}):`, make an arena of device {current}, or give CuPy arena.malloc, "
            "which serves the current device"
        )
    if pool.is_simulated and is_known:
        _core.allow_simulation()


def _malloc(pool: Arena, size: int) -> Any:
    try:
        buffer = pool.allocate(size, stream_of(pool))
    except errors.OutOfMemoryError as error:
        raise OutOfMemoryError(*error.args) from None
    if way == "generic":
        return memory.MemoryPointer(_generic_memory(buffer, pool.device), 0)
    return _core.adopt(buffer)


def _malloc_hooked(pool: Arena, size: int, hooks: Mapping[str, Any]) -> Any:
    """Call CuPy's memory hooks as its own pool does."""
    before = pool.total_bytes()
    facts = {"device_id": pool.device, "mem_size": max(512, -(-size // 512) * 512)}
    for hook in hooks.values():
        hook.malloc_preprocess(**facts, size=size)
    pointer = None
    try:
        pointer = _malloc(pool, size)
        _call_alloc_hooks(pool, pool.total_bytes() - before, pointer.ptr, hooks)
    finally:
        ids = {"mem_ptr": 0, "pmem_id": 0} if pointer is None else {"mem_ptr": pointer.ptr, "pmem_id": id(pointer.mem)}
        for hook in hooks.values():
            hook.malloc_postprocess(**facts, **ids, size=size)
    return pointer


def _call_alloc_hooks(pool: Arena, taken: int, address: int, hooks: Mapping[str, Any]) -> None:
    """Say what was taken from the device: before and after in one, for it is known afterwards only."""
    for hook in hooks.values() if taken > 0 else ():
        hook.alloc_preprocess(device_id=pool.device, mem_size=taken)
        hook.alloc_postprocess(device_id=pool.device, mem_size=taken, mem_ptr=address)


def _call_hooks(name: str, device: int, size: int, address: int, number: int) -> None:
    for hook in (_hooks() or {}).values():
        getattr(hook, name)(device_id=device, mem_size=size, mem_ptr=address, pmem_id=number)


class _Owner:
    """What gives a buffer back when CuPy's UnownedMemory goes, with the hooks."""

    def __init__(self, buffer: Buffer, device: int) -> None:
        self.buffer, self.device, self.number = buffer, device, 0

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        facts = (self.device, self.buffer.size, self.buffer.ptr, self.number)
        try:
            _call_hooks("free_preprocess", *facts)
        finally:
            with contextlib.suppress(errors.ArenaError):
                self.buffer.free()
            _call_hooks("free_postprocess", *facts)


def _generic_memory(buffer: Buffer, device: int) -> Any:
    owner = _Owner(buffer, device)
    made = memory.UnownedMemory(buffer.ptr, buffer.size, owner, device)
    owner.number = id(made)
    return made


def _ask(question: Callable[[], Any], is_simulated: Callable[[], bool]) -> Any:
    try:
        return question()
    except (cupy.cuda.runtime.CUDARuntimeError, IndexError) as error:  # or the runtime has fewer devices
        if not is_simulated():
            raise
        if getattr(error, "status", None) in _NO_RUNTIME:
            _core.has_no_runtime()
        return 0


def _hooks() -> Mapping[str, Any] | None:
    """The memory hooks of this thread; CuPy makes the dictionary when it is asked for."""
    has_hooks: Callable[[], bool] = getattr(cupy.cuda.memory_hook, "_has_memory_hooks", lambda: True)
    hooks: Mapping[str, Any] | None = cupy.cuda.memory_hook.get_memory_hooks() if has_hooks() else None
    return hooks


def _watch_hooks() -> None:
    """Have the core told when a hook is registered. To ask CuPy each time would take as long as all the rest."""
    try:
        hook = cupy.cuda.memory_hook.MemoryHook
        enter = hook.__enter__

        @functools.wraps(enter)
        def enter_noticed(self: Any) -> Any:
            _core.notice_hooks()
            return enter(self)

        hook.__enter__ = enter_noticed
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
way = _core.connect_cupy(memory, _capsules(), _call_hooks)

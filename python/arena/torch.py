"""Memory for PyTorch from an arena: call ``arena.torch.use()`` before the first CUDA tensor.

.. code-block:: python

    import arena, torch

    pool = arena.Arena(cap="8GiB")
    arena.torch.use(pool)
    x = torch.ones(1024, 1024, device="cuda")
    print(pool.report())

Out of memory is a ``torch.OutOfMemoryError`` that begins as PyTorch's own and goes on with arena's text. Work in
autograd's threads, ``record_stream`` and captured graphs are supported. ``torch.cuda.empty_cache()`` trims the arena,
and ``torch.cuda.set_per_process_memory_fraction()`` sets its cap. ``torch.cuda.memory_allocated()`` and its relatives
answer from the arena.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from . import _core
from ._inspect.lines import pass_over
from ._pool.arena import Arena
from ._pool.defaults import default_arena
from ._torch import pools, questions
from .errors import ArenaError, UsageError

__all__ = ["is_in_use", "pool", "use"]

_lock = threading.Lock()
_given: dict[int, Arena] = {}  # by device; devices without one use their default arena
_served: dict[int, Arena] = {}  # the same, for devices that PyTorch took memory of
_through: Callable[[int, int], tuple[str, str, str] | None] | None = None
_allocator: Any = None  # PyTorch's object for our functions, once it is in use
_segments: Any = None  # the same for MemPool, which takes segments for PyTorch's own allocator


def use(pool: Arena | None = None) -> None:
    """Give PyTorch the memory of an arena, from its first CUDA tensor to the end of the process.

    Without an argument every device uses its default arena, with the settings in force then. With one, that is the
    arena of its device, and other devices use their default arenas. Choose before the first CUDA tensor: after that,
    another choice is a :class:`UsageError`.
    """
    torch = _import_torch()
    if pool is not None:
        _check(pool)
    with _lock:
        if pool is not None and (_served.get(pool.device) or _given.get(pool.device, pool)) is not pool:
            raise UsageError("PyTorch uses another arena already, and cannot change; give it one at the start")
        if _allocator is None:
            _plug_in(torch)
        if pool is not None:
            _given[pool.device] = pool


def is_in_use() -> bool:
    """Whether PyTorch gets its memory from arena."""
    return _allocator is not None


@contextlib.contextmanager
def pool(pool: Arena) -> Iterator[Arena]:
    """Give PyTorch the memory of an arena in a part of the program: ``with arena.torch.pool(pool): ...``.

    Counts for this thread. After :func:`use`, each tensor is a block of the arena. Without it, PyTorch's own allocator
    stays in charge, and takes its segments from the arena (``torch.cuda.MemPool``, PyTorch 2.6 or later); they go back
    when the tensors are gone. Out of memory is PyTorch's own error then, and the arena calls no Python:
    ``on_oom`` and ``on_pressure`` functions count only after :func:`use`.
    """
    torch = _import_torch()
    _check(pool)
    with contextlib.ExitStack() as stack:
        if _allocator is None:
            allocator = _segment_allocator(torch)
            segments = torch.cuda.MemPool(allocator.allocator())
            stack.enter_context(torch.cuda.use_mem_pool(segments, device=pool.device))
        _core.enter_torch_pool(pool)
        stack.callback(_core.leave_torch_pool)
        yield pool


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ArenaError(f"arena.torch needs PyTorch, which cannot be imported ({error}); pip install torch") from error
    if torch.version.cuda is None:
        raise UsageError(f"this PyTorch ({torch.__version__}) is built without CUDA: install a build with it")
    return torch


def _check(pool: object) -> None:
    if not isinstance(pool, Arena):
        raise UsageError(f"pool={pool!r} is not accepted; give an arena.Arena")
    if pool.is_simulated and _core.is_real_driver_here():
        raise UsageError(
            "this arena is simulated, and PyTorch runs on a real device, to which simulated addresses mean nothing; "
            "use an arena of that device: arena.Arena(device=0)"
        )


def hand_through(through: Callable[[int, int], tuple[str, str, str] | None]) -> None:
    """Have PyTorch call other functions, which call ours: for dry runs, before :func:`use`.

    ``through`` gets the addresses of ours, and returns a library and the names of two functions in it, or none.
    """
    global _through
    _through = through


def _new_allocator(torch: Any, *, is_watched: bool = False) -> Any:
    names = (_core.__file__, "arena_torch_alloc", "arena_torch_free")
    if is_watched and _through is not None:
        library = ctypes.CDLL(names[0])
        allocate, free = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names[1:])
        names = _through(allocate, free) or names
    return torch.cuda.memory.CUDAPluggableAllocator(*names)


def _segment_allocator(torch: Any) -> Any:
    """PyTorch's object for the functions that give its own allocator segments.

    There is one, for ever: a MemPool has only its address, and PyTorch frees segments while the process exits.
    """
    global _segments
    if not hasattr(getattr(torch.cuda, "MemPool", None), "use_count"):
        raise UsageError(
            f"PyTorch {torch.__version__} cannot give back segments of another allocator (2.6 can); call "
            "arena.torch.use() before the first CUDA tensor, after which arena.torch.pool() needs no MemPool"
        )
    with _lock:
        if _segments is None:
            names = ("arena_torch_segment_alloc", "arena_torch_segment_free")
            _segments = torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, *names)
            _core.keep_forever(_segments)
        return _segments


def _plug_in(torch: Any) -> None:
    global _allocator
    _connect()
    allocator = _new_allocator(torch, is_watched=True)
    _add_functions(allocator.allocator())
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        is_another = torch.cuda.memory.get_allocator_backend() == "pluggable"
        why = "was given another allocator" if is_another else "has allocated CUDA memory"
        raise UsageError(
            f"PyTorch {why} already, and cannot change its allocator ({error}); call arena.torch.use() before the "
            "first CUDA tensor"
        ) from None
    _allocator = allocator
    replaced = _core.extend_torch_allocator()
    questions.answer(torch)
    pools.keep_allocators(torch, replaced)


def _add_functions(allocator: Any) -> None:
    addresses = _core.torch_functions()
    allocator.set_record_stream_fn(addresses["record_stream"])
    allocator.set_reset_fn(addresses["empty_cache"])  # PyTorch's name for it
    allocator.set_memory_fraction_fn(addresses["set_fraction"])
    setters = {
        "begin_allocate_to_pool": "set_begin_allocate_to_pool",
        "end_allocate_to_pool": "set_end_allocate_to_pool_fn",
        "release_pool": "set_release_pool",
    }
    if all(
        hasattr(allocator, setter) for setter in setters.values()
    ):  # else graphs keep memory: Arena.release_graphs()
        for name, setter in setters.items():
            getattr(allocator, setter)(addresses[name])


def _connect() -> None:
    torch = sys.modules["torch"]
    if isinstance(torch, ModuleType) and torch.__file__:
        pass_over(torch.__file__)
    _core.connect_torch(_arena_of, _is_pooled, _set_fraction)


def _arena_of(device: int) -> Arena:
    """The arena for a device's tensors. Called by the core, once for each device."""
    with _lock:
        if device not in _served:
            found = _given.get(device) or default_arena(device)
            _check(found)
            _served[device] = found
        return _served[device]


def _is_pooled(device: int, stream: int) -> bool | None:
    """Whether a stream is one of PyTorch's own, which are never destroyed; None if that cannot be seen.

    The id of a stream from elsewhere is its address.
    """
    current = sys.modules["torch"].cuda.current_stream(device)
    return bool(current.stream_id != stream) if current.cuda_stream == stream else None


def _set_fraction(fraction: float, device: int) -> None:
    """Set the cap of a device's arena: ``torch.cuda.set_per_process_memory_fraction()``. Called by the core."""
    pool = _arena_of(device)
    pool.set_cap(int(fraction * pool.stats().device_total))


def _forget() -> None:
    """In a forked child the arenas are the parent's, and another of its threads may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _given.clear()
    _served.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

"""What CuPy allocates is unknown at first, also if its pool gives out memory that held something known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import marks

__all__ = ["install"]


class Fresh:
    """An allocator that says of everything it allocates that it is unknown."""

    __slots__ = ("allocator",)

    def __init__(self, allocator: Callable[[int], Any]) -> None:
        self.allocator = allocator

    def __call__(self, size: int) -> Any:
        pointer = self.allocator(size)
        if size:
            marks.mark(pointer.ptr, size, marks.UNKNOWN)
        return pointer


def original(allocator: Any) -> Any:
    """The program's allocator."""
    return allocator.allocator if isinstance(allocator, Fresh) else allocator


def install(cupy: Any) -> None:
    """Wrap the allocator in force, and every one that is set later. Who asks for it gets the program's own."""
    memory = cupy.cuda.memory
    set_global, get_global = memory.set_allocator, memory.get_allocator
    set_here, get_here = memory._set_thread_local_allocator, memory._get_thread_local_allocator

    def set_allocator(allocator: Any = None) -> None:
        set_global(Fresh(memory._malloc if allocator is None else allocator))

    def set_thread_local(allocator: Any) -> None:
        set_here(None if allocator is None else Fresh(original(allocator)))

    for module in (memory, cupy.cuda):
        module.set_allocator = documented(set_allocator, set_global)
        module.get_allocator = documented(lambda: original(get_global()), get_global)
    memory._set_thread_local_allocator = set_thread_local
    memory._get_thread_local_allocator = lambda: original(get_here())
    set_allocator(get_global())


def documented(function: Callable[..., Any], like: Any) -> Callable[..., Any]:
    """A function with the name and the text of the one that it replaces."""
    function.__name__ = function.__qualname__ = like.__name__
    function.__doc__, function.__module__ = like.__doc__, getattr(like, "__module__", "cupy")
    return function

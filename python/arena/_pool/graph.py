"""The memory of a captured graph."""

from __future__ import annotations

import contextlib
from types import TracebackType

from .. import _core
from .._util.shown import Shown
from ..errors import ArenaError, UsageError

__all__ = ["GraphMemory"]


class GraphMemory(Shown):
    """Memory that a captured graph uses at every launch. Made by :meth:`Arena.graph`, for one ``with`` block.

    Everything that the thread allocates in the block stays reserved for the graph, temporaries included, until
    :meth:`release` or until this object goes: keep it as long as the graph.
    """

    def __init__(self, core: _core.Arena) -> None:
        self._arena = core
        self._graph: _core.Graph | None = None
        self._is_used = False

    def __enter__(self) -> GraphMemory:
        if self._is_used:
            raise UsageError("a graph's memory is collected in one `with` block; call pool.graph() again for another")
        self._is_used = True
        self._graph = self._arena.begin_graph()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        if self._graph is not None:
            self._graph.end()

    def release(self) -> None:
        """Say that the graph will not be launched again: its memory can be used for other things once it is idle.

        Buffers and arrays that are still alive stay valid. A second call does nothing.
        """
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.release()

    def __del__(self) -> None:
        with contextlib.suppress(ArenaError, AttributeError):  # __init__ may not have come far
            self.release()

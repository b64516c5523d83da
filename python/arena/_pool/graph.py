"""The memory of a captured graph."""

from __future__ import annotations

import contextlib
from types import TracebackType

from .. import _core
from .._util.shown import Shown
from ..errors import ArenaError, UsageError

__all__ = ["GraphMemory"]


class GraphMemory(Shown):
    """Memory that a captured graph uses at every launch. Created by :meth:`Arena.graph` for one ``with`` block.

    Everything the thread allocates in the block, temporaries included, stays reserved for the graph until
    :meth:`release`, or until this object is dropped: keep it as long as the graph.
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
        """Release the memory, for other uses once it is idle. Do not launch the graph again.

        Buffers and arrays that are still alive stay valid. A second call does nothing.
        """
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.release()

    def __del__(self) -> None:
        with contextlib.suppress(ArenaError, AttributeError):  # __init__ may have failed
            self.release()

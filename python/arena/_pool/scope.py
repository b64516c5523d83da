"""Named parts of a program, and what they allocated."""

from __future__ import annotations

from typing import NoReturn

from .. import _core
from .._inspect.since import Since
from .._util.shown import Shown
from ..errors import UsageError

__all__ = ["Scope"]


class Scope(Shown):
    """What a part of a program allocated from one arena. Created by :meth:`Arena.scope` for one ``with`` block.

    It counts what its thread allocates inside it, in bytes after rounding, until any thread frees it.
    """

    __slots__ = ("_arena", "_budget", "_core", "_ended", "_name")

    def __init__(self, arena: _core.Arena, name: str, budget: int | None) -> None:
        self._arena = arena
        self._name = name
        self._core: _core.Scope | None = None
        self._ended = False
        self._budget = budget

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def budget(self) -> int | None:
        """The most that may be live in it; ``None`` for no limit."""
        return self._budget

    @property
    def live(self) -> int:
        """Bytes that were allocated in it and are still live."""
        return self._core.live if self._core else 0

    @property
    def peak(self) -> int:
        """The highest value of :attr:`live` so far."""
        return self._core.peak if self._core else 0

    @property
    def blocks(self) -> int:
        """Allocations that were made in it and are still live."""
        return self._core.blocks if self._core else 0

    @property
    def leaked(self) -> int:
        """Bytes that outlived it: what is still live after its end; 0 before."""
        return self.live if self._ended else 0

    def outlived(self) -> Since:
        """Return what was allocated in it and is still live, to inspect or to print by line. Walks the whole arena.

        >>> import arena
        >>> pool = arena.Arena(device="sim:1GiB")
        >>> with pool.scope("load") as scope:
        ...     kept = pool.allocate(1000)
        >>> scope.outlived().bytes
        1024
        """
        if self._core is None:
            return Since([])
        path, inside = self._core.path, self._core.path + "/"
        return Since(
            [
                piece
                for piece in self._arena.snapshot()["pieces"]
                if piece.state == "live"
                and piece.serial >= self._core.first
                and (piece.scope == path or piece.scope.startswith(inside))
            ]
        )

    def __enter__(self) -> Scope:
        if self._core is not None:
            raise UsageError(f"scope {self.name!r} was entered before; create a new one")
        self._core = self._arena.enter_scope(self._name, self.budget)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._core is None:
            raise UsageError(f"scope {self.name!r} was not entered")
        self._end()

    def __del__(self) -> None:
        # A scope that was entered and never left must not count, or refuse requests, for ever.
        if getattr(self, "_core", None) is not None:
            self._end()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Scope belongs to a running program, so it can be neither copied nor pickled")

    def _end(self) -> None:
        assert self._core is not None
        if not self._ended:
            self._ended = True
            self._arena.end_scope(self._core)

"""Named parts of a program, with what they allocated."""

from __future__ import annotations

from typing import NoReturn

from .. import _core
from .._inspect.since import Since
from .._util.shown import Shown
from ..errors import UsageError

__all__ = ["Scope"]


class Scope(Shown):
    """What a part of a program allocated from one arena. Made by :meth:`Arena.scope`, and used once, in a ``with``.

    It counts what the thread allocates that entered it, bytes after rounding, until they are freed by whomever.
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
        """The most that may be live in it; none if ``None``."""
        return self._budget

    @property
    def live(self) -> int:
        """Bytes that were allocated in it and are not freed yet."""
        return self._core.live if self._core else 0

    @property
    def peak(self) -> int:
        """The highest value of :attr:`live` so far."""
        return self._core.peak if self._core else 0

    @property
    def blocks(self) -> int:
        """Allocations that were made in it and are not freed yet."""
        return self._core.blocks if self._core else 0

    @property
    def leaked(self) -> int:
        """Bytes that outlived it: what is live of it now, after its end; 0 before."""
        return self.live if self._ended else 0

    def outlived(self) -> Since:
        """Return what was allocated in it and still lives, to look at or to print by line; it walks everything.

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
            raise UsageError(f"scope {self.name!r} was entered before; make a new one")
        self._core = self._arena.enter_scope(self._name, self.budget)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._core is None:
            raise UsageError(f"scope {self.name!r} was not entered")
        self._end()

    def __del__(self) -> None:
        # One that was entered and never left must not count, or refuse, for ever.
        if getattr(self, "_core", None) is not None:
            self._end()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Scope is a part of a run, which ends with it, so it can be neither copied nor pickled")

    def _end(self) -> None:
        assert self._core is not None
        if not self._ended:
            self._ended = True
            self._arena.end_scope(self._core)

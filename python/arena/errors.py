"""The errors that arena raises, and its warning.

Every error is an :class:`ArenaError`, and also the built-in error that code unaware of arena would catch. They pickle
and copy with their attributes, so they cross process boundaries whole.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _core
from ._words.account import REASONS
from ._words.advice import advise, is_of_budget
from ._words.plain import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ArenaError", "DriverError", "OutOfMemoryError", "SimulatedDriverWarning", "TraceError", "UsageError"]


class ArenaError(Exception):
    """Any error that arena raises on purpose. Its text is one line, safe to print; ``args`` has it unchanged."""

    def __str__(self) -> str:
        return plain(super().__str__())


class UsageError(ArenaError, ValueError):
    """An invalid setting or argument: the text says what was given and what is accepted."""


class TraceError(ArenaError, ValueError):
    """A trace that cannot be read to its end: the text says where."""


class DriverError(ArenaError, RuntimeError):
    """A CUDA driver that cannot be used, or a driver call that failed.

    >>> error = DriverError("cuMemFree failed", call="cuMemFree", code=1, name="CUDA_ERROR_INVALID_VALUE")
    >>> error.code, error.name
    (1, 'CUDA_ERROR_INVALID_VALUE')
    """

    call: str
    """The function that failed, such as ``"cuMemCreate"``."""
    code: int
    """The driver's result code, or the closest one if arena found the fault; 0 if no driver was reached."""
    name: str
    """The name of the code, such as ``"CUDA_ERROR_OUT_OF_MEMORY"``; empty if there is none."""

    # All but the text have defaults: unpickling calls the class with the text alone and then sets the rest.
    def __init__(self, text: str, *, call: str = "", code: int = 0, name: str = "") -> None:
        super().__init__(text)
        self.call = call
        self.code = code
        self.name = name


class SimulatedDriverWarning(RuntimeWarning):
    """The program runs on simulated memory because no NVIDIA driver is installed, and did not ask for a simulation.

    ``python -W error`` makes it an error; ``ARENA_DRIVER=sim`` asks for the simulation and silences it.
    """


_HOLDERS = 5  # its position in the arguments
_MORE = ("largest_with_moving", "set_free_by_moving", "moving", "most", "scope", "budget", "budget_used", "line")


class OutOfMemoryError(ArenaError, MemoryError):
    """A request that failed. Its text says what memory is held for, who holds the most, and what to do.

    >>> error = OutOfMemoryError("4 GiB requested", "cap reached", 4 << 30, 1 << 30, {})
    >>> error.verdict, error.largest
    ('cap reached', 1073741824)
    """

    verdict: str
    """Why: ``"cap reached"``, ``"device full"``, ``"headroom kept"``, ``"budget of scope X reached"``,
    ``"a stream is being captured"``, ``"re-backing not allowed"``, ``"pinned memory kept"``, ``"too few addresses"``,
    or, without virtual memory, ``"fragmented"`` or ``"memory is on its way"``."""
    requested: int
    """The bytes that were requested."""
    largest: int
    """The largest request that would have passed under the rules in force: see ``moving``."""
    account: dict[str, int]
    """What every reserved byte is held for, and the cap."""
    holders: tuple[str, ...]
    """The largest holders, one per line, and where the report was saved, if it was."""
    largest_with_moving: int
    """The largest request that would have passed if live data could have been moved for it."""
    set_free_by_moving: int
    """The bytes that moving live data would have freed, if the request would then have passed; otherwise 0."""
    moving: str
    """Whether live data could be moved for the request: ``"allowed"``, or why not: ``"switched off"``
    (``compact=False``), ``"other threads"`` (``compact="auto"``, and one may launch work), ``"registered pages: NCCL"``
    (``compact="auto"``, and a library in use may know memory by its pages), ``"plain segments"``. Empty if unknown."""
    most: int
    """The largest request that could pass if nothing else were live: a larger one never can, whatever is freed."""
    scope: str
    """The name of the scope whose budget was reached; empty if none was."""
    budget: int
    """That budget, in bytes; 0 if none was reached."""
    budget_used: int
    """What was live in that scope."""
    line: str
    """The line of the program that made the request: ``"train.py:88 in step"``. Empty if unknown."""

    # The core builds errors without calling this, because near the recursion limit it cannot: out_of_memory() in
    # src/bindings/errors.cpp has the same fields in the same order.
    def __init__(
        self,
        text: str,
        verdict: str,
        requested: int,
        largest: int,
        account: dict[str, int],
        holders: tuple[str, ...] = (),
        largest_with_moving: int = 0,
        set_free_by_moving: int = 0,
        moving: str = "",
        most: int = 0,
        scope: str = "",
        budget: int = 0,
        budget_used: int = 0,
        line: str = "",
    ) -> None:
        more = (max(largest, largest_with_moving), set_free_by_moving, moving, most, scope, budget, budget_used, line)
        # Not super(): a subclass for CuPy has another __init__ between this one and Exception's.
        Exception.__init__(self, text, verdict, requested, largest, account, holders, *more)
        self.verdict = verdict
        self.requested = requested
        self.largest = largest
        self.account = account
        self.holders = holders
        for name, value in zip(_MORE, more, strict=True):
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, vars(self)

    def __str__(self) -> str:
        return "\n".join(map(plain, [self.args[0], *self._table(), *self.holders, *self._advice()]))

    def _table(self) -> list[str]:
        if is_of_budget(self.verdict):  # what else is held does not matter
            return []
        rows = [
            f"  {name:<11}{self.account[name]:>16,}  {text}" for name, text in REASONS.items() if name in self.account
        ]
        if rows:
            rows.append(f"  {'reserved':<11}{self.account['reserved']:>16,}  of a cap of {self.account['cap']:,}")
        return rows

    def _advice(self) -> list[str]:
        why, steps = advise(self)
        return [*([why] if why else []), *numbered(steps)]

    def _add_holders(self, lines: Sequence[str]) -> None:
        """Add lines that are known only once the report of this error is made, such as where it was saved."""
        self.holders = (*self.holders, *lines)
        self.args = (*self.args[:_HOLDERS], self.holders, *self.args[_HOLDERS + 1 :])


def numbered(steps: Sequence[str]) -> list[str]:
    """The next steps, one per line: the first thing to do, and what else helps."""
    return [f"{'Also' if number else 'Next'}: {step}" for number, step in enumerate(steps)]


_core.set_error_classes(sys.modules[__name__])

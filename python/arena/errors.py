"""The errors that arena raises.

All are an :class:`ArenaError`; each is also the built-in error that code which does not know arena would
expect. They pickle and copy with their attributes, so they cross process boundaries whole.
"""

from __future__ import annotations

from typing import Any

from ._account import REASONS, graphs_hint, is_held_by_graphs
from ._moving import ALLOWED, how_to_allow, in_words, sentence

__all__ = ["ArenaError", "DriverError", "OutOfMemoryError", "TraceError", "UsageError"]


_CAPTURING = "a stream is being captured"
_NOT_BY_GRAPHS = (_CAPTURING, "memory is on its way")  # verdicts with a better next step

_ADVICE = {
    "cap reached": "Next: raise the cap with set_cap(), or free something first.",
    "headroom kept": "Next: lower headroom=, or free memory that is in use outside this arena.",
    "device full": "Next: free memory that is in use outside this arena (by this process's CUDA context and "
    "libraries, or by other processes: see nvidia-smi), or use a smaller cap.",
    _CAPTURING: "Next: make room before the capture begins: raise the cap, or free memory and synchronize. During a "
    "capture only new or idle memory can be used.",
    "memory is on its way": "Next: try again: another thread is getting memory, or giving it back.",
    "fragmented": "Next: free what lies between the free pieces, or use virtual memory (vmm=True, no upstream=), where "
    "free memory in pieces is never useless.",
    "too few addresses": "Next: free what lies between the free pieces, or use a smaller cap: the driver gave so few "
    "addresses for this one that no place is left in one piece, although there is memory.",
    "pinned memory kept": "Next: unpin() what need not stay in its place: moving live data would have made room.",
}


class ArenaError(Exception):
    """Any error that arena raises on purpose."""


class UsageError(ArenaError, ValueError):
    """A setting or an argument that cannot be meant: the text says what was given and what is accepted."""


class TraceError(ArenaError, ValueError):
    """A trace that cannot be read, or not to its end: the text says where."""


class DriverError(ArenaError, RuntimeError):
    """A CUDA driver that cannot be used, or a call that it refused.

    >>> error = DriverError("cuMemFree failed", call="cuMemFree", code=1, name="CUDA_ERROR_INVALID_VALUE")
    >>> error.code, error.name
    (1, 'CUDA_ERROR_INVALID_VALUE')
    """

    call: str
    """The function that failed, such as ``"cuMemCreate"``."""
    code: int
    """The driver's result code, or the one that fits if arena found the fault; 0 if no driver was reached."""
    name: str
    """The name of the code, such as ``"CUDA_ERROR_OUT_OF_MEMORY"``; empty if there is none."""

    # All but the text have defaults: unpickling calls the class with the text alone, and then sets the rest.
    def __init__(self, text: str, *, call: str = "", code: int = 0, name: str = "") -> None:
        super().__init__(text)
        self.call = call
        self.code = code
        self.name = name


_MADE_OF = ("text", "verdict", "requested", "largest", "account", "holders")
_BY_MOVING = ("largest_with_moving", "set_free_by_moving", "moving")


class OutOfMemoryError(ArenaError, MemoryError):
    """A request that could not be met. The text is the account of what is held, and what to do.

    >>> error = OutOfMemoryError("4 GiB asked", "cap reached", 4 << 30, 1 << 30, {})
    >>> error.verdict, error.largest
    ('cap reached', 1073741824)
    """

    verdict: str
    """Why: ``"cap reached"``, ``"device full"``, ``"headroom kept"``, ``"budget of scope X reached"``,
    ``"a stream is being captured"``, ``"re-backing not allowed"``, ``"pinned memory kept"``, ``"too few addresses"``,
    or, without virtual memory, ``"fragmented"`` or ``"memory is on its way"``."""
    requested: int
    """The bytes that were asked for."""
    largest: int
    """The largest request that would have passed, by the rules in force: see ``moving``."""
    account: dict[str, int]
    """What every reserved byte is held for, and the cap."""
    holders: tuple[str, ...]
    """Who holds the most, a line each, and where the report was saved, if it was."""
    largest_with_moving: int
    """The largest request that would have passed if live data could have been moved for it."""
    set_free_by_moving: int
    """The bytes that moving live data would have set free, if the request would have passed then; otherwise 0."""
    moving: str
    """Whether live data could be moved for the request: ``"allowed"``, or why not: ``"switched off"``
    (``compact=False``), ``"other threads"`` (``compact="auto"``, and one may launch work), ``"plain
    segments"``. Empty if that is not known."""

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
    ) -> None:
        by_moving = (max(largest, largest_with_moving), set_free_by_moving, moving)
        # Not super(): a subclass for CuPy has another __init__ between this one and Exception's.
        Exception.__init__(self, text, verdict, requested, largest, account, holders, *by_moving)
        self.verdict = verdict
        self.requested = requested
        self.largest = largest
        self.account = account
        self.holders = holders
        self.largest_with_moving, self.set_free_by_moving, self.moving = by_moving

    def __str__(self) -> str:
        return "\n".join([str(self.args[0]), *self._table(), *self.holders, *self._advice()])

    def _table(self) -> list[str]:
        rows = [
            f"  {name:<11}{self.account[name]:>16,}  {text}" for name, text in REASONS.items() if name in self.account
        ]
        if rows:
            rows.append(f"  {'reserved':<11}{self.account['reserved']:>16,}  of a cap of {self.account['cap']:,}")
        return rows

    def _advice(self) -> list[str]:
        if self.verdict.startswith("budget of scope"):
            return ["Next: raise the scope's budget=, or free what it holds first."]
        found = self._moving_advice() or self._verdict_advice()
        if not self.account.get("captured") or self.verdict in _NOT_BY_GRAPHS:
            return found
        hint = graphs_hint(f"{self.account['captured']:,} bytes")
        if self.requested <= self.largest + self.account["captured"] and not self.set_free_by_moving:
            return [f"Next: {hint}"]  # nothing else is needed
        return [*found, f"Also: {hint}"] if is_held_by_graphs(self.account) else found

    def _verdict_advice(self) -> list[str]:
        outside = self.account.get("device_total", 0) - sum(self.account.get(n, 0) for n in ("device_free", "reserved"))
        if self.verdict == "device full" and outside <= 0:
            return ["Next: free something first: all that the device has is in this arena."]
        if self.verdict == "pinned memory kept" and self.moving not in ("", ALLOWED):
            return [
                f"{sentence(in_words(self.moving))} Next: unpin() what need not stay in its place, and allow moving: "
                f"only both together would have made room. To allow it, {how_to_allow(self.moving)}"
            ]
        return [_ADVICE[self.verdict]] if self.verdict in _ADVICE else []

    def _moving_advice(self) -> list[str]:
        """What to do if moving live data would have been enough; nothing otherwise."""
        if not self.set_free_by_moving:
            return []
        is_captured = self.verdict == _CAPTURING
        why = "live data is not moved during a capture" if is_captured else in_words(self.moving)
        if not why or (self.moving == ALLOWED and not is_captured):  # it was not tried, or others were faster
            why = "live data was not moved"
        return [
            f"{sentence(why)} Moving it would have set {self.set_free_by_moving:,} bytes free, and this request would "
            "have passed.",
            f"Next: {how_to_allow(self.moving, is_captured=is_captured)}",
            *([f"Or {_ADVICE[_CAPTURING].removeprefix('Next: ')}"] if is_captured else []),
        ]

    def _but(self, **changes: Any) -> OutOfMemoryError:
        """The same error, except for some of what it is made of."""
        given: dict[str, Any] = dict(zip(_MADE_OF + _BY_MOVING, self.args, strict=False))
        return OutOfMemoryError(**{**given, **changes})

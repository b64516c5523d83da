"""What was live at the peak, or when a request failed: rows whose sum is what was in use on the device then.

The rows of a framework are those of its ledger: each says how many bytes a line took, for which module, and what for.
What no ledger has is in rows, too: memory that an allocator keeps, the CUDA context, and the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._inspect.holders import line_text
from .._inspect.snapshot import Line
from .._report.timeline import seconds
from .._trace import Trace
from .cupy_pool import ARRAYS

__all__ = ["KINDS", "Rest", "Row", "Table", "tabulate"]

UNKNOWN = "unknown"
KINDS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "workspaces",
    "temporaries",
    "other tensors",
    ARRAYS,
    UNKNOWN,
)
FAILED = "Live when that request failed"


@dataclass(frozen=True)
class Row:
    """Live blocks with the same line, module and kind."""

    bytes: int
    blocks: int
    line: str
    """Innermost first; empty if it is not known."""
    module: str
    kind: str
    backward: bool
    """Taken in a backward pass: the line is that of the operation that it belongs to."""


@dataclass(frozen=True)
class Rest:
    """Memory in use that is not live data."""

    what: str
    bytes: int


@dataclass(frozen=True)
class Table:
    """The sum of all rows and of the rest is ``total``; ``live`` is the sum of the rows."""

    moment: str
    rows: tuple[Row, ...]
    rest: tuple[Rest, ...]

    @property
    def live(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def total(self) -> int:
        return self.live + sum(one.bytes for one in self.rest)


@dataclass(frozen=True)
class Ledger:
    """What a framework's memory was at one moment."""

    whose: str
    moment: str
    rows: tuple[Row, ...]
    reserved: int
    used: int | None = None
    """In use on the device then, if that is not its peak."""

    @property
    def live(self) -> int:
        return sum(row.bytes for row in self.rows)


def tabulate(
    facts: dict[str, Any], trace: Trace | None, *, peak: int | None, context: int, on_top: int = 0
) -> Table | None:
    """The table for a run.

    ``peak`` is the most that was in use on the simulated device, with what it takes for the context. ``on_top`` is what
    the context and kernels take on a card beside that, at least.
    """
    if peak is None:
        return None
    ledgers = sorted(ledgers_of(facts, trace), key=lambda one: -one.live)
    main = ledgers[0] if ledgers else Ledger("", "At the peak", (), 0)
    total = max(peak if main.used is None else main.used, main.live)
    rest, left = [], total - main.live

    def add(what: str, size: int) -> None:
        nonlocal left
        if (taken := min(max(0, size), left)) > 0:
            rest.append(Rest(what, taken))
            left -= taken

    left += on_top
    add("the CUDA context and kernels, an estimate", context + on_top)
    for other in ledgers[1:]:
        add(f"held by {other.whose} (its own peak is {other.moment.rpartition(', ')[2]})", other.reserved)
    if main.rows:
        add(f"reserved by {main.whose} and not live", main.reserved - main.live)
    add("taken from the driver directly", left)
    return Table(main.moment, main.rows, tuple(rest))


def ledgers_of(facts: dict[str, Any], trace: Trace | None) -> Iterable[Ledger]:
    """What is known best of each framework's memory."""
    torch, arenas = facts.get("torch") or {}, facts.get("arenas") or []
    reserved_by_arena = sum(pool["peak_reserved"] for pool in arenas)
    live_in_arena = max((pool["peak_live"] for pool in arenas), default=0)
    known = facts.get("ledger")
    has_failed = bool(facts.get("ended_by"))
    is_arena = torch.get("allocator") == "arena"
    if known and (not is_arena or known["peak"]["live"] == live_in_arena):
        reserved = reserved_by_arena if is_arena else torch.get("reserved", 0)
        yield from_ledger(known, "arena" if is_arena else "PyTorch's allocator", reserved, has_failed=has_failed)
        live_in_arena = 0 if is_arena else live_in_arena
    elif trace is not None and torch.get("allocator") == "its own":
        yield from_history(trace, torch)
    if live_in_arena:
        yield from_arena(facts, live_in_arena, reserved_by_arena)
    cupy = facts.get("cupy_pool") or {}
    if cupy.get("total"):
        yield from_pool(cupy)


def from_ledger(known: dict[str, Any], whose: str, reserved: int, *, has_failed: bool) -> Ledger:
    failure = known.get("failure") if has_failed else None
    found = failure or known["peak"]
    texts = texts_of(row["line"] for row in found["rows"])
    rows = tuple(
        Row(one["bytes"], one["blocks"], texts[key_of(one["line"])], one["module"], one["kind"], one["backward"])
        for one in found["rows"]
    )
    if failure:
        return Ledger(whose, FAILED, rows, found["used"], found["used"])
    return Ledger(whose, at_peak(found["at"]), rows, reserved)


def at_peak(at: float) -> str:
    return f"At the peak, {seconds(at)} into the run"


def key_of(line: Sequence[Sequence[Any]]) -> tuple[Line, ...]:
    return tuple(Line(*one) for one in line)


def texts_of(lines: Iterable[Sequence[Sequence[Any]]]) -> dict[tuple[Line, ...], str]:
    """How lines are written: with the whole path where files have the same name."""
    keys = {key_of(line) for line in lines}
    short = {key: line_text(key) for key in keys}
    counts = Counter(short.values())
    return {key: text if counts[text] == 1 else line_text(key, whole=True) for key, text in short.items()}


def from_history(trace: Trace, torch: dict[str, Any]) -> Ledger:
    """From PyTorch's history: lines only. Where the extension cannot be compiled."""
    done = trace.replay(device="sim:1TiB")
    rows = [Row(one.bytes, one.blocks, one.name, "", UNKNOWN, False) for one in done.report.lines]
    rows += remainder(torch["live"], rows)
    return Ledger("PyTorch's allocator", at_peak(done.peak.time), tuple(rows), torch["reserved"])


def from_arena(facts: dict[str, Any], live: int, reserved: int) -> Ledger:
    frameworks = facts.get("frameworks") or {}
    users = {name for name, allocator in frameworks.items() if allocator == "arena"}
    kind = ARRAYS if users == {"cupy"} else UNKNOWN
    moment, rows = "At the peak", []
    for peak in facts.get("peaks", ()):
        moment = peak["moment"].rstrip(".").partition(":")[0] or FAILED
        rows = [Row(one["bytes"], one["blocks"], one["line"], "", kind, False) for one in peak["lines"]]
        live = peak["live"]
        break
    rows += remainder(live, rows, kind)
    return Ledger("arena", moment, tuple(rows), reserved)


def from_pool(cupy: dict[str, Any]) -> Ledger:
    live = cupy["live"] if cupy["live"] is not None else cupy["used"]
    rows = [Row(one["bytes"], one["blocks"], one["line"], "", one["kind"], False) for one in cupy["lines"]]
    if sum(row.bytes for row in rows) > live:
        rows = []
    return Ledger("CuPy's pool", at_peak(cupy["at"]), (*rows, *remainder(live, rows, ARRAYS)), cupy["total"])


def remainder(live: int, rows: Sequence[Row], kind: str = UNKNOWN) -> list[Row]:
    """What no line is known of."""
    left = live - sum(row.bytes for row in rows)
    return [Row(left, 0, "", "", kind, False)] if left > 0 else []

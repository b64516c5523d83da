"""The part of a report about a failed request: why it failed, the largest holders, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from .._inspect.holders import Holder, by_line, holders
from .._inspect.snapshot import Snapshot
from .._words.account import rounded
from .._words.advice import advise, is_of_budget
from .._words.format import counted, format_share, format_size
from ..errors import OutOfMemoryError

__all__ = ["failure_of", "fields_of_failure", "held_in_words", "who_held"]

MOST = 5
_AND_MORE = " and more"  # marks holders that are sizes


def who_held(snapshot: Snapshot, serials: Collection[int] | None) -> list[Holder]:
    """The largest holders, by line if lines are traced, otherwise by size; of all blocks, or of those given."""
    live = snapshot.live
    if serials is not None:
        wanted = set(serials)
        live = [piece for piece in live if piece.serial in wanted]
    if lines := by_line(live):
        return lines[:MOST]
    sizes = holders((str(piece.size.bit_length() - 1), piece) for piece in live)[:MOST]
    return [Holder(f"{format_size(1 << int(size.name))}{_AND_MORE}", size.bytes, size.blocks) for size in sizes]


def held_in_words(held: Sequence[Holder], scope: str) -> list[str]:
    """A headline, and a line for each holder."""
    if not held:
        return []
    where = f" in scope {scope}" if scope else ""
    hint = " (set ARENA_LINES=1 to see source lines)" if is_by_size(held) else ""
    rows = [f"{format_size(one.bytes):>12}  in {holder_in_words(one)}" for one in held]
    return [f"Largest holders{where}{hint}:", *rows]


def is_by_size(held: Sequence[Holder]) -> bool:
    """Whether the holders are sizes, because lines were not traced."""
    return any(holder.name.endswith(_AND_MORE) for holder in held)


def holder_in_words(holder: Holder) -> str:
    """The number of blocks, and their line or size."""
    blocks = counted(holder.blocks, "block")
    return f"{blocks} of {holder.name}" if is_by_size([holder]) else f"{blocks}: {holder.name}"


def failure_of(snapshot: Snapshot, verdict: str, request: int) -> OutOfMemoryError:
    """The error that a request of that size would get now: for a report made after the failure."""
    stats = snapshot.stats
    largest, by_moving = stats["largest"], stats.get("largest_with_moving", stats["largest"])
    needed = rounded(request)
    limit = min(stats["cap"], max(0, stats["device_total"] - stats["headroom"]))
    return OutOfMemoryError(
        "",
        verdict,
        request,
        largest,
        stats,
        largest_with_moving=by_moving,
        set_free_by_moving=stats["compactable"] if largest < needed <= by_moving else 0,
        moving=snapshot.moving,
        most=limit // snapshot.granule * snapshot.granule,
    )


def fields_of_failure(error: OutOfMemoryError, held: list[Holder], stats: dict[str, int]) -> dict[str, Any]:
    """The fields of a report that describe the failure."""
    why, steps = advise(error)
    if is_of_budget(error.verdict) and error.budget:
        why = f"{format_share(error.budget_used, error.budget)} used."
    return {
        "verdict": error.verdict,
        "request": error.requested,
        "line": error.line,
        "scope": error.scope,
        "why": why,
        "held": held,
        "largest": largest_for(error, stats),
        "notes": list(steps),
    }


def largest_for(error: OutOfMemoryError, stats: dict[str, int]) -> dict[str, int]:
    """The largest request that would have passed instead; a scope or a capture may limit it further."""
    without = min(error.largest, stats.get("largest_without_moving", error.largest))
    now = {"now": error.largest, "after_trim": error.largest}
    return {**now, "without_moving": without, "with_moving": error.largest_with_moving}

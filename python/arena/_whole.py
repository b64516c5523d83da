"""Whether a snapshot that comes from a file is one: whoever looks at it counts on kinds, on order and on bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._snapshot import Snapshot

__all__ = ["check"]

MOST = 1 << 64
MOST_GRANULES = 1 << 24  # of all segments
STATES = ("live", "pending", "releasable", "stranded")
Ranges = list[tuple[int, int]]  # beginning and size, by address


def check(found: Snapshot, stats: Iterable[str], peak: Iterable[str]) -> None:
    """Raise ValueError, TypeError or KeyError if it is not; ``stats`` and ``peak`` are the figures that it needs."""
    kinds("it", (found.arena, found.plain, found.may_move), (str, bool, bool))
    numbers("it", found.device, found.granule, found.largest_free, found.next_serial)
    numbers("stats", *(found.stats[name] for name in stats), *found.stats.values())
    numbers("peak", *(found.peak[name] for name in peak), *found.peak.values())
    for segment in found.segments:
        numbers("segments", *segment)
    for handle in found.handles:
        numbers("handles", handle.address or 0, handle.size)
    for piece in found.pieces:
        numbers("pieces", piece.address, piece.size, piece.requested, piece.stream, piece.serial)
        kinds("pieces", (piece.state, piece.scope, piece.pinned), (str, str, bool))
        if piece.state not in STATES or not (piece.age is None or 0 <= float(piece.age) < MOST):
            raise ValueError(f"a piece that is {piece.state[:20]!r}, of age {str(piece.age)[:20]}")
        for line in piece.lines:
            kinds("lines", line, (str, int, str))
    places(found)


def places(found: Snapshot) -> None:
    """Pieces lie in handles, and these in segments; nothing overlaps."""
    granule = found.granule
    if granule < 512 or granule & (granule - 1):
        raise ValueError(f"a granule of {granule} bytes")
    segments = ordered("segments", sorted(found.segments))
    if any(size % granule for _, size in segments) or sum(size for _, size in segments) > MOST_GRANULES * granule:
        raise ValueError(f"segments that are no granules, or more than {MOST_GRANULES}")
    handles = ordered("handles", sorted((h.address, h.size) for h in found.handles if h.address is not None))
    pieces = ordered("pieces", [(piece.address, piece.size) for piece in found.pieces])
    inside("handles", handles, segments)
    inside("pieces", pieces, segments)
    inside("pieces", pieces, joined(handles))


def ordered(where: str, ranges: Ranges) -> Ranges:
    end = 0
    for address, size in ranges:
        if address < end or size == 0:
            raise ValueError(f"{where} overlap, or are not in order")
        end = address + size
    return ranges


def joined(ranges: Ranges) -> Ranges:
    """Neighbours as one."""
    found: Ranges = []
    for address, size in ranges:
        if found and sum(found[-1]) == address:
            address, size = found[-1][0], found.pop()[1] + size
        found.append((address, size))
    return found


def inside(where: str, inner: Ranges, outer: Ranges) -> None:
    at = 0
    for address, size in inner:
        while at < len(outer) and sum(outer[at]) <= address:
            at += 1
        if at == len(outer) or address < outer[at][0] or address + size > sum(outer[at]):
            raise ValueError(f"{where} lie where there is no memory")


def numbers(where: str, *values: Any) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value < MOST:
            raise ValueError(f"{where} should have numbers from 0 to 2^64, not {_short(value)}")


def kinds(where: str, values: tuple[Any, ...], wanted: tuple[type, ...]) -> None:
    for value, kind in zip(values, wanted, strict=True):
        if type(value) is not kind:
            raise ValueError(f"{where} should have a {kind.__name__}, not {_short(value)}")


def _short(value: Any) -> str:
    is_plain = isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 1 << 80)
    return repr(value)[:60] if is_plain else f"such a {type(value).__name__}"

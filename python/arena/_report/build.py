"""Builds a report from a snapshot: sums, shares, the map, and the blocks that hold free memory back."""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._core import __version__
from .._inspect.holders import Holder, by_age, by_framework, by_line, by_stream, holders, line_text
from .._inspect.snapshot import Piece, Snapshot
from .._util.clock import now
from .._util.sizes import format_size
from .._words.account import REASONS, STATES, graphs_hint, is_held_by_graphs
from .._words.format import counted
from .._words.moving import ALLOWED
from ..errors import OutOfMemoryError
from .failure import fields_of_failure
from .model import Bin, Block, Cell, Fragmentation, Pin, Report, Segment, largest_in_words

__all__ = ["build"]

MOST_BLOCKS = 20_000  # in the map; more than a screen can show
MOST_PINS = 50


def build(
    snapshot: Snapshot,
    *,
    device_name: str,
    simulated: bool,
    device_label: str = "",
    failure: OutOfMemoryError | None = None,
    held: Sequence[Holder] = (),
    **extra: Any,
) -> Report:
    """Build the report. ``failure`` is the failed request it is about, if any, and ``held`` its largest holders."""
    stats = snapshot.stats
    # trim() makes no difference: what it would return can be reserved again, and already counts as available.
    largest = {"now": stats["largest"], "after_trim": stats["largest"], **by_moving(stats)}
    extra = {"largest": largest, **extra, **(fields_of_failure(failure, list(held), stats) if failure else {})}
    free = [piece for piece in snapshot.pieces if piece.state != "live"]
    live = snapshot.live
    report = Report(
        made=now(),
        arena=__version__,
        device={
            "number": snapshot.device,
            "label": device_label or f"device {snapshot.device}",
            "name": device_name,
            "simulated": simulated,
            "total": stats["device_total"],
            "free": stats["device_free"],
            "outside": max(0, stats["device_total"] - stats["device_free"] - stats["reserved"]),
            "addresses": snapshot.addresses,
            "peers": snapshot.peers,
            "remark": snapshot.remark,
        },
        plain=snapshot.plain,
        granule=snapshot.granule,
        account={name: stats[name] for name in ACCOUNT},
        peak={
            **{name: snapshot.peak[name] for name in (*REASONS, "live", "reserved")},
            **{name: stats[name] for name in ("peak_requested", "peak_live")},
        },
        fragmentation={
            "now": fragmentation(snapshot, stats, snapshot.largest_free),
            "peak": fragmentation(snapshot, snapshot.peak, snapshot.peak["largest_free"]),
        },
        moving=snapshot.moving,
        counts={name: stats[name] for name in COUNTS},
        segments=[segment_map(snapshot, *segment) for segment in sorted(snapshot.segments)],
        live_sizes=histogram(live),
        free_sizes=histogram(free),
        streams=by_stream(live),
        lines=by_line(live),
        scopes=holders((piece.scope, piece) for piece in live if piece.scope),
        ages=by_age(live),
        frameworks=by_framework(live),
        pins=find_pins(snapshot),
        caption="",
        **extra,
        _pieces=snapshot.pieces,
    )
    report = dataclasses.replace(report, caption=caption(report))
    return report if failure is not None else dataclasses.replace(report, notes=notes(report, snapshot.may_move))


ACCOUNT = (*REASONS, "live", "reserved", "compactable", "cap", "headroom")
COUNTS = ("allocations", "blocks", "hits", "splits", "failures", "maps", "unmaps", "rebacked", "driver_calls", "waits")


def by_moving(stats: dict[str, int]) -> dict[str, int]:
    """The largest request without and with moving live data; empty for old snapshots, which lack these figures."""
    names = ("without_moving", "with_moving")
    return {name: stats[f"largest_{name}"] for name in names if f"largest_{name}" in stats}


def fragmentation(snapshot: Snapshot, stats: dict[str, int], largest_free: int) -> Fragmentation:
    free = stats["reserved"] - stats["live"] - stats["captured"]  # memory kept for graphs cannot be reused
    mapped = free - stats["spare"]
    return Fragmentation(
        external=external(snapshot, stats),
        contiguous=1 - largest_free / mapped if mapped else 0.0,
        internal=stats["rounding"] / stats["live"] if stats["live"] else 0.0,
    )


def external(snapshot: Snapshot, stats: dict[str, int]) -> float:
    """The share of the memory left under the cap and on the device that a single request cannot get."""
    known = "largest_with_moving" if snapshot.moving == ALLOWED else "largest_without_moving"
    largest = stats.get(known, stats.get("largest"))
    if largest is None:  # the peak in an old file, which lacks this figure
        return 0.0
    limit = min(stats["cap"], stats["reserved"] + max(0, stats["device_free"] - stats["headroom"]))
    left = limit // snapshot.granule * snapshot.granule - stats["live"] - stats["captured"]
    return min(1.0, max(0.0, 1 - largest / left)) if left > 0 else 0.0


def histogram(pieces: Iterable[Piece]) -> list[Bin]:
    """Count pieces by powers of two, from the smallest size that occurs to the largest."""
    counts: dict[int, int] = defaultdict(int)
    sizes: dict[int, int] = defaultdict(int)
    for piece in pieces:
        power = piece.size.bit_length() - 1
        counts[power] += 1
        sizes[power] += piece.size
    if not counts:
        return []
    powers = range(min(counts), max(counts) + 1)
    return [Bin(1 << power, 2 << power, counts[power], sizes[power]) for power in powers]


def segment_map(snapshot: Snapshot, address: int, size: int) -> Segment:
    """The state of each granule: live if a block touches it, otherwise the reason why it is held.

    Takes time by the number of pieces, and not by that of granules: a small file may claim millions of those.
    """
    granule = snapshot.granule
    edges: dict[int, tuple[str, int]] = {}  # the granules in which pieces begin or end: their state and live bytes
    parts: list[tuple[int, int, str, int]] = []  # first granule, end, state, live bytes of each
    begin = bisect.bisect_left(snapshot.pieces, address, key=lambda piece: piece.address)
    for piece in snapshot.pieces[begin:]:
        offset = piece.address - address
        if offset >= size:
            break
        end = offset + piece.size
        first, last = offset // granule, (end - 1) // granule
        for index in {first, last}:
            state, live = edges.get(index, ("hole", 0))
            if piece.state == "live":
                state, live = "live", live + min(end, (index + 1) * granule) - max(offset, index * granule)
            elif state == "hole" or (piece.state == "captured" and state != "live"):
                state = piece.state
            edges[index] = state, live
        if last - first > 1:
            parts.append((first + 1, last, piece.state, granule if piece.state == "live" else 0))
    parts += [(index, index + 1, *edge) for index, edge in edges.items()]
    return Segment(address, size, list(cells_of(sorted(parts), size // granule)))


def cells_of(parts: list[tuple[int, int, str, int]], total: int) -> Iterator[Cell]:
    """Merge equal neighbours into cells, with holes between them."""
    first, end, state, live = 0, 0, "hole", 0
    for part in [*parts, (total, total, "", 0)]:
        if part[0] > end:
            if end > first and state != "hole":
                yield Cell(first, end - first, state, live * (end - first))
                first = end
            end, state, live = part[0], "hole", 0
        if (state, live) != part[2:]:
            if end > first:
                yield Cell(first, end - first, state, live * (end - first))
            first, state, live = part[0], *part[2:]
        end = part[1]


def find_pins(snapshot: Snapshot) -> list[Pin]:
    """Live blocks that keep free memory from being returned: each alone on a handle, or alone on a granule."""
    gains: dict[int, tuple[Piece, int]] = {}
    granule = snapshot.granule
    whole: list[tuple[int, int]] = []  # first granule and end of handles held by a single block

    def add(piece: Piece, size: int) -> None:
        gains[piece.address] = (piece, gains.get(piece.address, (piece, 0))[1] + size)

    for mappings, piece, free in alone_on_handles(snapshot):
        if piece is not None and free:
            add(piece, free)
            whole += [(address // granule, (address + size) // granule) for address, size in mappings]
    whole.sort()
    for number, (piece, free) in () if snapshot.plain else alone_on_granules(snapshot).items():
        at = bisect.bisect_right(whole, number, key=lambda one: one[0]) - 1
        if piece is not None and free and (at < 0 or number >= whole[at][1]):
            add(piece, free)
    most = sorted(gains.values(), key=lambda entry: (-entry[1], entry[0].address))[:MOST_PINS]
    return [
        Pin(piece.address, piece.size, gain, line_text(piece.lines), piece.scope, piece.age) for piece, gain in most
    ]


def alone_on_handles(snapshot: Snapshot) -> Iterator[tuple[list[tuple[int, int]], Piece | None, int]]:
    """For each handle: its mappings, its live block if there is exactly one, and its free bytes."""
    mappings = [(address, size, address) for address, size in snapshot.handles if address is not None]
    mappings = sorted([*mappings, *((alias.address, alias.size, alias.handle) for alias in snapshot.aliases)])
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    blocks: dict[int, dict[int, Piece]] = defaultdict(dict)
    free: dict[int, int] = defaultdict(int)
    for (address, size, handle), (held, unused) in zip(mappings, held_by(mappings, snapshot.pieces), strict=True):
        places[handle].append((address, size))
        blocks[handle].update(held)
        free[handle] += unused
    for handle, mapped in places.items():
        first = next(iter(blocks[handle].values()), None)
        is_alone = len(blocks[handle]) == 1 and first is not None and first.state == "live"
        yield mapped, first if is_alone else None, free[handle]


def held_by(mappings: list[tuple[int, int, int]], pieces: list[Piece]) -> list[tuple[dict[int, Piece], int]]:
    """For each mapping: up to two pieces that hold its handle, and its free bytes."""
    ends = [address + size for address, size, _ in mappings]
    held: list[dict[int, Piece]] = [{} for _ in mappings]
    free = [0] * len(mappings)
    at = 0
    for piece in pieces:
        address, size, state = piece[:3]
        while at < len(ends) and ends[at] <= address:
            at += 1
        if at == len(ends):
            break  # lost memory, which has no handle
        if state == "stranded":
            free[at] += size
        elif state in ("live", "captured"):  # memory kept for graphs holds a handle like a live block
            for index in range(at, min(bisect.bisect_left(ends, address + size) + 1, len(ends))):
                if len(held[index]) < 2:
                    held[index][address] = piece
    return list(zip(held, free, strict=True))


def alone_on_granules(snapshot: Snapshot) -> dict[int, tuple[Piece | None, int]]:
    """The same for granules in which a block begins or ends: those in between are filled by it."""
    granule = snapshot.granule
    sole: dict[int, Piece | None] = {}
    free: dict[int, int] = defaultdict(int)
    for piece in snapshot.pieces:
        address, size, state = piece[:3]
        first, last = address // granule, (address + size - 1) // granule
        if state in ("live", "captured"):
            for number in {first, last}:
                sole[number] = None if number in sole or state == "captured" else piece
        elif state == "stranded":
            free[first] += min(size, (first + 1) * granule - address)
            if last > first:
                free[last] += address + size - last * granule
    return {number: (piece, free[number]) for number, piece in sole.items()}


def downsample(pieces: list[Piece]) -> list[Block]:
    """All pieces if a screen can show them; otherwise the largest ones, with small neighbours merged."""
    if len(pieces) <= MOST_BLOCKS:
        return [as_block(piece) for piece in pieces]
    by_size = sorted((piece.size for piece in pieces), reverse=True)
    found: list[Block] = []
    for part in (2, 3, 4, 8, 16):
        least = by_size[MOST_BLOCKS // part]
        found = [
            block
            for run in neighbours(pieces, least, most=len(pieces) * part // MOST_BLOCKS)
            for block in (merge(run) if len(run) > 4 else map(as_block, run))
        ]
        if len(found) <= MOST_BLOCKS:
            break
    return found


def as_block(piece: Piece) -> Block:
    return Block(
        piece.address, piece.size, piece.state, 1, line_text(piece.lines), piece.scope, piece.stream, piece.age
    )


def neighbours(pieces: list[Piece], least: int, most: int) -> Iterator[list[Piece]]:
    """Split into runs of pieces without holes between them; a piece of more than ``least`` bytes is its own run."""
    run: list[Piece] = []
    for piece in pieces:
        large = piece.size > least
        if run and (large or len(run) == most or run[-1].address + run[-1].size != piece.address):
            yield run
            run = []
        if large:
            yield [piece]
        else:
            run.append(piece)
    if run:
        yield run


def merge(run: list[Piece]) -> Iterator[Block]:
    """Merge small neighbours into one block per state, side by side: in most runs, live and free pieces alternate."""
    address = run[0].address
    for state in STATES:
        same = [piece for piece in run if piece.state == state]
        size = sum(piece.size for piece in same)
        if len(same) == 1:
            yield as_block(same[0]._replace(address=address))
        elif same:
            lines, scopes, streams = ({getattr(piece, name) for piece in same} for name in ("lines", "scope", "stream"))
            line = line_text(lines.pop()) if len(lines) == 1 else ""
            scope = scopes.pop() if len(scopes) == 1 else ""
            stream = streams.pop() if len(streams) == 1 else 0
            oldest = max((piece.age for piece in same if piece.age is not None), default=None)
            yield Block(address, size, state, len(same), line, scope, stream, oldest)
        address += size


def caption(report: Report) -> str:
    account, size = report.account, format_size
    if not account["reserved"]:
        return "Nothing is reserved."
    blocks, rest = counted(report.counts["blocks"], "block"), [name for name in REASONS if name != "requested"]
    most = max(rest, key=lambda name: account[name])
    return (
        f"{size(account['reserved'])} of a cap of {size(account['cap'])} is reserved, "
        f"{size(account['live'])} of it live in {blocks}. "
        + (f"Most of the rest is {most}: {REASONS[most]}. " if account[most] else "")
        + f"The largest request that would pass is {largest_in_words(report)}."
    )


def notes(report: Report, may_move: bool) -> list[str]:
    """What to do, if anything."""
    account, size = report.account, format_size
    found = []
    if is_held_by_graphs(account):
        hint = graphs_hint(size(account["captured"]))
        found.append(hint[0].upper() + hint[1:])
    back = account["releasable"] + account["spare"]
    if back * 4 > account["reserved"] > 0:
        found.append(f"{size(back)} is unused: trim() returns it to the device, down to what reserve= keeps.")
    found.extend(moving_notes(report, may_move))
    if report.pins and not report.lines:
        found.append("Set ARENA_LINES=1 or call arena.trace_lines(True) to see which source lines hold memory.")
    return found


def moving_notes(report: Report, may_move: bool) -> list[str]:
    """How much memory moving live data would free, if it is a lot."""
    account, movable = report.account, format_size(report.account["compactable"])
    is_scarce = 2 * account["reserved"] > min(account["cap"], account["reserved"] + report.device["free"])
    if may_move and is_scarce and account["compactable"] * 4 > account["reserved"] > 0:
        return [f"trim(compact=True) would free {movable} by moving live data."]
    return []

"""Everything an arena holds at one moment, as plain data that pickles and outlives the arena."""

from __future__ import annotations

import bisect
import dataclasses
import gc
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .._util import files
from .._util.late import late_import
from .._util.shown import Shown
from .._util.typed import make
from .._words.account import ALIGNMENT, REASONS, STATES, add_missing_reasons
from .._words.moving import MODES, is_mode
from ..errors import UsageError
from .cells import cell_of

if TYPE_CHECKING:
    from .since import Since

__all__ = ["MOST_GRANULES", "Alias", "Handle", "Line", "Piece", "Segment", "Snapshot", "check_account", "no_collection"]

FORMAT = "arena-snapshot"
VERSION = 1

_ADDED_LATER = ("largest_without_moving", "largest_with_moving")  # missing from older files, and cannot be computed
_NOT_IN_OLD_PEAKS = ("device_free", "largest", *_ADDED_LATER)
_STATS = [name for name in vars(_core.Stats) if not name.startswith("_")]
_PEAK = [*(name for name in _STATS if name not in _NOT_IN_OLD_PEAKS), "largest_free"]


def _figures(stats: _core.Stats) -> dict[str, int]:
    return {name: getattr(stats, name) for name in _STATS}


_pauses = 0  # threads inside no_collection(): the first disables collection, the last enables it again
_was_enabled = False
_pauses_lock = threading.Lock()


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection while many objects are created: it would find nothing and double the time."""
    global _pauses, _was_enabled
    with _pauses_lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _pauses_lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()


class Segment(NamedTuple):
    """A range of addresses: one allocation of plain memory, or the backed part of virtual memory."""

    address: int
    size: int


class Handle(NamedTuple):
    """A handle of physical memory. A spare one is not mapped and has no address."""

    address: int | None
    size: int


class Alias(NamedTuple):
    """A second address of a handle. Its pieces are listed at the address where they are in use."""

    address: int
    handle: int
    """The first address of the handle."""
    size: int


class Line(NamedTuple):
    """A line of Python."""

    file: str
    line: int
    function: str


class Piece(NamedTuple):
    """A live block, or a free piece backed by one handle. The fields after ``state`` apply to live blocks only."""

    address: int
    size: int
    state: str
    """``"live"``, ``"pending"``, ``"captured"``, ``"releasable"`` or ``"stranded"``."""
    requested: int
    stream: int
    serial: int
    """Increases with every allocation."""
    scope: str
    """The scope of the allocation with its enclosing scopes: ``"train/forward"``; empty if there is none."""
    pinned: bool
    lines: tuple[Line, ...]
    """The lines of Python that allocated it, innermost first, if :func:`arena.trace_lines` was on."""
    age: float | None
    """Seconds since the allocation."""
    framework: str = ""
    """The framework that passed the request on: ``"CuPy"``, ``"PyTorch"``, ...; empty for a request to arena itself."""


def _line(file: str, line: int, function: str, make: Any = Line, cell_of: Any = cell_of) -> Line:
    """Called by the core, even while the interpreter shuts down, so it must not look up globals."""
    named: Line = make(cell_of(file) or file, line, function)
    return named


_core.set_snapshot_classes(Piece, _line)


@dataclass(frozen=True, repr=False)
class Snapshot(Shown):
    """Everything an arena holds at one moment. The pieces and the spare handles add up to what is reserved."""

    device: int
    arena: str
    """Identifies the arena: process and number."""
    plain: bool
    """Whether the segments are plain memory."""
    may_move: bool
    """Whether live data may be moved, behind unchanged pointers (``compact=``)."""
    granule: int
    stats: dict[str, int]
    """The values of :meth:`Arena.stats` at that moment. ``largest`` follows the mode in ``moving``."""
    segments: list[Segment]
    handles: list[Handle]
    pieces: list[Piece]
    """By address."""
    largest_free: int
    """The largest contiguous backed free piece: the largest request that a pool without stitching could meet."""
    peak: dict[str, int]
    """The account at the peak of reserved bytes, and ``largest_free`` at that moment."""
    next_serial: int
    """Allocations after this moment have this serial or a higher one."""
    addresses: int = 0
    """Bytes of addresses reserved for virtual memory; 0 for plain segments."""
    peers: list[int] = dataclasses.field(default_factory=list)
    """The other devices that may access the memory."""
    remark: str = ""
    """What is unusual about this device, and why; usually empty."""
    moving: str = ""
    """Whether live data may be moved, and if not, why: as in :class:`OutOfMemoryError`. Empty in older files."""
    aliases: list[Alias] = dataclasses.field(default_factory=list)
    """Handles mapped a second time, so that the free memory at their ends can serve requests elsewhere."""

    @classmethod
    def _of(cls, device: int, number: int, core: dict[str, Any], *, may_move: bool, moving: str) -> Snapshot:
        return cls(
            device=device,
            arena=f"{os.getpid()}-{number}",
            may_move=may_move and not core["plain"],
            plain=core["plain"],
            granule=core["granule"],
            stats=_figures(core["stats"]),
            segments=[Segment(*row) for row in core["segments"]],
            handles=[Handle(address or None, size) for address, size in core["handles"]],
            pieces=core["pieces"],
            largest_free=core["largest_free"],
            peak={
                **_figures(core["peak"]),
                "largest_free": core["peak_largest_free"],
            },
            next_serial=core["next_serial"],
            addresses=core["addresses"],
            peers=core["peers"],
            remark=core["remark"],
            moving=moving,
            aliases=[Alias(*row) for row in core["aliases"]],
        )

    def since(self, earlier: Snapshot) -> Since:
        """Return the allocations since an earlier snapshot of the same arena that are still live: possible leaks.

        >>> import arena
        >>> pool = arena.Arena(device="sim:1GiB")
        >>> before = pool.snapshot()
        >>> kept = pool.allocate(1000)
        >>> pool.snapshot().since(before).bytes
        1024
        """
        with late_import("snapshots cannot be compared"):
            from .since import Since

        if not isinstance(earlier, Snapshot):
            raise UsageError(f"{earlier!r} is not a snapshot; pass what pool.snapshot() returned earlier")
        if earlier.arena != self.arena or earlier.stats["allocations"] > self.stats["allocations"]:
            raise UsageError("that is not an earlier snapshot of the same arena")
        return Since([piece for piece in self.live if piece.serial >= earlier.next_serial])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write it to a ``.json`` file that :func:`arena.load` reads. Replaces a file only with ``overwrite=True``."""
        # Not asdict(), which would copy every piece.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data = {"format": FORMAT, "version": VERSION, **fields}
        target = files.check(path, overwrite=overwrite, endings=(".json",))
        return files.write(target, [json.dumps(data).encode() + b"\n"], overwrite=overwrite)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Snapshot:
        """Read what :meth:`save` wrote."""
        if data.get("version") != VERSION:
            raise UsageError(f"this snapshot has version {data.get('version')!r}; this arena reads version {VERSION}")
        fields = {name: value for name, value in data.items() if name not in ("format", "version")}
        with no_collection():
            snapshot: Snapshot = make(cls, fields, "snapshot")
            stats, peak = add_missing_reasons(snapshot.stats), add_missing_reasons(snapshot.peak)
            snapshot = dataclasses.replace(snapshot, stats=stats, peak=peak)
            _check(snapshot)
        return snapshot

    @property
    def live(self) -> list[Piece]:
        """The live blocks, by address."""
        return [piece for piece in self.pieces if piece.state == "live"]

    def to_torch(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a PyTorch memory snapshot, a ``.pickle`` file. Replaces a file only with ``overwrite=True``.

        Open it in https://pytorch.org/memory_viz (choose *Allocator State History*), or with
        ``python torch/cuda/_memory_viz.py stats FILE``.
        """
        with late_import(f"the snapshot cannot be written to {path}"):
            from .._export import torch

        return torch.write(self, path, overwrite=overwrite)


def check_account(figures: dict[str, int], known: Iterable[str], where: str) -> None:
    """Check that all figures are there and that the reasons add up."""
    for name in known:
        if figures.get(name, -1) < 0:
            raise UsageError(f"{where}.{name} should be a number from 0 up")
    total = sum(figures[name] for name in REASONS)
    if total != figures["reserved"] or figures["live"] != figures["requested"] + figures["rounding"]:
        raise UsageError(f"{where} does not add up: {total} bytes have a reason, {figures['reserved']} are reserved")


MOST_GRANULES = 1 << 22  # in all segments: several times as many as the largest devices need
MOST_DEVICES = 1 << 10  # PyTorch's snapshot has a list for each device


def _check(snapshot: Snapshot) -> None:
    """Check that an arena can have produced what was read: later code uses it as counts and indices."""
    known = [name for name in _STATS if name not in _ADDED_LATER or name in snapshot.stats]
    check_account(snapshot.stats, known, "snapshot.stats")
    if snapshot.moving and not is_mode(snapshot.moving):
        raise UsageError(f"snapshot.moving should be one of {', '.join(MODES)}, not {snapshot.moving!r}")
    check_account(snapshot.peak, _PEAK, "snapshot.peak")
    segments = sorted(snapshot.segments)
    if not 0 <= snapshot.device < MOST_DEVICES:
        raise UsageError(f"snapshot.device={snapshot.device} is not a device number from 0 to {MOST_DEVICES - 1}")
    if snapshot.granule < ALIGNMENT or any(size < 0 or size % snapshot.granule for _, size in segments):
        raise UsageError(f"snapshot.granule={snapshot.granule}, but the sizes of segments are not multiples of it")
    if sum(segment.size for segment in segments) // snapshot.granule > MOST_GRANULES:
        raise UsageError(f"the segments of the snapshot have more than {MOST_GRANULES} granules")
    handles = sorted((address, size) for address, size in snapshot.handles if address is not None)
    _check_ranges("handle", sorted([*handles, *_check_aliases(snapshot)]), segments)
    _check_ranges("piece", ((piece.address, piece.size) for piece in snapshot.pieces), segments)
    wrong = {piece.state for piece in snapshot.pieces} - set(STATES)
    if wrong:
        raise UsageError(f"the state of a piece should be one of {', '.join(STATES)}, not {min(wrong)!r}")


def _check_aliases(snapshot: Snapshot) -> Iterator[tuple[int, int]]:
    handles = set(snapshot.handles)
    for alias in snapshot.aliases:
        if Handle(alias.handle, alias.size) not in handles:
            raise UsageError(
                f"the alias of {alias.size} bytes at {alias.address:#x} has no handle: there is none at "
                f"{alias.handle:#x}"
            )
        yield alias.address, alias.size


def _check_ranges(name: str, ranges: Iterable[tuple[int, int]], segments: list[Segment]) -> None:
    """Check that ranges are sorted, lie in segments and do not overlap."""
    begins, end = [segment.address for segment in segments], 0
    for address, size in ranges:
        at = bisect.bisect_right(begins, address) - 1
        if at < 0 or size <= 0 or address < end or address + size > sum(segments[at]):
            raise UsageError(f"the {name} of {size} bytes at {address:#x} is in no segment, or overlaps another {name}")
        end = address + size

"""Everything an arena holds at one moment, as plain data: it pickles, and needs no arena any more."""

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
from .._words.account import ALIGNMENT, REASONS, STATES, add_later_reasons
from .._words.moving import MODES
from ..errors import UsageError
from .cells import cell_of

if TYPE_CHECKING:
    from .since import Since

__all__ = ["MOST_GRANULES", "Alias", "Handle", "Line", "Piece", "Segment", "Snapshot", "check_account", "no_collection"]

FORMAT = "arena-snapshot"
VERSION = 1

_LATER = ("largest_without_moving", "largest_with_moving")  # what older files do not have, and nobody can add
_ASKED = ("device_free", "largest", *_LATER)  # which peaks in older files do not have
_STATS = [name for name in vars(_core.Stats) if not name.startswith("_")]
_PEAK = [*(name for name in _STATS if name not in _ASKED), "largest_free"]


def _figures(stats: _core.Stats) -> dict[str, int]:
    return {name: getattr(stats, name) for name in _STATS}


_makers = 0  # threads that are at it: the first switches collection off, the last on
_collects = False
_makers_lock = threading.Lock()


@contextmanager
def no_collection() -> Iterator[None]:
    """Many objects are about to be made, none of them garbage: looking for some would take half of the time."""
    global _makers, _collects
    with _makers_lock:
        if _makers == 0:
            _collects = gc.isenabled()
            gc.disable()
        _makers += 1
    try:
        yield
    finally:
        with _makers_lock:
            _makers -= 1
            if _makers == 0 and _collects:
                gc.enable()


class Segment(NamedTuple):
    """A range of addresses: of plain memory one allocation, of virtual memory the part that was backed."""

    address: int
    size: int


class Handle(NamedTuple):
    """A piece of physical memory; a spare one is mapped nowhere, and has no address."""

    address: int | None
    size: int


class Alias(NamedTuple):
    """A second address of a handle. A piece of its memory is listed at the address at which it is in use."""

    address: int
    handle: int
    """The handle's own address."""
    size: int


class Line(NamedTuple):
    """A line of Python."""

    file: str
    line: int
    function: str


class Piece(NamedTuple):
    """A live block, or a free piece that is backed by one handle. What follows ``state`` is of live ones only."""

    address: int
    size: int
    state: str
    """``"live"``, ``"pending"``, ``"captured"``, ``"releasable"`` or ``"stranded"``."""
    requested: int
    stream: int
    serial: int
    """Its number: what is allocated later has a higher one."""
    scope: str
    """The scope that it was allocated in, after those around it: ``"train/forward"``; empty if in none."""
    pinned: bool
    lines: tuple[Line, ...]
    """The lines of Python that it was allocated by, innermost first, if :func:`arena.trace_lines` was on."""
    age: float | None
    """The seconds since then."""


def _line(file: str, line: int, function: str, make: Any = Line, cell_of: Any = cell_of) -> Line:
    """What the core calls, also while the interpreter shuts down: so nothing is looked up here."""
    named: Line = make(cell_of(file) or file, line, function)
    return named


_core.set_snapshot_classes(Piece, _line)


@dataclass(frozen=True, repr=False)
class Snapshot(Shown):
    """Everything at one moment. The pieces and the spare handles add up to what is reserved."""

    device: int
    arena: str
    """Which arena it is of: a process and a number."""
    plain: bool
    """Whether the segments are plain memory."""
    may_move: bool
    """Whether live data may be moved under its pointers (``compact=``)."""
    granule: int
    stats: dict[str, int]
    """What :meth:`Arena.stats` said at that moment; ``largest`` by the rules that ``moving`` says were in force."""
    segments: list[Segment]
    handles: list[Handle]
    pieces: list[Piece]
    """By address."""
    largest_free: int
    """The largest free piece that is backed throughout: all that a pool which cannot stitch would have to offer."""
    peak: dict[str, int]
    """The account when what is reserved was at its highest, and ``largest_free`` then."""
    next_serial: int
    """What is allocated after this moment has this number or a higher one."""
    addresses: int = 0
    """Bytes of addresses reserved for virtual memory; 0 for plain segments."""
    peers: list[int] = dataclasses.field(default_factory=list)
    """The other devices that may access the memory."""
    remark: str = ""
    """What is not as usual on this device, and why; empty if nothing."""
    moving: str = ""
    """Whether live data may be moved, and if not, why: as in :class:`OutOfMemoryError`. Empty in older files."""
    aliases: list[Alias] = dataclasses.field(default_factory=list)
    """Where handles are mapped a second time, so that what is free at their ends serves requests elsewhere."""

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
        """Return what was allocated after an earlier snapshot of the same arena and still lives: what may have leaked.

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
            raise UsageError(f"{earlier!r} is no snapshot")
        if earlier.arena != self.arena or earlier.stats["allocations"] > self.stats["allocations"]:
            raise UsageError("that is no earlier snapshot of the same arena")
        return Since([piece for piece in self.live if piece.serial >= earlier.next_serial])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write it to a ``.json`` file, which :func:`arena.load` reads. Refuses to overwrite unless told."""
        # Not asdict(), which would copy every piece.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data = {"format": FORMAT, "version": VERSION, **fields}
        target = files.check(path, overwrite=overwrite, endings=(".json",))
        return files.write(target, [json.dumps(data).encode() + b"\n"], overwrite=overwrite)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Snapshot:
        """Read what :meth:`save` wrote."""
        if data.get("version") != VERSION:
            raise UsageError(f"this snapshot is of version {data.get('version')!r}; this arena reads {VERSION}")
        fields = {name: value for name, value in data.items() if name not in ("format", "version")}
        with no_collection():
            snapshot: Snapshot = make(cls, fields, "snapshot")
            stats, peak = add_later_reasons(snapshot.stats), add_later_reasons(snapshot.peak)
            snapshot = dataclasses.replace(snapshot, stats=stats, peak=peak)
            _check(snapshot)
        return snapshot

    @property
    def live(self) -> list[Piece]:
        """The live blocks, by address."""
        return [piece for piece in self.pieces if piece.state == "live"]

    def to_torch(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it as PyTorch's memory snapshot, a ``.pickle`` file. Refuses to overwrite unless told.

        It opens in https://pytorch.org/memory_viz (choose *Allocator State History*), and with
        ``python torch/cuda/_memory_viz.py stats FILE``.
        """
        with late_import(f"the snapshot cannot be written to {path}"):
            from .._export import torch

        return torch.write(self, path, overwrite=overwrite)


def check_account(figures: dict[str, int], known: Iterable[str], where: str) -> None:
    """All figures are there, and the reasons add up."""
    for name in known:
        if figures.get(name, -1) < 0:
            raise UsageError(f"{where}.{name} should be a number from 0 up")
    total = sum(figures[name] for name in REASONS)
    if total != figures["reserved"] or figures["live"] != figures["requested"] + figures["rounding"]:
        raise UsageError(f"{where} does not add up: {total} bytes have a reason, {figures['reserved']} are reserved")


MOST_GRANULES = 1 << 22  # of all segments: several times what the addresses of the largest devices have
MOST_DEVICES = 1 << 10  # PyTorch's snapshot has a list for each of them


def _check(snapshot: Snapshot) -> None:
    """What was read from a file is used to count by: it must be what an arena can have said."""
    known = [name for name in _STATS if name not in _LATER or name in snapshot.stats]
    check_account(snapshot.stats, known, "snapshot.stats")
    if snapshot.moving and snapshot.moving not in MODES:
        raise UsageError(f"snapshot.moving should be one of {', '.join(MODES)}, not {snapshot.moving!r}")
    check_account(snapshot.peak, _PEAK, "snapshot.peak")
    segments = sorted(snapshot.segments)
    if not 0 <= snapshot.device < MOST_DEVICES:
        raise UsageError(f"snapshot.device={snapshot.device} is not a device's number: 0 to {MOST_DEVICES - 1}")
    if snapshot.granule < ALIGNMENT or any(size < 0 or size % snapshot.granule for _, size in segments):
        raise UsageError(f"snapshot.granule={snapshot.granule} is not what the sizes of segments are multiples of")
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
                f"the alias of {alias.size} bytes at {alias.address:#x} is of no handle: {alias.handle:#x} has none"
            )
        yield alias.address, alias.size


def _check_ranges(name: str, ranges: Iterable[tuple[int, int]], segments: list[Segment]) -> None:
    """They lie in segments, by address, and not on each other."""
    begins, end = [segment.address for segment in segments], 0
    for address, size in ranges:
        at = bisect.bisect_right(begins, address) - 1
        if at < 0 or size <= 0 or address < end or address + size > sum(segments[at]):
            raise UsageError(f"the {name} of {size} bytes at {address:#x} is in no segment, or on another {name}")
        end = address + size

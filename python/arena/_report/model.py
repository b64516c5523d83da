"""The report: what is held and why, as plain data. Renderers use nothing else."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._inspect.holders import Holder, StreamUse
from .._inspect.snapshot import Piece, Snapshot
from .._util import files
from .._util.late import late_import
from .._util.shown import Shown
from .._util.sizes import format_size
from .._words.account import REASONS
from .._words.moving import ALLOWED, in_words
from .._words.plain import plain
from ..errors import ArenaError, UsageError

__all__ = ["FIGURES", "Bin", "Cell", "Fragmentation", "Holder", "Pin", "Report", "Samples", "StreamUse"]

FORMAT = "arena-report"
VERSION = 1

FIGURES = (*REASONS, "live", "reserved", "cap")
"""The figures in every sample of a timeline."""


@dataclass(frozen=True)
class Fragmentation:
    """Shares between 0 and 1."""

    external: float
    """The share of the memory left under the cap and on the device that a single request cannot get."""
    contiguous: float
    """The fragmentation of a pool without stitching: 1 - largest free piece ÷ free."""
    internal: float
    """The share of the live bytes that was not requested, but added by rounding."""


@dataclass(frozen=True)
class Cell:
    """A run of granules in the same state, in the map of a segment."""

    first: int
    """Index of the first granule in the segment."""
    count: int
    state: str
    """``live``, ``pending``, ``captured``, ``releasable``, ``stranded``, or ``hole`` (nothing is mapped there)."""
    live: int
    """Bytes in live blocks."""


@dataclass(frozen=True)
class Bin:
    """Pieces of ``low`` to under ``high`` bytes."""

    low: int
    high: int
    count: int
    bytes: int


@dataclass(frozen=True)
class Pin:
    """A live block that keeps free memory from being returned."""

    address: int
    size: int
    holds_back: int
    """Free bytes that could be returned without it, in handles or granules where it is the only live block."""
    line: str
    scope: str
    age: float | None


@dataclass(frozen=True)
class Block:
    """A live block or a free piece in the map.

    If there are too many to show, ``count`` small neighbours in the same state are merged into one. Its size is their
    sum and its age that of the oldest; line, scope and stream are set if they are the same for all.
    """

    address: int
    size: int
    state: str
    count: int
    line: str
    scope: str
    stream: int
    age: float | None


@dataclass(frozen=True)
class Segment:
    """A range of addresses and what lies in it."""

    address: int
    size: int
    cells: list[Cell]


@dataclass(frozen=True)
class Samples:
    """The account over time, in columns."""

    unit: str
    """``s``, or ``events`` if the times are unknown."""
    at: list[float]
    """When each sample was taken, since the beginning of the run."""
    figures: dict[str, list[int]]
    """The reasons, ``live``, ``reserved`` and ``cap``, in bytes."""
    peak: int
    """The index of the sample with the most live bytes."""


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """What an arena holds and why, from :meth:`Arena.report`. Prints as text; a notebook shows it with charts."""

    made: str
    """When it was made, in ISO 8601."""
    arena: str
    """The version of arena."""
    device: dict[str, Any]
    """``number``; ``label``, as given by the program (``device 0``, ``sim:8GiB``); ``name``, ``simulated``, ``total``,
    ``free``; ``outside``: bytes in use outside this arena, by this process's CUDA context and libraries, other arenas
    and other processes; ``addresses``: bytes of addresses reserved for virtual memory; ``peers``: devices that may
    access the memory; ``remark``: what is unusual about the device, and why."""
    plain: bool
    granule: int
    account: dict[str, int]
    """The reasons, and ``live``, ``reserved``, ``compactable``, ``cap``, ``headroom``."""
    peak: dict[str, int]
    """The account at the peak of reserved bytes; ``peak_requested`` and ``peak_live`` are peaks of their own."""
    fragmentation: dict[str, Fragmentation]
    """``now``, and at the ``peak`` of reserved bytes."""
    largest: dict[str, int]
    """The largest request that would pass ``now`` and ``after_trim``, in the mode of ``moving``; and
    ``without_moving`` and ``with_moving`` live data, in any mode. Older reports lack the last two."""
    counts: dict[str, int]
    segments: list[Segment]
    live_sizes: list[Bin]
    free_sizes: list[Bin]
    streams: list[StreamUse]
    lines: list[Holder]
    """By bytes, largest first; empty if lines were not traced."""
    scopes: list[Holder]
    ages: list[Holder]
    """Youngest first."""
    pins: list[Pin]
    """By the bytes they hold back, largest first."""
    caption: str
    """The report in a few sentences."""
    verdict: str = ""
    """Why a request failed, if the report is about a failure."""
    request: int = 0
    """The bytes of that request."""
    line: str = ""
    """The source line that made it, if known."""
    scope: str = ""
    """The scope whose budget was reached; empty for other failures."""
    why: str = ""
    """More about the verdict, such as how much of a budget is used; may be empty."""
    held: list[Holder] = dataclasses.field(default_factory=list)
    """The largest holders at that moment: in the scope whose budget was reached, otherwise overall."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What to do about it, if anything."""
    moment: str = ""
    """The moment of the run that the report shows, as a sentence."""
    timeline: Samples | None = None
    """The account over time, if it was sampled."""
    moving: str = ""
    """Whether live data may be moved, and if not, why: as in :class:`OutOfMemoryError`. Empty in older reports."""
    frameworks: list[Holder] = dataclasses.field(default_factory=list)
    """By bytes, largest first. Memory that the program got from arena itself is listed as ``no framework``."""
    _end: Report | None = dataclasses.field(default=None, repr=False)
    _pieces: Sequence[Piece] | Sequence[Block] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def end(self) -> Report | None:
        """The report of the run's end, in the report of its peak that ``arena run --report`` writes."""
        return self._end

    @functools.cached_property
    def blocks(self) -> list[Block]:
        """Blocks and free pieces by address, no more than a screen can show. Computed on first use."""
        with late_import("the blocks of the report cannot be gathered"):
            from .build import downsample

        blocks = [piece for piece in self._pieces if isinstance(piece, Block)]  # from a saved report
        return blocks or downsample([piece for piece in self._pieces if isinstance(piece, Piece)])

    @classmethod
    def of(cls, snapshot: Snapshot, *, device_name: str = "", simulated: bool = False, **extra: Any) -> Report:
        """Build the report of a snapshot."""
        with late_import("the report cannot be made"):
            from .build import build

        if not isinstance(snapshot, Snapshot):
            raise UsageError(f"{snapshot!r} is not a snapshot; pass what pool.snapshot() returned")
        return build(snapshot, device_name=device_name, simulated=simulated, **extra)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in a ``.json`` file."""
        blocks = [dataclasses.asdict(block) for block in self.blocks]
        fields = dataclasses.asdict(dataclasses.replace(self, _pieces=(), _end=None))
        del fields["_pieces"], fields["_end"]
        end = self.end.to_dict() if self.end is not None else None
        return {"format": FORMAT, "version": VERSION, **fields, "end": end, "blocks": blocks}

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """Build a report from the result of :meth:`to_dict`."""
        with late_import("the report cannot be read"):
            from .json import read

        return read(data)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Save as ``.html``, ``.json`` or ``.txt``, by the extension. Replaces a file only with ``overwrite=True``."""
        with late_import(f"the report cannot be saved to {path}"):
            from . import html, json, text

        renderers = {".html": html.render, ".json": json.render, ".txt": text.render}
        target = files.check(path, overwrite=overwrite, endings=tuple(renderers))
        return files.write(target, [renderers[target.suffix](self).encode("utf-8", "replace")], overwrite=overwrite)

    def __str__(self) -> str:
        try:
            with late_import("the full report cannot be shown"):
                from . import text
        except ArenaError as error:
            return "\n".join([*map(plain, [self.caption, *self._plain_account(), f"({error}.)"]), ""])
        return text.render(self)

    def _plain_account(self) -> list[str]:
        return [f"  {name:<11}{self.account[name]:>16,}  {words}" for name, words in REASONS.items()]

    def _repr_html_(self) -> str:
        with late_import("the report cannot be shown as a picture"):
            from . import html

        return html.render_inline(self)


class Reports(Shown, tuple[Report, ...]):
    """The reports of several arenas."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) if self else "No arena is open.\n"

    def _repr_html_(self) -> str:
        return "".join(report._repr_html_() for report in self) or "No arena is open."

    def save(self, path: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Save each report, by the extension: ``report.html``, or ``report-0.html``, ... if there are several."""
        target = Path(path)
        if not target.name:
            raise UsageError(f"{path!r} is not a path; give the name of the file to write")
        names = [target.with_stem(f"{target.stem}-{number}") for number in range(len(self))]
        paths = [target] if len(self) == 1 else names
        return [report.save(name, overwrite=overwrite) for report, name in zip(self, paths, strict=True)]


def by_moving_now(report: Report) -> bool | None:
    """Whether the largest request that passes now needs moving live data; ``None`` if moving makes no difference."""
    without, by_moving = (report.largest.get(name, 0) for name in ("without_moving", "with_moving"))
    return None if without == by_moving else report.largest["now"] == by_moving


def largest_in_words(report: Report) -> str:
    """The largest request, with and without moving live data if that differs; the mode in force comes first."""
    is_by_moving = by_moving_now(report)
    if is_by_moving is None:  # or an older report, which lacks both figures
        return format_size(report.largest["now"])
    without, by_moving = report.largest["without_moving"], report.largest["with_moving"]
    if is_by_moving:
        return f"{format_size(by_moving)} with moving live data, {format_size(without)} without moving"
    return f"{format_size(without)} without moving live data, {format_size(by_moving)} with moving"


FAR = 8  # a cap this many times the peak of reserved bytes is not drawn to scale


def scale(report: Report) -> tuple[int, bool]:
    """The bytes that a full bar stands for, and whether the cap is far beyond that.

    That is the cap, unless it is so far above the peak of reserved bytes that the bar would look empty.
    """
    most = max(report.account["reserved"], report.peak["reserved"], 1)
    is_far = report.account["cap"] > FAR * most
    return (most * 5 // 4, True) if is_far else (max(report.account["cap"], most), False)


def verdict_in_words(report: Report) -> str:
    """Which request failed and why, and the mode of moving live data if that makes a difference."""
    is_known = report.why or by_moving_now(report) is None or report.moving == ALLOWED
    mode = "" if is_known else in_words(report.moving)
    origin = f" from {report.line}" if report.line else ""
    verdict = f"{report.verdict} ({mode})" if mode else report.verdict
    sentence = f"A request of {format_size(report.request)}{origin} failed: {verdict}."
    return f"{sentence} {report.why}" if report.why else sentence

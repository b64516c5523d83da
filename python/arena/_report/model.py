"""The report: what is held and why, as plain data. All renderers show this and nothing else."""

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
from ..errors import ArenaError, UsageError

__all__ = ["FIGURES", "Bin", "Cell", "Fragmentation", "Holder", "Pin", "Report", "Samples", "StreamUse"]

FORMAT = "arena-report"
VERSION = 1

FIGURES = (*REASONS, "live", "reserved", "cap")
"""What is known of every moment of a timeline."""


@dataclass(frozen=True)
class Fragmentation:
    """Shares between 0 and 1."""

    external: float
    """Of what is left under the cap and on the device: what one request cannot have."""
    contiguous: float
    """What a pool without stitching would suffer: 1 - largest free piece ÷ free."""
    internal: float
    """Of the live bytes: those that nobody asked for."""


@dataclass(frozen=True)
class Cell:
    """One or more granules, neighbours of one kind, in the map of a segment."""

    first: int
    """Granules from the beginning of the segment."""
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
    """Free bytes that could go back without it: of handles that it is alone on, or of granules."""
    line: str
    scope: str
    age: float | None


@dataclass(frozen=True)
class Block:
    """A live block or a free piece in the map.

    If there are too many, ``count`` small neighbours are one: those of one state, moved together. Its size is their
    sum, its age the oldest's; line, scope and stream are there if all have the same.
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
    """``s``, or ``events`` where times are not known."""
    at: list[float]
    """When each sample was taken, from the beginning of the run."""
    figures: dict[str, list[int]]
    """The reasons, ``live``, ``reserved`` and ``cap``, in bytes."""
    peak: int
    """The number of the sample with the most live bytes."""


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """What an arena holds and why. Made by :meth:`Arena.report`; printed, it is text; in a notebook, a picture."""

    made: str
    """When, in ISO 8601."""
    arena: str
    """The version of arena."""
    device: dict[str, Any]
    """``number``, ``label`` (as it was asked for: ``device 0``, ``sim:8GiB``),
    ``name``, ``simulated``, ``total``, ``free``; ``outside``: bytes in use outside this arena, by this
    process's CUDA context and libraries, other arenas and other processes; ``addresses``: bytes of addresses reserved
    for virtual memory; ``peers``: devices that may access the memory; ``remark``: what is not as usual, and why."""
    plain: bool
    granule: int
    account: dict[str, int]
    """The reasons, and ``live``, ``reserved``, ``compactable``, ``cap``, ``headroom``."""
    peak: dict[str, int]
    """The account when what is reserved was at its highest; ``peak_requested`` and ``peak_live`` at any time."""
    fragmentation: dict[str, Fragmentation]
    """``now`` and at the ``peak`` of reserved."""
    largest: dict[str, int]
    """The largest request that would pass ``now`` and ``after_trim``, by the rules that ``moving`` says were in force;
    and ``without_moving`` and ``with_moving`` live data, whatever is allowed. Older reports lack the last two."""
    counts: dict[str, int]
    segments: list[Segment]
    live_sizes: list[Bin]
    free_sizes: list[Bin]
    streams: list[StreamUse]
    lines: list[Holder]
    """By bytes, the most first; empty if lines were not traced."""
    scopes: list[Holder]
    ages: list[Holder]
    """Youngest first."""
    pins: list[Pin]
    """By what they hold back, the most first."""
    caption: str
    """What the picture shows, in words."""
    verdict: str = ""
    """Why a request failed, if the report was made for that."""
    request: int = 0
    """The bytes of that request."""
    line: str = ""
    """The line of the program that made it, if that is known."""
    scope: str = ""
    """The scope whose budget was reached; empty if it was not that."""
    why: str = ""
    """More about the verdict, such as how much of a budget is used; empty if there is nothing more to say."""
    held: list[Holder] = dataclasses.field(default_factory=list)
    """Who held the most then: of the scope whose budget was reached, otherwise of everything."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What to do about it, if anything."""
    moment: str = ""
    """When in a replayed run it was made, in words."""
    timeline: Samples | None = None
    """How the account came to this, if somebody sampled it."""
    moving: str = ""
    """Whether live data may be moved, and if not, why: as in :class:`OutOfMemoryError`. Empty in older reports."""
    _end: Report | None = dataclasses.field(default=None, repr=False)
    _pieces: Sequence[Piece] | Sequence[Block] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def end(self) -> Report | None:
        """In the report of a run's peak, which ``arena run --report`` makes: what was held at its end."""
        return self._end

    @functools.cached_property
    def blocks(self) -> list[Block]:
        """Blocks and free pieces by address, no more than a screen can show. Found when it is first asked for."""
        with late_import("the blocks of the report cannot be gathered"):
            from .build import downsample

        blocks = [piece for piece in self._pieces if isinstance(piece, Block)]  # of a report that was saved
        return blocks or downsample([piece for piece in self._pieces if isinstance(piece, Piece)])

    @classmethod
    def of(cls, snapshot: Snapshot, *, device_name: str = "", simulated: bool = False, **extra: Any) -> Report:
        """Make the report of a snapshot."""
        with late_import("the report cannot be made"):
            from .build import build

        if not isinstance(snapshot, Snapshot):
            raise UsageError(f"{snapshot!r} is no snapshot; give what pool.snapshot() returned")
        return build(snapshot, device_name=device_name, simulated=simulated, **extra)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, as in a ``.json`` file."""
        blocks = [dataclasses.asdict(block) for block in self.blocks]
        fields = dataclasses.asdict(dataclasses.replace(self, _pieces=(), _end=None))
        del fields["_pieces"], fields["_end"]
        end = self.end.to_dict() if self.end is not None else None
        return {"format": FORMAT, "version": VERSION, **fields, "end": end, "blocks": blocks}

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """Make a report from what :meth:`to_dict` gave."""
        with late_import("the report cannot be read"):
            from .json import read

        return read(data)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write it to a file by its extension: ``.html``, ``.json`` or ``.txt``. Refuses to overwrite unless told."""
        with late_import(f"the report cannot be saved to {path}"):
            from . import html, json, text

        renderers = {".html": html.render, ".json": json.render, ".txt": text.render}
        target = files.check(path, overwrite=overwrite, endings=tuple(renderers))
        return files.write(target, [renderers[target.suffix](self).encode("utf-8", "replace")], overwrite=overwrite)

    def __str__(self) -> str:
        try:
            with late_import("the whole report cannot be shown"):
                from . import text
        except ArenaError as error:
            return "\n".join([self.caption, *self._plain_account(), f"({error}.)", ""])
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
        return "\n".join(map(str, self)) if self else "There is no open arena.\n"

    def _repr_html_(self) -> str:
        return "".join(report._repr_html_() for report in self) or "There is no open arena."

    def save(self, path: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write a file for each, by the extension: ``report.html``, and if there are several ``report-0.html``, ..."""
        target = Path(path)
        if not target.name:
            raise UsageError(f"{path!r} is no path; give the name of the file to write")
        names = [target.with_stem(f"{target.stem}-{number}") for number in range(len(self))]
        paths = [target] if len(self) == 1 else names
        return [report.save(name, overwrite=overwrite) for report, name in zip(self, paths, strict=True)]


def by_moving_now(report: Report) -> bool | None:
    """Whether the largest request that passes now passes by moving live data; None if that makes no difference."""
    without, by_moving = (report.largest.get(name, 0) for name in ("without_moving", "with_moving"))
    return None if without == by_moving else report.largest["now"] == by_moving


def largest_in_words(report: Report) -> str:
    """With and without moving live data, if that makes a difference, what is allowed first."""
    is_by_moving = by_moving_now(report)
    if is_by_moving is None:  # or an older report, which has neither
        return format_size(report.largest["now"])
    without, by_moving = report.largest["without_moving"], report.largest["with_moving"]
    if is_by_moving:
        return f"{format_size(by_moving)} with moving live data, {format_size(without)} without moving"
    return f"{format_size(without)} without moving live data, {format_size(by_moving)} with moving"


FAR = 8  # a cap so many times what was ever reserved is not drawn to scale


def scale(report: Report) -> tuple[int, bool]:
    """What a bar is as long as, and whether the cap is far beyond that.

    It is the cap, unless that is so far above all that was ever reserved that one would see nothing.
    """
    most = max(report.account["reserved"], report.peak["reserved"], 1)
    is_far = report.account["cap"] > FAR * most
    return (most * 5 // 4, True) if is_far else (max(report.account["cap"], most), False)


def verdict_in_words(report: Report) -> str:
    """Which request failed and why; and whether live data may be moved, if that makes a difference."""
    is_known = report.why or by_moving_now(report) is None or report.moving == ALLOWED
    mode = "" if is_known else in_words(report.moving)
    asker = f" from {report.line}" if report.line else ""
    verdict = f"{report.verdict} ({mode})" if mode else report.verdict
    said = f"A request of {format_size(report.request)}{asker} failed: {verdict}."
    return f"{said} {report.why}" if report.why else said

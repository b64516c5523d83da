"""The report of a cluster, as plain data. Renderers use nothing else. Needs no Dask to be read again."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._inspect.holders import Holder
from .._inspect.snapshot import check_account
from .._report.build import ACCOUNT, COUNTS
from .._report.json import check_timeline
from .._report.model import Samples
from .._util import files
from .._util.late import late_import
from .._util.shown import Shown
from .._util.typed import make
from ..errors import UsageError

__all__ = ["FORMAT", "ClusterLine", "ClusterReport", "Departed", "Missing", "WorkerArena"]

FORMAT = "arena-cluster-report"
VERSION = 1


@dataclass(frozen=True)
class Missing:
    """A worker that the scheduler listed, but that did not answer."""

    name: str
    address: str
    reason: str


@dataclass(frozen=True)
class Departed:
    """A worker with an arena that has left the cluster, or died, and what its last heartbeat said."""

    name: str
    address: str
    host: str
    ago: float
    """Seconds before the report."""
    figures: dict[str, int]
    """``live``, ``reserved``, ``cap`` and others; empty if there was no heartbeat."""


@dataclass(frozen=True)
class ClusterLine:
    """What a line, or a framework, holds in the whole cluster."""

    name: str
    bytes: int
    blocks: int
    arenas: int
    """In how many arenas."""


@dataclass(frozen=True)
class WorkerArena:
    """An arena of the cluster. Workers in one process share theirs."""

    name: str
    """The name of the worker; of several, separated by commas."""
    addresses: list[str]
    host: str
    process: str
    device: dict[str, Any]
    """``number``, ``label``, ``name``, ``simulated``, ``total``, ``free``, and ``card``, which identifies it."""
    sharing: int
    """How many processes of the cluster use that card."""
    is_plugins: bool
    """Whether it is the arena of the plugin, and not one that a task has created."""
    account: dict[str, int]
    peak: dict[str, int]
    """``peak_live`` and ``peak_reserved``."""
    largest: int
    """The largest request that would pass."""
    counts: dict[str, int]
    lines: list[Holder]
    """By bytes, largest first; empty if lines were not traced."""
    timeline: Samples | None = None
    """The account over time, in seconds since the beginning of the cluster's timeline."""

    @property
    def pressure(self) -> float:
        """Live bytes as a share of the cap."""
        return self.account["live"] / max(self.account["cap"], 1)


@dataclass(frozen=True, repr=False)
class ClusterReport(Shown):
    """What the arenas of a Dask cluster hold and why, from :func:`report`. Prints as text; a notebook shows it with
    charts."""

    made: str
    """When it was made, in ISO 8601."""
    arena: str
    """The version of arena on the client."""
    scheduler: str
    """The address of the scheduler."""
    arenas: list[WorkerArena]
    """The arenas, those nearest to their caps first."""
    without: list[str]
    """The workers that have no arena."""
    missing: list[Missing]
    departed: list[Departed]
    """The workers that left since the cluster was started or restarted, most recent first."""
    account: dict[str, int]
    """Sums over all arenas of the reasons, ``live``, ``reserved``, ``compactable``, ``cap`` and ``headroom``."""
    counts: dict[str, int]
    lines: list[ClusterLine]
    """By bytes in the whole cluster, largest first; empty if lines were not traced."""
    peak_lines: list[ClusterLine]
    """The same at the peak of each arena."""
    frameworks: list[ClusterLine]
    caption: str
    """The report in a few sentences."""
    notes: list[str]
    """What to do about it, if anything."""
    timeline: Samples | None = None
    """The sums over time, in seconds, by the scheduler's clock."""
    begin: float = 0.0
    """When the timeline begins, in seconds since 1970, by the scheduler's clock."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in a ``.json`` file."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Any) -> ClusterReport:
        """Build a report from the result of :meth:`to_dict`."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise UsageError(f"this {type(data).__name__} is not the report of a cluster: its format is not {FORMAT!r}")
        if data.get("version") != VERSION:
            raise UsageError(f"this report has version {data.get('version')!r}; this arena reads version {VERSION}")
        fields = {name: value for name, value in data.items() if name not in ("format", "version")}
        report: ClusterReport = make(cls, fields, "report")
        _check(report)
        return report

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Save as ``.html``, ``.json`` or ``.txt``, by the extension. Replaces a file only with ``overwrite=True``.

        :func:`arena.load` reads the ``.json`` file.
        """
        with late_import(f"the report cannot be saved to {path}"):
            from . import html, text

        renderers = {".html": html.render, ".json": _as_json, ".txt": text.render}
        target = files.check(path, overwrite=overwrite, endings=tuple(renderers))
        return files.write(target, [renderers[target.suffix](self).encode("utf-8", "replace")], overwrite=overwrite)

    def __str__(self) -> str:
        with late_import("the report cannot be shown"):
            from . import text

        return text.render(self)

    def _repr_html_(self) -> str:
        with late_import("the report cannot be shown as a picture"):
            from . import html

        return html.render_inline(self)


def _as_json(report: ClusterReport) -> str:
    return json.dumps(report.to_dict(), indent=1) + "\n"


def _check(report: ClusterReport) -> None:
    """Check that a cluster can have produced this: renderers use it as counts and indices."""
    check_account(report.account, ACCOUNT, "report.account")
    check_timeline(report.timeline)
    for number, one in enumerate(report.arenas):
        check_account(one.account, ACCOUNT, f"report.arenas[{number}].account")
        check_timeline(one.timeline)
        for name in ("number", "label", "name", "card"):
            if name not in one.device:
                raise UsageError(f"report.arenas[{number}].device should have {name}")
        if {"peak_live", "peak_reserved"} - set(one.peak):
            raise UsageError(f"report.arenas[{number}].peak should have peak_live and peak_reserved")
    for counts in (report.counts, *(one.counts for one in report.arenas)):
        if set(COUNTS) - set(counts):
            raise UsageError(f"the counts of a report should have {', '.join(COUNTS)}")

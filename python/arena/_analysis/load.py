"""Reads back saved reports and snapshots."""

from __future__ import annotations

import json
from pathlib import Path

from .._dask.model import FORMAT as CLUSTER
from .._dask.model import ClusterReport
from .._inspect.snapshot import FORMAT as SNAPSHOT
from .._inspect.snapshot import Snapshot, no_collection
from .._report import Report
from .._report.model import FORMAT as REPORT
from .._trace.read import is_trace
from .._util.files import to_read
from .._util.next_step import arena_command
from ..errors import UsageError

__all__ = ["load"]


def load(path: str | Path) -> Report | Snapshot | ClusterReport:
    """Return the report or snapshot saved in a ``.json`` file; also the report of a Dask cluster."""
    with no_collection():  # throughout: a collection in between would traverse everything read so far
        return _load(path)


def _load(path: str | Path) -> Report | Snapshot | ClusterReport:
    content = to_read(path).read_bytes()
    if is_trace(content):
        raise UsageError(
            f"{path} is a trace, not a report; {arena_command('replay', path, '--save', 'report.html')} makes a report "
            "from it, and arena.Trace.read() reads it"
        )
    if content[:200].lstrip().lower().startswith(b"<!doctype html"):
        raise UsageError(f"{path} is a page to open in a browser; reports are read from .json")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    kind = data.get("format") if isinstance(data, dict) else None
    if kind == REPORT:
        return Report.from_dict(data)
    if kind == CLUSTER:
        return ClusterReport.from_dict(data)
    if kind == SNAPSHOT:
        return Snapshot._from_dict(data)
    raise UsageError(f"{path} is neither a report nor a snapshot from arena")

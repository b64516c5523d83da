"""Reading back what was saved."""

from __future__ import annotations

import json
from pathlib import Path

from ._files import to_read
from ._report import Report
from ._report._model import FORMAT as REPORT
from ._snapshot import FORMAT as SNAPSHOT
from ._snapshot import Snapshot, no_collection
from .errors import UsageError

__all__ = ["load"]


def load(path: str | Path) -> Report | Snapshot:
    """Return the report or the snapshot that was saved in a ``.json`` file."""
    with no_collection():  # throughout: switched on in between, it would look through all that was read
        return _load(path)


def _load(path: str | Path) -> Report | Snapshot:
    source = to_read(path)
    try:
        data = json.loads(source.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    kind = data.get("format") if isinstance(data, dict) else None
    if kind == REPORT:
        return Report.from_dict(data)
    if kind == SNAPSHOT:
        return Snapshot._from_dict(data)
    raise UsageError(f"{path} is neither a report nor a snapshot of arena")

"""Writes a report as JSON and reads it back. The schema is ``report.schema.json`` in this directory."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .._inspect.snapshot import MOST_GRANULES, check_account
from .._util.typed import make
from .._words.account import ALIGNMENT, REASONS, STATES, add_missing_reasons
from .._words.moving import MODES, is_mode
from ..errors import UsageError
from .build import ACCOUNT, COUNTS
from .model import FIGURES, FORMAT, VERSION, Block, Report, Samples

__all__ = ["check_timeline", "read", "render"]


CELLS = (*STATES, "hole")


def render(report: Report) -> str:
    return json.dumps(report.to_dict(), indent=1) + "\n"


def read(data: Any) -> Report:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"this {type(data).__name__} is not an arena report: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise UsageError(f"this report has version {data.get('version')!r}; this arena reads version {VERSION}")
    fields = {name: value for name, value in data.items() if name not in ("format", "version", "end", "blocks")}
    report: Report = _upgrade_device(_upgrade_reasons(make(Report, fields, "report")))
    _check(report)
    check_timeline(report.timeline)
    blocks = make(list[Block], data.get("blocks"), "report.blocks")
    return dataclasses.replace(report, _end=_end_of(data), _pieces=blocks)


def _end_of(data: dict[str, Any]) -> Report | None:
    """The report of the run's end inside the report of its peak, if there is one. Older files have none."""
    end = data.get("end")
    if end is None:
        return None
    if not isinstance(end, dict) or end.get("end") is not None:
        raise UsageError("report.end should be a report without an end of its own, or null")
    return read(end)


def _upgrade_reasons(report: Report) -> Report:
    """Add the reasons that an older report lacks as 0, in the account and in every sample."""
    timeline = report.timeline
    if timeline is not None:
        none = dict.fromkeys(add_missing_reasons({}), [0] * len(timeline.at))
        timeline = dataclasses.replace(timeline, figures={**none, **timeline.figures})
    account, peak = add_missing_reasons(report.account), add_missing_reasons(report.peak)
    return dataclasses.replace(report, account=account, peak=peak, timeline=timeline)


DEVICE = {
    "number": int,
    "label": str,
    "name": str,
    "simulated": bool,
    "total": int,
    "free": int,
    "outside": int,
    "addresses": int,
    "peers": list[int],
    "remark": str,
}


def _upgrade_device(report: Report) -> Report:
    """Add the facts about the device that an older report lacks; ``outside`` used to be called ``others``."""
    device = dict(report.device)
    if "others" in device:
        device.setdefault("outside", device.pop("others"))
    return dataclasses.replace(report, device={**_unknown(device), **device})


def _unknown(device: dict[str, Any]) -> dict[str, Any]:
    return {"label": f"device {device.get('number')}", "addresses": 0, "peers": [], "remark": ""}


def _check(report: Report) -> None:
    """Check that an arena can have produced this: renderers use it as counts and indices."""
    if report.granule <= 0:
        raise UsageError(f"report.granule should be a number of bytes, not {report.granule}")
    for name, kind in DEVICE.items():
        make(kind, report.device.get(name), f"report.device.{name}")
    check_account(report.account, ACCOUNT, "report.account")
    check_account(report.peak, (*REASONS, "live", "reserved", "peak_requested", "peak_live"), "report.peak")
    for where, names in (("fragmentation", ("now", "peak")), ("largest", ("now", "after_trim")), ("counts", COUNTS)):
        missing = set(names) - set(getattr(report, where))
        if missing:
            raise UsageError(f"report.{where} should have {', '.join(names)}")
    if report.moving and not is_mode(report.moving):
        raise UsageError(f"report.moving should be one of {', '.join(MODES)}, not {report.moving!r}")
    for segment in report.segments:
        end = 0
        for cell in segment.cells:
            if cell.first < end or cell.count < 1 or cell.state not in CELLS:
                raise UsageError(f"the cells of the segment at {segment.address:#x} overlap or are invalid")
            end = cell.first + cell.count
        if report.granule < ALIGNMENT or end > max(0, segment.size) // report.granule:
            raise UsageError(f"the segment at {segment.address:#x} is smaller than its cells")
        if end > MOST_GRANULES:
            raise UsageError(f"the segment at {segment.address:#x} has more than {MOST_GRANULES} granules")


def check_timeline(timeline: Samples | None) -> None:
    if timeline is None:
        return
    lengths = {name: len(timeline.figures.get(name, ())) for name in FIGURES}
    if set(lengths.values()) != {len(timeline.at)} or not 0 <= timeline.peak < len(timeline.at):
        raise UsageError(
            f"report.timeline should have one value of each of {', '.join(FIGURES)} per sample, and a peak"
        )

"""A report as JSON, and back. The schema is ``report.schema.json`` beside this file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .._inspect.snapshot import MOST_GRANULES, check_account
from .._util.typed import make
from .._words.account import ALIGNMENT, REASONS, STATES, add_later_reasons
from .._words.moving import MODES
from ..errors import UsageError
from .build import ACCOUNT, COUNTS
from .model import FIGURES, FORMAT, VERSION, Block, Report, Samples

__all__ = ["read", "render"]


CELLS = (*STATES, "hole")


def render(report: Report) -> str:
    return json.dumps(report.to_dict(), indent=1) + "\n"


def read(data: Any) -> Report:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"this {type(data).__name__} is no report of arena: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise UsageError(f"this report is of version {data.get('version')!r}; this arena reads {VERSION}")
    fields = {name: value for name, value in data.items() if name not in ("format", "version", "end", "blocks")}
    report: Report = _with_later_facts(_with_later_reasons(make(Report, fields, "report")))
    _check(report)
    _check_timeline(report.timeline)
    blocks = make(list[Block], data.get("blocks"), "report.blocks")
    return dataclasses.replace(report, _end=_end_of(data), _pieces=blocks)


def _end_of(data: dict[str, Any]) -> Report | None:
    """The report of the end in the one of the peak, which has no other in it. Older files have none."""
    end = data.get("end")
    if end is None:
        return None
    if not isinstance(end, dict) or end.get("end") is not None:
        raise UsageError("report.end should be a report without an end of its own, or null")
    return read(end)


def _with_later_reasons(report: Report) -> Report:
    """Reports from before a reason existed have 0 of it, in the account and in every sample."""
    timeline = report.timeline
    if timeline is not None:
        none = dict.fromkeys(add_later_reasons({}), [0] * len(timeline.at))
        timeline = dataclasses.replace(timeline, figures={**none, **timeline.figures})
    account, peak = add_later_reasons(report.account), add_later_reasons(report.peak)
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


def _with_later_facts(report: Report) -> Report:
    """Reports from before a fact of the device was told have none; what is outside of the arena was called others."""
    device = dict(report.device)
    if "others" in device:
        device.setdefault("outside", device.pop("others"))
    return dataclasses.replace(report, device={**_unknown(device), **device})


def _unknown(device: dict[str, Any]) -> dict[str, Any]:
    return {"label": f"device {device.get('number')}", "addresses": 0, "peers": [], "remark": ""}


def _check(report: Report) -> None:
    """What is drawn and counted by must be what an arena can have said."""
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
    if report.moving and report.moving not in MODES:
        raise UsageError(f"report.moving should be one of {', '.join(MODES)}, not {report.moving!r}")
    for segment in report.segments:
        end = 0
        for cell in segment.cells:
            if cell.first < end or cell.count < 1 or cell.state not in CELLS:
                raise UsageError(f"the cells of the segment at {segment.address:#x} are not beside each other")
            end = cell.first + cell.count
        if report.granule < ALIGNMENT or end > max(0, segment.size) // report.granule:
            raise UsageError(f"the segment at {segment.address:#x} is smaller than its cells")
        if end > MOST_GRANULES:
            raise UsageError(f"the segment at {segment.address:#x} has more than {MOST_GRANULES} granules")


def _check_timeline(timeline: Samples | None) -> None:
    if timeline is None:
        return
    lengths = {name: len(timeline.figures.get(name, ())) for name in FIGURES}
    if set(lengths.values()) != {len(timeline.at)} or not 0 <= timeline.peak < len(timeline.at):
        raise UsageError(f"report.timeline should have as many of each of {', '.join(FIGURES)} as of at, and its peak")

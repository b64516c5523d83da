"""A report as JSON, and back. The schema is ``report.schema.json`` beside this file."""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import UsageError
from ._model import FIGURES, FORMAT, REASONS, VERSION, Block, Report, Samples

__all__ = ["read", "render"]

MOST = 1 << 64  # of any number: renderers count on it
NAMES = {  # that renderers look for
    "account": (*REASONS, "live", "reserved", "compactable", "cap", "headroom"),
    "peak": (*REASONS, "live", "reserved", "peak_requested", "peak_live"),
    "fragmentation": ("now", "peak"),
    "largest": ("now", "after_trim"),
    "counts": ("allocations", "blocks", "hits", "failures", "maps", "unmaps", "rebacked", "driver_calls", "waits"),
}
DEVICE = {"number": int, "name": str, "simulated": bool, "total": int, "free": int, "others": int}


def render(report: Report) -> str:
    return json.dumps(report.to_dict(), indent=1) + "\n"


def read(data: Any) -> Report:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"this is no report of arena: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise UsageError(f"this report is of version {data.get('version')!r}; this arena reads {VERSION}")
    fields = {name: value for name, value in data.items() if name not in ("format", "version", "blocks")}
    report: Report = _make(Report, fields, "report")
    _check_names(report)
    _check(report.timeline)
    vars(report)["blocks"] = _make(list[Block], data.get("blocks"), "report.blocks")
    return report


def _check_names(report: Report) -> None:
    for name, wanted in NAMES.items():
        if missing := [key for key in wanted if key not in getattr(report, name)]:
            raise UsageError(f"report.{name} should have {', '.join(missing)}")
    for name, kind in DEVICE.items():
        _make(kind, report.device.get(name), f"report.device.{name}")


def _check(timeline: Samples | None) -> None:
    if timeline is None:
        return
    lengths = {name: len(timeline.figures.get(name, ())) for name in FIGURES}
    if set(lengths.values()) != {len(timeline.at)} or not 0 <= timeline.peak < len(timeline.at):
        raise UsageError(f"report.timeline should have as many of each of {', '.join(FIGURES)} as of at, and its peak")


def _make(kind: Any, value: Any, where: str) -> Any:
    """Plain data as the dataclasses that it was, with an error that says where something else is."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or not _required(kind) <= set(value) <= set(hints):
            raise UsageError(f"{where} should have the fields {', '.join(hints)}")
        make: Any = kind
        return make(**{name: _make(hints[name], item, f"{where}.{name}") for name, item in value.items()})
    if dataclasses.is_dataclass(next(iter(get_args(kind)), None)) and get_origin(kind) is UnionType:  # that, or None
        return None if value is None else _make(get_args(kind)[0], value, where)
    if get_origin(kind) is list and isinstance(value, list):
        return [_make(get_args(kind)[0], item, f"{where}[{index}]") for index, item in enumerate(value)]
    if get_origin(kind) is dict and isinstance(value, dict):
        return {name: _make(get_args(kind)[1], item, f"{where}.{name}") for name, item in value.items()}
    if kind is Any or _is(kind, value):
        return value
    raise UsageError(f"{where} should be {_words(kind)}, not {_short(value)}")


def _words(kind: Any) -> str:
    name = str(kind if get_args(kind) else getattr(kind, "__name__", kind))
    return f"{name} from 0 to 2^64" if kind in (int, float) else name


def _short(value: Any) -> str:
    is_plain = isinstance(value, (str, float, type(None))) or (isinstance(value, int) and abs(value) < 1 << 80)
    return repr(value)[:60] if is_plain else f"such a {type(value).__name__}"


def _required(kind: Any) -> set[str]:
    """The fields without a default: files of before the others existed are read too."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is missing and field.default_factory is missing}


def _is(kind: Any, value: Any) -> bool:
    if get_origin(kind) in (list, dict):
        return False
    kinds = get_args(kind) or (kind,)
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, (int, float)):
        return (type(value) in kinds or float in kinds) and abs(value) < MOST and (type(value) is float or value >= 0)
    return isinstance(value, tuple(kinds))

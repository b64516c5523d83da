"""A report as JSON, and back. The schema is ``report.schema.json`` beside this file."""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import UsageError
from ._model import FIGURES, FORMAT, VERSION, Block, Report, Samples

__all__ = ["read", "render"]


def render(report: Report) -> str:
    return json.dumps(report.to_dict(), indent=1) + "\n"


def read(data: Any) -> Report:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"this is no report of arena: its format is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise UsageError(f"this report is of version {data.get('version')!r}; this arena reads {VERSION}")
    fields = {name: value for name, value in data.items() if name not in ("format", "version", "blocks")}
    report: Report = _make(Report, fields, "report")
    _check(report.timeline)
    vars(report)["blocks"] = _make(list[Block], data.get("blocks"), "report.blocks")
    return report


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
    raise UsageError(f"{where} should be {getattr(kind, '__name__', kind)}, not {value!r}")


def _required(kind: Any) -> set[str]:
    """The fields without a default: files of before the others existed are read too."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is missing and field.default_factory is missing}


def _is(kind: Any, value: Any) -> bool:
    kinds = get_args(kind) or (kind,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple(kinds)) or (float in kinds and isinstance(value, int))

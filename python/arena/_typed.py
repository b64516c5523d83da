"""Plain data from a file as the types that it was, with an error that says where something else is."""

from __future__ import annotations

import dataclasses
import math
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from .errors import UsageError

__all__ = ["fields_of", "make", "required"]

LARGEST = 1 << 64  # what no size, address or number is


def make(kind: Any, value: Any, where: str) -> Any:
    """The value as that type: a dataclass from an object, a named tuple from a list."""
    if get_origin(kind) is UnionType and type(None) in get_args(kind):
        return None if value is None else make(get_args(kind)[0], value, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _named_tuple(kind, value, where)
    arguments, origin = get_args(kind), get_origin(kind)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(make(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {name: make(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    if kind is Any or (origin is None and _is(kind, value)):
        return value
    raise UsageError(f"{where} should be {getattr(kind, '__name__', kind)}, not {_short(value)}")


def fields_of(kind: Any) -> dict[str, Any]:
    """The public fields of a dataclass, with their types."""
    return {name: hint for name, hint in get_type_hints(kind).items() if not name.startswith("_")}


def required(kind: Any) -> set[str]:
    """The fields without a default: files of before the others existed are read too."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is missing and field.default_factory is missing}


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = fields_of(kind)
    if not isinstance(value, dict) or not required(kind) <= set(value) <= set(hints):
        raise UsageError(f"{where} should have the fields {', '.join(hints)}")
    return kind(**{name: make(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _named_tuple(kind: Any, value: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(value, list) or len(value) != len(hints):
        raise UsageError(f"{where} should be a list of {', '.join(hints)}")
    return kind(*(make(hint, item, f"{where}.{name}") for (name, hint), item in zip(hints.items(), value, strict=True)))


def _is(kind: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return kind in (int, float) and -LARGEST < value < LARGEST
    return isinstance(value, kind) and (not isinstance(value, float) or math.isfinite(value))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

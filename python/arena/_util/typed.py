"""Converts plain data from a file to dataclasses and named tuples; errors say where a value does not match.

A file may hold a million pieces, so the annotations of a type are inspected only once: they become a reader, a function
that converts a plain value to that type. The path to a value is built only if the value is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import UsageError

__all__ = ["fields_of", "make", "required"]

LARGEST = 1 << 64  # sizes, addresses and numbers are below this

Reader = Callable[[Any], Any]


class _WrongError(Exception):
    """A value of the wrong type. On its way up, each reader adds its part of the path to the value."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.parts: list[str] = []

    def within(self, part: str) -> _WrongError:
        self.parts.append(part)
        return self


def make(kind: Any, value: Any, where: str) -> Any:
    """Convert a value to a type: an object to a dataclass, a list to a named tuple."""
    try:
        return _reader(kind)(value)
    except _WrongError as wrong:
        text = f"{where}{''.join(reversed(wrong.parts))} {wrong.text}"
    raise UsageError(text)


def fields_of(kind: Any) -> dict[str, Any]:
    """The public fields of a dataclass and their types."""
    return {name: hint for name, hint in get_type_hints(kind).items() if not name.startswith("_")}


def required(kind: Any) -> set[str]:
    """The fields without a default. Files from older versions may lack the others."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is missing and field.default_factory is missing}


@functools.cache
def _reader(kind: Any) -> Reader:
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is UnionType and type(None) in arguments:
        return _optional(_reader(arguments[0]))
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _named_tuple(kind)
    if origin in (list, tuple):
        return _sequence(kind, origin, _reader(arguments[0]))
    if origin is dict:
        return _mapping(kind, _reader(arguments[1]))
    return _whole_number if kind is int else _scalar(kind)


def _optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _dataclass(kind: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in fields_of(kind).items()}
    needed, known = required(kind), set(readers)

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or not needed <= set(value) <= known:
            raise _WrongError(f"should have the fields {', '.join(readers)}")
        return kind(**_values(value, readers.__getitem__))

    return read


def _mapping(kind: Any, read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(kind, value)
        return _values(value, lambda _: read)

    return read_all


def _values(found: dict[str, Any], reader_of: Callable[[str], Reader]) -> dict[str, Any]:
    made = {}
    for name, item in found.items():
        try:
            made[name] = reader_of(name)(item)
        except _WrongError as wrong:
            raise wrong.within(f".{name}") from None
    return made


def _sequence(kind: Any, origin: Any, read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, list):
            raise _mismatch(kind, value)
        try:
            made = [read(item) for item in value]
        except _WrongError as wrong:
            raise wrong.within(f"[{_first_wrong([read] * len(value), value)}]") from None
        return made if origin is list else origin(made)

    return read_all


def _named_tuple(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers, count = [_reader(hint) for hint in hints.values()], len(hints)
    defaults = list(kind._field_defaults.values())  # of the last fields, which files from older versions may lack
    from_items: Callable[[list[Any]], Any] = kind._make

    def read(value: Any) -> Any:
        if not isinstance(value, list) or not count - len(defaults) <= len(value) <= count:
            raise _WrongError(f"should be a list of {', '.join(hints)}")
        if missing := count - len(value):
            value = value + defaults[-missing:]
        try:
            return from_items([reader(item) for reader, item in zip(readers, value)])  # noqa: B905 - of one length
        except _WrongError as wrong:
            raise wrong.within(f".{list(hints)[_first_wrong(readers, value)]}") from None

    return read


def _first_wrong(readers: list[Reader], values: list[Any]) -> int:
    """The index of the wrong value. Found in a second pass, so that correct data needs no counting."""
    for index, (read, item) in enumerate(zip(readers, values, strict=True)):
        try:
            read(item)
        except _WrongError:
            return index
    raise AssertionError("a value was wrong, but not when it was read again")


def _scalar(kind: Any) -> Reader:
    exact = kind if kind in (str, bool) else None  # every value of these types is fine

    def read(value: Any) -> Any:
        if type(value) is exact or kind is Any or _is(kind, value):
            return value
        raise _mismatch(kind, value)

    return read


def _whole_number(value: Any) -> Any:
    """The same as ``_scalar(int)`` in half the time: by far most values are whole numbers."""
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    raise _mismatch(int, value)


def _mismatch(kind: Any, value: object) -> _WrongError:
    return _WrongError(f"should be {getattr(kind, '__name__', kind)}, not {_short(value)}")


def _is(kind: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return kind in (int, float) and -LARGEST < value < LARGEST
    return isinstance(value, kind) and (not isinstance(value, float) or math.isfinite(value))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

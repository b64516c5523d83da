"""Sizes as people write them: ``"4GiB"``, ``4 << 30``, ``"80%"``, ``0.8``."""

from __future__ import annotations

import math
import re

from .errors import UsageError

Size = int | float | str

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FORMS = 'write bytes (4 << 30), a text with a unit ("4GiB", "512MiB"), or a share of the device ("80%", 0.8)'


def parse_size(value: Size, total: int, name: str) -> int:
    """Read a size; shares are of ``total``. ``name`` is what an error calls it.

    >>> parse_size("1.5GiB", 8 << 30, "cap") == 3 << 29
    True
    >>> parse_size("50%", 8 << 30, "cap") == parse_size(0.5, 8 << 30, "cap") == 4 << 30
    True
    >>> parse_size("lots", 8 << 30, "cap")
    Traceback (most recent call last):
        ...
    arena.errors.UsageError: cap='lots' is not a size; write ...
    """
    bytes_ = _read(value, total)
    if bytes_ is None or not 0 <= bytes_ < 1 << 63:
        raise UsageError(f"{name}={value!r} is not a size; {FORMS}")
    return int(bytes_)


def _read(value: object, total: int) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value * total if 0 <= value <= 1 else None
    if not isinstance(value, str):
        return None
    found = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(%|[KMGT]iB|B)?\s*", value)
    if found is None:
        return None
    number, unit = found[1], found[2] or ""
    if not unit and "." in number:  # as 0.8 is in Python
        return float(number) * total if float(number) <= 1 else None
    if unit == "%":
        return float(number) / 100 * total if float(number) <= 100 else None
    exact = int(number) * UNITS[unit] if "." not in number else float(number) * UNITS[unit]
    return math.floor(exact)


def format_size(size: int) -> str:
    """Write a size for people: ``1.5 MiB``.

    >>> format_size(3 << 19), format_size(512), format_size(8 << 30)
    ('1.5 MiB', '512 B', '8 GiB')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"

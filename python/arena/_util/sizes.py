"""Reads sizes as people write them: ``"4GiB"``, ``"4G"``, ``"4GB"``, ``4 << 30``, ``"80%"``, ``0.8``.

``K``, ``M``, ``G`` and ``T`` are powers of 1024, like ``KiB`` and so on; ``KB``, ``MB``, ``GB`` and ``TB`` are powers
of 1000. GNU tools follow the same rule, and so does ``G`` in Slurm and systemd. The simulated driver does, too
(``src/cudasim/settings/settings.cpp``). ``docs/arena.md`` documents it.
"""

from __future__ import annotations

import math
import operator
import re
from typing import SupportsIndex

from .._words.format import UNITS, format_size
from ..errors import UsageError

__all__ = ["FORMS", "UNITS", "Size", "format_size", "is_share", "parse_size"]

Size = int | float | str

FORMS = 'bytes (4 << 30), or a text with a unit ("4GiB", "512M", "4GB")'
SHARES = 'a share of the device ("80%", 0.8)'
_BY_NAME: dict[str, int] = {
    **{name.lower(): size for name, size in UNITS.items()},
    **{letter: 1 << 10 * power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}


def parse_size(value: Size, total: int | None, name: str) -> int:
    """Return a size in bytes. Shares are of ``total`` and need one; ``name`` is the argument's name for the error.

    >>> parse_size("1.5GiB", 8 << 30, "cap") == parse_size("1.5G", 8 << 30, "cap") == 3 << 29
    True
    >>> parse_size("1.5GB", 8 << 30, "cap")
    1500000000
    >>> parse_size("50%", 8 << 30, "cap") == parse_size(0.5, 8 << 30, "cap") == 4 << 30
    True
    >>> parse_size("lots", 8 << 30, "cap")
    Traceback (most recent call last):
        ...
    arena.errors.UsageError: cap='lots' is not a size; write ...
    """
    bytes_ = _read(value, total)
    if bytes_ is None or not 0 <= bytes_ < 1 << 63:
        forms = FORMS if total is None else f"{FORMS}, or {SHARES}"
        raise UsageError(f"{name}={value!r} is not a size; write {forms}")
    return int(bytes_)


def is_share(value: Size) -> bool:
    """Whether a valid size is a share of something, and not a number of bytes.

    >>> is_share("80%"), is_share(0.5), is_share("4GiB"), is_share(1)
    (True, True, False, False)
    """
    return _read(value, None) is None


def _read(value: object, total: int | None) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return _share(value, total)
    if not isinstance(value, str):
        return operator.index(value) if isinstance(value, SupportsIndex) else None
    found = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(%|[KMGT](?:i?B)?|B)?\s*", value, re.I | re.A)
    if found is None:
        return None
    digits, unit = found[1], (found[2] or "").lower()
    if not unit and "." in digits:  # a share, like the float 0.8
        return _share(float(digits), total)
    if unit == "%":
        return _share(float(digits) / 100, total)
    exact = int(digits) * _BY_NAME[unit] if "." not in digits else float(digits) * _BY_NAME[unit]
    return math.floor(exact)


def _share(share: float, total: int | None) -> float | None:
    return share * total if total is not None and 0 <= share <= 1 else None

"""Numbers for people: sizes, shares, and counts with their nouns."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["UNITS", "counted", "distinct_sizes", "format_range", "format_share", "format_size", "listed"]

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def format_size(size: int) -> str:
    """Format a size for people: ``1.5 MiB``. The rounded value decides the unit, as in the core.

    >>> format_size(3 << 19), format_size(512), format_size(8 << 30), format_size((1 << 30) - 1)
    ('1.5 MiB', '512 B', '8 GiB', '1 GiB')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit] or f"{size * 1024 / UNITS[unit]:.2f}" == "1024.00":
            return f"{size / UNITS[unit]:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"


def format_share(part: int, whole: int) -> str:
    """Format a part of a whole, with the unit only once if both have the same.

    >>> format_share(8 << 20, 10 << 20), format_share(1 << 19, 10 << 20)
    ('8 of 10 MiB', '512 KiB of 10 MiB')
    """
    first, second = format_size(part), format_size(whole)
    if first.split()[1] == second.split()[1]:
        first = first.split()[0]
    return f"{first} of {second}"


def format_range(low: int, high: int, whole: int = 0) -> str:
    """Format what lies between two sizes, and the whole that it is a part of, if there is one.

    >>> format_range(1 << 20, 3 << 20), format_range(1 << 19, 3 << 20, 8 << 20), format_range(1 << 20, 1 << 20)
    ('1 to 3 MiB', '512 KiB to 3 of 8 MiB', '1 MiB')
    """
    first, second = format_size(low), format_size(high)
    share = format_share(high, whole) if whole else second
    if first == second:
        return share
    return f"{first.split()[0] if first.split()[1] == second.split()[1] else first} to {share}"


def distinct_sizes(size: int, other: int) -> tuple[str, str]:
    """Format two different sizes so that they look different: in bytes if rounding would hide it.

    >>> distinct_sizes(1 << 30, 1 << 20), distinct_sizes((64 << 20) + 512, 64 << 20)
    (('1 GiB', '1 MiB'), ('67,109,376 bytes', '67,108,864 bytes'))
    """
    if size != other and format_size(size) == format_size(other):
        return f"{size:,} bytes", f"{other:,} bytes"
    return format_size(size), format_size(other)


def counted(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "block"), counted(2000, "block")
    ('1 block', '2,000 blocks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: ``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last

"""Limits how much a compressed file may unpack to, by its own size: a few kilobytes could keep a reader busy for
hours.
"""

from __future__ import annotations

from .._util.sizes import format_size

__all__ = ["MOST_TIMES", "Unpacked"]

FREE = 1 << 26  # bytes that any file may unpack to; reading them takes a second or two
MOST_TIMES = 256  # its own size; for recordings of real programs, which repeat themselves, it is about 4


class Unpacked:
    """Counts what was unpacked."""

    def __init__(self, free: int = FREE) -> None:
        self._free, self._bytes = free, 0

    def add(self, more: int, packed: int) -> str:
        """Count more bytes, when ``packed`` bytes of the file were read; return what is wrong with it, or nothing."""
        self._bytes += more
        if self._bytes <= self._free + MOST_TIMES * packed:
            return ""
        return (
            f"{format_size(packed)} of the file unpack to {format_size(self._bytes)}, which is more than "
            f"{MOST_TIMES} times as much; no recording repeats itself that often"
        )

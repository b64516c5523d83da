"""What to type next, such that it works when it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path

from ._sizes import UNITS

__all__ = ["arena_command", "exact_size", "next_after"]


def arena_command(*words: object) -> str:
    """A command, whatever characters are in the names of files."""
    return shlex.join(["arena", *map(str, words)])


def exact_size(size: int) -> str:
    """A size for a command: unlike the one for people it is not rounded.

    >>> exact_size(5 << 20), exact_size(3 << 29), exact_size(1000)
    ('5MiB', '1536MiB', '1000')
    """
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % UNITS[unit] == 0), "")
    return f"{size // UNITS[unit]}{unit}"


def next_after(written: Path) -> str:
    """What to do with a report that was written."""
    if written.suffix == ".json":
        return arena_command("report", written, "--save", written.with_suffix(".html"))
    return f"open {shlex.quote(str(written))}"

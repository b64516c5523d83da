"""The command to run next, quoted so that it works when pasted into a shell."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from .._words.plain import plain
from .sizes import UNITS

__all__ = ["arena_command", "exact_size", "next_after", "quoted", "record_again", "record_elsewhere"]


def arena_command(*words: object) -> str:
    """An ``arena`` command line, with quotes where file names need them."""
    return " ".join(["arena", *(quoted(str(word)) for word in words)])


def quoted(word: str) -> str:
    """Quote a word for a shell. What cannot be seen is written as an escape, which bash, zsh and others understand.

    >>> print(quoted("run.arena"), quoted("my run.arena"), quoted("my\\nrun.arena"))
    run.arena 'my run.arena' $'my\\nrun.arena'
    """
    if plain(word) == word:
        return shlex.quote(word)
    text = word.replace("\\", r"\\").replace("'", r"\'")
    text = re.sub("[\udc80-\udcff]", lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)  # bytes that are not UTF-8
    return f"$'{plain(text)}'"


def exact_size(size: int) -> str:
    """Format a size for a command: exact, unlike :func:`format_size`.

    >>> exact_size(5 << 20), exact_size(3 << 29), exact_size(1000)
    ('5MiB', '1536MiB', '1000')
    """
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % UNITS[unit] == 0), "")
    return f"{size // UNITS[unit]}{unit}"


def record_again(cap: int, program: str) -> str:
    """What to do about a recording that ends before its program did."""
    again = arena_command("run", "--cap", exact_size(cap), "--record", "again.arena")
    if program.startswith("-"):  # a recording could name an option
        program = f"./{program}"
    return f"record it again with at least that much: {again} {quoted(program) if program else 'PROGRAM'} ..."


def next_after(written: Path) -> str:
    """What to do with a report that was just written."""
    if written.suffix == ".json":
        return arena_command("report", written, "--save", written.with_suffix(".html"))
    return f"open {quoted(str(written))}"


def record_elsewhere(program: str = "YOUR_SCRIPT.py") -> str:
    """What to do on a machine without a GPU."""
    record = arena_command("run", "--record", "run.arena", program)
    return f"on a machine with a GPU, {record}; then, on any machine, arena fit run.arena"

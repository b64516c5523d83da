"""Reading a profile: a flat TOML file, ``key = value`` on each line, comments with ``#``.

The simulated driver reads the same files (``CUDASIM_CARD``). Only what it accepts is accepted here: texts in double
quotes, whole numbers, ``true`` and ``false``. Python has no TOML reader before 3.11.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

from .._util.sizes import parse_size
from ..errors import UsageError
from .model import Card

__all__ = ["KEYS", "read_card"]

SIZES = (
    *("memory", "shared_per_block", "shared_per_block_optin", "shared_per_multiprocessor", "l2_cache"),
    "context",
)
NUMBERS = (
    *("multiprocessors", "threads_per_multiprocessor", "blocks_per_multiprocessor", "registers_per_multiprocessor"),
    *("clock_khz", "memory_clock_khz", "bus_width"),
)
KEYS = ("name", "compute_capability", *SIZES, *NUMBERS, "integrated")
OPTIONAL = {"integrated": False, "context": 0}
LONGEST = 255  # bytes of a name that cuDeviceGetName can return, the final zero aside
MOST = (1 << 31) - 1  # what the driver can return of a number
LARGEST_FILE = 1 << 16

_LINE = re.compile(r'([A-Za-z_]\w*)\s*=\s*("[^"\\]*"|[^\s"#]+)\s*(?:#.*)?', re.ASCII)


def read_card(path: str | os.PathLike[str]) -> Card:
    """Read a profile; an error names the file, the line, the value, and what would be right."""
    file = Path(path)
    values: dict[str, Any] = {}
    sources: list[str] = []
    for number, line in enumerate(_text_of(file).splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            sources.append(stripped[1:].removeprefix(" "))
        elif stripped:
            key, value = _read_line(stripped, f"{file}:{number}")
            if key in values:
                raise UsageError(f"{file}:{number}: {key} is there twice; keep one")
            values[key] = value
    if missing := [key for key in KEYS if key not in values and key not in OPTIONAL]:
        raise UsageError(
            f"{file} has no {missing[0]}; a profile has {', '.join(KEYS)}. To begin with one of arena's: "
            "arena cards rtx4090 --toml > my-card.toml"
        )
    return Card(key=file.stem, **{**OPTIONAL, **values}, sources=tuple(sources), path=file.absolute())


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST_FILE + 1)  # not all: /dev/full has no end
        if len(data) > LARGEST_FILE:
            raise ValueError
        return data.decode()
    except ValueError:  # also of a path with a zero in it, and of bytes that are not UTF-8
        raise UsageError(f"{file} is not the profile of a card: it should be a small text") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None


def _read_line(line: str, place: str) -> tuple[str, Any]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise UsageError(f"{place}: {line!r} is not accepted; write key = value, with texts in double quotes")
    key, text = found[1], found[2]
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
        raise UsageError(f"{place}: there is no key {key}; {hint}")
    return key, _value_of(key, text, place)


def _value_of(key: str, text: str, place: str) -> Any:
    given = text[1:-1] if text.startswith('"') else None
    if key == "name":
        if given is not None and 0 < len(given.encode()) <= LONGEST:
            return given
        raise _wrong(place, key, text, f'a text of up to {LONGEST} bytes, "NVIDIA GeForce RTX 4090"')
    if key == "compute_capability":
        if given is not None and re.fullmatch(r"[1-9][0-9]?\.[0-9]", given):
            return given
        raise _wrong(place, key, text, 'a text, "8.9"')
    if key == "integrated":
        if text in ("true", "false"):
            return text == "true"
        raise _wrong(place, key, text, "true or false")
    if key in SIZES:
        return _size_of(key, text if given is None else given, given is None, place)
    if text.isdecimal() and 1 <= int(text) <= MOST:
        return int(text)
    raise _wrong(place, key, text, "a whole number from 1")


def _size_of(key: str, text: str, is_number: bool, place: str) -> int:
    right = 'bytes, 25386352640, or a size in quotes, "24GiB"'
    if is_number and not text.isdecimal():
        raise _wrong(place, key, text, right)
    try:
        size = parse_size(text, None, key)
    except UsageError:
        raise _wrong(place, key, f'"{text}"', right) from None
    if size == 0 and key != "context":
        raise _wrong(place, key, text, f"more than nothing: {right}")
    return size


def _wrong(place: str, key: str, text: str, right: str) -> UsageError:
    return UsageError(f"{place}: {key} = {text} is not accepted; write {right}")

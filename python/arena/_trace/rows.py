"""Reads a text file, compressed with gzip or not, line by line.

Limited are the length of a line, how much a file unpacks to, and how many lines are left to Python: each takes it a few
microseconds, and a small compressed file may have a billion.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from ..errors import TraceError
from .unpacking import Unpacked

__all__ = ["Rows"]

PACKED = b"\x1f\x8b"
MOST_ROW = 1 << 16
MOST_TEXT = 1 << 32  # uncompressed
MOST_LEFT = 1 << 18  # lines that the compiled reader leaves to Python, beyond one for each other event
PART = 1 << 20  # read at a time

Reader = Callable[[bytes, int, int], tuple[int, int]]


class Rows:
    """Iterates over (number, line) pairs, without line ends. Errors name the line."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        packed = file.read(len(PACKED)) == PACKED
        file.seek(0)
        # Both have read1(), which returns what can be read before it raises an error about the rest.
        self._source = gzip.GzipFile(fileobj=file) if packed else cast(io.BufferedReader, file)
        self._name = name
        self._number = 0  # of the last line
        self._read = 0
        self._left = 0  # lines that the compiled reader did not take
        self._packed, self._unpacked = file if packed else None, Unpacked()
        self._part, self._at = b"", 0  # the current part of the text, and where the next line begins

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self

    def __next__(self) -> tuple[int, str]:
        while (end := self._part.find(b"\n", self._at) + 1) == 0:
            if len(self._part) - self._at > MOST_ROW:
                raise self._error(f"a line of more than {MOST_ROW} bytes")
            if not self._fill():
                end = len(self._part)  # the last line may lack a line end
                break
        raw = self._part[self._at : end]
        if not raw:
            raise StopIteration
        if len(raw) > MOST_ROW:
            raise self._error(f"a line of more than {MOST_ROW} bytes")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise self._error(f"{raw[:60]!r} is not UTF-8 text") from None
        self._at = end
        self._number += 1
        self._left += 1
        return self._number, text.rstrip("\r\n")

    def check_left(self, events: int) -> None:
        """Refuse a file of which too many lines were left to Python, when it had so many events."""
        if 2 * self._left > MOST_LEFT + events:  # these lines may have an event each
            raise TraceError(
                f"{self._name}, line {self._number}: {self._left:,} lines so far are written in an unusual way, such "
                f"as with spaces, but there are only {events:,} events; that is no recording"
            )

    def hand_to(self, reader: Reader, after: Callable[[], object] = bool) -> None:
        """Let a compiled reader consume many lines at once. ``after`` is called each time that it stops.

        ``reader(data, at, number)`` reads from offset ``at``, after line ``number``, and returns where it stopped.
        """
        while True:
            self._at, self._number = reader(self._part, self._at, self._number)
            after()
            if self._part.find(b"\n", self._at) >= 0 or len(self._part) - self._at > MOST_ROW or not self._fill():
                return

    def _fill(self) -> bool:
        """Read the next part and append it to the rest of the last one."""
        try:
            more = self._source.read1(PART)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise self._error(f"it cannot be decompressed: {error}") from None
        self._read += len(more)
        if self._read > MOST_TEXT:
            raise self._error(f"more than {MOST_TEXT} bytes")
        if self._packed is not None and (problem := self._unpacked.add(len(more), self._packed.tell())):
            raise self._error(problem)
        self._part, self._at = self._part[self._at :] + more, 0
        return bool(more)

    def _error(self, text: str) -> TraceError:
        return TraceError(f"{self._name}, line {self._number + 1}: {text}")

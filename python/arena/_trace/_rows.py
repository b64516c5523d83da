"""The lines of a text, packed by gzip or not, with their numbers: one at a time, and none of any length."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import TraceError

__all__ = ["rows"]

PACKED = b"\x1f\x8b"
MOST_ROW = 1 << 16
MOST_TEXT = 1 << 32  # when unpacked


def rows(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    """Each line, without its end, after its number. What is wrong is told with the line where it was found."""
    packed = file.read(len(PACKED)) == PACKED
    file.seek(0)
    source: gzip.GzipFile | BinaryIO = gzip.GzipFile(fileobj=file) if packed else file
    number, read = 0, 0
    while True:
        number += 1
        try:
            raw = source.readline(MOST_ROW + 1)
            text = raw.decode().rstrip("\r\n")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"{name}, line {number}: it cannot be unpacked: {error}") from None
        except UnicodeDecodeError:
            raise TraceError(f"{name}, line {number}: {raw[:60]!r} is no text") from None
        read += len(raw)
        if len(raw) > MOST_ROW or read > MOST_TEXT:
            most = f"a line of more than {MOST_ROW}" if len(raw) > MOST_ROW else f"more than {MOST_TEXT}"
            raise TraceError(f"{name}, line {number}: {most} bytes")
        if not raw:
            return
        yield number, text

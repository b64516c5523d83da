"""The file format of a trace: a header and self-contained chunks, described in ``docs/trace-format.md``.

A truncated file can be read up to its last complete chunk. Lengths are checked before anything is allocated by them,
and what a file unpacks to is limited by its own size.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from ..errors import TraceError
from .unpacking import Unpacked

__all__ = [
    "Chunk",
    "chunk",
    "events",
    "frameworks",
    "header",
    "lines",
    "read_chunks",
    "read_events",
    "read_header",
    "steps",
    "write_chunk",
    "write_header",
]

MAGIC = b"ARENATRC"
VERSION = 1
MOST = 1 << 24  # bytes of a chunk, compressed or not
FREE_TEXT = 1 << 24  # bytes of lines and steps that any file may unpack to: they take longer to read than events
HEAD = struct.Struct("<4sII")  # tag, length, checksum
EVENTS_HEAD = struct.Struct("<QQQQ")  # first event, number of events, next block, time
EVENTS, LINES, FRAMEWORKS, STEPS, END = b"EVTS", b"LINE", b"FRWK", b"STEP", b"DONE"


class Chunk(NamedTuple):
    tag: bytes
    data: bytes


def write_header(file: BinaryIO, facts: dict[str, Any]) -> None:
    file.write(header(facts))


def write_chunk(file: BinaryIO, tag: bytes, data: bytes) -> None:
    file.write(chunk(tag, data))


def header(facts: dict[str, Any]) -> bytes:
    text = json.dumps(facts).encode()
    return MAGIC + struct.pack("<II", VERSION, len(text)) + text


def chunk(tag: bytes, data: bytes) -> bytes:
    if len(data) > MOST:
        raise TraceError(f"a chunk of {len(data)} bytes, but the limit is {MOST}")
    packed = zlib.compress(data, 1)
    return HEAD.pack(tag, len(packed), zlib.crc32(packed)) + packed


def events(first: int, many: int, next_block: int, time: int, records: bytes) -> bytes:
    """A chunk of events: the state before them, and their records."""
    return chunk(EVENTS, EVENTS_HEAD.pack(first, many, next_block, time) + records)


def read_events(data: bytes) -> tuple[int, int, bytes]:
    """The next block, the time and the records from the data of such a chunk."""
    _, _, next_block, time = EVENTS_HEAD.unpack_from(data)
    return next_block, time, data[EVENTS_HEAD.size :]


def lines(found: dict[int, Any]) -> Iterator[bytes]:
    """The chunks that map line numbers to lines."""
    return (chunk(LINES, json.dumps(dict(batch)).encode()) for batch in _batches(found.items()))


def frameworks(found: dict[int, str]) -> Iterator[bytes]:
    """The chunks that map line numbers to the names of frameworks."""
    return (chunk(FRAMEWORKS, json.dumps(dict(batch)).encode()) for batch in _batches(found.items()))


def steps(found: Iterable[tuple[int, str]]) -> Iterator[bytes]:
    """The chunks that list where steps begin."""
    return (chunk(STEPS, json.dumps(batch).encode()) for batch in _batches(found))


def _batches(items: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    batch: list[tuple[int, Any]] = []
    size = 0
    for item in items:
        size += len(json.dumps(item))
        if batch and size > MOST // 2:
            yield batch
            batch, size = [], len(json.dumps(item))
        batch.append(item)
    if batch:
        yield batch


def read_header(file: BinaryIO, name: str) -> dict[str, Any]:
    start = file.read(len(MAGIC) + 8)
    if start[: len(MAGIC)] != MAGIC:
        problem = (
            "it is empty"
            if not start
            else "it is neither an arena recording, arena-trace 1 text, an RMM log nor a PyTorch snapshot"
        )
        raise TraceError(f"{name} is not a trace: {problem}")
    if len(start) < len(MAGIC) + 8:
        raise TraceError(f"{name} ends within its header")
    version, length = struct.unpack("<II", start[len(MAGIC) :])
    if version != VERSION:
        raise TraceError(f"{name} has version {version}; this arena reads version {VERSION}")
    text = file.read(min(length, MOST))
    try:
        facts = json.loads(text) if len(text) == length else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or not isinstance(facts.get("device", {}), dict):
        raise TraceError(f"{name} has no complete header")
    return facts


def read_chunks(file: BinaryIO) -> Iterator[Chunk | str]:
    """Yield the chunks and, if the file does not end with a complete one, a text that says what is wrong."""
    unpacked, texts = Unpacked(), Unpacked(FREE_TEXT)
    while True:
        place = file.tell()
        head = file.read(HEAD.size)
        if not head:
            return
        if len(head) < HEAD.size:
            yield f"byte {place}: the file ends within the head of a chunk"
            return
        tag, length, checksum = HEAD.unpack(head)
        if length > MOST:
            yield f"byte {place}: a chunk of {length} bytes, but the limit is {MOST}"
            return
        packed = file.read(length)
        if len(packed) < length:
            yield f"byte {place}: the file ends within a chunk"
            return
        if zlib.crc32(packed) != checksum:
            yield f"byte {place}: a corrupt chunk: its checksum does not match"
            return
        data = unpack(packed)
        if data is None:
            yield f"byte {place}: a chunk that cannot be decompressed"
            return
        if problem := unpacked.add(len(data), file.tell()) or (
            texts.add(len(data), file.tell()) if tag != EVENTS else ""
        ):
            yield f"byte {place}: {problem}"
            return
        yield Chunk(tag, data)


def unpack(packed: bytes) -> bytes | None:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MOST)
    except zlib.error:
        return None
    return data if unpacker.eof and not unpacker.unconsumed_tail else None

"""Plays a trace with real queued work: each block is filled on its stream, and read there before it is freed.

A replay in the core queues no work, so the race checker would have nothing to check.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import arena
from arena import sim

from ..simulated.cu import Cu
from .model import Held
from .queued_work import Queue, no_races

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"
SEEN = 4096  # bytes at each end of a block that are filled and read: enough for the checker, and it saves memory
# "a", block, bytes, stream; "f", block; "u", block, 0, stream: another stream uses it too.
Event = tuple[str, int, int, int]


@functools.cache
def lines_of(name: str) -> list[str]:
    with gzip.open(TRACES / f"{name}.csv.gz", "rt") as file:
        return [line.rstrip("\n") for line in file if line[0] in "af"]


def from_trace(name: str, begin: int = 0, events: int | None = None) -> Iterator[Event]:
    """The events of a trace or a part of it, without those of blocks that existed before."""
    known: set[int] = set()
    for line in itertools.islice(lines_of(name), begin, None if events is None else begin + events):
        kind, block, *rest = line.split(",")
        if kind == "a":
            known.add(int(block))
            yield "a", int(block), int(rest[0]), int(rest[1])
        elif int(block) in known:
            yield "f", int(block), 0, 0


def generated(seed: int, events: int, streams: int = 8) -> Iterator[Event]:
    """A program on eight streams whose blocks move between them: some have several users, and they are freed in any
    order."""
    chance, live, next_block = random.Random(seed), [], 0
    for _ in range(events):
        what = chance.random()
        if what < 0.48 or not live:
            live.append(next_block)
            yield "a", next_block, int(2 ** chance.uniform(4, 23)), chance.randrange(streams)
            next_block += 1
        elif what < 0.6:
            yield "u", chance.choice(live), 0, chance.randrange(streams)
        else:
            yield "f", live.pop(chance.randrange(len(live))), 0, 0
        if len(live) > 64:
            yield "f", live.pop(chance.randrange(len(live))), 0, 0


def in_turns(events: Iterable[Event], streams: int = 4, turn: int = 25) -> Iterator[Event]:
    """The same program with requests from several streams in turn. Most traces have one or two."""
    requests = 0
    for kind, block, size, _ in events:
        requests += kind == "a"
        yield kind, block, size, requests // turn % streams


def play(
    pool: arena.Arena, cu: Cu, events: Iterable[Event], *, forget_record: bool = False, owned: bool = False
) -> int:
    """Play events, and return how many blocks were checked. With `forget_record`, record_stream() is skipped.

    The arena gets streams as plain numbers, or as objects that own them.
    """
    queue = Queue(cu)
    try:
        looked_at = play_on(queue, pool, events, forget_record, owned)
        queue.check()
    finally:
        queue.close()
    return looked_at


def play_on(queue: Queue, pool: arena.Arena, events: Iterable[Event], forget_record: bool, owned: bool) -> int:
    owners = [queue.cu.owned_stream() for _ in range(8)] if owned else []
    streams = [owner.ptr for owner in owners] or [queue.cu.stream() for _ in range(8)]
    named = owners or streams
    held: dict[int, tuple[Held, arena.Buffer]] = {}
    looked_at = 0
    for kind, number, size, stream in events:
        if kind == "a":
            buffer = pool.allocate(size, named[stream])
            block = Held(buffer.ptr, size, streams[stream], number % 251 + 1)
            held[number] = block, buffer
            for begin, end in ends(size):
                queue.fill(block.ptr + begin, end - begin, block.value, streams[stream])
        elif kind == "u":
            block, buffer = held[number]
            if not forget_record:
                buffer.record_stream(named[stream])
            queue.share(block, streams[stream])
            block.users.add(streams[stream])
        else:
            looked_at += 1
            free(queue, *held.pop(number))
    for block, buffer in held.values():
        free(queue, block, buffer)
    return looked_at


def ends(size: int) -> list[tuple[int, int]]:
    return [(0, size)] if size <= 2 * SEEN else [(0, SEEN), (size - SEEN, size)]


def free(queue: Queue, block: Held, buffer: arena.Buffer) -> None:
    if queue.used + 2 * SEEN * (1 + len(block.users)) > queue.room:
        queue.check()
        no_races()
    assert block.stream is not None
    for stream in (block.stream, *sorted(block.users)):
        for begin, end in ends(block.nbytes):
            queue.read(block.ptr + begin, end - begin, block.value, stream)
    buffer.free()


def races_of(pool: arena.Arena, cu: Cu, events: Iterable[Event]) -> list[sim.Race]:
    """What the checker reports for a program that frees what others use without saying so."""
    with contextlib.suppress(AssertionError):  # wrong bytes are to be expected
        play(pool, cu, events, forget_record=True)
    found = sim.races()
    sim.clear_races()
    return found

"""Programs on several streams, with queued work and random delays, under the race checker: it finds nothing.

What a block's stream has to wait for depends on what is known to be done when the block is allocated, so each of the 20
seeds is a different program to the arena. The cap is the smallest of some that works: only there does memory move
between streams before it is known to be done, since new memory is preferred to waiting.

Each seed plays another part of the traces; with ``ARENA_RACES=whole`` (``make races``) each plays all of them.
"""

from __future__ import annotations

import itertools
import os

import pytest

from arena import OutOfMemoryError, sim

from ..arena.conftest import MIB, MakeArena
from ..arena.conftest import cu as cu
from ..arena.conftest import make as make
from ..simulated.cu import Cu
from .queued_work import no_races
from .replayer import Event, from_trace, generated, in_turns, play, races_of

SEEDS = range(1, 21)
DELAY = 60  # microseconds at most
ROOMS = [1.1, 1.2, 1.4, 1.6, 2.0, 3.0]  # times the peak
WHOLE = os.environ.get("ARENA_RACES") == "whole"


def events_of(name: str, seed: int) -> list[Event]:
    if name == "eight":
        return list(generated(seed, 1200))
    part = from_trace(name) if WHOLE else from_trace(name, 4000 + 12_000 * (seed % 20), 2000)
    return list(in_turns(part))


def peak(events: list[Event]) -> int:
    size, live, most = {}, 0, 0
    for kind, block, nbytes, _ in events:
        size.setdefault(block, nbytes)
        live += size[block] if kind == "a" else -size[block] if kind == "f" else 0
        most = max(most, live)
    return most


@pytest.mark.slow
@pytest.mark.timeout(0 if WHOLE else 300)
@pytest.mark.parametrize("streams", ["numbers", "objects"])
@pytest.mark.parametrize("kind", ["stitched", "plain"])
@pytest.mark.parametrize("name", ["generate", "server", "eight"])
def test_nothing_is_reused_before_its_last_user_is_done(
    name: str, kind: str, streams: str, make: MakeArena, cu: Cu
) -> None:
    looked_at = waits = 0
    for seed in itertools.islice(SEEDS, None if kind == "stitched" else 5):
        events = events_of(name, seed)
        for room in ROOMS:
            cap = int(room * peak(events)) + 4 * MIB
            pool = make(cap=cap, growth="8MiB", compact=True, vmm=kind == "stitched")
            try:
                with sim.temporarily(delay=DELAY, seed=seed):
                    looked_at += play(pool, cu, events, owned=streams == "objects")
                break
            except OutOfMemoryError:
                assert room < ROOMS[-1]
            finally:
                no_races()
                waits += pool.stats().waits
                pool.validate()
                assert pool.stats().live == 0
                pool.close()
    assert looked_at > 1000
    assert waits > 0, "no memory went from one stream to another: the test would show nothing"


def test_a_program_that_frees_what_another_stream_uses_is_reported(make: MakeArena, cu: Cu) -> None:
    """The same program without record_stream: the checker must report what it found clean above."""
    found = []
    for seed in itertools.islice(SEEDS, 3):
        pool = make(cap="256MiB", growth="8MiB")
        with sim.temporarily(delay=DELAY, seed=seed):
            found += races_of(pool, cu, generated(seed, 1200))
    assert found


def test_an_arena_that_does_not_wait_is_reported(make: MakeArena, cu: Cu, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena that takes every stream for the default stream never makes one wait for another."""
    pool = make(cap="256MiB", growth="8MiB")
    real = pool.allocate
    monkeypatch.setattr(pool, "allocate", lambda size, stream: real(size, 0))
    with sim.temporarily(delay=DELAY, seed=1):
        assert races_of(pool, cu, [event for event in generated(1, 1200) if event[0] != "u"])

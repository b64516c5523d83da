"""The promise: a request fails only if it must. Random programs, in every mode, against a model that tries every place.

Every request passes exactly if there is a place for it. After a failure, and at random moments, `stats().largest` and
the error's `largest` are exactly the largest request that passes. See promise.py.

By default this runs a part of the programs, about 12,000 requests, the same in every run. ``ARENA_PROMISE=all`` (``make
promise``) runs ten times as many, and ``ARENA_PROMISE=12345`` as many from that seed on.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, sim

from ..arena.conftest import MakeArena
from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from ..threads import run_together, thread_in_native_code
from .promise import ALIGNMENT, KIB, MIB, Live, Mode, Program

CHOSEN = os.environ.get("ARENA_PROMISE", "")
PROGRAMS = 400 if CHOSEN else 40
FIRST = int(CHOSEN) if CHOSEN.isdigit() else 0
STEPS = 80  # of one program

MODES = [
    Mode("moving allowed", moving=True, compact=True),
    Mode("moving forbidden", compact=False),
    Mode("alone", moving=True),
    Mode("with a second thread", second_thread=True),
    Mode("plain", kind="plain"),
    Mode("upstream", kind="upstream"),
]


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    driver = arena.Driver.open("sim")
    monkeypatch.setattr(arena._core, "default_driver", lambda: driver)
    yield
    gc.collect()
    fresh()


def second_thread(wanted: bool) -> AbstractContextManager[None]:
    return thread_in_native_code() if wanted else nullcontext()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_request_fails_only_if_it_must(mode: Mode) -> None:
    requests = refused = 0
    with second_thread(mode.second_thread):
        for seed in range(FIRST, FIRST + PROGRAMS):
            program = Program(mode, seed)
            try:
                program.run(STEPS)
            except AssertionError as error:
                raise AssertionError(f"in the program with ARENA_PROMISE={seed}: {error}") from error
            program.end()
            requests += program.requests
            refused += program.refused
    assert requests > 40 * PROGRAMS
    assert refused > 4 * PROGRAMS


def ask_at_random(program: Program, chance: random.Random, kept: list[Live]) -> None:
    """The work of one of several threads. Its failed requests may have lost to the others."""
    program.cu.ok("cuCtxSetCurrent", program.context)
    mine: list[Live] = []
    for _ in range(60):
        if mine and chance.random() < 0.4:
            mine.pop(chance.randrange(len(mine))).buffer.free()
            continue
        stream = chance.choice(program.streams)
        with suppress(OutOfMemoryError):
            buffer = program.pool.allocate(chance.randrange(1, 4 * program.granule), stream)
            mine.append(Live(buffer, stream))
            program.cu.ok("cuMemsetD8Async", buffer.ptr, 1, 512, stream)
    kept += mine


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", [MODES[1], MODES[2], *MODES[4:]], ids=lambda mode: mode.name)
def test_threads_stay_within_the_cap_and_the_promise_holds_when_they_are_done(mode: Mode) -> None:
    for seed in range(FIRST, FIRST + PROGRAMS // 4):
        program = Program(mode, seed)
        chances = [random.Random(f"{seed} {i}") for i in range(3)]
        run_together(*[partial(ask_at_random, program, chance, program.blocks) for chance in chances])
        assert sim.peak() <= program.cap
        program.check_largest()
        program.run(10)
        program.end()


class TooSmall(Program):
    """An arena that refuses what it should give."""

    says = "refused, but there is a place|more than .* fit"

    def make(self, **settings: Any) -> arena.Arena:
        return super().make(**{**settings, "cap": settings["cap"] - self.granule})


class TooLarge(Program):
    """An arena that takes more than it may."""

    says = "granted, but there is no place|do not fit"

    def make(self, **settings: Any) -> arena.Arena:
        return super().make(**{**settings, "cap": settings["cap"] + self.granule})


class Unable(Program):
    """An arena that does not move data, although it may."""

    says = "refused, but there is a place|more than .* fit"

    def make(self, **settings: Any) -> arena.Arena:
        return super().make(**{**settings, "compact": False})


@pytest.mark.parametrize("kind", [TooSmall, TooLarge, Unable], ids=lambda kind: kind.__name__)
def test_the_model_notices_an_arena_that_breaks_the_promise(kind: Any) -> None:
    def run_some() -> None:
        for seed in range(40):
            program = kind(MODES[0], seed)
            try:
                program.run(STEPS)
            finally:
                program.abandon()

    with pytest.raises(AssertionError, match=kind.says):
        run_some()


# Regression tests, reduced as far as possible.


def test_a_place_beside_live_blocks_is_used_where_data_may_not_be_moved(make: MakeArena) -> None:
    """Only the place with the fewest untouched granules used to be tried, for which there was no memory."""
    pool = make(cap=32 * MIB, reserve=32 * MIB, growth=4 * MIB, compact=False)
    blocks = [pool.allocate(n * MIB) for n in (4, 2, 4, 6, 6)]
    blocks.pop(0).free()
    blocks += [pool.allocate(n * MIB) for n in (5, 7)]
    assert pool.stats().largest == 2 * MIB
    blocks.append(pool.allocate(2 * MIB))
    assert pool.stats().largest == 0


def test_what_passes_depends_on_whether_other_threads_run(make: MakeArena) -> None:
    pool = make(cap=32 * MIB, growth=32 * MIB)
    pool.reserve(32 * MIB)
    kept = pool.allocate(2 * MIB), pool.allocate(14 * MIB), pool.allocate(2 * MIB)
    kept[1].free()  # 14 MiB below the last block, and as much above it
    assert pool.stats().largest == 28 * MIB
    with second_thread(True):
        assert pool.stats().largest == pool.snapshot().stats["largest"] == 14 * MIB
        with pytest.raises(OutOfMemoryError) as refused:
            pool.allocate(14 * MIB + 1)
        assert refused.value.largest == 14 * MIB
        pool.allocate(14 * MIB).free()
    assert pool.stats().largest == 28 * MIB
    pool.allocate(28 * MIB).free()


def test_segments_in_use_when_the_cap_was_lowered_go_back_for_a_request(make: MakeArena, cu: Cu) -> None:
    """Only as much used to go back as the request needs, and what was beyond the cap stayed in its way."""
    pool = make(cap=64 * MIB, growth=8 * MIB, vmm=False)
    stream = cu.stream()
    blocks = [pool.allocate(8 * MIB, stream) for _ in range(8)]
    sim.configure(delay=200_000)
    for block in blocks:
        cu.ok("cuMemsetD8Async", block.ptr, 1, 64 * KIB, stream)
        block.free()
    pool.set_cap(16 * MIB)
    assert pool.stats().reserved == 64 * MIB  # a stream is using all of it
    assert pool.stats().largest == 16 * MIB
    pool.allocate(16 * MIB).free()
    assert pool.stats().reserved <= 16 * MIB
    assert pool.stats().largest >= ALIGNMENT


@contextmanager
def capture(cu: Cu, stream: int) -> Iterator[None]:
    cu.ok("cuStreamBeginCapture", stream, 2)
    yield
    graph = ctypes.c_uint64()
    assert cu.cuStreamEndCapture(stream, ctypes.byref(graph)) == "CUDA_SUCCESS"
    cu.ok("cuGraphDestroy", graph.value)


def test_captures_do_not_use_up_the_addresses(make: MakeArena, cu: Cu) -> None:
    """A capture gets memory at addresses that never had any. They used to run out."""
    fresh(memory=64 * MIB)
    cu.start()
    pool, stream = make(cap=32 * MIB, growth=2 * MIB), cu.stream()
    pool.allocate(512, stream).free()  # so that the arena knows the stream
    for _ in range(40):
        pool.trim()
        with capture(cu, stream):
            buffer = pool.allocate(30 * MIB, stream)
        buffer.free()
        pool.release_graphs()


def test_the_largest_request_in_a_capture_passes_on_a_shared_device(make: MakeArena, cu: Cu) -> None:
    """Memory freed by another stream, which a capture cannot use, used to be counted."""
    fresh(memory=64 * MIB)
    cu.start()
    pool, stream, other = make(cap=64 * MIB, growth=2 * MIB), cu.stream(), cu.stream()
    pool.allocate(512, stream).free()
    foreign = pool.allocate(20 * MIB, other)
    cu.ok("cuMemsetD8Async", foreign.ptr, 1, 512, other)
    foreign.free()
    sim.configure(other=64 * MIB - sim.used() - 6 * MIB)
    with capture(cu, stream):
        with pytest.raises(OutOfMemoryError) as refused:
            pool.allocate(16 * MIB, stream)
        assert refused.value.largest == 6 * MIB
        pool.allocate(6 * MIB, stream).free()


@pytest.mark.timeout(20)
def test_a_small_reserve_that_does_not_fit_beside_a_pinned_block_is_refused(make: MakeArena) -> None:
    """It used to look for the reason forever."""
    pool = make(cap=32 * MIB, growth=32 * MIB)
    block = pool.allocate(1)
    pool.pin(block)
    pool.set_cap(0)
    with pytest.raises(OutOfMemoryError):
        pool.reserve(100)
    pool.unpin(block)

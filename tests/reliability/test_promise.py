"""The promise: a request fails only if it must. Random programs, in every mode, against a model that tries every place.

For every request: it passes exactly when there is a place for it. After a refusal, and at random moments: what
`stats().largest` and the error's `largest` say is exactly the largest request that passes. See promise.py.

A part of the programs by default, the same ones in every run. With ``ARENA_PROMISE=all`` ten times as many, over 100,000
requests; with ``ARENA_PROMISE=12345`` those from that seed on.
"""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import arena
from arena import OutOfMemoryError, sim

from ..arena.conftest import MakeArena
from ..simulated.conftest import fresh
from .promise import ALIGNMENT, KIB, MIB, Live, Mode, Program, View

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


@contextmanager
def second_thread(wanted: bool) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True)] if wanted else []
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


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

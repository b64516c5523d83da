"""For test programs: an arena in which only moving live data makes room, and a check whether it was moved."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import arena
from arena import OutOfMemoryError, sim

from ..simulated.cu import Cu

MIB = 1 << 20
GRANULE = 2 * MIB
LARGE = 56 * MIB


class Stranded:
    """Eight granules at the start of the arena; every other one is live and filled."""

    def __init__(self) -> None:
        sim.configure(races=True)
        self.cu = Cu()
        self.cu.start()
        self.pool = arena.Arena(cap="64MiB", growth="16MiB")
        self.live: list[arena.Buffer] = []
        self.strand()

    def strand(self) -> None:
        """Start over with large handles: moving leaves data in small ones."""
        self.live.clear()
        self.pool.trim()
        self.live = [self.pool.allocate(GRANULE) for _ in range(8)][::2]
        for value, block in enumerate(self.live, 1):
            self.cu.ok("cuMemsetD8", block.ptr, value, block.nbytes)
        self.cu.ok("cuCtxSynchronize_v2", 0)

    def ask(self) -> str:
        """Request what fits only if live data is moved. Return "moved", or the verdict of the error."""
        before = self.pool.stats().rebacked
        try:
            self.pool.allocate(LARGE).free()
            outcome = "moved" if self.pool.stats().rebacked > before else "there was room"
        except OutOfMemoryError as error:
            outcome = error.verdict
            assert self.pool.stats().rebacked == before
        return outcome

    def attempt(self) -> str:
        """Make the request, then check that the data is intact and the driver found nothing."""
        outcome = self.ask()
        self.check_data()
        assert sim.races() == []
        assert sim.findings() == []
        return outcome

    def check_data(self) -> None:
        for value, block in enumerate(self.live, 1):
            assert self.cu.read(block.ptr, block.nbytes) == bytes([value]) * block.nbytes


def start(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start a daemon thread, and give it time to reach the place where it stays."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    time.sleep(0.1)
    return thread


def end(outcome: str) -> None:
    """Print the outcome and end the process, whatever its threads do."""
    print(outcome, flush=True)
    sys.stderr.flush()
    os._exit(0)

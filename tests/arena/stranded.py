"""For programs of their own: an arena in which only moving live data makes room, and whether it is moved."""

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
    """Eight granules at the cap's beginning, every other one live and filled."""

    def __init__(self) -> None:
        sim.configure(races=True)
        self.cu = Cu()
        self.cu.start()
        self.pool = arena.Arena(cap="64MiB", growth="16MiB")
        self.live: list[arena.Buffer] = []
        self.strand()

    def strand(self) -> None:
        """Begin again, with large handles: what was moved lies in small ones."""
        self.live.clear()
        self.pool.trim()
        self.live = [self.pool.allocate(GRANULE) for _ in range(8)][::2]
        for value, block in enumerate(self.live, 1):
            self.cu.ok("cuMemsetD8", block.ptr, value, block.nbytes)
        self.cu.ok("cuCtxSynchronize_v2", 0)

    def ask(self) -> str:
        """Ask for what only fits if live data is moved; say whether it was, or why not."""
        before = self.pool.stats().rebacked
        try:
            self.pool.allocate(LARGE).free()
            outcome = "moved" if self.pool.stats().rebacked > before else "there was room"
        except OutOfMemoryError as error:
            outcome = error.verdict
            assert self.pool.stats().rebacked == before
        return outcome

    def attempt(self) -> str:
        """Ask, and look whether the data is whole and the driver found nothing."""
        outcome = self.ask()
        self.check_data()
        assert sim.races() == []
        assert sim.findings() == []
        return outcome

    def check_data(self) -> None:
        for value, block in enumerate(self.live, 1):
            assert self.cu.read(block.ptr, block.nbytes) == bytes([value]) * block.nbytes


def start(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start a thread that ends with the process, and give it time to come to where it stays."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    time.sleep(0.1)
    return thread


def end(outcome: str) -> None:
    """Say it, and end the process, whatever its threads do."""
    print(outcome, flush=True)
    sys.stderr.flush()
    os._exit(0)

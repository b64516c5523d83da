"""The work of one of several threads that run at the same time."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import arena
from arena import OutOfMemoryError

from ..simulated.cu import PER_THREAD
from .model import Held

if TYPE_CHECKING:
    from .random_programs import Steps


class ThreadWorkload:
    """A thread that allocates, fills, passes on and frees blocks, its own and others', and inspects and trims."""

    def __init__(
        self, steps: Steps, plan: list[int], chance: random.Random, shared: list[tuple[Held, arena.Buffer]], fits: bool
    ) -> None:
        self.pool, self.queue, self.streams = steps.pool, steps.queue, [*steps.streams, PER_THREAD]
        self.plan, self.chance, self.shared, self.fits = plan, chance, shared, fits
        self.next_value = steps.next_value

    def run(self) -> None:
        self.queue.enter_thread()
        mine: list[tuple[Held, arena.Buffer]] = []
        for size in self.plan:
            stream = self.chance.choice(self.streams)
            try:
                buffer = self.pool.allocate(size, stream)
            except OutOfMemoryError:
                if self.fits:
                    raise
            else:
                block = Held(buffer.ptr, size, stream, self.next_value())
                self.queue.fill(block.ptr, size, block.value, stream)
                # In another thread this number is another stream, so such a block is not passed on.
                (mine if stream == PER_THREAD or self.chance.random() < 0.5 else self.shared).append((block, buffer))
            self.do_something_else(mine)
        while mine:
            self.free_block(*mine.pop())

    def do_something_else(self, mine: list[tuple[Held, arena.Buffer]]) -> None:
        what = self.chance.random()
        if what < 0.3 and mine:
            self.free_block(*mine.pop(self.chance.randrange(len(mine))))
        elif what < 0.5:
            with contextlib.suppress(IndexError):
                self.free_block(*self.shared.pop())
        elif what < 0.6:
            self.pool.trim()
        elif what < 0.65:
            self.pool.snapshot()
        elif what < 0.75:
            self.pool.stats()

    def free_block(self, block: Held, buffer: arena.Buffer) -> None:
        assert block.stream is not None
        self.queue.read(block.ptr, block.nbytes, block.value, block.stream)
        buffer.free()

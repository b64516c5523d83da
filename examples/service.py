"""A service with a safe point: threads answer requests, and between two bursts of them live data is moved.

The cache of each session was allocated between large temporaries, and now strands the memory around it. While another
thread is busy, the arena moves nothing on its own: that thread may launch work. Between bursts nothing does, and the
service calls safe_point(). Without that line the long prompt at the end is out of memory.

python examples/service.py
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import arena

MIB = 1 << 20
SESSIONS, BURSTS = 12, 10
LONG = 160 * MIB


class Service:
    def __init__(self, pool: arena.Arena) -> None:
        self.pool = pool
        self.caches: list[arena.Buffer] = []

    def begin(self, sessions: int) -> None:
        """Read the prompts of new sessions, all at once."""
        with ExitStack() as temporaries:
            for _ in range(sessions):
                temporaries.enter_context(self.pool.allocate(16 * MIB))
                self.caches.append(self.pool.allocate(2 * MIB))

    def read(self) -> None:
        """Read a prompt, which takes a while and no device memory."""
        zlib.compress(os.urandom(8 * MIB))

    def answer(self, size: int) -> int:
        """Answer a request, in any thread."""
        with self.pool.allocate(size) as temporary:
            return temporary.nbytes  # launch kernels here, and wait for the answer


def main() -> None:
    pool = arena.Arena(cap="256MiB", growth="32MiB", device="sim:1GiB")
    service = Service(pool)
    service.begin(SESSIONS)
    freed = 0
    with ThreadPoolExecutor(max_workers=2) as workers:
        for _ in range(BURSTS):
            list(workers.map(service.answer, [8 * MIB] * SESSIONS))  # until all are answered
            freed += pool.safe_point(budget="20ms")  # no work is launched now
        print(f"{BURSTS} bursts; moving live data set {freed // MIB} MiB free")
        workers.submit(service.read)  # on the other thread
        size = workers.submit(service.answer, LONG).result()
    print(f"a long prompt got {size // MIB} MiB in one piece")


if __name__ == "__main__":
    main()

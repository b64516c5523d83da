"""CuPy's programs for benchmarks/peers.py. Sizes and orders come from one seed."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable

import cupy

import arena

SEED = 1
VERSION = f"CuPy {cupy.__version__}"
ALLOCATORS = {"arena": "arena", "CuPy": "CuPy's pool"}

__all__ = ["ALLOCATORS", "PROGRAMS", "SEED", "VERSION", "begin", "is_out_of_memory", "reserved"]


def begin(allocator: str) -> None:
    if allocator == "arena":
        cupy.cuda.set_allocator(arena.malloc)
    cupy.cuda.Device().use()


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError)


def reserved() -> int:
    """What CuPy's pool took at most: with memory for all, it gives nothing back."""
    return int(cupy.get_default_memory_pool().total_bytes())


def heat(n: int, chance: random.Random) -> cupy.ndarray:
    x = cupy.zeros((n, n), dtype=cupy.float32)
    for _ in range(chance.randrange(3, 12)):
        x = x + 0.1 * (cupy.roll(x, 1, 0) + cupy.roll(x, -1, 0) + cupy.roll(x, 1, 1) + cupy.roll(x, -1, 1) - 4 * x)
    return x


def spectrum(n: int, chance: random.Random) -> cupy.ndarray:
    return cupy.abs(cupy.fft.rfft2(cupy.zeros((n, chance.randrange(n // 2, n)), dtype=cupy.float32)))


def decompose(n: int, chance: random.Random) -> cupy.ndarray:
    q, r = cupy.linalg.qr(cupy.zeros((n, n // 4), dtype=cupy.float32))
    return q @ r


def nearest(n: int, chance: random.Random) -> cupy.ndarray:
    points = cupy.zeros((16 * n, 8), dtype=cupy.float32)
    centers = cupy.zeros((chance.randrange(8, 64), 8), dtype=cupy.float32)
    distances = ((points[:, None] - centers[None]) ** 2).sum(axis=2)
    return distances.argmin(axis=1)


def science() -> None:
    """Array jobs of many sizes, each with its own temporaries. A few results are kept for a while."""
    chance = random.Random(SEED)
    kept: collections.deque[cupy.ndarray] = collections.deque()
    for _ in range(60):
        job = chance.choice((heat, spectrum, decompose, nearest))
        kept.append(job(chance.randrange(256, 3000), chance))
        while len(kept) > 10:
            del kept[chance.randrange(5)]


def pipeline() -> None:
    """Chunks of columns are filtered, joined, sorted and grouped; partial results stay until they are merged."""
    chance = random.Random(SEED)
    partial: list[cupy.ndarray] = []
    for _ in range(30):
        rows = chance.randrange(200_000, 2_000_000)
        columns = [cupy.zeros(rows, dtype=chance.choice((cupy.float32, cupy.float64, cupy.int64))) for _ in range(6)]
        kept = columns[0][: chance.randrange(rows // 10, rows)]
        order = cupy.argsort(kept)
        chosen = [column[: len(kept)][order] for column in columns]
        groups = cupy.zeros(chance.randrange(1000, 100_000))
        partial.append(cupy.concatenate([chosen[0].astype(cupy.float64), groups]))
        if len(partial) == 8:
            partial = [cupy.concatenate(partial)[: chance.randrange(100_000, 1_000_000)].copy()]


def serve() -> None:
    """Requests of random sizes on two streams, and a cache of results from which any may be evicted."""
    chance = random.Random(SEED)
    streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)]
    results: list[cupy.ndarray] = []
    for _ in range(300):
        with chance.choice(streams):
            n = int(2 ** chance.uniform(8, 12))
            x = cupy.zeros((n, chance.randrange(64, 2048)), dtype=cupy.float32)
            results.append((x @ x.T if chance.random() < 0.5 else cupy.sqrt(x * x + 1)) * 2)
        while len(results) > 25:
            del results[chance.randrange(len(results))]
    for stream in streams:
        stream.synchronize()


PROGRAMS: dict[str, Callable[[], None]] = {"science": science, "pipeline": pipeline, "cupy-server": serve}

"""Test code that a GPU would run, without one: make the driver fail, and see that nothing is lost.

pytest examples/fault_injection.py      or as a program
"""

from __future__ import annotations

import arena
from arena import sim

MIB = 1 << 20


def load_shards(pool: arena.Arena, sizes: list[int]) -> list[arena.Buffer]:
    """The code under test: loads all shards, or none of them."""
    shards: list[arena.Buffer] = []
    try:
        for size in sizes:
            shards.append(pool.allocate(size))
    except arena.OutOfMemoryError:
        for shard in shards:
            shard.free()
        raise
    return shards


def test_a_failed_load_leaves_nothing_behind() -> None:
    pool = arena.Arena(device="sim:1GiB", growth="64MiB")
    sim.fail("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", nth=3, times=1000)  # from the third piece on
    try:
        load_shards(pool, [60 * MIB] * 4)
    except arena.OutOfMemoryError as error:
        print(f"the driver refused: {error.verdict}")
    else:
        raise AssertionError("nothing failed")
    finally:
        sim.clear_planned()
    assert pool.stats().live == 0
    assert sim.findings() == []
    assert len(load_shards(pool, [60 * MIB] * 4)) == 4  # it works once there is memory again
    pool.close()


if __name__ == "__main__":
    test_a_failed_load_leaves_nothing_behind()
    print("nothing was left behind, and the second try passed")

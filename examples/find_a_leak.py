"""Find a leak: which lines made the arrays that outlive a step?

python examples/find_a_leak.py
"""

from __future__ import annotations

from typing import Any

import cupy

import arena

history: list[Any] = []


def step(number: int) -> None:
    activations = [cupy.empty(1 << 20, "f4") for _ in range(4)]
    loss = cupy.empty(1024, "f4")
    history.append(loss[:1])  # one number, but a view: it keeps all 4 KiB alive
    if number == 2:
        history.append(activations[0])  # the leak that hurts


arena.trace_lines(True)
pool = arena.Arena(cap="256MiB")
cupy.cuda.set_allocator(pool.malloc)

for number in range(4):
    with pool.scope(f"step {number}") as scope:
        step(number)
    print(f"step {number}: {scope.peak:,} bytes at its peak, {scope.leaked:,} outlived it")

before = pool.snapshot()
step(2)
print("\nalive since the snapshot, by line:")
print(pool.snapshot().since(before))

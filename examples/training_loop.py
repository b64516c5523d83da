"""A training loop with a safe point: the one line that lets the arena move live data in a program with threads.

A thread prepares batches in native code, so the arena moves nothing on its own: it cannot know what that thread does.
Between two steps nothing launches work, and the loop calls safe_point(). Without that line the evaluation runs out of
memory although most of the cap is free: the optimizer's state, made in the first step, is scattered among what were
activations then.

python examples/training_loop.py
"""

from __future__ import annotations

import os
import queue
import threading
import zlib

import arena

MIB = 1 << 20
LAYERS, STEPS = 12, 20


def load(batches: queue.Queue[int | None]) -> None:
    for number in range(STEPS):
        zlib.compress(os.urandom(MIB))  # stands for the preparation of a batch
        batches.put(number)
    batches.put(None)


def step(pool: arena.Arena, state: list[arena.Buffer]) -> None:
    activations = []
    for layer in range(LAYERS):
        activations.append(pool.allocate(16 * MIB))
        if len(state) == layer:  # only in the first step
            state.append(pool.allocate(2 * MIB))
    # Launch the kernels of this batch here. The activations are freed when the step ends.


def evaluate(pool: arena.Arena) -> None:
    with pool.allocate(200 * MIB) as logits:
        print(f"evaluated: {logits.nbytes // MIB} MiB in one piece")


def main() -> None:
    pool = arena.Arena(cap="256MiB", growth="32MiB", device="sim:1GiB")
    batches: queue.Queue[int | None] = queue.Queue()
    loader = threading.Thread(target=load, args=(batches,), daemon=True)
    loader.start()
    state: list[arena.Buffer] = []
    freed = 0
    while (number := batches.get()) is not None:
        step(pool, state)
        freed += pool.safe_point()  # no work is launched now
        if number == STEPS // 2:
            evaluate(pool)
    print(f"{STEPS} steps; moving live data set {freed // MIB} MiB free")
    loader.join()


if __name__ == "__main__":
    main()

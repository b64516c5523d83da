"""The memory of a training run, made with CuPy arrays: weights, activations, an optimizer, a cache of samples.

It does not import arena. Run it with the arena, and see where its memory goes:

arena run --device sim:2GiB --cap 512MiB --report train.html --record train.arena examples/train.py

Only the memory is real: a short sleep stands for the kernels, so that it runs without a GPU.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import cupy

KIB = 1024 // 4  # float32
Array = Any


class Model:
    def __init__(self, layers: int, width: int) -> None:
        self.width = width
        self.weights = [cupy.empty(width * 8 * KIB, "f4") for _ in range(layers)]
        self.moments: list[Array] = []

    def forward(self, batch: Array) -> list[Array]:
        return [cupy.empty(len(batch) // KIB * 24 * KIB, "f4") for _ in self.weights]

    def backward(self, activations: list[Array]) -> list[Array]:
        gradients = []
        for weight in reversed(self.weights):
            activations.pop()
            gradients.append(cupy.empty(weight.size, "f4"))
        return gradients

    def step(self, gradients: list[Array]) -> None:
        for gradient in gradients[len(self.moments) :]:
            self.moments.append(cupy.empty(gradient.size, "f4"))


def load(choose: random.Random, batch: int) -> Array:
    return cupy.empty(batch * choose.randint(6, 16) * KIB, "f4")


def remember(choose: random.Random) -> Array:
    return cupy.empty(choose.randint(16, 900) * KIB, "f4")


def evaluate(model: Model, batch: int) -> None:
    logits = [cupy.empty(batch * 640 * KIB, "f4") for _ in range(2)]
    del logits, model


def train(largest: int) -> None:
    choose, samples = random.Random(1), []
    model = Model(layers=12, width=768)
    for batch in (largest // 4, largest // 2, largest * 3 // 4, largest):  # a warm-up
        for _ in range(24):
            inputs = load(choose, batch)
            activations = model.forward(inputs)
            if choose.random() < 0.4:
                samples.append(remember(choose))  # the cache grows, among the activations
            time.sleep(0.002)  # the kernels
            model.step(model.backward(activations))
        evaluate(model, batch)
        del samples[::3]


if __name__ == "__main__":
    train(largest=int(sys.argv[1]) if len(sys.argv) > 1 else 64)

"""PyTorch's programs for benchmarks/peers.py. Sizes and orders come from one seed."""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.torch.models import GPT, ResNet50, transformer, vgg16

import arena.torch

SEED = 1
VERSION = f"PyTorch {torch.__version__}"
ALLOCATORS = {"arena": "arena", "PyTorch": "PyTorch's own", "expandable": "PyTorch's, expandable segments"}

__all__ = ["ALLOCATORS", "PROGRAMS", "SEED", "VERSION", "begin", "is_out_of_memory", "reserved"]


def begin(allocator: str) -> None:
    if allocator == "arena":
        arena.torch.use()
    elif allocator == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch.cuda.init()


def is_out_of_memory(error: Exception) -> bool:
    """A convolution for which memory is short says that it found no engine."""
    return isinstance(error, torch.OutOfMemoryError) or "unable to find an engine" in str(error)


def reserved() -> int:
    return torch.cuda.max_memory_reserved()


def on_device(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("cuda"):
        return make()


def train_on(model: nn.Module, batches: list[tuple[int, ...]], evaluated: tuple[int, ...] | None = None) -> None:
    """A step of AdamW for each shape, and an evaluation in the middle."""
    optimizer = torch.optim.AdamW(model.parameters())
    for number, shape in enumerate(batches):
        model(torch.randn(*shape, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if evaluated is not None and number == len(batches) // 2:
            model.eval()
            with torch.no_grad():
                model(torch.randn(*evaluated, device="cuda"))
            model.train()


def train_transformer() -> None:
    """Lengths differ from batch to batch, as sentences do."""
    chance = random.Random(SEED)
    lengths = [chance.randrange(64, 513, 8) for _ in range(10)]
    train_on(on_device(lambda: transformer(512, 8, 8)), [(8, length, 512) for length in lengths])


def train_vgg() -> None:
    train_on(on_device(vgg16), [(size, 3, 224, 224) for size in (16, 24, 8, 24, 16)], (48, 3, 224, 224))


def train_resnet() -> None:
    sides = (224, 160, 192, 224, 176)  # progressive resizing
    train_on(on_device(ResNet50), [(32, 3, side, side) for side in sides], (64, 3, 224, 224))


@torch.no_grad()
def generate() -> None:
    """Requests of random lengths, eight in flight, with caches of keys and values that grow by concatenation."""
    chance = random.Random(SEED)
    model, layers = on_device(lambda: GPT(words=8192, width=512, layers=6, heads=8)), 6
    waiting = [(chance.randrange(8, 400), chance.randrange(4, 60)) for _ in range(24)]
    running: list[tuple[Tensor, list[Tensor | None], int]] = []
    while waiting or running:
        if waiting and len(running) < 8:
            prompt, left = waiting.pop()
            logits, caches = model(torch.zeros(4, prompt, dtype=torch.long, device="cuda"), [None] * layers)
            running.append((logits[:, -1:].argmax(-1), caches, left))
            continue
        number = chance.randrange(len(running))
        token, caches, left = running[number]
        logits, caches = model(token, caches)
        running[number] = (logits[:, -1:].argmax(-1), caches, left - 1)
        if left <= 1:
            del running[number]


@torch.no_grad()
def serve() -> None:
    """Four kinds of requests on two streams, and a cache of results from which the oldest are evicted."""
    chance = random.Random(SEED)
    images, texts = on_device(ResNet50).eval(), on_device(lambda: transformer(512, 6, 8)).eval()
    writer = on_device(lambda: GPT(words=8192, width=512, layers=6, heads=8))

    def classify() -> Tensor:
        return images(torch.randn(chance.randrange(1, 33), 3, 224, 224, device="cuda"))

    def embed() -> Tensor:
        return texts(torch.randn(chance.randrange(1, 17), chance.randrange(16, 513), 512, device="cuda"))

    def write() -> Tensor:
        logits, caches = writer(torch.zeros(2, chance.randrange(16, 513), dtype=torch.long, device="cuda"), [None] * 6)
        for _ in range(4):
            logits, caches = writer(logits[:, -1:].argmax(-1), caches)
        return logits

    def analyse() -> Tensor:
        x = torch.randn(chance.randrange(200, 3000), chance.randrange(200, 3000), device="cuda")
        return torch.fft.rfft2(x).abs() + (x @ x.T).mean()

    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results: collections.deque[Tensor] = collections.deque()
    for _ in range(60):
        with torch.cuda.stream(chance.choice(streams)):
            results.append(chance.choice((classify, embed, write, analyse))().clone())
        while len(results) > 12:
            del results[chance.randrange(6)]
    torch.cuda.synchronize()


PROGRAMS: dict[str, Callable[[], None]] = {
    "transformer": train_transformer,
    "vgg16": train_vgg,
    "resnet50": train_resnet,
    "generate": generate,
    "server": serve,
}

"""Three models take turns on one card, under a cap of 0.9 of what they need alone: with the arena, and with PyTorch.

python examples/dryrun/three_models.py

This needs PyTorch, and no GPU: it starts dry runs of itself. First each model alone, to see what it needs. Then the
service, with the arena, with PyTorch's own allocator, and with PyTorch's expandable segments. The service is below, and
does not import arena.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MIB = 1 << 20
TURNS, REQUESTS = 9, 40
KEPT = {"chat": 800 * MIB, "vision": 100 * MIB, "search": 50 * MIB}  # results that stay on the card between turns


class Kept:
    """Results of earlier requests: sessions that may go on, pictures that may be shown again."""

    def __init__(self, limit: int) -> None:
        self.limit, self.entries = limit, list[list[Tensor]]()

    def take(self, chance: random.Random) -> list[Tensor]:
        """One of them, that the request is about, or nothing: it is about something new."""
        return self.entries.pop(chance.randrange(len(self.entries))) if self.entries and chance.random() < 0.6 else []

    def add(self, entry: list[Tensor]) -> None:
        self.entries.append(entry)
        while sum(tensor.nbytes for entry in self.entries for tensor in entry) > self.limit:
            del self.entries[0]  # the least recently used


class Block(nn.Module):
    """A layer of a transformer, with a cache of keys and values that grows by concatenation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        new = torch.stack((k, v))
        cache = new if cache is None else torch.cat((cache, new), dim=3)
        mixed = functional.scaled_dot_product_attention(q, cache[0], cache[1])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.after(x)))), cache


class Chat(nn.Module):
    """Answers a message of a session. Keys and values of the session are kept, and grow."""

    def __init__(self, words: int = 16_000, width: int = 1024, layers: int = 8, heads: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def answer(self, chance: random.Random, session: list[Tensor]) -> list[Tensor]:
        caches: list[Any] = session or [None] * len(self.blocks)
        tokens = torch.zeros(1, chance.randrange(16, 700), dtype=torch.long, device="cuda")
        for _ in range(chance.randrange(2, 6)):  # words of the answer
            x = self.words(tokens)
            for number, block in enumerate(self.blocks):
                x, caches[number] = block(x, caches[number])
            tokens = self.head(x[:, -1:]).argmax(-1)
        return caches


class Vision(nn.Module):
    """VGG-16. Features are kept, for pictures that are shown again."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        channels = 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            parts.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(7))
        self.classes = nn.Sequential(
            nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
        )

    def answer(self, chance: random.Random, seen: list[Tensor]) -> list[Tensor]:
        side = chance.choice((128, 160, 224))
        features = seen or [self.features(torch.zeros(chance.randrange(1, 7), 3, side, side, device="cuda"))]
        self.classes(features[0])
        return features


class Search(nn.Module):
    """Turns texts into vectors, which are kept."""

    def __init__(self, words: int = 30_000, width: int = 384, layers: int = 6, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def answer(self, chance: random.Random, known: list[Tensor]) -> list[Tensor]:
        shape = chance.randrange(1, 9), chance.randrange(16, 512)
        x = self.words(torch.zeros(shape, dtype=torch.long, device="cuda"))
        for block in self.blocks:
            x, _ = block(x)
        return [*known, x.mean(1)]


ALLOCATORS = {  # for arena dryrun, and for PyTorch
    "arena": ("arena", False),
    "PyTorch's own allocator": ("native", False),
    "PyTorch's, expandable segments": ("native", True),
}
MODELS: dict[str, Any] = {"chat": Chat, "vision": Vision, "search": Search}


@torch.no_grad()
def serve(names: list[str], seed: int = 1) -> None:
    """Serve the models in turn, each on a stream of its own. The next one is loaded while one is still at work."""
    chance = random.Random(seed)
    streams = {name: torch.cuda.Stream() for name in names}
    kept = {name: Kept(KEPT[name]) for name in names}
    loaded: dict[str, Any] = {}

    def load(name: str) -> None:
        if name not in loaded:
            with torch.cuda.stream(streams[name]), torch.device("cuda"):
                loaded[name] = MODELS[name]().eval()

    for turn in range(TURNS):
        name, following = names[turn % len(names)], names[(turn + 1) % len(names)]
        load(name)
        for number in range(REQUESTS):
            if number == REQUESTS // 2:
                load(following)
            with torch.cuda.stream(streams[name]):
                kept[name].add(loaded[name].answer(chance, kept[name].take(chance)))
            print(f"request {turn * REQUESTS + number + 1}: {name}", flush=True)
        torch.cuda.synchronize()
        if following != name:
            del loaded[name]


def run_dry(allocator: str, *arguments: str) -> tuple[dict[str, Any], int]:
    """What a dry run says of the service, and how many requests were answered."""
    whose, expandable = ALLOCATORS[allocator]
    options = ["--card", "t4", "--allocator", whose, "--lines=0", "--values=none", "--json"]
    command = [sys.executable, "-m", "arena", "dryrun", *options]
    settings = {"PYTORCH_ALLOC_CONF": f"expandable_segments:{expandable}"}
    done = subprocess.run(
        [*command, __file__, *arguments], capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    facts = json.loads(done.stderr.splitlines()[-1]) if done.returncode in (0, 1) else {}
    if not facts or not (facts["fits"] or facts["failure"]):
        sys.exit(f"this dry run failed, and memory was not the reason:\n{done.stderr}")
    return facts, len(done.stdout.splitlines())


def smallest(allocator: str, least: int, seed: str) -> int:
    """The smallest cap under which the service answers every request, in steps of 8 MiB."""
    low, high = least // MIB, 2 * least // MIB
    while high - low > 8:
        middle = (low + high) // 2
        fits = run_dry(allocator, "--seed", seed, "--cap", str(middle * MIB))[0]["fits"]
        low, high = (low, middle) if fits else (middle, high)
    return high


def compare(seed: str, *, looks_for_smallest: bool) -> None:
    alone = {name: run_dry("arena", "--seed", seed, "--models", name)[0] for name in MODELS}
    needs = {name: facts["accounts"][0]["live"] for name, facts in alone.items()}
    for name, need in needs.items():
        print(f"{name} alone needs {need / MIB:,.0f} MiB")
    cap = int(0.9 * sum(needs.values()))
    print(f"together {sum(needs.values()) / MIB:,.0f} MiB; the cap is 0.9 of that, {cap / MIB:,.0f} MiB\n")
    print(f"{'at most, in MiB':32}{'live':>8}{'reserved':>10}")
    for allocator in ALLOCATORS:
        facts, answered = run_dry(allocator, "--seed", seed, "--cap", str(cap))
        live, reserved = (facts["accounts"][0][figure] for figure in ("live", "reserved"))
        end = "all answered" if facts["fits"] else f"out of memory in request {answered + 1}"
        if looks_for_smallest:
            end += f"; smallest cap: {smallest(allocator, live, seed):,} MiB"
        print(f"{allocator:32}{live / MIB:>8,.0f}{reserved / MIB:>10,.0f}  {end}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smallest", action="store_true", help="look for the smallest cap, too, which takes minutes")
    parser.add_argument("--seed", type=int, default=1, help="other requests, in the same proportions")
    parser.add_argument("--models", help="only serve these, separated by commas")
    parser.add_argument("--cap", type=int, help="only serve, under this cap in bytes")
    options = parser.parse_args()
    if options.cap:
        torch.cuda.set_per_process_memory_fraction(options.cap / torch.cuda.mem_get_info()[1])
    if options.cap or options.models:
        serve((options.models or ",".join(MODELS)).split(","), options.seed)
    else:
        compare(str(options.seed), looks_for_smallest=options.smallest)

"""Whole models train dry, with PyTorch's own allocator and with the arena."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import arena
import arena.torch

from .models import GPT, Recurrent, ResNet50, train, transformer, vgg16

MIB = 1 << 20

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "transformer": (transformer, lambda: torch.randn(8, 128, 256, device="cuda")),
    "vgg16": (lambda: vgg16(10), lambda: torch.randn(8, 3, 64, 64, device="cuda")),
    "resnet50": (ResNet50, lambda: torch.randn(8, 3, 64, 64, device="cuda")),
    "lstm": (Recurrent, lambda: torch.zeros(8, 50, dtype=torch.long, device="cuda")),
}


@pytest.fixture(params=["native", "arena"])
def allocator(request: pytest.FixtureRequest) -> str:
    if request.param == "arena":
        arena.torch.use()
    name: str = request.param
    return name


def peak(allocator: str) -> int:
    return torch.cuda.max_memory_allocated() if allocator == "native" else arena.default_arena().stats().peak_live


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_and_holds_parameters_gradients_and_the_optimizers_state(name: str, allocator: str) -> None:
    make, batch = MODELS[name]
    with torch.device("cuda"):
        model = make()
    assert train(model, batch) == [0.0, 0.0]
    weights = sum(weight.numel() * 4 for weight in model.parameters())
    assert peak(allocator) > 4 * weights  # beside them gradients and two averages of AdamW


def test_half_precision_takes_less(allocator: str) -> None:
    with torch.device("cuda"):
        model = transformer()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler()
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.randn(8, 128, 256, device="cuda"))
            assert out.dtype == torch.float16
            loss = out.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_checkpoints_trade_memory_for_time() -> None:
    from torch.utils.checkpoint import checkpoint_sequential

    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(8)))

    def peak_of(run: Callable[[Tensor], Tensor]) -> int:
        torch.cuda.reset_peak_memory_stats()
        run(torch.zeros(4096, 512, device="cuda", requires_grad=True)).sum().backward()
        model.zero_grad()
        return torch.cuda.max_memory_allocated()

    plain, saving = peak_of(model), peak_of(lambda x: checkpoint_sequential(model, 4, x, use_reentrant=False))
    assert saving < plain / 2


@torch.no_grad()
def test_text_is_generated_with_a_cache_that_grows(allocator: str) -> None:
    with torch.device("cuda"):
        model = GPT()
    tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")
    logits, caches = model(tokens, [None] * 4)
    for _ in range(16):
        tokens = logits[:, -1:].argmax(-1)
        logits, caches = model(tokens, caches)
    assert [cache.shape[3] for cache in caches if cache is not None] == [32] * 4


def test_the_arena_reserves_little_more_than_is_live() -> None:
    """benchmarks/peers.py has exact figures, beside those of PyTorch's own allocator."""
    arena.torch.use()
    with torch.device("cuda"):
        model = transformer()
    train(model, lambda: torch.randn(8, 128, 256, device="cuda"), steps=3)
    stats = arena.default_arena().stats()
    assert stats.failures == 0
    assert stats.peak_reserved < 1.35 * stats.peak_live

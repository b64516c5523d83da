"""cuDNN itself says which workspaces it would take on the card: here those of PyTorch's wheel, on a T4."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

BATCH, CHANNELS, SIDE = 32, 64, 56
KIB, MIB = 1 << 10, 1 << 20


def convolution(dtype: torch.dtype, layout: torch.memory_format) -> Callable[[], torch.Tensor]:
    layer = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False, device="cuda", dtype=dtype)
    layer = layer.to(memory_format=layout)
    x = torch.zeros(BATCH, CHANNELS, SIDE, SIDE, device="cuda", dtype=dtype).to(memory_format=layout)
    return lambda: layer(x)


def workspace_of(function: Callable[[], torch.Tensor]) -> int:
    """What is allocated at most beside the result."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    size = function().untyped_storage().nbytes()
    return torch.cuda.max_memory_allocated() - before - size


def test_half_precision_with_channels_last_needs_no_copies() -> None:
    assert workspace_of(convolution(torch.float16, torch.channels_last)) == 0


def test_half_precision_with_channels_first_needs_copies_of_its_operands() -> None:
    operands = 2 * (2 * BATCH * CHANNELS * SIDE * SIDE + CHANNELS * CHANNELS * 9)
    assert 0 <= workspace_of(convolution(torch.float16, torch.contiguous_format)) - operands < 64 * KIB


def test_single_precision_on_a_card_without_tf32_needs_little() -> None:
    assert 0 < workspace_of(convolution(torch.float32, torch.contiguous_format)) < MIB


def test_the_benchmark_takes_what_the_greediest_engine_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert workspace_of(convolution(torch.float32, torch.contiguous_format)) > 16 * MIB


def test_a_size_that_is_set_counts_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_CUDNN", "3MiB")
    assert workspace_of(convolution(torch.float16, torch.channels_last)) == 3 * MIB


def test_without_the_real_cudnn_there_is_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_CUDNN_LIBRARY", "")
    operands = 2 * (2 * BATCH * CHANNELS * SIDE * SIDE + CHANNELS * CHANNELS * 9)
    assert workspace_of(convolution(torch.float16, torch.contiguous_format)) == operands
    assert workspace_of(convolution(torch.float16, torch.channels_last)) == 0

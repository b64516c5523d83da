"""Peaks are right: what PyTorch says it allocated in a dry run equals the sum by hand, byte for byte.

By hand means: shapes, PyTorch's rounding (`rounded`), and what its source keeps for the backward pass. cuBLAS gets no
workspace from PyTorch (CUBLAS_WORKSPACE_CONFIG=:0:0), and cuDNN asks for none (CUDASIM_WORKSPACE_CUDNN=0).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from arena import sim

KIB, MIB = 1 << 10, 1 << 20

# PyTorch warns where a thread of autograd begins with cuBLAS, on a card as well.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")


@pytest.fixture(autouse=True)
def _no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")
    monkeypatch.setenv("CUDASIM_WORKSPACE_CUDNN", "0")


def rounded(size: int) -> int:
    """What one allocation counts: multiples of 512 bytes.

    Blocks are cut from segments of 2 MiB (requests up to 1 MiB), 20 MiB (below 10 MiB) or multiples of 2 MiB.
    What is left is cut off if it is at least 512 bytes in the first, and more than 1 MiB in the others: so large sizes
    here are multiples of 2 MiB, or stay below 1 MiB.
    """
    return -(-size // 512) * 512


def peak_during(function: object) -> int:
    """What is allocated at most, more than before."""
    assert callable(function)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = function()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del held
    return peak


@pytest.mark.parametrize("size", [1, 512, 513, 1000, MIB, 10 * MIB, 12 * MIB, 100 * MIB])
def test_one_tensor(size: int) -> None:
    assert peak_during(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")) == rounded(size)


@pytest.mark.parametrize(
    ("size", "counted"), [(11 * MIB, 12 * MIB), (21 * MIB // 2, 21 * MIB // 2), (15 * MIB + 1, 16 * MIB)]
)
def test_what_is_left_of_a_large_segment_counts_if_it_is_at_most_1_mib(size: int, counted: int) -> None:
    assert peak_during(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")) == counted


def test_a_linear_layer() -> None:
    batch, wide, narrow = 64, 16384, 8192  # with more rows, the sum that is the bias's gradient would need a buffer
    layer = nn.Linear(wide, narrow, device="cuda")
    x = torch.zeros(batch, wide, device="cuda", requires_grad=True)
    out, weight, bias = 4 * batch * narrow, 4 * narrow * wide, 4 * narrow
    assert (out, weight, bias) == (2 * MIB, 512 * MIB, 32 * KIB)

    assert peak_during(lambda: layer(x)) == out
    y = layer(x)
    dy = torch.zeros_like(y)
    # The gradients of all three, which are kept as they come.
    dx = 4 * batch * wide
    assert dx == 4 * MIB
    assert peak_during(lambda: y.backward(dy)) == dx + weight + bias
    # From the second time on, all three are computed before they are added to those that are there.
    y = layer(x)
    assert peak_during(lambda: y.backward(dy)) == dx + weight + bias


def test_an_optimizer_keeps_two_averages() -> None:
    model = nn.Linear(2048, 1024, device="cuda")
    model(torch.zeros(16, 2048, device="cuda")).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=True)
    weight, bias = 8 * MIB, 4 * KIB
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    steps = 2 * 512  # a count for each parameter, on the device if fused
    assert torch.cuda.memory_allocated() - before == 2 * (weight + bias) + steps


@pytest.mark.parametrize("length", [256, 512])
def test_an_attention_block(length: int) -> None:
    """Written out, so that every tensor is known: softmax(q kᵀ) v, as `math` attention does it."""
    batch, heads, width = 8, 8, 64
    q, k, v = (torch.zeros(batch, heads, length, width, device="cuda", requires_grad=True) for _ in range(3))
    one, square = 4 * batch * heads * length * width, 4 * batch * heads * length * length

    def attend() -> torch.Tensor:
        scores = q @ k.transpose(-2, -1)
        weights = functional.softmax(scores, dim=-1)
        del scores
        return weights @ v

    # Scores and weights exist at once; softmax keeps its result alone, and so does the product. So at the end of the
    # block weights and the result are there, and the peak is the larger of two scores, and weights beside the result.
    assert peak_during(attend) == max(2 * square, square + one)
    before = torch.cuda.memory_allocated()
    out = attend()
    assert torch.cuda.memory_allocated() - before == square + one
    # Backward: the gradients of weights and of v; then that of the scores, beside a product of both that PyTorch's
    # softmax makes for it; then those of q and k, when weights and their gradient are gone.
    dout = torch.zeros_like(out)
    to_weights = square + one
    to_scores = to_weights + 2 * square
    to_inputs = one + square + 2 * one - square
    assert peak_during(lambda: out.backward(dout)) == max(to_weights, to_scores, to_inputs)


def test_a_convolution() -> None:
    batch, channels, side, filters = 16, 32, 64, 64
    layer = nn.Conv2d(channels, filters, 3, padding=1, device="cuda")
    x = torch.zeros(batch, channels, side, side, device="cuda", requires_grad=True)
    out, weight, bias = 4 * batch * filters * side * side, 4 * filters * channels * 9, 4 * filters
    assert (out, weight, bias) == (16 * MIB, 72 * KIB, 256)
    calls = sim.call_table()
    assert peak_during(lambda: layer(x)) == out
    y = layer(x)
    dy = torch.zeros_like(y)
    dx = 4 * batch * channels * side * side
    assert dx == 8 * MIB
    assert peak_during(lambda: y.backward(dy)) == dx + rounded(weight) + rounded(bias)
    assert sim.call_table() != calls


def test_workspace_of_cudnn_is_what_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_CUDNN", "32MiB")
    layer = nn.Conv2d(32, 64, 3, padding=1, device="cuda")
    x = torch.zeros(16, 32, 64, 64, device="cuda")
    assert peak_during(lambda: layer(x)) == 16 * MIB + 32 * MIB

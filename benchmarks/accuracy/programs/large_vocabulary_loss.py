"""Memory of a language model's loss over a large vocabulary, without any trick: Gemma 2 (2B), 8,192 tokens, bf16."""

from __future__ import annotations

import torch

TOKENS, VOCABULARY, WIDTH, SOFTCAP = 8 * 1024, 256_000, 2304, 30.0


def loss_of(embedding: torch.Tensor, classifier: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = embedding @ classifier.T
    logits = torch.tanh(logits / SOFTCAP) * SOFTCAP
    return torch.nn.functional.cross_entropy(logits.float(), targets)


def peak() -> int:
    torch.cuda.synchronize()
    return torch.cuda.memory_stats()["allocated_bytes.all.peak"]


def measure(tensors: list[torch.Tensor], *, forward: bool, backward: bool) -> int:
    """The rise of the peak."""
    for tensor in tensors:
        tensor.grad = None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = peak()
    loss = loss_of(*tensors)
    if not forward:
        torch.cuda.reset_peak_memory_stats()
        before = peak()
    if backward:
        loss.backward()
    return peak() - before


def main() -> None:
    tensors = [
        torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True),
        torch.randn(VOCABULARY, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True),
        torch.randint(VOCABULARY, (TOKENS,), device="cuda"),
    ]
    parts = {"loss": (True, False), "gradient": (False, True), "both": (True, True)}
    for forward, backward in parts.values():  # so that cuBLAS has its workspaces
        measure(tensors, forward=forward, backward=backward)
    for name, (forward, backward) in parts.items():
        print(name, measure(tensors, forward=forward, backward=backward))


main()

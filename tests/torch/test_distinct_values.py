"""How many different values there are among elements of which only their origin is known."""

from __future__ import annotations

import torch

LARGE = 1 << 17


def chosen(labels: torch.Tensor) -> torch.Tensor:
    """Labels of the elements that score high; which ones those are is unknown."""
    scores = torch.empty(labels.numel(), device="cuda")
    return labels[(scores > 0.5).nonzero().squeeze(1)]


def test_what_is_chosen_from_few_values_has_no_more_of_them() -> None:
    labels = torch.arange(90, device="cuda").expand(LARGE // 64, 90).reshape(-1)
    some = chosen(labels)
    assert some.numel() == labels.numel()
    assert some.unique().numel() == 90
    assert some[some > 3].unique().numel() == 90


def test_of_unknown_values_all_may_be_different() -> None:
    assert torch.empty(LARGE, dtype=torch.long, device="cuda").unique().numel() == LARGE


def test_what_is_written_afterwards_counts() -> None:
    some = chosen(torch.zeros(LARGE, dtype=torch.long, device="cuda"))
    assert some.unique().numel() == 1
    some.copy_(torch.empty(LARGE, 2, dtype=torch.long, device="cuda")[:, 1])
    assert some.unique().numel() == LARGE
    again = chosen(torch.zeros(LARGE, dtype=torch.long, device="cuda"))
    again[:] = torch.arange(LARGE, device="cuda")
    assert again.unique().numel() == LARGE

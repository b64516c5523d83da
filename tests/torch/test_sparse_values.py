"""Sparse tensors in dry runs: how many elements a sum has depends on its indices."""

from __future__ import annotations

import torch


def sparse(rows: list[int], columns: list[int], values: torch.Tensor) -> torch.Tensor:
    indices = torch.tensor([rows, columns], device="cuda")
    return torch.sparse_coo_tensor(indices, values, (8, 8, *values.shape[1:]), check_invariants=False)


def test_a_sparse_sum_has_as_many_elements_as_different_indices() -> None:
    summed = sparse([0, 1, 0, 3], [2, 2, 2, 7], torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda")).coalesce()
    assert summed.indices().tolist() == [[0, 1, 3], [2, 2, 7]]
    assert summed.values().tolist() == [4.0, 2.0, 4.0]


def test_values_that_were_never_computed_do_not_change_how_many_there_are() -> None:
    summed = sparse([0, 1, 0, 3], [2, 2, 2, 7], torch.empty(4, 5, device="cuda")).coalesce()
    assert summed.indices().tolist() == [[0, 1, 3], [2, 2, 7]]
    assert summed.values().shape == (3, 5)
    assert not summed.values().any()


def test_a_sparse_sum_with_unknown_indices_has_at_most_all_elements() -> None:
    indices = torch.empty(2, 100, dtype=torch.int64, device="cuda")
    summed = torch.sparse_coo_tensor(indices, torch.ones(100, device="cuda"), (8, 200), check_invariants=False)
    assert summed.coalesce()._nnz() == 100


def test_the_gradient_of_a_sparse_product_adds_up_every_element() -> None:
    adjacency = sparse([0, 1, 1, 3], [2, 2, 5, 7], torch.ones(4, device="cuda"))
    weights = torch.ones(8, 4, device="cuda", requires_grad=True)
    (adjacency @ weights).sum().backward()
    assert weights.grad is not None
    assert weights.grad.shape == (8, 4)

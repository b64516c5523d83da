"""arena.torch and CUDA graphs."""

from __future__ import annotations

import gc

import pytest
import torch

import arena

from .models import captured_training_step
from .tensors import MIB, mebibytes


def test_a_graph_keeps_what_it_uses_until_it_is_reset(pool: arena.Arena) -> None:
    source, target = torch.zeros(MIB, device="cuda"), torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = source.clone()
        target.copy_(middle)
        del middle
    for value in (1.0, 2.0):
        other = torch.full((MIB,), 7.0).cuda()  # must not be where the graph writes
        source.copy_(torch.full((MIB,), value))
        graph.replay()
        torch.cuda.synchronize()
        assert target[:3].cpu().tolist() == [value] * 3
        assert other[:3].cpu().tolist() == [7.0] * 3
    graph.reset()


def test_a_training_step_is_captured_and_replayed(pool: arena.Arena) -> None:
    graph, _kept = captured_training_step()
    before = pool.stats().live
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert pool.stats().live == before
    graph.reset()


def test_memory_of_graphs_goes_back_when_they_are_gone(pool: arena.Arena) -> None:
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    live = pool.stats().live
    for _ in range(5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1) * 2
        assert pool.stats().captured == 4 * MIB  # the sum; the product is live
        del y
        assert pool.stats().captured == 8 * MIB
        graph.reset()
        del graph  # it may have the state of random numbers
        assert (pool.stats().captured, pool.stats().live) == (0, live)


def test_graphs_that_share_a_pool_keep_it_until_the_last_is_gone(pool: arena.Arena) -> None:
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        x.clone()
    with torch.cuda.graph(second, pool=first.pool()):
        x.clone()
    kept = pool.stats().captured
    assert kept >= 4 * MIB
    first.reset()
    assert pool.stats().captured >= kept  # more if the first had the state of random numbers in the pool
    second.replay()
    torch.cuda.synchronize()
    second.reset()
    assert pool.stats().captured == 0


def test_what_autograds_thread_allocates_in_a_capture_belongs_to_the_graph(pool: arena.Arena) -> None:
    w = torch.zeros(MIB, device="cuda", requires_grad=True)
    w.square().sum().backward()  # autograd's thread is there
    w.grad = None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        w.square().square().sum().backward()
        w.grad = None
    assert pool.stats().captured >= 3 * 4 * MIB
    graph.reset()
    assert pool.stats().captured == 0


def test_a_capture_that_fails_leaves_nothing_behind(pool: arena.Arena) -> None:
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ZeroDivisionError), torch.cuda.graph(graph):
        x.clone().view(1 // 0)
    del graph
    gc.collect()
    assert pool.stats().captured == 0
    assert mebibytes(200).numel() == 200 * MIB

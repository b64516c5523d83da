"""arena.torch on a machine with two devices."""

from __future__ import annotations

import ctypes

import pytest
import torch

import arena
import arena.torch
from arena import sim

from .tensors import MIB, write


@pytest.fixture
def machine() -> None:
    sim.configure(devices=2)
    assert torch.cuda.device_count() == 2


def filled(device: int) -> torch.Tensor:
    return torch.zeros(8 * MIB, dtype=torch.uint8, device=f"cuda:{device}")


def test_memory_that_another_devices_default_stream_uses_is_protected(machine: None) -> None:
    """PyTorch passes the same number for the default streams of all devices."""
    arena.torch.use(arena.Arena(cap="8MiB", device=0))
    x, there = filled(0), filled(1)
    for device in (0, 1):
        torch.cuda.synchronize(device)
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
    with sim.temporarily(delay=50_000):
        with torch.cuda.device(1):  # PyTorch's own copies would wait for each other
            numbers = ctypes.c_void_p(there.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(8 * MIB)
            assert runtime.cudaMemcpyAsync(*numbers, 3, None) == 0  # from device to device, default stream
        x.record_stream(torch.cuda.default_stream(1))
        address = x.data_ptr()
        del x
        y = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda:0")
        write(y)
        assert y.data_ptr() == address
    for device in (0, 1):
        torch.cuda.synchronize(device)
    assert [str(race) for race in sim.races()] == []


@pytest.mark.parametrize("peers", ["all", "none"])
def test_tensors_are_copied_between_devices(peers: str) -> None:
    """With an allocator that is not its own, PyTorch uses cudaMemcpyAsync: a fault on virtual memory without peers."""
    sim.configure(devices=2, peers=peers)
    arena.torch.use()
    x = torch.arange(1000, device="cuda:0")
    there = x.to("cuda:1")
    back = torch.empty_like(x)
    back.copy_(there, non_blocking=True)
    assert back.tolist() == there.tolist() == list(range(1000))
    assert arena.default_arena(0).vmm
    assert arena.default_arena(1).vmm

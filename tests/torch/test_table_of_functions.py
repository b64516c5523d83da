"""What PyTorch's own C++ asks its allocator, answered from an arena."""

from __future__ import annotations

import pytest
import torch

import arena
from arena import _core

from .tensors import MIB, mebibytes

KNOWN = (  # in every PyTorch from 2.4 on
    "cacheInfo",
    "resetPeakStats",
    "resetAccumulatedStats",
    "isHistoryEnabled",
    "attachOutOfMemoryObserver",
    "attachAllocatorTraceTracker",
    "getIpcDevPtr",
    "memcpyAsync",
    "raw_delete",
    "checkPoolLiveAllocations",
    "getCheckpointState",
    "setCheckpointPoolState",
)
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
LATER = {"getMemoryFraction": (2, 8), "shareIpcHandle": (2, 5), "createOrIncrefPool": (2, 8), "setUseOnOOM": (2, 8)}


def test_the_functions_are_found_in_this_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[str] = []
    extend = _core.extend_torch_allocator

    def noted() -> list[str]:
        replaced.extend(extend())
        return replaced

    monkeypatch.setattr(_core, "extend_torch_allocator", noted)
    arena.torch.use()
    wanted = [*KNOWN, *(name for name, since in LATER.items() if since <= VERSION)]
    missing = [name for name in wanted if not any(f"{len(name)}{name}E" in found for found in replaced)]
    assert missing == []
    assert len(set(replaced)) == len(replaced)


def test_the_functions_are_replaced_once(pool: arena.Arena) -> None:
    assert _core.extend_torch_allocator() == []  # it has a table of its own by now, which is not PyTorch's


def test_pytorchs_own_allocator_is_left_alone() -> None:
    torch.cuda.init()
    assert _core.extend_torch_allocator() == []
    mebibytes(1)


def test_benchmarking_convolutions_works(pool: arena.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    convolution = torch.nn.Conv2d(8, 8, 3).cuda()
    x = torch.zeros(4, 8, 32, 32, device="cuda", requires_grad=True)
    convolution(x).sum().backward()
    torch.cuda.synchronize()
    assert x.grad is not None


def test_the_fraction_of_the_device_is_read_and_set(pool: arena.Arena) -> None:
    if not hasattr(torch.cuda, "get_per_process_memory_fraction"):
        pytest.skip("this PyTorch does not read the fraction")
    total = torch.cuda.mem_get_info()[1]
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(256 * MIB / total)
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25)
    assert pool.stats().cap == total // 4


def test_observers_hear_of_failures(pool: arena.Arena) -> None:
    heard: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: heard.append(figures))
    held = mebibytes(200)
    assert heard == []
    with pytest.raises(torch.OutOfMemoryError):
        mebibytes(100)
    ((device, size, total, free),) = heard
    assert (device, size, total) == (0, 100 * MIB, torch.cuda.mem_get_info()[1])
    assert 0 < free < total
    del held


def test_tensors_for_another_process_are_refused_with_what_to_do(pool: arena.Arena) -> None:
    x = mebibytes(1)
    with pytest.raises(RuntimeError, match=r"send a copy on the CPU \(tensor.cpu\(\)\)"):
        x.untyped_storage()._share_cuda_()
    del x
    assert torch.cuda.memory_allocated() == 0

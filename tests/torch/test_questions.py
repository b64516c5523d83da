"""What PyTorch answers about memory while it uses an arena, and that calls of the arena give the same.

docs/start/pytorch.md has the table; test_statistics.py compares the figures with those of PyTorch's own allocator.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import arena
from arena import sim

from .tensors import MIB, mebibytes

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations, and cuBLAS in autograd's threads
PAGE = Path(__file__).parents[2] / "docs/start/pytorch.md"
memory = torch.cuda.memory

ANSWERED: dict[str, Callable[[], Any]] = {
    "memory_allocated": torch.cuda.memory_allocated,
    "max_memory_allocated": torch.cuda.max_memory_allocated,
    "memory_reserved": torch.cuda.memory_reserved,
    "max_memory_reserved": torch.cuda.max_memory_reserved,
    "reset_peak_memory_stats": torch.cuda.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": torch.cuda.reset_accumulated_memory_stats,
    "memory_stats": torch.cuda.memory_stats,
    "memory_summary": torch.cuda.memory_summary,
    "memory_snapshot": torch.cuda.memory_snapshot,
    "_record_memory_history": memory._record_memory_history,
    "_snapshot": memory._snapshot,
    "_dump_snapshot": lambda: memory._dump_snapshot(os.devnull),
    "_cuda_attach_out_of_memory_observer": lambda: torch._C._cuda_attach_out_of_memory_observer(print),
}
SINCE_2_8 = {"get_": "get_per_process_memory_fraction", "MemPool": "MemPool"}


@pytest.mark.parametrize("name", ANSWERED)
def test_a_question_that_only_pytorchs_allocator_answered_is_answered_and_in_the_table(
    pool: arena.Arena, name: str
) -> None:
    held = mebibytes(1)
    ANSWERED[name]()
    assert re.search(rf"^\| .*[`.]{name}\b", PAGE.read_text(), re.M)
    del held


@pytest.mark.parametrize("word", SINCE_2_8)
def test_a_question_of_later_pytorchs_is_answered_and_in_the_table(pool: arena.Arena, word: str) -> None:
    question = getattr(torch.cuda, SINCE_2_8[word], None)
    if question is None or torch.__version__ < "2.8":
        pytest.skip("this PyTorch does not ask that")
    question()
    assert re.search(rf"^\| .*`{word}", PAGE.read_text(), re.M)


def test_the_devices_free_memory_counts_what_the_arena_reserved(pool: arena.Arena) -> None:
    held = mebibytes(100)
    free, total = torch.cuda.mem_get_info()
    stats = pool.snapshot().stats  # asks the driver
    assert (free, total) == (stats["device_free"], stats["device_total"])
    assert free == total - sim.used()
    del held


def test_empty_cache_returns_free_memory_of_every_arena_that_pytorch_uses(pool: arena.Arena) -> None:
    other = arena.Arena(cap="64MiB")
    kept = mebibytes(1)
    with arena.torch.pool(other):
        mebibytes(32)
    mebibytes(200)
    before = sim.used()
    torch.cuda.empty_cache()
    assert before - sim.used() >= 200 * MIB
    assert (other.stats().reserved, pool.stats().live) == (0, MIB)
    pool.close()
    other.close()
    torch.cuda.empty_cache()  # nothing to do
    del kept


def test_empty_cache_works_while_another_thread_allocates(pool: arena.Arena) -> None:
    is_over = threading.Event()

    def allocate() -> None:
        while not is_over.is_set():
            mebibytes(3)

    thread = threading.Thread(target=allocate)
    thread.start()
    for _ in range(50):
        torch.cuda.empty_cache()
    is_over.set()
    thread.join()
    torch.cuda.empty_cache()
    assert pool.stats().reserved == 0
    pool.validate()


def test_the_fraction_of_the_device_is_the_cap(pool: arena.Arena) -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert pool.stats().cap == total // 4
    torch.cuda.set_per_process_memory_fraction(32 * MIB / total)
    with pytest.raises(torch.OutOfMemoryError, match=r"cap"):
        mebibytes(64)
    torch.cuda.set_per_process_memory_fraction(0.0)
    with pytest.raises(torch.OutOfMemoryError):
        mebibytes(1)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert mebibytes(300).numel() == 300 * MIB
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        torch.cuda.set_per_process_memory_fraction(0.5)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
    model(torch.zeros(batch, 128, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def answers(ask: Callable[[], dict[str, int]], reset: Callable[[], None]) -> list[dict[str, int]]:
    """What is answered in a program whose requests are all below 1 MiB, where PyTorch rounds as the arena does."""
    given = []
    model = nn.Sequential(nn.Linear(128, 300), nn.GELU(), nn.Linear(300, 128)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (500, 700, 100):
        step(model, optimizer, batch)
        torch.cuda.synchronize()
        given.append(ask())
        reset()
    return given


def from_pytorch() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {
        "live": torch.cuda.memory_allocated(),
        "peak_live": torch.cuda.max_memory_allocated(),
        "requested": stats["requested_bytes.all.current"],
        "peak_requested": stats["requested_bytes.all.peak"],
        "blocks": stats["allocation.all.current"],
        "allocations": stats["allocation.all.allocated"],
        "failures": stats["num_ooms"],
    }


def from_arena(pool: arena.Arena) -> dict[str, int]:
    stats = pool.stats()
    names = ("live", "peak_live", "requested", "peak_requested", "blocks", "allocations", "failures")
    return {name: getattr(stats, name) for name in names}


def test_the_arena_gives_the_figures_of_pytorchs_own_allocator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    if hasattr(torch, "accelerator"):  # an older PyTorch asks for 0 bytes then, and takes the answer for a failure
        monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")
    file = tmp_path / "answers"
    child = os.fork()
    if child == 0:  # PyTorch has one allocator in a process
        file.write_text(json.dumps(answers(from_pytorch, torch.cuda.reset_peak_memory_stats)))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pool = arena.Arena()
    arena.torch.use(pool)
    expected = json.loads(file.read_text())
    assert expected[1]["peak_live"] > expected[2]["peak_live"]  # since the reset
    assert answers(lambda: from_arena(pool), pool.reset_peaks) == expected

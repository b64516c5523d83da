"""PyTorch's own questions about memory, answered from an arena: the same figures as PyTorch's own allocator gives."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import arena
from arena import sim

from .tensors import MIB, holds, mebibytes

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations, and cuBLAS in autograd's threads

# Figures that do not depend on where memory comes from.
OF_TENSORS = ("allocation", "allocated_bytes", "requested_bytes", "active", "active_bytes")
Figures = dict[str, Any]


def figures() -> Figures:
    """What has to be the same, byte for byte."""
    stats = torch.cuda.memory_stats()
    found = {name: value for name, value in stats.items() if name.startswith(tuple(f"{key}." for key in OF_TENSORS))}
    return {
        **found,
        "num_ooms": stats["num_ooms"],
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "by_number": torch.cuda.memory_allocated(0),
        "by_name": torch.cuda.memory_allocated("cuda:0"),
        "by_device": torch.cuda.max_memory_allocated(torch.device("cuda")),
        "keys": sorted(name for name in stats if not name.startswith("reserved_bytes_by")),
    }


def training() -> list[Figures]:
    """Requests below 1 MiB, for which PyTorch takes no more than the arena."""
    torch.cuda.init()
    given = [figures()]
    model = nn.Sequential(nn.Linear(128, 300), nn.GELU(), nn.Linear(300, 128)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (500, 700, 100):
        model(torch.zeros(batch, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        given.append(figures())
        torch.cuda.reset_peak_memory_stats()
        given.append(figures())
    return given


def large_and_small() -> list[Figures]:
    """Sizes that PyTorch's own allocator takes whole: multiples of 2 MiB from 10 MiB on, and small ones."""
    given = []
    held = [mebibytes(12), torch.empty(777, device="cuda"), mebibytes(20), torch.empty(0, device="cuda")]
    given.append(figures())
    held.pop(0)
    held.append(torch.empty(1, device="cuda"))
    given.append(figures())
    torch.cuda.reset_accumulated_memory_stats()
    held.append(mebibytes(14))
    held.pop(0)
    given.append(figures())
    held.clear()
    given.append(figures())
    torch.cuda.reset_max_memory_allocated()
    torch.cuda.empty_cache()
    given.append(figures())
    return given


def out_of_memory() -> list[Figures]:
    given = []
    held = mebibytes(10)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        given.append(figures())
    torch.cuda.reset_accumulated_memory_stats()
    given.append(figures())
    del held
    return given


def other_threads_streams_and_raw_memory() -> list[Figures]:
    given = []
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = mebibytes(12)
    raw = torch.cuda.caching_allocator_alloc(3000)
    given.append(figures())
    torch.cuda.caching_allocator_delete(raw)
    w = torch.zeros(1000, device="cuda", requires_grad=True)
    (w * w).sum().backward()
    given.append(figures())
    del x, w
    given.append(figures())
    return given


def in_native(program: Callable[[], list[Figures]], file: Path) -> list[Figures]:
    """Run with PyTorch's own allocator: PyTorch has one in a process."""
    child = os.fork()
    if child == 0:
        file.write_text(json.dumps(program()))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(file.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("program", [training, large_and_small, out_of_memory, other_threads_streams_and_raw_memory])
def test_all_figures_of_tensors_are_those_of_pytorchs_own_allocator(
    program: Callable[[], list[Figures]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "1")
    expected = in_native(program, tmp_path / "figures")
    arena.torch.use(arena.Arena())
    found = program()
    for number, (mine, its) in enumerate(zip(found, expected, strict=True)):
        assert set(its.pop("keys")) <= set(mine.pop("keys")), number
        assert mine == its, number


def test_before_cuda_is_used_everything_is_0_and_no_arena_is_made() -> None:
    arena.torch.use()
    ask = (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated, torch.cuda.memory_reserved)
    assert [question() for question in ask] == [0, 0, 0]
    assert torch.cuda.memory_stats() == {}
    torch.cuda.init()
    assert [question() for question in ask] == [0, 0, 0]
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
    assert sim.used() == sim.used()


def test_what_is_reserved_is_what_the_arena_took(pool: arena.Arena) -> None:
    held = mebibytes(10)
    assert torch.cuda.memory_reserved() == pool.stats().reserved
    more = mebibytes(150)
    del more
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    assert torch.cuda.memory_reserved() == pool.stats().reserved == stats["reserved_bytes.all.current"]
    assert torch.cuda.max_memory_reserved() == pool.stats().peak_reserved >= 160 * MIB
    taken, returned = stats["reserved_bytes.all.allocated"], stats["reserved_bytes.all.freed"]
    assert taken - returned == pool.stats().reserved
    assert stats["segment.all.current"] == len(pool.snapshot().handles)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_reserved() == pool.stats().reserved
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["reserved_bytes.all.allocated"] == 0
    del held


def test_other_frameworks_on_the_arena_are_no_tensors(pool: arena.Arena) -> None:
    x = mebibytes(1)
    with pool.allocate(50 * MIB):
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == MIB
        assert pool.stats().live == 51 * MIB
    del x


def test_every_arena_of_a_device_counts(pool: arena.Arena) -> None:
    other = arena.Arena(cap="64MiB")
    x = mebibytes(12)
    with arena.torch.pool(other):
        y = mebibytes(20)
    assert torch.cuda.memory_allocated() == 32 * MIB
    assert torch.cuda.memory_reserved() == pool.stats().reserved + other.stats().reserved
    other.close()
    torch.cuda.reset_peak_memory_stats()
    del x, y
    assert torch.cuda.memory_allocated() == 0


def test_questions_about_another_device_end_as_pytorchs_own() -> None:
    arena.torch.use()
    torch.cuda.init()
    with pytest.raises(RuntimeError, match="Invalid device argument"):
        torch.cuda.memory_stats(7)
    with pytest.raises(RuntimeError, match="Invalid device argument"):
        torch.cuda.memory_allocated(7)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.memory_allocated("cpu")


def test_the_summary_is_pytorchs(pool: arena.Arena) -> None:
    held = mebibytes(12)
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text
    assert "12288 KiB" in text
    assert torch.cuda.memory_summary(abbreviated=True).count("\n") < text.count("\n")
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == 12 * MIB
    del held


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="this PyTorch has no torch.accelerator")
def test_the_accelerators_figures_are_the_same(pool: arena.Arena) -> None:
    if not hasattr(torch.accelerator, "memory_allocated"):
        pytest.skip("this PyTorch asks nothing about an accelerator's memory")
    held = mebibytes(12)
    assert torch.accelerator.memory_allocated() == torch.accelerator.max_memory_allocated() == 12 * MIB
    assert torch.accelerator.memory_reserved() == pool.stats().reserved
    assert torch.accelerator.memory_stats() == torch.cuda.memory_stats()
    del held
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0
    torch.accelerator.empty_cache()
    assert pool.stats().reserved == 0


def test_pinned_memory_of_the_host_is_still_pytorchs(pool: arena.Arena) -> None:
    if not hasattr(torch.cuda, "host_memory_stats"):
        pytest.skip("this PyTorch has no figures of the host")
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    held = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] >= MIB
    assert torch.cuda.memory_allocated() == before
    del held


def test_a_question_takes_about_a_microsecond(pool: arena.Arena) -> None:
    held = mebibytes(1)
    for question in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated):
        best = min(_seconds(question) for _ in range(5))
        assert best < 10e-6, question  # generous: other tests run beside this
    del held


def _seconds(question: Callable[[], int], count: int = 2000) -> float:
    start = time.perf_counter()
    for _ in range(count):
        question()
    return (time.perf_counter() - start) / count


def test_a_forked_child_of_a_process_that_used_no_cuda_counts_from_0() -> None:
    arena.torch.use()
    child = os.fork()
    if child == 0:
        x = mebibytes(8)
        is_right = holds(arena.default_arena(), x) and torch.cuda.memory_allocated() == 8 * MIB
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.cuda.memory_allocated() == 0


def test_functions_keep_their_names_and_documentation(pool: arena.Arena) -> None:
    assert torch.cuda.memory_allocated.__name__ == "memory_allocated"
    assert torch.cuda.memory_allocated is torch.cuda.memory.memory_allocated
    assert "occupied by tensors" in (torch.cuda.memory_allocated.__doc__ or "")
    assert sys.modules["torch.cuda.memory"].memory_stats.__module__ == "torch.cuda.memory"

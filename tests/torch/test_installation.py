"""How ``arena run`` and ``arena dryrun`` give PyTorch the arena: when it first uses CUDA, unless the program did."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import arena
import arena.torch
from arena._frameworks import Installation

from .tensors import MIB, holds, mebibytes


@pytest.fixture
def installation() -> Iterator[Installation]:
    made = Installation(only=("torch",))
    made.begin()
    assert made.allocators()["torch"] == "arena"  # as far as it is known
    assert not arena.torch.is_in_use()
    yield made
    assert made.problems == {}


def test_pytorch_gets_the_default_arena_when_it_first_uses_cuda(installation: Installation) -> None:
    x = mebibytes(1)
    assert holds(arena.default_arena(), x)
    assert installation.allocators()["torch"] == "arena"


@pytest.mark.parametrize("question", ["torch.cuda.get_device_name()", "torch.cuda.current_stream()"])
def test_a_question_about_the_device_may_come_first(installation: Installation, question: str) -> None:
    eval(question)
    assert holds(arena.default_arena(), mebibytes(1))


def test_the_programs_own_arena_wins(installation: Installation) -> None:
    pool = arena.Arena(cap="64MiB")
    arena.torch.use(pool)
    assert holds(pool, mebibytes(1))
    assert installation.allocators()["torch"] == "arena"


def test_an_arena_may_still_be_chosen_before_the_first_tensor(installation: Installation) -> None:
    torch.cuda.init()
    assert arena.torch.is_in_use()
    pool, other = arena.Arena(cap="64MiB"), arena.Arena(cap="64MiB")
    arena.torch.use(pool)
    arena.torch.use(pool)
    with pytest.raises(arena.UsageError, match="another arena already"):
        arena.torch.use(other)
    x = mebibytes(1)
    assert (pool.stats().live, other.stats().live) == (MIB, 0)
    with pytest.raises(arena.UsageError, match="another arena already"):
        arena.torch.use(other)
    del x


def test_no_arena_may_be_chosen_after_the_default_one_served(installation: Installation) -> None:
    x = mebibytes(1)
    with pytest.raises(arena.UsageError, match="another arena already"):
        arena.torch.use(arena.Arena(cap="64MiB"))
    arena.torch.use(arena.default_arena())
    del x


def test_the_programs_own_allocator_wins(installation: Installation, tmp_path: Path) -> None:
    source, library = tmp_path / "own.c", tmp_path / "own.so"
    source.write_text(
        "#include <stddef.h>\n"
        "int cuMemAlloc_v2(void**, size_t);\n"
        "int cuMemFree_v2(void*);\n"
        "void* own_alloc(size_t size, int device, void* stream) { void* p = 0; cuMemAlloc_v2(&p, size); return p; }\n"
        "void own_free(void* p, size_t size, int device, void* stream) { cuMemFree_v2(p); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    memory = torch.cuda.memory
    memory.change_current_allocator(memory.CUDAPluggableAllocator(str(library), "own_alloc", "own_free"))
    x = mebibytes(1)
    assert not arena.torch.is_in_use()
    assert installation.allocators()["torch"] == "another"
    with pytest.raises(arena.UsageError, match="was given another allocator already"):
        arena.torch.use()
    del x


def test_several_threads_may_use_cuda_first(installation: Installation) -> None:
    kept: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: kept.append(mebibytes(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arena.default_arena().stats().live == 4 * MIB
    kept.clear()

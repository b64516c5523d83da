"""arena.torch.pool() without use(): PyTorch's own allocator takes its segments from an arena (torch.cuda.MemPool)."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
import torch

import arena
import arena.torch

from .tensors import MIB, holds, mebibytes

HAS_POOLS = hasattr(getattr(torch.cuda, "MemPool", None), "use_count")
needs_pools = pytest.mark.skipif(not HAS_POOLS, reason="PyTorch gives segments back to their allocator since 2.6")
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])


@pytest.mark.skipif(HAS_POOLS, reason="this PyTorch can")
def test_a_pytorch_that_cannot_give_segments_back_is_refused_in_words() -> None:
    with (
        pytest.raises(arena.UsageError, match=r"call arena.torch.use\(\) before"),
        arena.torch.pool(arena.Arena(cap="64MiB")),
    ):
        pass


@needs_pools
def test_segments_come_from_the_arena_and_go_back() -> None:
    mine = arena.Arena(cap="64MiB")
    with arena.torch.pool(mine):
        x = mebibytes(8)
        assert holds(mine, x)
    del x
    gc.collect()
    torch.cuda.empty_cache()
    assert mine.stats().live == 0


@needs_pools
def test_tensors_may_outlive_the_part_and_every_object_of_it() -> None:
    """PyTorch keeps the address of the allocator in its segments, and no reference."""
    mine = arena.Arena(cap="1GiB")
    kept = []
    for _ in range(20):
        with arena.torch.pool(mine):
            kept.append(mebibytes(3))
        gc.collect()
        trash = [bytearray(200) for _ in range(1000)]  # where a dropped allocator would have been
        del trash
    del kept
    gc.collect()
    torch.cuda.empty_cache()
    assert mine.stats().live == 0


live_at_exit: list[torch.Tensor] = []


@needs_pools
def test_tensors_may_be_alive_when_the_interpreter_exits() -> None:
    with arena.torch.pool(arena.Arena(cap="64MiB")):
        live_at_exit.append(mebibytes(8))  # conftest.py looks at how this process ends


@needs_pools
def test_segments_are_given_while_another_thread_asks_for_statistics() -> None:
    """PyTorch asks for a segment with its mutex held, which the other thread waits for with the GIL held."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler of Python's would never run
    signal.alarm(60)
    mine = arena.Arena(cap="512MiB")
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            torch.cuda.memory_allocated()

    mebibytes(1)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    side = torch.cuda.Stream()
    for _ in range(10):
        with arena.torch.pool(mine):
            held = [mebibytes(21 + size) for size in range(4)]
            with torch.cuda.stream(side):
                held.append(mebibytes(21))
            with pytest.raises(torch.OutOfMemoryError):
                mebibytes(600)
        del held
        gc.collect()
        torch.cuda.empty_cache()
    is_over.set()
    for thread in threads:
        thread.join()
    assert mine.stats().live == 0


@needs_pools
def test_no_python_runs_when_a_segment_is_asked_for() -> None:
    mine = arena.Arena(cap="64MiB")
    called: list[str] = []
    mine.on_oom(lambda error: called.append("out of memory"))
    mine.on_pressure(0.1, lambda: called.append("pressure"))
    arena.trace_lines(True)
    with arena.torch.pool(mine):
        held = mebibytes(40)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            mebibytes(40)
    assert called == []
    del held


@pytest.mark.skipif(VERSION < (2, 13), reason="PyTorch before 2.13 keeps them until empty_cache()")
def test_pytorch_returns_segments_of_earlier_parts_before_it_fails() -> None:
    mine = arena.Arena(cap="64MiB")
    with arena.torch.pool(mine):
        x = mebibytes(40)
    del x  # PyTorch keeps its segment
    assert mine.stats().live == 40 * MIB
    with arena.torch.pool(mine):
        y = mebibytes(50)
        assert holds(mine, y)


@needs_pools
def test_an_upstream_function_cannot_serve_it_and_the_error_says_so() -> None:
    mine = arena.Arena(cap="64MiB", upstream=lambda size: None)
    with (
        arena.torch.pool(mine),
        pytest.raises(RuntimeError, match=r"upstream= is a Python function.*arena.torch.use\(\)"),
    ):
        mebibytes(4)

"""CuPy and PyTorch share one arena, and hand each other memory by DLPack: without a copy, in stream order."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import cupy
import pytest
import torch

import arena
from arena import sim

from .tensors import MIB, mebibytes

Array = Any


@pytest.fixture
def shared(pool: arena.Arena) -> arena.Arena:
    """An arena that both use."""
    cupy.cuda.set_allocator(pool.malloc)
    return pool


def array(mebibytes: int) -> Array:
    return cupy.empty(mebibytes * MIB, "u1")


def address(either: Any) -> int:
    return int(either.data_ptr() if isinstance(either, torch.Tensor) else either.data.ptr)


def write(either: Any) -> None:
    """Write on the framework's current stream: a memset, which the race checker sees."""
    either.zero_() if isinstance(either, torch.Tensor) else either.fill(0)


WAYS = {
    "cupy-torch": (array, torch.from_dlpack),
    "torch-cupy": (mebibytes, cupy.from_dlpack),
    "cupy-torch by the array interface": (array, lambda a: torch.as_tensor(a, device="cuda")),
    "torch-cupy by the array interface": (mebibytes, cupy.asarray),
}


@pytest.mark.parametrize("first", ["producer", "consumer"])
@pytest.mark.parametrize("way", WAYS)
def test_both_hold_the_same_memory_until_the_last_of_them_is_gone(shared: arena.Arena, way: str, first: str) -> None:
    make, take = WAYS[way]
    held = {"producer": make(10)}
    held["consumer"] = take(held["producer"])
    assert address(held["consumer"]) == address(held["producer"])
    assert (shared.stats().live, shared.stats().blocks) == (10 * MIB, 1)
    write(held["consumer"])
    del held[first]
    assert shared.stats().live == 10 * MIB
    write(*held.values())
    held.clear()
    assert shared.stats().live == 0
    shared.validate()


def test_memory_may_go_to_and_fro_and_in_parts(shared: arena.Arena) -> None:
    first = array(8)
    passed: list[Any] = [first]
    for _ in range(10):
        passed.append(torch.from_dlpack(passed[-1]))
        passed.append(cupy.from_dlpack(passed[-1]))
    part = torch.from_dlpack(passed[-1][MIB : 3 * MIB])
    assert {address(each) for each in passed} == {address(first)}
    assert (address(part), part.numel()) == (address(first) + MIB, 2 * MIB)
    del first
    passed.clear()
    assert (shared.stats().live, shared.stats().blocks) == (8 * MIB, 1)
    del part
    assert shared.stats().live == 0


@pytest.mark.parametrize("way", ["cupy-torch", "torch-cupy"])
def test_the_consumers_stream_waits_for_the_producers(shared: arena.Arena, way: str) -> None:
    make, take = WAYS[way]
    with sim.temporarily(delay=20_000), torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True):
        memory = make(4)
        write(memory)
        write(take(memory))  # the race checker would see it
        torch.cuda.synchronize()


def test_the_race_checker_sees_what_happens_without_that(shared: arena.Arena) -> None:
    with sim.temporarily(delay=20_000), torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True):
        memory = array(4)
        write(memory)
        write(torch.from_dlpack(memory.__dlpack__(stream=-1)))  # "do not synchronize"
        torch.cuda.synchronize()
    assert sim.races()
    sim.clear_races()


def use_elsewhere(make: Callable[[], Any], *, notes: bool) -> None:
    """Use memory of CuPy's stream on PyTorch's, let go of it, and let CuPy have it again while that stream is busy."""
    stream, own = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with own, torch.cuda.stream(stream), sim.temporarily(delay=50_000):
        tensor = torch.from_dlpack(make())
        tensor.zero_()
        if notes:
            tensor.record_stream(stream)
        del tensor
        write(make())
        torch.cuda.synchronize()


@pytest.mark.parametrize("part", [slice(None), slice(MIB, 2 * MIB)])
def test_record_stream_counts_for_memory_of_cupy(shared: arena.Arena, part: slice) -> None:
    use_elsewhere(lambda: array(8)[part], notes=True)
    assert shared.stats().live == 0
    shared.validate()


def test_the_race_checker_sees_what_happens_without_record_stream(shared: arena.Arena) -> None:
    use_elsewhere(lambda: array(8), notes=False)
    assert sim.races()
    sim.clear_races()


def test_record_stream_counts_for_memory_of_an_arena_that_pytorch_does_not_use(pool: arena.Arena) -> None:
    other = arena.Arena(cap="64MiB")
    cupy.cuda.set_allocator(other.malloc)
    use_elsewhere(lambda: array(8), notes=True)
    assert (other.stats().live, pool.stats().blocks) == (0, 0)


def test_record_stream_counts_for_memory_of_a_closed_arena(shared: arena.Arena) -> None:
    with torch.cuda.stream(torch.cuda.Stream()) as _, sim.temporarily(delay=50_000):
        tensor = torch.from_dlpack(array(8))
        shared.close()
        tensor.zero_()
        tensor.record_stream(torch.cuda.current_stream())
        del tensor  # unmapped while the stream uses it, it would be a fault
        torch.cuda.synchronize()


def test_record_stream_ignores_memory_of_cupys_own_pool(pool: arena.Arena) -> None:
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    tensor = torch.from_dlpack(array(8))
    tensor.record_stream(torch.cuda.current_stream())
    assert pool.stats().blocks == 0


def test_cupys_stream_can_be_noted_for_a_tensor(shared: arena.Arena) -> None:
    own = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with sim.temporarily(delay=50_000):
        tensor = mebibytes(8)
        with own:
            write(cupy.from_dlpack(tensor))
        tensor.record_stream(torch.cuda.ExternalStream(own.ptr))
        del tensor, own
        write(mebibytes(8))
        torch.cuda.synchronize()
    assert shared.stats().live == 0


def test_cupy_can_work_on_pytorchs_stream(shared: arena.Arena) -> None:
    """Then nothing needs to be noted: memory is reused in the order of that stream."""
    with sim.temporarily(delay=5_000), torch.cuda.stream(torch.cuda.Stream()) as _:
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            for _ in range(20):
                write(torch.from_dlpack(array(50)))
                write(cupy.from_dlpack(mebibytes(70)))
        torch.cuda.synchronize()
    assert (shared.stats().live, shared.stats().waits) == (0, 0)


def test_one_cap_holds_for_both(shared: arena.Arena) -> None:
    held: list[Any] = [array(100), mebibytes(100)]
    with pytest.raises(torch.OutOfMemoryError, match="out of memory: 100 MiB"):
        mebibytes(100)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="out of memory: 100 MiB"):
        array(100)
    shared.on_oom(lambda request: held.clear())
    held.append(torch.from_dlpack(array(200)))  # CuPy's request frees what PyTorch held
    assert held[0].numel() == 200 * MIB
    held.clear()
    assert shared.stats().live == 0


def test_a_backward_pass_keeps_memory_of_cupy(shared: arena.Arena) -> None:
    weights = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
    batch = torch.from_dlpack(cupy.zeros((256, 1024), "f4"))
    loss = (batch @ weights).square().sum()
    before = shared.stats().live
    del batch
    assert shared.stats().live == before  # the graph of operations needs it
    loss.backward()
    del loss
    gradient = cupy.from_dlpack(weights.grad)
    weights.grad = None
    assert gradient.shape == (1024, 1024)
    del gradient, weights
    torch._C._cuda_clearCublasWorkspaces()
    assert shared.stats().live == 0


def test_threads_pass_memory_to_each_other(shared: arena.Arena) -> None:
    failures: list[BaseException] = []

    def exchange(number: int) -> None:
        cupy.cuda.set_allocator(shared.malloc)
        try:
            with torch.cuda.stream(torch.cuda.Stream()) as _, cupy.cuda.Stream(non_blocking=True):
                for step in range(100):
                    size = (number * 37 + step * 101) % 50_000 + 1
                    tensor = torch.from_dlpack(cupy.empty(size, "u1"))
                    write(tensor)
                    tensor.record_stream(torch.cuda.current_stream())
                    taken = torch.empty(size, dtype=torch.uint8, device="cuda")
                    write(cupy.from_dlpack(taken))
                    taken.record_stream(torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr))
                torch.cuda.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    assert shared.stats().blocks == 0
    shared.validate()


@pytest.mark.parametrize("way", ["cupy-torch", "torch-cupy"])
def test_the_last_of_them_may_go_in_another_thread(shared: arena.Arena, way: str) -> None:
    make, take = WAYS[way]
    held = [take(make(4)) for _ in range(10)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert shared.stats().blocks == 0


@pytest.mark.parametrize("way", ["cupy-torch", "torch-cupy"])
def test_a_forked_child_may_drop_both(shared: arena.Arena, way: str) -> None:
    make, take = WAYS[way]
    held = [make(8)]
    held.append(take(held[0]))
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shared.stats().live == 8 * MIB
    held.clear()
    assert shared.stats().live == 0


live_at_exit: list[Any] = []


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("way", ["cupy-torch", "torch-cupy"])
def test_both_may_be_alive_when_the_interpreter_exits(shared: arena.Arena, way: str, closed: bool) -> None:
    make, take = WAYS[way]
    held = make(8)
    live_at_exit.extend([held, take(held), take(make(8)), make(8)])  # conftest.py looks at how this process ends
    if closed:
        shared.close()

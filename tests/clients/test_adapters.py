"""Numba and cuda.core with memory of an arena: one set of tests for both, on the real libraries."""

from __future__ import annotations

import gc
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import arena
from arena import sim

from .process import run_client

MIB = 1 << 20


@dataclass(frozen=True)
class Adapter:
    """How a library asks for memory of the arena, and gives it back."""

    pool: arena.Arena
    allocate: Callable[[int], Any]
    free: Callable[[Any], None]
    address: Callable[[Any], int]
    error: type[BaseException]


def numba_adapter(pool: arena.Arena) -> Adapter:
    import numpy as np
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    arena.numba.use(pool)
    return Adapter(
        pool,
        lambda size: cuda.device_array(size, dtype=np.uint8),
        lambda array: array.gpu_data.free(),
        lambda array: int(array.__cuda_array_interface__["data"][0]),
        CudaAPIError,
    )


def cuda_core_adapter(pool: arena.Arena) -> Adapter:
    from cuda.core import Device

    device = Device()
    device.set_current()
    device.memory_resource = arena.cuda_core.MemoryResource(pool)
    stream = device.default_stream
    return Adapter(
        pool,
        lambda size: device.allocate(size, stream=stream),
        lambda buffer: buffer.close(),
        lambda buffer: int(buffer.handle),
        MemoryError,
    )


@pytest.fixture(params=[numba_adapter, cuda_core_adapter], ids=["numba", "cuda_core"])
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    pool = arena.Arena(cap="64MiB")
    yield request.param(pool)
    gc.collect()
    pool.validate()
    assert (pool.stats().live, pool.stats().blocks) == (0, 0)
    pool.close()


def test_memory_comes_from_the_arena_and_goes_back(adapter: Adapter) -> None:
    made = adapter.allocate(1000)
    assert (adapter.pool.stats().requested, adapter.address(made) % 512) == (1000, 0)
    adapter.free(made)
    assert adapter.pool.stats().live == 0


def test_memory_goes_back_with_its_last_reference(adapter: Adapter) -> None:
    made = adapter.allocate(1000)
    del made
    gc.collect()
    assert adapter.pool.stats().live == 0


def test_memory_may_be_freed_in_any_order(adapter: Adapter) -> None:
    chance = random.Random(1)
    live: list[Any] = []
    for _ in range(300):
        if live and chance.random() < 0.5:
            adapter.free(live.pop(chance.randrange(len(live))))
        else:
            live.append(adapter.allocate(chance.randrange(1, 200_000)))
        adapter.pool.validate()
    assert adapter.pool.stats().blocks == len(live)
    for made in live:
        adapter.free(made)


def test_out_of_memory_is_the_librarys_error_with_arenas_text_and_passes_by(adapter: Adapter) -> None:
    held = adapter.allocate(40 * MIB)
    with pytest.raises(adapter.error, match="out of memory: 30 MiB requested, cap reached") as caught:
        adapter.allocate(30 * MIB)
    assert isinstance(caught.value, arena.OutOfMemoryError)
    assert caught.value.largest == 24 * MIB
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), arena.OutOfMemoryError)
    adapter.free(held)
    adapter.free(adapter.allocate(30 * MIB))


def test_on_oom_functions_make_room(adapter: Adapter) -> None:
    held = [adapter.allocate(40 * MIB)]
    adapter.pool.on_oom(lambda error: adapter.free(held.pop()) if held else None)
    made = adapter.allocate(30 * MIB)
    assert held == []
    adapter.free(made)


def test_threads_may_allocate_and_free_at_once(adapter: Adapter) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            if adapter.error is MemoryError:  # cuda.core wants a current device in each thread
                from cuda.core import Device

                Device().set_current()
            for _ in range(100):
                adapter.free(adapter.allocate(chance.randrange(1, 100_000)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_memory_outlives_the_arena_that_is_closed(adapter: Adapter) -> None:
    pool = arena.Arena(cap="8MiB")
    buffer = pool.allocate(1000)
    pool.close()
    made = adapter.allocate(1000)  # the adapter's own is open
    adapter.free(made)
    buffer.free()


def test_lines_are_the_programs_own(adapter: Adapter) -> None:
    arena.trace_lines(True)
    try:
        made = adapter.allocate(3000)
        (holder,) = adapter.pool.report().lines
        assert "test_adapters.py" in holder.name
        adapter.free(made)
    finally:
        arena.trace_lines(False)


def test_the_device_is_told_of_no_mistake(adapter: Adapter) -> None:
    made = [adapter.allocate(size) for size in (0, 1, 511, 513, MIB)]
    for one in made:
        adapter.free(one)
    assert sim.findings() == []


def test_a_buffer_that_is_closed_on_another_stream_waits_for_it() -> None:
    from cuda.core import Device

    pool = arena.Arena(cap="4MiB", growth="2MiB")
    device = Device()
    device.set_current()
    device.memory_resource = arena.cuda_core.MemoryResource(pool)
    first, second = device.create_stream(), device.create_stream()
    with sim.temporarily(delay=100_000):
        buffer = device.allocate(4 * MIB, stream=first)
        buffer.fill(1, stream=second)
        buffer.close(second)
        again = device.allocate(4 * MIB, stream=first)  # waits, on the device or the host: the race checker looks
        again.fill(2, stream=first)
        first.sync()
        second.sync()
    again.close(first)
    first.close()
    second.close()
    pool.close()


def test_a_stranger_cannot_be_freed() -> None:
    from cuda.core import Device

    Device().set_current()
    with arena.Arena(cap="4MiB") as pool:
        resource = arena.cuda_core.MemoryResource(pool)
        with pytest.raises(arena.UsageError, match="0x1000 is not a live buffer of this memory resource"):
            resource.deallocate(0x1000, 512, stream=None)
        with pytest.raises(arena.UsageError, match=r"pool=7 is not accepted; give an arena\.Arena"):
            arena.cuda_core.MemoryResource(7)  # type: ignore[arg-type]


USES = """
from arena import sim
sim.enable()
import warnings
warnings.simplefilter("ignore")
import arena
from numba import cuda
"""


def test_numba_is_given_the_default_arena_by_its_variable() -> None:
    code = USES + "a = cuda.device_array(1000, dtype='u1'); print(arena.default_arena().stats().requested)"
    assert run_client(code, NUMBA_CUDA_MEMORY_MANAGER="arena.numba", ARENA_DRIVER="sim") == "1000\n"


def test_numba_that_has_a_memory_manager_refuses_another() -> None:
    code = USES + (
        "a = cuda.device_array(10)\ntry:\n    arena.numba.use()\nexcept arena.UsageError as error:\n    print(error)"
    )
    assert run_client(code, ARENA_DRIVER="sim") == (
        "Numba uses NumbaCUDAMemoryManager already; call arena.numba.use() before Numba first uses a device\n"
    )


def test_arrays_that_live_at_the_end_of_the_process_do_no_harm() -> None:
    code = USES + "pool = arena.Arena(cap='8MiB'); arena.numba.use(pool); kept = cuda.device_array(1000); print('end')"
    assert run_client(code, ARENA_DRIVER="sim") == "end\n"

"""The conformance suite over Numba, cuda.core and RMM, and what is special about the first two."""

from __future__ import annotations

import gc
import importlib.util

import pytest

import arena
from arena import sim

from . import adapters
from .conformance import CHECKS, LAST, checks_for, settle
from .process import run_client

MIB = 1 << 20
NAMES = ("numba", "cuda_core", *(["rmm"] if importlib.util.find_spec("rmm") else []))  # which needs Python 3.11


@pytest.mark.parametrize(("name", "check"), [(name, check) for name in NAMES for check in checks_for(name)])
def test_an_adapter_conforms(name: str, check: str) -> None:
    pool = arena.Arena(cap="64MiB")
    adapter = adapters.ADAPTERS[name](pool)
    CHECKS[check](adapter)
    if check not in LAST:
        settle(adapter)
    adapter.flush()
    del adapter
    gc.collect()
    pool.close()


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


def test_memory_of_numba_is_not_reused_before_the_streams_that_used_it_are_done() -> None:
    """The race checker looks."""
    import numpy as np
    from numba import cuda
    from numba.cuda.cudadrv.driver import device_memset

    pool = arena.Arena(cap="64MiB")
    arena.numba.use(pool)
    streams = [cuda.stream(), cuda.stream(), None]
    reserved = []
    for _ in range(3):
        with sim.temporarily(delay=30_000):
            for stream in streams:
                array = cuda.device_array(1000, dtype=np.uint8)
                device_memset(array, 1, 1000, **({} if stream is None else {"stream": stream}))
                del array
            cuda.synchronize()
        reserved.append(pool.stats().reserved)
    assert sim.race_count() == 0
    assert reserved == reserved[:1] * 3  # it is reused, too
    del streams, stream
    cuda.current_context().deallocations.clear()
    pool.close()


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

"""arena.rmm on the real RMM, as far as it goes without its CUDA runtime: what the conformance suite does not ask."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import arena
from arena import sim

from ..simulated.cu import PER_THREAD, Cu
from ..threads import run_together
from .process import run_client

rmm = pytest.importorskip("rmm", reason="there is no RMM for this Python")
stream_module = pytest.importorskip("rmm.pylibrmm.stream")

MIB = 1 << 20


@pytest.fixture
def cu() -> Cu:
    driver = Cu()
    driver.start()
    return driver


@pytest.fixture
def pool() -> Iterator[arena.Arena]:
    made = arena.Arena(cap="64MiB", growth="2MiB")
    yield made
    gc.collect()
    made.validate()
    assert (made.stats().live, made.stats().blocks) == (0, 0)
    made.close()


def fill(cu: Cu, address: int, size: int, stream: Any) -> None:
    cu.ok("cuMemsetD8Async", address, 1, size, stream.__cuda_stream__()[1])


@pytest.mark.parametrize("size", [1000, 40 * MIB])
def test_memory_that_is_freed_on_another_stream_waits_for_it(pool: arena.Arena, cu: Cu, size: int) -> None:
    resource = arena.rmm.resource(pool)
    first, second = (stream_module.Stream(cu.owned_stream()) for _ in range(2))
    with sim.temporarily(delay=50_000):
        address = resource.allocate(size, first)
        fill(cu, address, size, second)
        resource.deallocate(address, size, second)
        again = resource.allocate(size, first)
        fill(cu, again, size, first)  # the race checker looks
        resource.deallocate(again, size, first)
        cu.ok("cuCtxSynchronize_v2", 0)


def test_memory_may_be_freed_on_another_stream_when_the_first_is_gone(pool: arena.Arena, cu: Cu) -> None:
    resource = arena.rmm.resource(pool)
    stream = stream_module.Stream(cu.owned_stream())
    address = resource.allocate(MIB, stream)
    fill(cu, address, MIB, stream)
    del stream
    resource.deallocate(address, MIB)
    resource.deallocate(resource.allocate(60 * MIB), 60 * MIB)


def test_memory_of_a_threads_own_stream_may_be_freed_on_that_of_another_thread(pool: arena.Arena, cu: Cu) -> None:
    resource, context = arena.rmm.resource(pool), cu.out("cuCtxGetCurrent")
    own = stream_module.PER_THREAD_DEFAULT_STREAM
    assert own.__cuda_stream__()[1] == PER_THREAD
    address = resource.allocate(1000, own)

    def use_and_free() -> None:
        cu.ok("cuCtxSetCurrent", context)
        fill(cu, address, 1000, own)
        resource.deallocate(address, 1000, own)

    with sim.temporarily(delay=50_000):
        run_together(use_and_free)
        again = resource.allocate(1000, own)
        fill(cu, again, 1000, own)  # on this thread's stream: the race checker looks
        resource.deallocate(again, 1000, own)
        cu.ok("cuCtxSynchronize_v2", 0)


def test_freeing_a_stranger_is_shown_and_raises_nothing(pool: arena.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: shown.append(str(raised.exc_value)))
    resource = arena.rmm.resource(pool)
    address = resource.allocate(1000)
    resource.deallocate(0x1000, 1000)
    resource.deallocate(address, 1000)
    resource.deallocate(address, 1000)
    assert shown == [f"{place:#x} is not live memory of this RMM resource" for place in (0x1000, address)]


def test_every_request_has_an_address_even_for_no_bytes(pool: arena.Arena) -> None:
    resource = arena.rmm.resource(pool)
    addresses = {resource.allocate(0) for _ in range(2)}
    assert (len(addresses), 0 in addresses) == (2, False)
    for address in addresses:
        resource.deallocate(address, 0)


def test_rmms_adaptors_work_on_top(pool: arena.Arena) -> None:
    held: list[Any] = []
    resource = arena.rmm.resource(pool)

    def make_room(size: int) -> bool:
        asked.append(size)
        held.clear()
        return len(asked) < 2  # try again

    asked: list[int] = []
    counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.FailureCallbackResourceAdaptor(resource, make_room))
    held.append(rmm.DeviceBuffer(size=40 * MIB, mr=counted))
    second = rmm.DeviceBuffer(size=30 * MIB, mr=counted)
    assert asked == [30 * MIB]
    assert counted.allocation_counts.current_bytes == pool.stats().requested == 30 * MIB
    with pytest.raises(MemoryError, match="out of memory: 60 MiB requested, cap reached"):
        rmm.DeviceBuffer(size=60 * MIB, mr=counted)
    del second


def test_an_error_that_is_not_out_of_memory_is_rmms_other_kind(pool: arena.Arena) -> None:
    resource = arena.rmm.resource(pool)
    sim.fail("cuMemCreate", "CUDA_ERROR_UNKNOWN", times=100)
    with pytest.raises(RuntimeError, match=r"cuMemCreate .*CUDA_ERROR_UNKNOWN"):
        resource.allocate(1000)
    sim.clear_planned()
    resource.deallocate(resource.allocate(1000), 1000)


def test_without_an_argument_it_is_the_default_arena() -> None:
    resource = arena.rmm.resource()
    buffer = rmm.DeviceBuffer(size=1000, mr=resource)
    assert arena.default_arena().stats().requested == 1000
    del buffer
    assert arena.rmm.resource() is resource
    arena.default_arena().close()
    resource.deallocate(resource.allocate(1000), 1000)  # of a new default arena
    assert arena.default_arena().stats().allocations == 1
    arena.default_arena().close()


def test_the_default_arena_has_the_settings_that_are_in_force_at_the_first_allocation() -> None:
    resource = arena.rmm.resource()
    arena.configure(cap="4MiB")
    with pytest.raises(MemoryError, match="out of memory: 8 MiB requested, cap reached"):
        resource.allocate(8 * MIB)
    arena.default_arena().close()


@pytest.fixture
def current_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """RMM asks its CUDA runtime for it, which does not start on the simulated driver."""
    current = [0]
    for module in (rmm.pylibrmm.memory_resource._memory_resource, arena.rmm):
        monkeypatch.setattr(module, "getDevice", lambda: current[0])
    return current


def test_a_program_that_sets_the_resource_itself(pool: arena.Arena, current_device: list[int]) -> None:
    rmm.mr.set_current_device_resource(arena.rmm.resource(pool))
    buffer = rmm.DeviceBuffer(size=1 << 20)
    assert pool.stats().live == MIB
    assert arena.rmm.is_in_use()
    del buffer
    rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
    assert not arena.rmm.is_in_use()


def test_use_sets_the_resource_of_the_arenas_device(pool: arena.Arena, current_device: list[int]) -> None:
    assert not arena.rmm.is_in_use()
    arena.rmm.use(pool)
    assert rmm.mr.get_per_device_resource(0) is arena.rmm.resource(pool)
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(arena.rmm.resource(pool)))
    assert arena.rmm.is_in_use()
    current_device[0] = 1
    arena.rmm.use()
    assert rmm.mr.get_per_device_resource(1) is arena.rmm.resource()
    current_device[0] = 0
    assert arena.rmm.resource() is not rmm.mr.get_per_device_resource(1)
    with pytest.raises(arena.UsageError, match=r"pool=7 is not accepted; give an arena\.Arena"):
        arena.rmm.use(7)  # type: ignore[arg-type]


def test_an_arena_has_one_resource_which_stays(pool: arena.Arena) -> None:
    first = id(arena.rmm.resource(pool))
    gc.collect()
    assert id(arena.rmm.resource(pool)) == first
    assert len({id(found) for found in run_together(*[lambda: arena.rmm.resource(pool)] * 4)}) == 1
    with arena.Arena(cap="4MiB") as other:
        assert id(arena.rmm.resource(other)) != first


@pytest.mark.parametrize("given", ["1GiB", 0, object()])
def test_what_is_no_arena_is_refused(given: object) -> None:
    with pytest.raises(arena.UsageError, match=r"is not accepted; give an arena.Arena"):
        arena.rmm.resource(given)  # type: ignore[arg-type]


def test_a_simulated_arena_is_refused_where_there_is_a_real_device(
    pool: arena.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena._core, "is_real_driver_here", lambda: True)
    with pytest.raises(arena.UsageError, match="this arena is simulated, and RMM runs on a real device"):
        arena.rmm.resource(pool)


def test_a_request_on_another_device_is_refused(
    pool: arena.Arena, current_device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena.Arena, "is_simulated", False)  # as on a card
    resource = arena.rmm.resource(pool)
    address = resource.allocate(1000)
    current_device[0] = 3
    with pytest.raises(RuntimeError, match="the current device is 3, and this RMM resource has memory of device 0"):
        resource.allocate(1000)
    resource.deallocate(address, 1000)  # which works from anywhere


def test_an_rmm_that_is_too_old_is_refused(pool: arena.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena.rmm, "Stream", object)
    with pytest.raises(arena.ArenaError, match=r"needs RMM 25\.12 or later, and this is \d+\.\d+"):
        arena.rmm.resource(pool)


def test_a_missing_rmm_is_named_with_what_to_install() -> None:
    code = """
import sys
sys.modules["rmm"] = None
import arena
try:
    arena.rmm.resource()
except arena.ArenaError as error:
    print(error)
"""
    assert run_client(code).endswith("pip install rmm-cu13, or rmm-cu12 for CUDA 12\n")


def test_arena_does_not_import_rmm_on_its_own() -> None:
    code = "import sys, arena; pool = arena.Arena(cap='4MiB', upstream=None); print('rmm' in sys.modules)"
    assert run_client(code, ARENA_DRIVER="sim") == "False\n"

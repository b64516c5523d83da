"""Settings and sizes: where they come from, and what an invalid one raises."""

from __future__ import annotations

import copy
import pickle
import time

import numpy as np
import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..simulated.cu import Cu
from .conftest import GIB, MIB, MakeArena, check


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cap": "lots"}, r"cap='lots' is not a size; write bytes"),
        ({"cap": -1}, r"cap=-1 is not a size"),
        ({"cap": 1.5}, r"cap=1\.5 is not a size"),
        ({"cap": float("nan")}, r"cap=nan is not a size"),
        ({"cap": True}, r"cap=True is not a size"),
        ({"cap": "120%"}, r"cap='120%' is not a size"),
        ({"cap": "9GiB"}, r"cap=9663676416 is more than the device's 8589934592 bytes"),
        ({"reserve": "2GiB", "cap": "1GiB"}, r"reserve=2147483648 is more than cap=1073741824"),
        ({"headroom": 1.0}, r"headroom=8589934592 leaves nothing"),
        ({"growth": "x"}, r"growth='x' is not a size"),
        ({"device": 7}, "device=7 does not exist; this machine has 1 device"),
        ({"device": "gpu"}, r"device='gpu' is not accepted; write a number from 0 up, \"sim\", or \"sim:8GiB\""),
        ({"compact": "maybe"}, r"compact='maybe' is not accepted"),
        (
            {"compact": 0},
            r"compact=0 is not accepted",
        ),  # parts of the arena used to take it for False, and others did not
    ],
)
def test_an_invalid_setting_is_named(make: MakeArena, settings: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make(**settings)


def test_the_largest_simulated_device_has_room_for_an_arena() -> None:
    with arena.Arena(device="sim:1TiB") as pool:
        pool.allocate(1000).free()


def test_settings_come_from_arguments_then_configure_then_the_environment(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena._pool.settings, "_configured", {})
    assert make().stats().cap == 8 * GIB
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "50%")
    assert make().stats().cap == 4 * GIB
    monkeypatch.setenv("ARENA_CAP", "3GiB")
    assert make().stats().cap == 3 * GIB
    arena.configure(cap="2GiB")
    assert make().stats().cap == 2 * GIB
    assert make(cap=0.125).stats().cap == GIB
    monkeypatch.setenv("ARENA_HEADROOM", "much")
    with pytest.raises(UsageError, match="ARENA_HEADROOM='much' is not a size"):
        make()


def test_an_arena_can_validate_itself_after_every_operation(make: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(value: str) -> float:
        monkeypatch.setenv("ARENA_VALIDATE", value)
        pool = make(cap="64MiB")
        blocks = [pool.allocate(512) for _ in range(1000)]
        begin = time.perf_counter()
        for _ in range(100):
            pool.allocate(512).free()
        took = time.perf_counter() - begin
        assert pool._core is not None
        assert pool._core.validates == (value == "1")
        del blocks
        return took

    assert seconds("1") > 5 * seconds("0")  # validation inspects every block, some hundred times
    monkeypatch.setenv("ARENA_VALIDATE", "often")
    with pytest.raises(UsageError, match="ARENA_VALIDATE='often' is not accepted; write 1 or 0"):
        make()


@pytest.mark.parametrize("size", [-1, 1 << 50, (1 << 64) - 1, 1 << 70])
def test_invalid_sizes_are_refused(make: MakeArena, size: int) -> None:
    pool = make(cap="8MiB")
    with pytest.raises(UsageError if size < 0 else OutOfMemoryError):
        pool.allocate(size)
    check(pool)


def test_a_size_that_is_no_number_is_a_type_error(make: MakeArena) -> None:
    for size in (1.5, None, True):
        with pytest.raises(TypeError, match="a size in bytes must be an int"):
            make(cap="8MiB").allocate(size)  # type: ignore[arg-type]


WRITTEN = {
    "3MiB": 3 * MIB,
    "3M": 3 * MIB,
    "3MB": 3_000_000,
    " 3 mib ": 3 * MIB,
    "3m": 3 * MIB,
    "3mb": 3_000_000,
    "1.5KiB": 1536,
    "1.5k": 1536,
    "1.5kB": 1500,
    "2500000": 2_500_000,
    "2500000B": 2_500_000,
    "0.003GB": 3_000_000,
}


@pytest.mark.parametrize(("text", "size"), WRITTEN.items())
def test_a_size_is_read_the_same_way_everywhere(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    pool = make(cap="64MiB")
    with pool.allocate(text) as buffer, pool.allocate(text, stream=0) as second:
        assert (buffer.nbytes, second.nbytes) == (size, size)
    pool.set_cap(text)
    assert pool.stats().cap == size
    pool.set_limit(text)
    assert pool.get_limit() == size
    assert pool.scope("part", budget=text).budget == size
    assert make(growth=text, headroom=text, cap=text).stats().headroom == size
    monkeypatch.setattr(arena._pool.settings, "_configured", {})
    monkeypatch.setenv("ARENA_CAP", text)
    assert make().stats().cap == size
    assert sim.price("cuMemCreate", text) == sim.price("cuMemCreate", size)


@pytest.mark.parametrize("text", ["12XB", "twelve", "-1", "1.5", "101%", "", "4Gi", "4iB", "1 2", "½GiB"])
def test_a_text_that_is_no_size_is_refused_by_allocate(make: MakeArena, text: str) -> None:
    with pytest.raises(UsageError, match=r"size='.*' is not a size; write bytes \(4 << 30\), or a text with a unit"):
        make(cap="8MiB").allocate(text)


def test_anything_that_converts_to_an_int_is_a_size(make: MakeArena) -> None:
    assert make(cap=np.int64(8 * MIB)).stats().cap == 8 * MIB  # type: ignore[arg-type]


def test_a_device_is_written_the_same_way_everywhere(cu: Cu) -> None:
    for device in (0, "0", " 0", "sim", np.int32(0)):
        with arena.Arena(device=device) as pool:  # type: ignore[arg-type]
            assert (pool.device, pool.is_simulated) == (0, True)
    with arena.Arena(device="sim:2GB") as pool, arena.Arena(device="sim:2000000000") as same:
        assert pool.stats().device_total == 2_000_000_000
        assert pool.device == same.device
    for device in (-1, "gpu", "sim0", None, 1.5, True):
        with pytest.raises(UsageError, match=r'is not accepted; write a number from 0 up, "sim", or "sim:8GiB"'):
            arena.Arena(device=device)  # type: ignore[arg-type]
    for device, text in (("sim:", "is not a size"), ("sim:50%", "is not a size"), ("sim:0", "has no memory")):
        with pytest.raises(UsageError, match=text):
            arena.Arena(device=device)


def test_a_zero_size_allocation_has_an_address_of_its_own(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    first, second = pool.allocate(0), pool.allocate(0)
    assert first.ptr != second.ptr
    assert (pool.stats().requested, pool.stats().live) == (0, 1024)


def test_foreign_and_stale_addresses_give_different_errors(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    buffer = pool.allocate(1000)
    for address, text in ((4096, "is not an address of this arena"), (buffer.ptr + 512, "not the start of a live")):
        with pytest.raises(UsageError, match=text):
            pool._open.free(address)
    check(pool)


def test_a_freed_address_is_stale_even_while_its_block_is_cached(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    for _ in range(3):  # a size that recurs
        with pool.allocate(1000) as buffer:
            address = buffer.ptr
    for call in (pool.pin, pool.unpin, lambda freed: pool._open.record_stream(freed, 0), pool._open.free):
        with pytest.raises(UsageError, match="is not the start of a live block; was it freed twice"):
            call(address)
    assert check(pool).blocks == 0
    assert pool.allocate(1000).ptr == address


def test_the_error_survives_pickling_and_copying(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(9 * MIB)
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert str(twin) == str(caught.value)
        assert (twin.verdict, twin.requested, twin.largest) == ("cap reached", 9 * MIB, 8 * MIB)
        assert isinstance(twin, MemoryError)
    assert len(str(caught.value).splitlines()) <= 25


def test_a_simulated_device_is_created_once_per_size_and_again_after_a_reset(cu: Cu) -> None:
    for _ in range(2):
        pools = [arena.Arena(device=f"sim:{size}") for size in ("1GiB", "2GiB", "1GiB")]
        assert [pool.stats().device_total for pool in pools] == [GIB, 2 * GIB, GIB]
        assert pools[0].device == pools[2].device != pools[1].device
        pools.clear()
        sim.reset()
        sim.configure(devices=4)
    with pytest.raises(UsageError, match="device='sim:much': size='much' is not a size; write bytes"):
        arena.Arena(device="sim:much")


@pytest.mark.parametrize("cap", ["9" * 400 + ".0", "9" * 5000, "\u0663GiB", "1e3GiB", "", " ", "GiB", "1 GiBB"])
def test_hostile_sizes_are_refused(make: MakeArena, cap: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        make(cap=cap)


def test_a_share_may_also_be_written_as_text(make: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena._pool.settings, "_configured", {})
    monkeypatch.setenv("ARENA_CAP", "0.5")
    assert make().stats().cap == 4 * GIB
    with pytest.raises(UsageError, match=r"cap='1\.5' is not a size"):
        make(cap="1.5")


@pytest.mark.parametrize(("limit", "cap"), [("0", 8 * GIB), ("99999999999999", 8 * GIB), ("1073741824", GIB)])
def test_cupys_limit_is_read_as_cupy_reads_it(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch, limit: str, cap: int
) -> None:
    monkeypatch.setattr(arena._pool.settings, "_configured", {})
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", limit)
    assert make().stats().cap == cap


def test_a_default_arena_belongs_to_a_numbered_device() -> None:
    for device in ("sim:1GiB", True, None):
        with pytest.raises(UsageError, match="give the number of a device"):
            arena.default_arena(device)  # type: ignore[arg-type]


def test_the_advice_does_not_blame_other_programs_that_are_not_there(make: MakeArena) -> None:
    pool = make()
    held = pool.allocate(5 * GIB)
    with pytest.raises(OutOfMemoryError, match="this arena already holds all memory of the device") as caught:
        pool.allocate(5 * GIB)
    assert (caught.value.verdict, held.nbytes) == ("device full", 5 * GIB)

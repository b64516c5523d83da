"""The methods of CuPy's MemoryPool, which work without CuPy."""

from __future__ import annotations

from typing import Any

import pytest

from arena import UsageError, sim

from .conftest import GIB, MIB, MakeArena, check


def test_byte_counts_have_cupys_names(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    assert (pool.used_bytes(), pool.free_bytes(), pool.total_bytes()) == (0, 0, 0)
    buffer = pool.allocate(1000)
    stats = check(pool)
    assert (pool.used_bytes(), pool.total_bytes()) == (1024, stats.reserved)
    assert pool.free_bytes() == stats.reserved - 1024
    buffer.free()
    assert (pool.used_bytes(), pool.free_bytes()) == (0, pool.total_bytes())


@pytest.mark.parametrize("stream", [None, object()])
def test_free_all_blocks_trims(make: MakeArena, stream: object) -> None:
    pool = make(cap="64MiB")
    pool.allocate(MIB).free()
    assert pool.total_bytes() > 0
    pool.free_all_blocks(stream=stream)
    assert pool.total_bytes() == sim.used() == 0


def test_a_limit_is_a_cap(make: MakeArena) -> None:
    pool = make()
    total = pool.stats().device_total
    assert pool.get_limit() == 0
    pool.set_limit(size=GIB)
    assert pool.get_limit() == pool.stats().cap == GIB
    pool.set_limit(fraction=0.5)
    assert pool.get_limit() == pool.stats().cap == total // 2
    pool.set_limit(size=10 * total)
    assert (pool.get_limit(), pool.stats().cap) == (10 * total, total)


def test_a_limit_of_the_whole_device_is_a_limit_as_in_cupy(make: MakeArena) -> None:
    pool = make()
    total = pool.stats().device_total
    pool.set_limit(fraction=1.0)
    assert pool.get_limit() == total
    pool.set_limit(0)
    assert pool.get_limit() == 0
    pool.set_cap(total)
    assert pool.get_limit() == total
    assert make(cap="100%").get_limit() == total


@pytest.mark.parametrize(("text", "limit"), [("0", 0), ("0%", 0), ("50%", 4 * GIB), ("100%", 8 * GIB)])
def test_the_limit_of_cupys_environment_variable_is_a_limit(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch, text: str, limit: int
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    assert make().get_limit() == limit


def test_free_all_free_trims_and_warns_that_it_is_deprecated_as_in_cupy(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    pool.allocate(MIB).free()
    with pytest.warns(DeprecationWarning, match=r"call free_all_blocks\(\)"):
        pool.free_all_free()
    assert pool.total_bytes() == sim.used() == 0


def test_a_limit_that_is_not_a_whole_number_is_rounded_down_as_in_cupy(make: MakeArena) -> None:
    pool = make()
    pool.set_limit(size=0.3 * GIB)
    assert pool.get_limit() == pool.stats().cap == int(0.3 * GIB)


@pytest.mark.parametrize("off", [{}, {"size": 0}, {"size": 0.0}, {"fraction": 0}, {"fraction": 0.0}], ids=str)
def test_without_a_limit_the_whole_device_is_available(make: MakeArena, off: dict[str, Any]) -> None:
    pool = make(cap="64MiB")
    pool.set_limit(**off)
    assert (pool.get_limit(), pool.stats().cap) == (0, pool.stats().device_total)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"size": -1}, "size=-1 is negative"),
        ({"size": -0.5}, "size=-0.5 is not accepted; write a number of bytes, 0 or more"),
        ({"size": float("inf")}, "size=inf is not accepted"),
        ({"size": float("nan")}, "size=nan is not accepted"),
        ({"fraction": -0.1}, "fraction=-0.1 is not accepted"),
        ({"fraction": 1.1}, "fraction=1.1 is not accepted"),
        ({"fraction": float("nan")}, "fraction=nan is not accepted"),
        ({"size": 1, "fraction": 0.1}, "give either size or fraction, not both"),
    ],
    ids=str,
)
def test_an_invalid_limit_is_refused(make: MakeArena, wrong: dict[str, Any], text: str) -> None:
    pool = make(cap="64MiB")
    with pytest.raises(UsageError, match=text):
        pool.set_limit(**wrong)
    assert pool.get_limit() == 64 * MIB

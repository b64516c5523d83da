"""Clusters of workers on simulated cards. Nothing may be left on this process's cards at the end of a test."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

import arena
from arena import sim
from arena._dask.held import all_held

from ..report.browser import Open, Tab, browser
from ..simulated.conftest import fresh

MakeCluster = Callable[..., contextlib.AbstractContextManager[Client]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/dask/" in item.path.as_posix():  # Dask's own business
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@contextlib.contextmanager
def open_cluster(workers: int, *, processes: bool, **options: Any) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=workers,
            processes=processes,
            **{"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL, **options},
        ) as made,
        Client(made) as client,
    ):
        yield client


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two simulated cards of 8 GiB, here and in the workers' processes."""
    for name in ("CAP", "RESERVE", "HEADROOM", "GROWTH", "LINES"):
        monkeypatch.delenv(f"ARENA_{name}", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    monkeypatch.setenv("ARENA_DRIVER", "sim")
    monkeypatch.setenv("CUDASIM_DEVICES", "2")
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    monkeypatch.setattr("arena._dask.plugin.give_arenas", lambda only: None)  # for good: not in pytest's own process
    fresh(devices=2)
    yield
    gc.collect()
    assert all_held() == []
    census = sim.census()
    left = (sim.used(0), sim.used(1), census.handles, census.mappings, census.reservations, census.events)
    fresh()
    arena.trace_lines(False)
    assert left == (0, 0, 0, 0, 0, 0)


@pytest.fixture
def make_cluster(two_cards: None) -> MakeCluster:
    """Makes clusters whose workers are threads of this process."""

    def make(workers: int = 2, **options: Any) -> contextlib.AbstractContextManager[Client]:
        return open_cluster(workers, processes=False, **options)

    return make


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture
def show(chromium: Any, tmp_path: Any) -> Open:
    def show_one(report: arena.dask.ClusterReport, **settings: Any) -> Tab:
        return Tab(chromium, report.save(tmp_path / "cluster.html", overwrite=True), **settings)

    return show_one

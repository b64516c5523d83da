"""The conformance suite of all adapters, inside Dask's workers, on the arenas that the plugin gave them."""

from __future__ import annotations

import pytest

import arena.dask
from arena import sim

from ..clients.conformance import LAST, run_checks
from .conftest import open_cluster

LIBRARIES = ("cuda_core", "numba")


def run_in_worker(name: str) -> dict[str, str]:
    sim.enable()  # this process's libcuda.so.1
    assert arena.dask.get_arena() is arena.default_arena()
    return run_checks(name, skip=LAST)


def test_adapters_conform_in_workers(two_cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDASIM_RACES", "1")
    with open_cluster(len(LIBRARIES), processes=True) as client:
        client.register_plugin(arena.dask.ArenaPlugin(cap="64MiB"))
        workers = list(client.scheduler_info()["workers"])
        running = [
            client.submit(run_in_worker, name, workers=[worker], pure=False)
            for name, worker in zip(LIBRARIES, workers, strict=True)
        ]
        assert client.gather(running) == [{}] * len(LIBRARIES)
        assert [one.account["live"] for one in arena.dask.report(client).arenas] == [0] * len(LIBRARIES)

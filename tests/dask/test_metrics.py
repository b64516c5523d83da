"""The figures of a worker's arena where Dask has its own: on its /metrics page, and in its heartbeats."""

from __future__ import annotations

import urllib.request
from typing import Any

from distributed import Client, wait
from prometheus_client.parser import text_string_to_metric_families

from arena.dask import ArenaPlugin

from . import tasks
from .conftest import MakeCluster
from .tasks import MIB
from .test_plugin import until


def scrape(client: Client) -> str:
    """What Prometheus gets from Dask's page."""
    (worker, *_) = client.scheduler_info()["workers"].values()
    with urllib.request.urlopen(f"http://127.0.0.1:{worker['services']['dashboard']}/metrics") as page:
        text: str = page.read().decode()
    return text


def samples(text: str) -> dict[str, dict[str, float]]:
    return {
        family.name: {str(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_dasks_own_metrics_page_has_the_account_of_the_arena(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        assert "arena_" not in scrape(client)
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        kept = client.submit(tasks.hold, 3 * MIB)
        wait(kept)
        text = scrape(client)
        found = samples(text)
        assert "dask_worker_threads" in found  # Dask's are still there
        assert list(found["arena_cap_bytes"].items()) == [("[('device', '0'), ('worker', '0')]", 64 * MIB)]
        assert 3 * MIB in found["arena_reserved_bytes"].values()
        assert list(found["arena_allocations"].values()) == [1]
        assert text.count("# TYPE arena_cap_bytes gauge\n") == 1
        client.register_plugin(ArenaPlugin(cap="32MiB"))
        assert list(samples(scrape(client))["arena_cap_bytes"].values()) == [32 * MIB]
        client.unregister_worker_plugin("arena")
        assert "arena_" not in scrape(client)


def test_a_shared_arena_is_there_once_with_both_names(make_cluster: MakeCluster) -> None:
    with make_cluster(2) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        assert list(samples(scrape(client))["arena_cap_bytes"]) == ["[('device', '0'), ('worker', '0, 1')]"]


def test_arenas_of_several_devices_are_one_family_each(make_cluster: MakeCluster) -> None:
    with make_cluster(2) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB", device=lambda worker: worker.name))
        text = scrape(client)
        assert text.count("# TYPE arena_cap_bytes gauge\n") == 1
        assert len(samples(text)["arena_cap_bytes"]) == 2


def test_the_scheduler_knows_the_figures_from_heartbeats(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        kept = client.submit(tasks.hold, 3 * MIB)
        wait(kept)

        def figures() -> dict[str, Any]:
            (worker,) = client.scheduler_info()["workers"].values()
            known: dict[str, Any] = worker["metrics"].get("arena") or {}
            return known

        until(lambda: bool(figures().get("live") == 3 * MIB))
        assert {name: figures()[name] for name in ("device", "cap", "failures")} == {
            "device": 0,
            "cap": 64 * MIB,
            "failures": 0,
        }

"""Figures of a worker's arena where Dask has its own: in its heartbeats, and on its ``/metrics`` page for Prometheus.

Dask serves the default registry of prometheus_client on that page, if it is installed. So a collector in that registry
is all it takes: same port, same page, same scrape.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ..errors import UsageError
from .held import Held, all_held, held_by

__all__ = ["HEARTBEAT", "add_metrics", "remove_metrics"]

HEARTBEAT = "arena"  # among the metrics of a worker
FIGURES = ("live", "reserved", "cap", "peak_live", "peak_reserved", "failures")
_lock = threading.Lock()
_collector: Collector | None = None


def add_metrics(worker: Any) -> None:
    """Add the figures of a worker's arena, from now on."""
    global _collector
    worker.metrics = {**worker.metrics, HEARTBEAT: heartbeat}  # another dictionary: a heartbeat may iterate over this
    with _lock, contextlib.suppress(ImportError):  # without prometheus_client Dask has no metrics either
        from prometheus_client import REGISTRY

        if _collector is None:
            _collector = Collector()
            REGISTRY.register(_collector)


def remove_metrics(worker: Any) -> None:
    """Remove them when the worker has no arena any more."""
    global _collector
    worker.metrics = {name: metric for name, metric in worker.metrics.items() if name != HEARTBEAT}
    with _lock:
        if _collector is not None and not all_held():
            from prometheus_client import REGISTRY

            REGISTRY.unregister(_collector)
            _collector = None


def heartbeat(worker: Any) -> dict[str, Any]:
    """What the scheduler knows about an arena at any time: ``client.scheduler_info()["workers"][...]["metrics"]``."""
    found = held_by(worker)
    if found is None:
        return {}
    stats = found.pool.stats()
    return {"device": found.seat.device, **{name: getattr(stats, name) for name in FIGURES}}


class Collector:
    """Collects the metrics of all arenas that this process holds for workers, when Prometheus scrapes."""

    def collect(self) -> Iterator[Any]:
        """Called by prometheus_client."""
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Any] = {}  # a family may be there only once, with the samples of all arenas
        for found in all_held():
            with contextlib.suppress(UsageError):  # closed by now
                for family in text_string_to_metric_families(found.pool.metrics(worker=_names(found))):
                    if family.name in families:
                        families[family.name].samples.extend(family.samples)
                    else:
                        families[family.name] = family
        yield from families.values()

    def describe(self) -> list[Any]:
        """Called when it is registered. Without this, metrics would be collected then."""
        return []


def _names(found: Held) -> str:
    return ", ".join(sorted(str(worker.name) for worker in found.workers.values()))

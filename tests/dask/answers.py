"""What workers answer, made up, and reports of it."""

from __future__ import annotations

from typing import Any

from arena._dask.build import build
from arena._dask.model import ClusterReport

from .tasks import MIB


def answer(name: str, live: int, *, cap: int = 64 * MIB, process: str = "", at: float = 100.0) -> dict[str, Any]:
    """What a worker with one arena answers."""
    reasons = {"requested": live, "rounding": 0, "pending": 0, "captured": 0, "releasable": 2 * MIB, "stranded": 0}
    reserved = live + 2 * MIB
    figures = {**reasons, "spare": 0, "live": live, "reserved": reserved, "cap": cap}
    return {
        "version": 1,
        "name": name,
        "host": "host",
        "process": process or name,
        "arenas": [
            {
                "number": 1,
                "workers": [f"tcp://{name}"],
                "sharing": 1,
                "device": {
                    "number": 0,
                    "label": "device 0",
                    "name": "Simulated",
                    "simulated": True,
                    "total": 8 << 30,
                    "free": 4 << 30,
                    "card": f"card of {process or name}",
                },
                "account": {**figures, "compactable": 0, "headroom": 0},
                "peak": {"peak_live": live + MIB, "peak_reserved": reserved},
                "largest": cap - live,
                "counts": dict.fromkeys(
                    ("allocations", "blocks", "hits", "splits", "failures", "maps", "unmaps", "rebacked"), 2
                )
                | {"driver_calls": 5, "waits": 0},
                "lines": [([("/home/me/load.py", 3, "load")], live // 2, 1), ([("/a/x.py", 1, "f")], live // 4, 1)],
                "peak_lines": [([("/home/me/load.py", 3, "load")], live, 2)],
                "frameworks": [("CuPy", live, 2)],
                "timeline": {
                    "at": [at, at + 1.0, at + 3.0],
                    "figures": {
                        name: [0, value + (MIB if name in ("live", "requested", "reserved") else 0), value]
                        for name, value in figures.items()
                    },
                },
            }
        ],
    }


def cluster_of(**workers: dict[str, Any]) -> ClusterReport:
    return build("tcp://scheduler", {f"tcp://{name}": one for name, one in workers.items()}, [], [])

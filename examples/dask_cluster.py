"""A Dask cluster whose workers share one card: a part of it for each, one report of all, and errors that name a worker.

    ARENA_DRIVER=sim python examples/dask_cluster.py [FOLDER]

With dask-cuda, write LocalCUDACluster instead of LocalCluster; the rest is the same.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from distributed import Client, LocalCluster, wait

import arena
import arena.dask

MIB = 1 << 20


def load(part: int):
    import cupy  # in the worker: the plugin has given it the worker's arena

    return cupy.empty((part + 1) * 4 * MIB, dtype="float32")


def too_much():
    import cupy

    return cupy.empty(4 << 30, dtype="uint8")


def main(folder: Path) -> None:
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL)
    with cluster, Client(cluster) as client:
        client.register_plugin(arena.dask.ArenaPlugin(cap="80%", lines=True))
        parts = client.map(load, range(12))
        wait(parts)

        try:
            client.submit(too_much).result()
        except arena.OutOfMemoryError as error:
            where = next(line for line in str(error).splitlines() if line.startswith("On Dask worker"))
            print(f"{error.verdict}: {where.partition(',')[0]}")

        report = arena.dask.report(client)
        print(report.caption)
        for line in report.lines:
            print(f"{line.bytes / MIB:,.0f} MiB  {line.name}")
        report.save(folder / "cluster.html", overwrite=True)

        del parts
        while arena.dask.report(client).account["live"]:
            time.sleep(0.1)
        print(arena.dask.trim(client))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())

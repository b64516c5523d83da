"""Arenas in a Dask cluster: one in each worker, and one report of them all.

.. code-block:: python

    import arena.dask
    from distributed import Client

    client = Client("tcp://scheduler:8786")
    client.register_plugin(arena.dask.ArenaPlugin(cap="4GiB", lines=True))
    ...
    print(arena.dask.report(client))  # or .save("cluster.html")
    arena.dask.trim(client)

Out of memory in a task is an :class:`arena.OutOfMemoryError` that names the worker; Dask's ``retries=`` applies to it.
:doc:`/dask` is the guide.
"""

from __future__ import annotations

from .errors import ArenaError

try:
    import distributed as _distributed
except ImportError as error:
    raise ArenaError(
        f"arena.dask needs Dask's distributed, which cannot be imported ({error}); pip install distributed"
    ) from error

from ._dask.cluster import Trimmed, report, trim
from ._dask.model import ClusterLine, ClusterReport, Departed, Missing, WorkerArena
from ._dask.place import get_arena
from ._dask.plugin import ArenaPlugin
from ._inspect.lines import pass_over

__all__ = [
    "ArenaPlugin",
    "ClusterLine",
    "ClusterReport",
    "Departed",
    "Missing",
    "Trimmed",
    "WorkerArena",
    "get_arena",
    "report",
    "trim",
]

pass_over(getattr(_distributed, "__file__", None))

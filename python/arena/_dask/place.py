"""Which worker a thread works for: for out-of-memory errors, and for tasks that ask for their arena."""

from __future__ import annotations

from typing import Any

from distributed import get_worker

from .._pool.arena import Arena
from ..errors import UsageError
from .held import all_held, held_by
from .names import worker_text

__all__ = ["get_arena", "place"]


def place() -> str:
    """The line that an error has about the worker; empty if this thread works for none, or for one of several."""
    worker = _current_worker()
    if worker is None:
        return ""
    key = _current_task(worker)
    task = f", in the task {key}" if key else ""
    return f"On Dask worker {worker_text(worker.name, worker.address)}{task}"


def get_arena() -> Arena:
    """Return the arena of the Dask worker that runs this task, as ``distributed.get_worker()`` returns the worker.

    Raises :class:`arena.UsageError` outside of a worker, and if no :class:`ArenaPlugin` is registered.
    """
    worker = _current_worker()
    found = held_by(worker) if worker is not None else None
    if found is None:
        raise UsageError(
            "there is no arena of a Dask worker here; call it in a task, after "
            "client.register_plugin(arena.dask.ArenaPlugin(...))"
        )
    return found.pool


def _current_worker() -> Any:
    try:
        return get_worker()
    except ValueError:  # not in a task
        workers = {id(worker): worker for found in all_held() for worker in found.workers.values()}
        return next(iter(workers.values())) if len(workers) == 1 else None


def _current_task(worker: Any) -> str:
    try:
        return str(worker.get_current_task())
    except Exception:  # not in a task; how this is noticed differs between versions
        return ""

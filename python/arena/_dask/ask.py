"""Asks all workers of a cluster at once. A worker that does not answer in time is named, and holds up nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from distributed import Client

from .._util.durations import parse_duration
from ..errors import ArenaError, UsageError
from .ledger import departed
from .model import Missing

__all__ = ["TIMEOUT", "Answers", "ask_scheduler", "ask_workers", "check"]

TIMEOUT = "10s"
POLL = 0.5  # seconds until the scheduler is asked who is still there
GRACE = 5.0  # seconds that the scheduler may take to list the workers, at least


class Answers:
    """What the workers of a cluster answered, by address, and those that did not."""

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler
        self.by_worker: dict[str, Any] = {}
        self.missing: list[Missing] = []


def check(client: object, timeout: str | float) -> float:
    """Check the arguments, and return the timeout in seconds."""
    if not isinstance(client, Client):
        raise UsageError(f"client={client!r} is not accepted; give a distributed.Client")
    return parse_duration(timeout, "timeout")


async def ask_workers(
    client: Any, function: Callable[..., Any], timeout: float, arguments: Callable[[int], dict[str, Any]]
) -> Answers:
    """Run a function on each worker, all at once. Its arguments may depend on the number of workers."""
    info = await _identity(client, max(timeout, GRACE))
    answers, given = Answers(str(info["address"])), arguments(len(info["workers"]))
    names = {address: str(worker.get("name", "")) for address, worker in info["workers"].items()}

    tasks: dict[str, asyncio.Task[Any]] = {
        address: asyncio.create_task(_answer_of(client, function, address, timeout, given)) for address in names
    }
    await _wait(client, tasks)
    for address, task in tasks.items():
        found = "gone: the scheduler has removed it" if task.cancelled() else task.result()
        if isinstance(found, str):
            answers.missing.append(Missing(names[address], address, found))
        else:
            answers.by_worker[address] = found[0]
    answers.missing.sort(key=lambda one: (one.name, one.address))
    return answers


async def _wait(client: Any, tasks: dict[str, asyncio.Task[Any]]) -> None:
    """Wait for all answers, but not for those of workers that the scheduler has removed meanwhile.

    It may try for half a minute to reach such a worker.
    """
    pending = set(tasks.values())
    try:
        while pending:
            _, pending = await asyncio.wait(pending, timeout=POLL)
            if pending:
                with contextlib.suppress(ArenaError):
                    known = (await _identity(client, GRACE))["workers"]
                    for address, task in tasks.items():
                        if address not in known:
                            task.cancel()
    finally:
        for task in pending:
            task.cancel()


async def _answer_of(
    client: Any, function: Callable[..., Any], address: str, timeout: float, arguments: dict[str, Any]
) -> tuple[Any] | str:
    """The answer in a tuple, or why there is none."""
    try:
        # In the client's own event loop, run() returns something to wait for.
        asked = client.run(function, workers=[address], on_error="return", **arguments)
        found = (await asyncio.wait_for(asked, timeout))[address]
    except asyncio.TimeoutError:
        return f"no answer in {timeout:g} s"
    except Exception as error:  # the worker left, or the connection broke
        found = error
    if isinstance(found, UsageError):
        return str(found)
    return _reason(found) if isinstance(found, BaseException) else (found,)


def _reason(error: BaseException) -> str:
    if isinstance(error, (OSError, KeyError)):  # CommClosedError is an OSError
        return "gone: the connection is closed" if isinstance(error, OSError) else "gone"
    return f"{type(error).__name__}: {error}".splitlines()[0]


async def ask_scheduler(client: Any, timeout: float) -> list[dict[str, Any]]:
    """The workers with an arena that have left; none if the scheduler keeps no record."""
    with contextlib.suppress(Exception):
        found: list[dict[str, Any]] = await asyncio.wait_for(client.run_on_scheduler(departed), timeout)
        return found
    return []


async def _identity(client: Any, timeout: float) -> dict[str, Any]:
    """The scheduler's list of workers. Newer versions of Dask return only some of them unless asked for all."""
    try:
        try:
            found = await asyncio.wait_for(client.scheduler.identity(n_workers=-1), timeout)
        except TypeError:
            found = await asyncio.wait_for(client.scheduler.identity(), timeout)
    except (asyncio.TimeoutError, OSError) as error:
        why = f"did not answer in {timeout:g} s" if isinstance(error, asyncio.TimeoutError) else f"is gone: {error}"
        raise ArenaError(f"the scheduler of {client} {why}") from error
    known: dict[str, Any] = found
    return known

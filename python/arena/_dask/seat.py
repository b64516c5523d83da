"""A worker's seat: which device it uses, and how many processes share that card. The scheduler's ledger knows."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import Any

from distributed.protocol.pickle import dumps

from .. import _core
from .._pool.settings import find_device
from ..errors import ArenaError, UsageError
from . import ledger
from .card import cards_of, host_name
from .settings import ROUND_ROBIN, Settings

__all__ = ["Seat", "give_back_seat", "process_name", "take_seat"]

log = logging.getLogger("arena.dask")


@dataclass(frozen=True)
class Seat:
    """A device of this process, its identity and size, and how many processes share it."""

    device: int
    card: str
    total: int
    sharing: int = 1
    version: int = 0  # of ``sharing``: the scheduler counts changes


def process_name() -> str:
    """Identifies this process in the cluster."""
    return f"{host_name()}/{os.getpid()}"


async def take_seat(worker: Any, settings: Settings) -> Seat:
    """Ask the scheduler for a seat. If it cannot answer, that is an error only where its answer is needed."""
    device = settings.device(worker) if callable(settings.device) else settings.device
    is_chosen_there = device == ROUND_ROBIN
    driver, number = find_device(0 if device is None or is_chosen_there else device)
    cards = cards_of(driver)
    facts = {
        "address": worker.address,
        "name": str(worker.name),
        "host": host_name(),
        "process": process_name(),
        "cards": cards,
        "device": None if is_chosen_there else number,
    }
    try:
        found = await _run_on_scheduler(worker, ledger.join, facts)
    except Exception as error:
        if is_chosen_there or settings.depends_on_sharing:
            raise UsageError(_what_to_write(is_chosen_there, error)) from error
        log.debug("the scheduler keeps no ledger for arena: %s", error)
        found = {"device": number, "card": cards[number], "sharing": 1, "version": 0}
    total = _core.describe_device(driver, found["device"]).total
    return Seat(found["device"], found["card"], total, found["sharing"], found["version"])


def _what_to_write(is_device: bool, error: Exception) -> str:
    asked = f'device="{ROUND_ROBIN}"' if is_device else "a cap that is a share of the card"
    instead = "device=0 or a function" if is_device else 'cap in bytes ("4GiB"), or workers_per_device=1'
    return (
        f"{asked} needs arena on the scheduler, too, which answered: {type(error).__name__}: {error}; install it "
        f"there, or write {instead}"
    )


async def give_back_seat(worker: Any) -> None:
    """Leave the ledger. A worker that closes need not do so: the scheduler notices."""
    with contextlib.suppress(Exception):  # the scheduler is gone, or keeps no ledger
        await _run_on_scheduler(worker, ledger.leave, {"address": worker.address})


async def _run_on_scheduler(worker: Any, function: Any, arguments: dict[str, Any]) -> Any:
    answer = await worker.scheduler.run_function(function=dumps(function), kwargs=dumps(arguments))
    if answer["status"] != "OK":
        raise ArenaError(answer.get("exception_text", str(answer)))
    return answer["result"]

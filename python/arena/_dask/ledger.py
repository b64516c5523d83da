"""The scheduler's side: which worker uses which card, so that those who share one divide it, also as they come and go.

The ledger is a plugin of the scheduler, which the first worker that asks for a seat installs. Nothing else of arena
runs there. Processes count, not workers: workers in one process share its arena.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from distributed import SchedulerPlugin

__all__ = ["SHARE", "Ledger", "departed", "join", "leave"]

NAME = "arena"
SHARE = "arena-share"  # the message to workers
MOST_DEPARTED = 50


@dataclass
class Seat:
    """A worker that uses a card."""

    address: str
    name: str
    host: str
    process: str
    card: str
    worker: Any = field(default=None, repr=False)  # the scheduler's WorkerState, once it has one; outlives the worker


class Ledger(SchedulerPlugin):  # type: ignore[misc]
    """All seats of a cluster."""

    name = NAME

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.seats: dict[str, Seat] = {}
        self.departed: deque[dict[str, Any]] = deque(maxlen=MOST_DEPARTED)
        self._versions = itertools.count(1)

    def join(self, seat: Seat) -> dict[str, Any]:
        """Seat a worker, or give it another seat, and notify those who share its card."""
        seat.worker = self.scheduler.workers.get(seat.address)
        before = self.seats.get(seat.address)
        self.seats[seat.address] = seat
        if before is not None and before.card != seat.card:
            self._announce(before.card)
        return self._announce(seat.card, but=seat.address)

    def leave(self, address: str) -> Seat | None:
        """Free a seat, and notify those who share its card."""
        seat = self.seats.pop(address, None)
        if seat is not None:
            self._announce(seat.card)
        return seat

    def pick(self, address: str, cards: list[str]) -> int:
        """The device that a worker has, or the one that the fewest processes use."""
        mine = self.seats.get(address)
        if mine is not None and mine.card in cards:
            return cards.index(mine.card)
        return min(range(len(cards)), key=lambda number: (self.sharing(cards[number]), number))

    def sharing(self, card: str) -> int:
        """How many processes use a card."""
        return len({seat.process for seat in self.seats.values() if seat.card == card})

    def _announce(self, card: str, but: str = "") -> dict[str, Any]:
        """Tell all on a card how many processes share it. Versions are for messages that overtake each other."""
        news = {"card": card, "sharing": self.sharing(card), "version": next(self._versions)}
        for address, seat in self.seats.items():
            # A worker that is not registered yet, or is being removed, has no stream; add_worker() makes up for it.
            if seat.card == card and address != but and address in self.scheduler.stream_comms:
                self.scheduler.worker_send(address, {"op": SHARE, **news})
        return news

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Called by the scheduler."""
        seat = self.seats.get(worker)
        if seat is not None:
            seat.worker = scheduler.workers.get(worker)
            self._announce(seat.card)

    def remove_worker(self, scheduler: Any, worker: str, **more: Any) -> None:
        """Called by the scheduler, also for a worker that died."""
        seat = self.leave(worker)
        if seat is not None:
            figures = seat.worker.metrics.get(NAME) if seat.worker is not None else None
            self.departed.append(
                {
                    "name": seat.name,
                    "address": seat.address,
                    "host": seat.host,
                    "at": time.time(),
                    "figures": figures or {},
                }
            )

    def restart(self, scheduler: Any) -> None:
        """Called by the scheduler when all workers are replaced on purpose."""
        self.seats.clear()
        self.departed.clear()


def ledger_of(scheduler: Any) -> Ledger:
    """The ledger of a scheduler, installed if there is none."""
    found = scheduler.plugins.get(NAME)
    if not isinstance(found, Ledger):
        found = Ledger(scheduler)
        scheduler.add_plugin(found, name=NAME)
    return found


def join(
    address: str, name: str, host: str, process: str, cards: list[str], device: int | None, dask_scheduler: Any = None
) -> dict[str, Any]:
    """Run on the scheduler by a worker. ``cards`` are the devices that it sees; without ``device`` the ledger picks
    the one that the fewest processes use."""
    ledger = ledger_of(dask_scheduler)
    if device is None:
        device = ledger.pick(address, cards)
    news = ledger.join(Seat(address, name, host, process, cards[device]))
    return {"device": device, **news}


def leave(address: str, dask_scheduler: Any = None) -> None:
    """Run on the scheduler by a worker whose plugin is gone."""
    ledger_of(dask_scheduler).leave(address)


def departed(dask_scheduler: Any = None) -> list[dict[str, Any]]:
    """Run on the scheduler by a client: the workers that left, most recent last, and the scheduler's time."""
    found = dask_scheduler.plugins.get(NAME)
    now = time.time()
    return [{**one, "ago": now - one["at"]} for one in found.departed] if isinstance(found, Ledger) else []

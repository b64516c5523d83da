"""The plugin of Dask's workers: sets up the worker's arena, and takes it down again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from distributed import Status, WorkerPlugin

from .._inspect.lines import trace_lines
from .._pool.oom import name_place
from .._util.sizes import Size
from ..errors import OutOfMemoryError, UsageError
from .frameworks import give_arenas
from .held import all_held, change_share, hold, release
from .ledger import SHARE
from .metrics import add_metrics, remove_metrics
from .names import worker_text
from .place import place
from .seat import give_back_seat, take_seat
from .settings import Settings, as_peers

__all__ = ["ArenaPlugin"]

log = logging.getLogger("arena.dask")
SETTLING = 0.25  # seconds in which those who got the plugin at the same time take their seats, and others make room
_GONE = (Status.closing, Status.closed, Status.failed, Status.closing_gracefully)


class ArenaPlugin(WorkerPlugin):  # type: ignore[misc]
    """Gives every worker its own arena: ``client.register_plugin(arena.dask.ArenaPlugin(cap="4GiB"))``.

    Applies to the workers there are, to those that join later, and after a restart. The arena is the default arena of
    the worker's device, and frameworks use it as soon as the worker imports them. Registering the plugin again replaces
    the settings.

    :param cap: the most that each worker reserves (``"4GiB"``), or a share of the card (``"80%"``), which is divided
        among the workers that share it (default: all of the card, divided in the same way)
    :param reserve: what each worker reserves at once and keeps; a share is divided, too
    :param headroom: what must stay free on the device for other users
    :param growth: the largest piece taken from the driver at a time
    :param device: the number of the worker's device (default: 0, the first device that the worker sees, which is its
        own under dask-cuda), ``"round-robin"`` for the device that the fewest workers of the machine use, or a function
        that takes the worker and returns a number
    :param workers_per_device: divide shares of a card by this number (default: by the number of processes that use
        the card at the time, which the scheduler keeps track of)
    :param compact: as in :class:`arena.Arena`
    :param vmm: as in :class:`arena.Arena`
    :param peers: as in :class:`arena.Arena`
    :param timeline: keep the account over time and at the peak, for the report of the cluster. Every operation of the
        arena then takes its lock
    :param lines: record the lines of Python that allocate, as :func:`arena.trace_lines` does (default: unchanged)
    :param frameworks: the frameworks that use the arena: ``"cupy,torch"`` (default: all that arena knows)
    """

    name = "arena"

    def __init__(
        self,
        cap: Size | None = None,
        reserve: Size | None = None,
        headroom: Size | None = None,
        growth: Size | None = None,
        *,
        device: int | str | Callable[[Any], int] | None = None,
        workers_per_device: int | None = None,
        compact: bool | str = "auto",
        vmm: bool = True,
        peers: Iterable[int] | None = None,
        timeline: bool = True,
        lines: bool | int | None = None,
        frameworks: str | None = None,
    ) -> None:
        self.settings = Settings(
            cap=cap,
            reserve=reserve,
            headroom=headroom,
            growth=growth,
            device=device,
            workers_per_device=workers_per_device,
            compact=compact,
            vmm=vmm,
            peers=as_peers(peers),
            timeline=timeline,
            lines=lines,
            frameworks=frameworks,
        )
        self.settings.check()

    async def setup(self, worker: Any) -> None:
        """Called by the worker when it gets the plugin."""
        try:
            await _attach(worker, self.settings)
        except OutOfMemoryError as error:  # there is no room for reserve=
            error._add_holders([f"On Dask worker {worker_text(worker.name, worker.address)}, which sets up its arena"])
            raise
        except UsageError as error:
            raise UsageError(f"Dask worker {worker_text(worker.name, worker.address)}: {error}") from error

    def teardown(self, worker: Any) -> None:
        """Called by the worker when it closes, and when the plugin is removed or about to be replaced."""
        if worker.status in _GONE:
            _detach(worker)
        else:  # Dask replaces a plugin by removing it first. The arena stays if another plugin is there by then
            worker.loop.add_callback(_detach_unless_replaced, worker)

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self.settings).items() if value != getattr(Settings(), name)}
        return f"ArenaPlugin({', '.join(f'{name}={value!r}' for name, value in given.items())})"


async def _attach(worker: Any, settings: Settings) -> None:
    # For good: a message without a handler would end the worker.
    worker.stream_handlers.setdefault(SHARE, _hear_share)
    seat = await take_seat(worker, settings)
    if settings.depends_on_sharing:  # before anything is reserved
        await asyncio.sleep(SETTLING)
        seat = await take_seat(worker, settings.replace(device=seat.device))
    if worker.status in _GONE:
        return
    if settings.lines is not None:
        trace_lines(bool(settings.lines), depth=int(settings.lines) or 1)
    hold(worker, settings, seat)
    name_place(place)
    give_arenas(settings.frameworks)
    add_metrics(worker)


def _hear_share(card: str, sharing: int, version: int) -> None:
    """The scheduler says how many processes share a card."""
    try:
        change_share(card, sharing, version)
    except Exception:  # it would end the worker
        log.exception("the share of the card could not be changed")


def _detach(worker: Any) -> None:
    release(worker)
    remove_metrics(worker)
    if not all_held():
        name_place(None)


async def _detach_unless_replaced(worker: Any) -> None:
    if not any(isinstance(plugin, ArenaPlugin) for plugin in worker.plugins.values()):
        _detach(worker)
        await give_back_seat(worker)

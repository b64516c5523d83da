"""The arenas that a process holds for its workers: one per device, shared by all workers of the process.

An arena outlives a change of settings where it can, because frameworks keep the arena they got, and because live data
counts against the cap of the arena that it is in. It is closed when no worker needs it any more.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from .._pool import watch
from .._pool.arena import Arena
from .._pool.defaults import replace_default
from .._pool.settings import check
from .._util.sizes import format_size
from ..errors import UsageError
from .frameworks import who_keeps_arenas
from .seat import Seat
from .settings import Settings

__all__ = ["Held", "all_held", "change_share", "held_by", "hold", "release"]


@dataclass
class Held:
    """An arena, and the workers that it is for."""

    pool: Arena
    settings: Settings
    seat: Seat
    sizes: dict[str, int]  # cap and reserve, in bytes
    previous: Arena | None  # the default arena of the device before
    workers: dict[int, Any] = field(default_factory=dict)  # by id()


_held: dict[int, Held] = {}  # by device
_lock = threading.RLock()


def hold(worker: Any, settings: Settings, seat: Seat) -> Held:
    """Give a worker the arena of a device with these settings: the existing one, a changed one, or a new one."""
    with _lock:
        _check_can_leave(worker, seat.device)
        found = _held.get(seat.device)
        if found is not None and found.pool._core is None:  # a task closed it
            found = _held.pop(seat.device)
            found = _held[seat.device] = _make(settings, seat, found.workers)
        elif found is None or not _adapt(found, settings, seat):
            if found is not None:
                _close(found)
            found = _held[seat.device] = _make(settings, seat, found.workers if found is not None else {})
        found.workers[id(worker)] = worker
        for device, other in list(_held.items()):
            if device != seat.device:  # where it was before
                _drop(device, other, worker)
        return found


def release(worker: Any) -> None:
    """The worker needs no arena any more. The last one closes it."""
    with _lock:
        for device, found in list(_held.items()):
            _drop(device, found, worker)


def held_by(worker: Any) -> Held | None:
    """The arena of a worker."""
    return next((found for found in all_held() if id(worker) in found.workers), None)


def all_held() -> list[Held]:
    """All that workers use, by device."""
    with _lock:
        return [found for _, found in sorted(_held.items()) if found.workers]


def change_share(card: str, sharing: int, version: int) -> None:
    """Divide a card among another number of processes, unless that is older news."""
    with _lock:
        for found in _held.values():
            seat = found.seat
            if seat.card == card and version > seat.version and found.pool._core is not None:
                found.seat = dataclasses.replace(seat, sharing=sharing, version=version)
                _set_cap(found, found.settings.divided(seat.total, sharing)["cap"])


def _make(settings: Settings, seat: Seat, workers: dict[int, Any]) -> Held:
    sizes = settings.divided(seat.total, seat.sharing)
    pool = Arena(
        cap=sizes["cap"],
        reserve=sizes["reserve"],
        headroom=settings.headroom,
        growth=settings.growth,
        device=seat.device,
        vmm=settings.vmm,
        compact=settings.compact,
        peers=settings.peers,
    )
    made = Held(pool, settings, seat, sizes, replace_default(pool), workers)
    _watch(made)
    return made


def _adapt(found: Held, settings: Settings, seat: Seat) -> bool:
    """Change an arena in place. False if it takes a new one, which is possible while nothing depends on this one."""
    sizes = settings.divided(seat.total, seat.sharing)
    check({**sizes, "headroom": 0}, seat.total)
    changed = [name for name in ("headroom", "growth", "compact", "vmm", "peers") if _differs(name, found, settings)]
    if sizes["reserve"] < found.sizes["reserve"]:
        changed.append("reserve")
    if changed:
        _check_unused(found, changed)
        return False
    found.settings, found.seat = settings, max(seat, found.seat, key=lambda one: one.version)
    _set_cap(found, settings.divided(seat.total, found.seat.sharing)["cap"])
    if sizes["reserve"] > found.sizes["reserve"]:
        found.pool.reserve(sizes["reserve"])
        found.sizes["reserve"] = sizes["reserve"]
    _watch(found)
    return True


def _differs(name: str, found: Held, settings: Settings) -> bool:
    return bool(getattr(found.settings, name) != getattr(settings, name))


def _check_unused(found: Held, changed: list[str]) -> None:
    what = ", ".join(f"{name}=" for name in changed)
    how = "or call client.restart(); cap= can change, and reserve= can grow, at any time"
    live = found.pool.stats().live
    if live:
        raise UsageError(
            f"{what} cannot change while the arena of device {found.seat.device} holds {format_size(live)} of live "
            f"data; free it first, {how}"
        )
    if keeper := who_keeps_arenas():
        raise UsageError(f"{what} cannot change because {keeper} keeps the arena that it uses; leave it {how}")


def _check_can_leave(worker: Any, device: int) -> None:
    """Check that a worker can move to a device. What it leaves behind would be under no cap."""
    for number, found in _held.items():
        if number != device and set(found.workers) == {id(worker)} and found.pool._core is not None:
            _check_unused(found, ["device"])


def _set_cap(found: Held, cap: int) -> None:
    """Leaves alone what a task set with ``set_cap()``, until the plugin's cap changes."""
    if cap != found.sizes["cap"]:
        found.pool.set_cap(cap)
        found.sizes["cap"] = cap


def _watch(found: Held) -> None:
    (watch.watch if found.settings.timeline else watch.unwatch)(found.pool)


def _drop(device: int, found: Held, worker: Any) -> None:
    # An arena that a framework keeps stays open, and is there if a worker of this process wants one again.
    if found.workers.pop(id(worker), None) is not None and not found.workers and not who_keeps_arenas():
        del _held[device]
        _close(found)


def _close(found: Held) -> None:
    """Close an arena, after the default arena is another one: frameworks use that."""
    if found.previous is not None and found.previous._core is not None:
        replace_default(found.previous)
    found.pool.close()


def _forget() -> None:
    """In a forked child: the arenas belong to the parent, and one of its threads may have held the lock."""
    global _lock
    _lock = threading.RLock()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

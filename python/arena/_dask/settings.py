"""The settings of :class:`arena.dask.ArenaPlugin`: checked on the client, and turned into bytes by each worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .._frameworks import parse_keys
from .._inspect.lines import MOST as MOST_LINES
from .._pool.settings import process_setting, resolve, source_of
from .._util.sizes import Size, is_share, parse_size
from ..errors import UsageError

__all__ = ["ROUND_ROBIN", "Settings", "as_peers"]

ROUND_ROBIN = "round-robin"
_DEVICES = f'a number from 0 up, "{ROUND_ROBIN}", or a function that takes the worker and returns a number'
_LARGE = 1 << 40  # shares are checked against some device: the worker's is not known yet


@dataclass(frozen=True)
class Settings:
    """As in :class:`arena.dask.ArenaPlugin`."""

    cap: Size | None = None
    reserve: Size | None = None
    headroom: Size | None = None
    growth: Size | None = None
    device: int | str | Callable[[Any], int] | None = None
    workers_per_device: int | None = None
    compact: bool | str = "auto"
    vmm: bool = True
    peers: tuple[int, ...] | None = None
    timeline: bool = True
    lines: bool | int | None = None
    frameworks: str | None = None

    def check(self) -> None:
        """Raise for what no worker could accept. What depends on the device is checked by each worker."""
        for name in ("cap", "reserve", "headroom", "growth"):
            value = getattr(self, name)
            if value is not None:
                parse_size(value, _LARGE, name)
        if self.device is not None:
            _check_device(self.device)
        sharing = self.workers_per_device
        if sharing is not None and (isinstance(sharing, bool) or not isinstance(sharing, int) or sharing < 1):
            raise UsageError(f"workers_per_device={sharing!r} is not accepted; write a number of workers from 1 up")
        if not isinstance(self.compact, bool) and self.compact != "auto":
            raise UsageError(f'compact={self.compact!r} is not accepted; write "auto", True or False')
        for name in ("vmm", "timeline"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} is not accepted; write True or False")
        _check_lines(self.lines)
        if self.frameworks is not None:
            _check_frameworks(self.frameworks)

    @property
    def depends_on_sharing(self) -> bool:
        """Whether a size is a share of the card, so that it matters how many workers use it."""
        if self.workers_per_device is not None:
            return False
        cap = self.cap if self.cap is not None else process_setting("cap")
        reserve = self.reserve if self.reserve is not None else process_setting("reserve")
        return cap is None or is_share(cap) or (reserve is not None and is_share(reserve))

    def divided(self, total: int, sharing: int) -> dict[str, int]:
        """The cap and the reserve in bytes, for one of several processes that share a card of ``total`` bytes."""
        sharing = self.workers_per_device or sharing
        return {
            "cap": _divide("cap", self.cap, total, sharing, 1.0),
            "reserve": _divide("reserve", self.reserve, total, sharing, 0),
        }

    def replace(self, **changes: Any) -> Settings:
        return dataclasses.replace(self, **changes)


def _divide(name: str, given: Size | None, total: int, sharing: int, default: Size) -> int:
    """A setting in bytes. Shares of the card are divided among those who share it; bytes are meant for each."""
    where = name if given is not None else source_of(name)
    value = given if given is not None else process_setting(name)
    if value is None:
        value = default
    if is_share(value):
        return parse_size(value, total, where) // sharing
    return resolve(name, given, total)


def _check_device(device: object) -> None:
    is_number = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    if not is_number and device != ROUND_ROBIN and not callable(device):
        raise UsageError(f"device={device!r} is not accepted; write {_DEVICES}")


def _check_lines(lines: object) -> None:
    if lines is None or isinstance(lines, bool):
        return
    if not isinstance(lines, int) or not 0 <= lines <= MOST_LINES:
        raise UsageError(f"lines={lines!r} is not accepted; write True, False, or a number of lines up to {MOST_LINES}")


def _check_frameworks(frameworks: object) -> None:
    if not isinstance(frameworks, str):
        raise UsageError(f'frameworks={frameworks!r} is not accepted; write their names: "cupy,torch"')
    parse_keys(frameworks)


def as_peers(peers: Iterable[int] | None) -> tuple[int, ...] | None:
    """The peers as something that can be compared and sent."""
    if peers is None:
        return None
    try:
        return tuple(peers)
    except TypeError:
        raise UsageError(f"peers={peers!r} is not accepted; write numbers of other devices: [1, 2], or []") from None

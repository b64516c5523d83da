"""Gives the frameworks of a worker the default arenas, and knows which of them keep an arena for good."""

from __future__ import annotations

import sys
from typing import Any

from .._frameworks import FRAMEWORKS, Installation, parse_keys

__all__ = ["give_arenas", "who_keeps_arenas"]

_KEEPERS = {"torch": "PyTorch", "cuda_core": "cuda.core"}  # the others look for the default arena each time
_given: set[str] = set()  # the keys of those that were given the arena in this process, or will be when imported


def give_arenas(only: str | None) -> None:
    """Give frameworks, all or only some (``"cupy,torch"``), the default arenas when they are imported."""
    wanted = parse_keys(only) if only is not None else tuple(framework.key for framework in FRAMEWORKS)
    new = [key for key in wanted if key not in _given]
    if new:
        _given.update(new)
        Installation(new).begin()


def who_keeps_arenas() -> str:
    """The name of a framework in this process that uses an arena and cannot change to another one; usually empty."""
    for key, name in _KEEPERS.items():
        adapter: Any = sys.modules.get(f"arena.{key}")  # not imported here: that imports the framework
        if adapter is not None and adapter.is_in_use():
            return name
    return ""

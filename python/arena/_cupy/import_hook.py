"""Giving CuPy the arena at the moment when it is imported, by whomever, whenever."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any

from .. import _core
from .._util.imports import after_import, is_installed
from .in_force import cupys_allocator, is_arenas

__all__ = ["install", "whose_allocator"]


def install() -> None:
    """Have every array of CuPy made by the arena from now on, in all threads."""
    after_import("cupy", give_arena)


def whose_allocator() -> str:
    """Whom CuPy asks for memory now: ``"arena"`` or ``"another"``; or it is ``"not imported"``, ``"not installed"``."""
    cupy: Any = sys.modules.get("cupy")
    if not isinstance(cupy, ModuleType):
        return "not imported" if is_installed("cupy") else "not installed"
    return "arena" if is_arenas(cupys_allocator()) else "another"


def give_arena(cupy: Any) -> None:
    with contextlib.suppress(AttributeError):  # somebody's stand-in
        cupy.cuda.set_allocator(_core.malloc)

"""Installs the arena in CuPy as soon as the program imports it."""

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
    """Make the arena CuPy's allocator from now on, in all threads."""
    after_import("cupy", give_arena)


def whose_allocator() -> str:
    """CuPy's current allocator: ``"arena"`` or ``"another"``; or CuPy is ``"not imported"`` or ``"not installed"``."""
    cupy: Any = sys.modules.get("cupy")
    if not isinstance(cupy, ModuleType):
        return "not imported" if is_installed("cupy") else "not installed"
    return "arena" if is_arenas(cupys_allocator()) else "another"


def give_arena(cupy: Any) -> None:
    with contextlib.suppress(AttributeError):  # a stand-in for CuPy
        cupy.cuda.set_allocator(_core.malloc)

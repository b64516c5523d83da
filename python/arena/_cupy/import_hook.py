"""Installs the arena in CuPy as soon as the program imports it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .. import _core
from .in_force import cupys_allocator, is_arenas

__all__ = ["install", "whose_allocator"]


def install() -> None:
    """Make the arena CuPy's allocator from now on, in all threads."""
    if isinstance(cupy := sys.modules.get("cupy"), ModuleType):
        give_arena(cupy)
    else:
        sys.meta_path.insert(0, Finder())


def whose_allocator() -> str:
    """CuPy's current allocator: ``"arena"`` or ``"another"``; or CuPy is ``"not imported"`` or ``"not installed"``."""
    cupy: Any = sys.modules.get("cupy")
    if not isinstance(cupy, ModuleType):
        return "not imported" if is_there() else "not installed"
    return "arena" if is_arenas(cupys_allocator()) else "another"


def is_there() -> bool:
    try:
        return importlib.util.find_spec("cupy") is not None
    except (ImportError, ValueError):  # a program may forbid the import
        return False


def give_arena(cupy: Any) -> None:
    with contextlib.suppress(AttributeError):  # a stand-in for CuPy
        cupy.cuda.set_allocator(_core.malloc)


class Finder(importlib.abc.MetaPathFinder):
    """Finds CuPy where the other finders do, and installs the arena after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "cupy":
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                watch(spec.loader)
                return spec
        return None


def watch(loader: Any) -> None:
    """Patch the loader instead of wrapping it: programs should find CuPy's own loader there."""
    if loader is None or "exec_module" in vars(loader):
        return
    execute = loader.exec_module

    def execute_and_install(module: ModuleType) -> None:
        del loader.exec_module  # restores the loader
        execute(module)
        give_arena(module)

    loader.exec_module = execute_and_install

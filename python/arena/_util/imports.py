"""Doing something at the moment when a package is imported, by whatever part of the program, whenever."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["after_import", "is_installed"]

Function = Callable[[Any], object]


def after_import(name: str, function: Function) -> None:
    """Call ``function(module)`` once the import of a top-level package is done; at once if it is imported already."""
    if isinstance(module := sys.modules.get(name), ModuleType):
        function(module)
    else:
        sys.meta_path.insert(0, Finder(name, function))


def is_installed(name: str) -> bool:
    """Whether a top-level package could be imported. Imports nothing."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a program may forbid the import
        return False


class Finder(importlib.abc.MetaPathFinder):
    """Finds the package where the others find it, and is there when its import is done."""

    def __init__(self, name: str, function: Function) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                watch(spec.loader, self.function)
                return spec
        return None


def watch(loader: Any, function: Function) -> None:
    """Not a loader of our own around it: the package's own should be the one that everybody finds there."""
    if loader is None or "exec_module" in vars(loader):
        return
    execute = loader.exec_module

    def execute_and_call(module: ModuleType) -> None:
        del loader.exec_module  # the loader is as it was
        execute(module)
        function(module)

    loader.exec_module = execute_and_call

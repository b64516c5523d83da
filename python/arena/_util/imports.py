"""Calls functions when a module is imported, by whichever part of the program, whenever."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["after_import"]

Function = Callable[[Any], object]


def after_import(name: str, function: Function) -> None:
    """Call ``function(module)`` once the import of a module is done; at once if it is imported already."""
    if isinstance(module := sys.modules.get(name), ModuleType):
        function(module)
        return
    finder = next((one for one in sys.meta_path if isinstance(one, Finder) and one.name == name), None)
    if finder is None:
        finder = Finder(name)
        sys.meta_path.insert(0, finder)
    finder.functions.append(function)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module where the others find it, and is there when its import is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: list[Function] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                self.watch(spec.loader)
                return spec
        return None

    def watch(self, loader: Any) -> None:
        """Not a loader of our own around it: the module's own should be the one that everybody finds there."""
        if loader is None or "exec_module" in vars(loader):
            return
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was
            execute(module)
            for function in self.functions:
                function(module)

        loader.exec_module = execute_and_call

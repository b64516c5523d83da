"""Hands Python the modules that were built for dry runs, in the place of the wheel's, when CuPy is imported."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ..._util.imports import after_import
from ...errors import ArenaError
from .. import marks
from ..libraries import FOLDER, loaded_libraries
from .build import built_modules, cache_folder, folder_of, module_file, toolkit
from .installed import Installed, find_cupy, read_cupy
from .recipe import MODULES
from .values import install

__all__ = ["disable", "enable"]

_NAMES = frozenset(module.name for module in MODULES)
_KERNELS = "CUPY_CACHE_DIR"
# Where CuPy looks for NVIDIA's headers, after its own environment. It compiles nothing without them, and a machine
# without a GPU may have none.
_TOOLKIT = ("CUDA_PATH", "CUDA_HOME")


class Loader(importlib.machinery.ExtensionFileLoader):
    """Builds the modules when the first is imported, so only for programs that use CuPy.

    A finder must not do that: it runs with Python's global import lock, and other threads could import nothing.
    """

    def __init__(self, name: str, file: Path, cupy: Installed) -> None:
        super().__init__(name, str(file))
        self.cupy = cupy

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        try:
            built_modules(self.cupy)
        except ArenaError as error:
            raise error.with_traceback(None) from None  # the program's own lines, and this sentence
        return super().create_module(spec)


class Finder(importlib.abc.MetaPathFinder):
    """Finds these modules in the cache, or where they will be."""

    def __init__(self) -> None:
        self.before: dict[str, str | None] = {}  # environment variables that were changed

    def set(self, variable: str, value: Path) -> None:
        self.before.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = str(value)

    def restore(self) -> None:
        for variable, value in self.before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "cupy":
            self.offer_headers()
        if name not in _NAMES or not path:
            return None
        # The folder of the CuPy that is being imported, which need not be the first on the path.
        folder = Path(next(iter(path))).parents[name.count(".") - 1]
        cupy = read_cupy(folder)
        file = module_file(folder_of(cupy), name)
        return importlib.util.spec_from_file_location(name, file, loader=Loader(name, file, cupy))

    def offer_headers(self) -> None:
        """Say where the headers will be. Before CuPy's first line: who looks for them remembers what there was."""
        with contextlib.suppress(ArenaError):  # no CuPy, or one that cannot run dry, as its import will show
            if not any(os.environ.get(variable) for variable in _TOOLKIT):
                self.set(_TOOLKIT[0], toolkit(folder_of(find_cupy())))


def enable() -> None:
    """Have CuPy use the modules for dry runs from now on, if it is imported in this process, and compute values."""
    if is_enabled():
        return
    if late := sorted(_NAMES & sys.modules.keys()):
        raise ArenaError(
            f"{late[0]} is imported already, with NVIDIA's runtime. Next: begin the dry run before you import cupy"
        )
    finder = Finder()
    finder.set(_KERNELS, _kernel_cache())
    sys.meta_path.insert(0, finder)
    after_import("cupy", _compute)


def _compute(cupy: ModuleType) -> None:
    """Have CuPy's values computed, as the environment says."""
    if (mode := marks.mode()) != "none" and is_enabled():
        install(cupy, mode)


def is_enabled() -> bool:
    """Whether CuPy is imported for a dry run."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def disable() -> None:
    """Leave the import of CuPy alone again."""
    for finder in [finder for finder in sys.meta_path if isinstance(finder, Finder)]:
        sys.meta_path.remove(finder)
        finder.restore()


def _kernel_cache() -> Path:
    """A folder for compiled kernels. Images of our stand-in for the compiler must not reach a program on a GPU."""
    is_skipped = any(FOLDER in file.parents and file.name.startswith("libnvrtc.") for file in loaded_libraries())
    return cache_folder() / ("kernels-skipped" if is_skipped else "kernels")

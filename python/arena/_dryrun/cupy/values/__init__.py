"""Values of CuPy in a dry run: NumPy computes them in the simulated memory.

CuPy's operation always runs first, so that it allocates what it would on a card; its kernels do nothing. Then NumPy
writes what they would have written into the memory of the results, which is the host's, and the simulated driver is
told what is known. :mod:`compute` is this one step; the other modules say where it is taken: :mod:`ufuncs`,
:mod:`kernels`, :mod:`methods`, :mod:`indexing`, :mod:`functions`, :mod:`random`, :mod:`fusing`,
:mod:`sparse`. :mod:`reading` is about copies to the host, :mod:`allocations` says that new memory is unknown, and
:mod:`arrays` finds the memory of an array.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from ...._util.imports import after_import
from ... import marks
from . import allocations, functions, fusing, kernels, methods, random, reading, sparse, ufuncs
from .compute import Computer

__all__ = ["install"]


def install(cupy: ModuleType, mode: str) -> None:
    """Have values computed from now on, in a mode other than ``none``."""
    marks.enable(True)
    for name in ("cupy._core.fusion", "cupy._core._kernel", "cupy._core._reduction", "cupy._core.raw"):
        importlib.import_module(name)
    computer = Computer(cupy, mode)
    allocations.install(cupy)
    ufuncs.install(cupy, computer)
    kernels.install(cupy, computer)
    fusing.install(cupy, computer)
    methods.install(computer)
    reading.install(computer)
    functions.install(cupy, computer)
    random.install(cupy, computer)
    for name in functions.UNSEEN:
        after_import(name, functools.partial(functions.unseen, computer))
    after_import("cupyx.cusparse", functools.partial(sparse.install, computer))

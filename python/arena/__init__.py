"""A caching GPU memory allocator with a cap that holds and a report that explains every byte.

Importing arena opens no driver and needs no GPU. The first call that needs a driver opens the one that
``ARENA_DRIVER`` names: ``auto`` (NVIDIA's; where none is installed, the simulated one, with a
:class:`SimulatedDriverWarning`), ``cuda``, ``sim``, or the path of a library.

>>> import arena
>>> arena.Driver.open("sim").is_simulated
True
"""

from __future__ import annotations

import os

from ._util import interpreter as _interpreter  # noqa: F401 - refuses sub-interpreters

# isort: split
from . import _core, errors
from ._core import DeviceInfo, Driver, Stats, __version__, malloc
from ._util import exit as _exit  # noqa: F401 - registers the exit function
from .errors import (
    ArenaError,
    DriverError,
    OutOfMemoryError,
    SimulatedDriverWarning,
    TraceError,
    UsageError,
)

# Not typing.TYPE_CHECKING: importing typing would make `import arena` half as slow again. Type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import cuda_core, dask, numba, rmm, sim, torch
    from ._analysis.batch import LargestBatch, largest_batch
    from ._analysis.compare import Comparison, compare
    from ._analysis.fit.answer import Fit, fit
    from ._analysis.load import load
    from ._analysis.replay import Replayed
    from ._inspect.lines import trace_lines
    from ._inspect.snapshot import Snapshot
    from ._inspect.timeline import Timeline
    from ._pool.arena import Arena
    from ._pool.buffer import Buffer
    from ._pool.defaults import default_arena, metrics, report, safe_point
    from ._pool.graph import GraphMemory
    from ._pool.ipython import load_ipython_extension as load_ipython_extension
    from ._pool.ipython import unload_ipython_extension as unload_ipython_extension
    from ._pool.scope import Scope
    from ._pool.settings import configure
    from ._report import Report, Reports
    from ._trace import Recording, Trace

__all__ = [
    "Arena",
    "ArenaError",
    "Buffer",
    "Comparison",
    "DeviceInfo",
    "Driver",
    "DriverError",
    "Fit",
    "GraphMemory",
    "LargestBatch",
    "OutOfMemoryError",
    "Recording",
    "Replayed",
    "Report",
    "Reports",
    "Scope",
    "SimulatedDriverWarning",
    "Snapshot",
    "Stats",
    "Timeline",
    "Trace",
    "TraceError",
    "UsageError",
    "__version__",
    "compare",
    "configure",
    "cuda_core",
    "dask",
    "default_arena",
    "driver",
    "errors",
    "fit",
    "largest_batch",
    "load",
    "malloc",
    "metrics",
    "numba",
    "report",
    "rmm",
    "safe_point",
    "sim",
    "torch",
    "trace_lines",
]

# Imported on first use, and the modules they come from: most programs need few of them.
_LAZY = {
    **dict.fromkeys(("default_arena", "metrics", "report", "safe_point"), "_pool.defaults"),
    **dict.fromkeys(("LargestBatch", "largest_batch"), "_analysis.batch"),
    **dict.fromkeys(("Comparison", "compare"), "_analysis.compare"),
    **dict.fromkeys(("Fit", "fit"), "_analysis.fit"),
    **dict.fromkeys(("load_ipython_extension", "unload_ipython_extension"), "_pool.ipython"),
    **dict.fromkeys(("Report", "Reports"), "_report"),
    **dict.fromkeys(("Recording", "Trace"), "_trace"),
    "Arena": "_pool.arena",
    "Buffer": "_pool.buffer",
    "GraphMemory": "_pool.graph",
    "Replayed": "_analysis.replay",
    "Scope": "_pool.scope",
    "Snapshot": "_inspect.snapshot",
    "Timeline": "_inspect.timeline",
    "configure": "_pool.settings",
    "load": "_analysis.load",
    "trace_lines": "_inspect.lines",
}

_MODULES = ("cuda_core", "dask", "numba", "rmm", "sim", "torch")  # imported on first use

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            return import_module(f".{name}", __name__)
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY})


# Next to the extension, not next to this file: in an editable install they are in different directories.
_core.set_simulated_library(os.path.join(os.path.dirname(_core.__file__), "libcudasim.so"))


def driver() -> Driver:
    """Return the process's CUDA driver. The first call opens the one that ``ARENA_DRIVER`` selects.

    A failed call changes nothing: fix the cause and call it again.
    """
    return _core.default_driver()

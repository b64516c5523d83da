"""GPU memory for Python, under a cap, with an account of every byte.

Importing arena opens no driver and needs no GPU. The first call that needs a driver opens the one that
``ARENA_DRIVER`` names: ``auto`` (NVIDIA's if it has a device, otherwise the simulated one), ``cuda``,
``sim``, or the path of a library.

>>> import arena
>>> arena.Driver.open("sim").is_simulated
True
"""

from __future__ import annotations

from pathlib import Path

from . import _interpreter as _interpreter

# isort: split
from . import _core, errors, sim
from ._arena import Arena, default_arena, metrics, report, safe_point
from ._batch import LargestBatch, largest_batch
from ._buffer import Buffer
from ._compare import Comparison, compare
from ._core import DeviceInfo, Driver, Stats, malloc
from ._fit import Fit, fit
from ._graph import GraphMemory
from ._ipython import load_ipython_extension as load_ipython_extension
from ._ipython import unload_ipython_extension as unload_ipython_extension
from ._lines import trace_lines
from ._load import load
from ._report import Report, Reports
from ._scope import Scope
from ._settings import configure
from ._snapshot import Snapshot
from ._timeline import Timeline
from ._trace import Recording, Replayed, Trace
from ._version import __version__
from .errors import ArenaError, DriverError, OutOfMemoryError, TraceError, UsageError

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
    "Snapshot",
    "Stats",
    "Timeline",
    "Trace",
    "TraceError",
    "UsageError",
    "__version__",
    "compare",
    "configure",
    "default_arena",
    "driver",
    "errors",
    "fit",
    "largest_batch",
    "load",
    "malloc",
    "metrics",
    "report",
    "safe_point",
    "sim",
    "trace_lines",
]

# Beside the extension and not beside this file: in an editable install the two are not in one directory.
_core.set_simulated_library(str(Path(_core.__file__).with_name("libcudasim.so")))


def driver() -> Driver:
    """Return the process's CUDA driver, opened by ``ARENA_DRIVER`` at the first call.

    A call that fails changes nothing: mend the cause and call again.
    """
    return _core.default_driver()

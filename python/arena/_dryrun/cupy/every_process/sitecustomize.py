"""Runs when a Python process of a dry run starts, so that CuPy and PyTorch run dry in the program's processes, too.

Python imports the first module of this name on its path, and PYTHONPATH has this folder first. Nothing of arena is
imported before the process imports one of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec


class _AtImport:
    """Finds a framework where the others find it, after it was prepared."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        prepare(name)
        return importlib.util.find_spec(name)


def prepare(name: str) -> None:
    if name == "cupy":
        from arena._dryrun import cupy  # late: most processes need none of it

        cupy.enable()
    else:
        from arena._dryrun import marks, torch  # late: the same

        torch.enable(marks.mode())


def _next() -> None:
    """Import the module of this name that Python would have imported, if there is one, and forget this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


sys.meta_path[:0] = [_AtImport("cupy"), _AtImport("torch")]
_next()

"""Runs when a Python process of a dry run starts, so that CuPy also runs dry in processes that the program starts.

Python imports the first module of this name on its path, and PYTHONPATH has this folder first. Nothing of arena is
imported before the process imports CuPy.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec


class _AtCupysImport:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "cupy":
            return None
        sys.meta_path.remove(_AtCupysImport)
        from arena._dryrun.cupy import enable  # late: most processes need none of it

        enable()
        return importlib.util.find_spec(name)


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


sys.meta_path.insert(0, _AtCupysImport)
_next()

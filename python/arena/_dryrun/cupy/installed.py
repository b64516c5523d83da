"""The CuPy that is installed: where, which version, and for which CUDA. Imports nothing of it."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from dataclasses import dataclass
from pathlib import Path

from ...errors import ArenaError
from ..cuda_versions import cuda_of_cupy

__all__ = ["Installed", "find_cupy", "read_cupy"]

SUPPORTED = (12, 13)  # major versions of CUDA
INSTALL = "pip install cupy-cuda13x"


@dataclass(frozen=True)
class Installed:
    """A CuPy wheel in ``folder``, which has ``cupy/`` and ``cupy_backends/``."""

    folder: Path
    version: str
    cuda: int


def find_cupy() -> Installed:
    """The CuPy that ``import cupy`` would find. Raises :class:`ArenaError` if there is none that can run dry."""
    try:
        spec = importlib.machinery.PathFinder.find_spec("cupy")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        raise ArenaError(f"CuPy is not installed for {sys.executable}. Next: {INSTALL}")
    return read_cupy(Path(spec.origin).parent.parent)


def read_cupy(folder: Path) -> Installed:
    """The CuPy in a folder such as ``site-packages``."""
    version = _version(folder / "cupy" / "_version.py")
    cuda = cuda_of_cupy(folder / "cupy")
    if cuda not in SUPPORTED:
        raise ArenaError(
            f"the CuPy in {folder} cannot run dry: it is not a wheel for CUDA {' or '.join(map(str, SUPPORTED))}. "
            f"Next: install one in a virtual environment: {INSTALL}"
        )
    return Installed(folder, version, cuda)


def _version(file: Path) -> str:
    try:
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
                names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
                if names == ["__version__"]:
                    return str(statement.value.value)
    except (OSError, SyntaxError, ValueError):
        pass
    raise ArenaError(f"the version of CuPy cannot be read from {file}. Next: install CuPy again: {INSTALL}")

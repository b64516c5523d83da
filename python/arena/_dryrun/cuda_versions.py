"""For which CUDA the frameworks are that are installed. Imports none of them."""

from __future__ import annotations

import importlib.machinery
import json
import re
from pathlib import Path

__all__ = ["cuda_of_cupy", "cuda_versions"]


def cuda_versions() -> set[int]:
    """The major versions of CUDA that CuPy and PyTorch in this environment are for."""
    readers = {"cupy": cuda_of_cupy, "torch": _cuda_of_torch}
    return {read(folder) for name, read in readers.items() for folder in _folders(name)} - {0}


def cuda_of_cupy(package: Path) -> int:
    """The major version of CUDA, or 0. Only CuPy's wheels have this file: it says ``"cuda": "13.x"``."""
    try:
        return int(str(json.loads((package / ".data" / "_wheel.json").read_text())["cuda"]).partition(".")[0])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _cuda_of_torch(package: Path) -> int:
    try:
        found = re.search(r"^cuda\b[^=]*=\s*['\"](\d+)", (package / "version.py").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _folders(name: str) -> list[Path]:
    try:
        spec = importlib.machinery.PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(spec.origin).parent] if spec is not None and spec.origin else []

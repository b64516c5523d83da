"""The version, for modules that arena itself imports."""

from __future__ import annotations

import importlib.metadata

__all__ = ["__version__"]

try:
    __version__ = importlib.metadata.version("cuda-arena")
except importlib.metadata.PackageNotFoundError:  # run from a build tree
    __version__ = "unknown"

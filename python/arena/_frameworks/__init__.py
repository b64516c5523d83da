"""Gives the arena to frameworks as a program imports them: for ``arena run``, dry runs and Dask's workers."""

from __future__ import annotations

from .install import Installation
from .known import FRAMEWORKS, Framework, parse_keys

__all__ = ["FRAMEWORKS", "Framework", "Installation", "parse_keys"]

"""Readable names for notebook cells: IPython compiles a cell as a temporary file with a meaningless name."""

from __future__ import annotations

import re
import sys
from typing import Any

__all__ = ["CELL", "cell_of", "is_cell"]

CELL = "In [{}]"
_IS_CELL = re.compile(r"In \[\d+\]")
_IN_TERMINAL = re.compile(r"<ipython-input-(\d+)-")
_NUMBER = re.compile(r"In ?\[(\d+)\]")


def cell_of(file: str) -> str | None:
    """``In [2]`` for the file of that cell, if this process's IPython knows it; ``None`` for other files."""
    found = _in_this_shell(file) or _IN_TERMINAL.match(file)
    return CELL.format(found[1]) if found else None


def is_cell(file: str) -> bool:
    """Whether a file name is the name of a cell."""
    return _IS_CELL.fullmatch(file) is not None


def _in_this_shell(file: str) -> re.Match[str] | None:
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    try:
        shell: Any = ipython.get_ipython()
        label = shell.compile.format_code_name(file)  # such as ("Cell", "In[2]"); since IPython 8
    except Exception:  # no shell, or something that only resembles one
        return None
    return _NUMBER.search(label[1]) if label else None

"""Names for the cells of notebooks: IPython compiles a cell as a temporary file, which says nothing to its author."""

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
    """``In [2]`` for the file of that cell, as far as this process's IPython knows it; None for other files."""
    found = _in_this_shell(file) or _IN_TERMINAL.match(file)
    return CELL.format(found[1]) if found else None


def is_cell(file: str) -> bool:
    """Whether that is the name of a cell."""
    return _IS_CELL.fullmatch(file) is not None


def _in_this_shell(file: str) -> re.Match[str] | None:
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    try:
        shell: Any = ipython.get_ipython()
        label = shell.compile.format_code_name(file)  # such as ("Cell", "In[2]"); since IPython 8
    except Exception:  # there is no shell, or it is somebody's stand-in
        return None
    return _NUMBER.search(label[1]) if label else None

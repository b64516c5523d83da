"""Base classes of public objects: ``repr()`` is one line, and a notebook shows a small table.

``_show/`` renders them. It is imported on first use, because it imports all these classes itself.
"""

from __future__ import annotations

from typing import Any

from .. import _core
from ..errors import ArenaError
from .late import late_import

__all__ = ["Shown", "Tabled"]


def _show(thing: Any) -> Any:
    with late_import(f"an object of {type(thing).__name__} cannot be shown"):
        from .. import _show
    return _show


class Tabled:
    """Shown as a table in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = _show(self).html_of(self)
        return html


class Shown(Tabled):
    """Also has a one-line ``repr()``."""

    __slots__ = ()

    def __repr__(self) -> str:
        try:
            line: str = _show(self).line_of(self)
        except ArenaError:  # the interpreter is shutting down
            return object.__repr__(self)
        return line


# Compiled classes cannot inherit from a class written in Python.
setattr(_core.Stats, "__repr__", Shown.__repr__)  # noqa: B010 - to mypy, methods cannot be assigned
for _kind in (_core.Stats, _core.DeviceInfo, _core.Driver):
    setattr(_kind, "_repr_html_", Tabled._repr_html_)  # noqa: B010

"""Lazy imports, with a clear error if the interpreter is already shutting down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from sys import is_finalizing

from ..errors import ArenaError

__all__ = ["late_import"]


@contextmanager
def late_import(what: str) -> Iterator[None]:
    """Wrap an import inside a function. ``what`` says what cannot be done if the import fails.

    A ``__del__`` may run while the interpreter shuts down, when even imported modules cannot be imported again.
    """
    try:
        yield
    except ImportError:
        if not is_finalizing():
            raise
        raise ArenaError(f"{what}: the interpreter is shutting down, so nothing more can be imported") from None

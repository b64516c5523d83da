"""Imports that wait until they are needed, and say so where it is too late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from sys import is_finalizing

from ..errors import ArenaError

__all__ = ["late_import"]


@contextmanager
def late_import(what: str) -> Iterator[None]:
    """Around an import inside a function. ``what`` is what the import is for.

    A ``__del__`` may run while the interpreter shuts down. Nothing can be imported then, not even what was before.
    """
    try:
        yield
    except ImportError:
        if not is_finalizing():
            raise
        raise ArenaError(f"{what}: the interpreter is shutting down, so nothing more can be imported") from None

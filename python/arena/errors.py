"""The errors that arena raises.

All are an :class:`ArenaError`; each is also the built-in error that code which does not know arena would
expect. They pickle and copy with their attributes, so they cross process boundaries whole.
"""

from __future__ import annotations

__all__ = ["ArenaError", "DriverError", "UsageError"]


class ArenaError(Exception):
    """Any error that arena raises on purpose."""


class UsageError(ArenaError, ValueError):
    """A setting or an argument that cannot be meant: the text says what was given and what is accepted."""


class DriverError(ArenaError, RuntimeError):
    """A CUDA driver that cannot be used, or a call that it refused.

    >>> error = DriverError("cuMemFree failed", call="cuMemFree", code=1, name="CUDA_ERROR_INVALID_VALUE")
    >>> error.code, error.name
    (1, 'CUDA_ERROR_INVALID_VALUE')
    """

    call: str
    """The function that failed, such as ``"cuMemCreate"``."""
    code: int
    """The driver's result code, or the one that fits if arena found the fault; 0 if no driver was reached."""
    name: str
    """The name of the code, such as ``"CUDA_ERROR_OUT_OF_MEMORY"``; empty if there is none."""

    # All but the text have defaults: unpickling calls the class with the text alone, and then sets the rest.
    def __init__(self, text: str, *, call: str = "", code: int = 0, name: str = "") -> None:
        super().__init__(text)
        self.call = call
        self.code = code
        self.name = name

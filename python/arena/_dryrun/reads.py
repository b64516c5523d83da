"""Copies to the host of memory that was never computed, as the simulated driver reports them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .._sim.library import load
from .unknown import zeros_here

__all__ = ["begin", "end", "pass_over"]

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_ulonglong)


_passed_over: list[Callable[[], bool]] = []


def pass_over(is_noted: Callable[[], bool]) -> None:
    """Do not note copies of a thread for which that is true: somebody else does, who knows more of them."""
    _passed_over.append(is_noted)


def _on_read(address: int, size: int, unknown: int) -> None:
    try:
        if not any(is_noted() for is_noted in _passed_over):
            zeros_here(unknown)
    except Exception:  # nobody could catch it: the caller is the driver
        return


_callback = _CALLBACK(_on_read)  # kept: the driver has only its address


def begin() -> None:
    """Note each of them, at the line of the program that caused it."""
    if is_there():
        load().lib.cudasimValuesOnRead(_callback)


def end() -> None:
    if is_there():
        load().lib.cudasimValuesOnRead(_CALLBACK())


def is_there() -> bool:
    return hasattr(load().lib, "cudasimValuesOnRead")

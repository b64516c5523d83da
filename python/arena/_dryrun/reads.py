"""Copies to the host of memory that was never computed, as the simulated driver reports them."""

from __future__ import annotations

import ctypes

from .._sim.library import load
from .unknown import note_read_here

__all__ = ["begin", "end"]

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_ulonglong)


def _on_read(address: int, size: int, unknown: int) -> None:
    try:
        note_read_here("", unknown)
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

"""Copies of Numba's arrays to the host: unknown values are noted with their type, and read as zero or as assumed.

Numba's kernels are never computed. All its copies to the host go through one function of its driver module.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from types import ModuleType
from typing import Any

from .._util.imports import after_import
from . import marks, reads, unknown

__all__ = ["wait"]


class _Depth(threading.local):
    value = 0


_inside = _Depth()  # how many of these copies this thread makes


def wait() -> None:
    """Note them from when Numba's driver module is imported."""
    after_import("numba.cuda.cudadrv.driver", install)


def install(driver: ModuleType) -> None:
    """Replace the function of Numba's driver module that copies to the host."""
    original = driver.device_to_host
    reads.pass_over(lambda: _inside.value > 0)

    @functools.wraps(original)
    def device_to_host(dst: Any, src: Any, size: int, stream: Any = 0) -> Any:
        numpy: Any = sys.modules["numpy"]  # Numba has imported it
        address = address_of(driver.device_pointer(src))
        kind = getattr(src, "dtype", None) or getattr(dst, "dtype", None)  # `dst` may be bytes for an array to be made
        if not isinstance(dst, numpy.ndarray) or not isinstance(kind, numpy.dtype) or size % kind.itemsize:
            return original(dst, src, size, stream)
        if not size or not address or marks.query(address, size) == 1:
            return original(dst, src, size, stream)
        known = numpy.ones(size, numpy.uint8)
        marks.read(address, size, known.ctypes.data)
        _inside.value += 1
        try:
            result = original(dst, src, size, stream)
        finally:
            _inside.value -= 1
        if stream and not marks.drain(address_of(stream.handle)):
            return result  # it is captured: nothing is copied yet
        elements = numpy.frombuffer((ctypes.c_char * size).from_address(dst.ctypes.data), kind)
        is_unknown = ~known.reshape(-1, kind.itemsize).all(axis=1)
        value = unknown.read_here(kind.name, int(is_unknown.sum()) * kind.itemsize)
        elements[is_unknown] = value or 0
        return result

    driver.device_to_host = device_to_host  # type: ignore[attr-defined]


def address_of(pointer: Any) -> int:
    """An address in one of the forms that Numba's versions have for it: numbers, ctypes and cuda.bindings."""
    return int(getattr(pointer, "value", pointer) or 0)

"""Copies of arrays to the host: what was never computed is noted with its type, and reads as zero or as assumed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy

from ... import marks, reads, unknown
from . import arrays
from .compute import Computer, inside
from .slots import replace

__all__ = ["install"]

Function = Callable[..., Any]

_METHODS = ("get", "item", "tolist", "tobytes", "__bool__", "__int__", "__index__", "__float__", "__complex__")


class _Depth(threading.local):
    value = 0


_inside = _Depth()  # how many of these methods are running: they call each other


def install(computer: Computer) -> None:
    """Replace the methods of ``cupy.ndarray`` that copy to the host. All others call these."""
    reads.pass_over(lambda: _inside.value > 0)
    for name in _METHODS:
        if hasattr(computer.array, name):
            replace(computer.array, name, reading(computer, getattr(computer.array, name), name))


def reading(computer: Computer, original: Function, name: str) -> Function:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        nested = _inside.value or inside.value  # CuPy's own operations may get an expected number
        known = True if nested or not self.size or not computer.ready() else arrays.known_elements(self)
        if known is True:
            if name == "get" and self.flags.c_contiguous and self.ndim > 1 and self.size and not nested:
                return transposed(self, original, args, kwargs)
            return original(self, *args, **kwargs)
        _inside.value += 1
        try:
            result = original(self, *args, **kwargs)
            count = self.size if known is False else self.size - numpy.count_nonzero(known)
            # What was computed as if unknown values were zeros is no zero itself, and no other run would change it.
            value = unknown.read_here(self.dtype.name, int(count) * self.itemsize) or 0
            if name == "get":
                in_order(self, result, kwargs.get("stream"))
                return filled(result, known, value, kwargs.get("stream"))
            return getattr(filled(self.get(), known, value, None), name)(*args)
        finally:
            _inside.value -= 1

    return method


def transposed(array: Any, original: Function, args: Any, kwargs: Any) -> Any:
    """A copy to the host that cuBLAS may have to transpose first."""
    _inside.value += 1
    try:
        result = original(array, *args, **kwargs)
    finally:
        _inside.value -= 1
    in_order(array, result, kwargs.get("stream"))
    return result


def in_order(array: Any, copied: Any, stream: Any) -> None:
    if copied.flags.f_contiguous and not copied.flags.c_contiguous and not array.flags.f_contiguous:
        if stream is not None:
            marks.drain(stream.ptr)
        arrays.settle(array)
        numpy.copyto(copied, arrays.alias(array))


def filled(copied: Any, known: Any, value: Any, stream: Any) -> Any:
    """A copy on the host, with a value for all elements that are not known."""
    if stream is not None:
        marks.drain(stream.ptr)  # the copy may still be queued
    copied[... if known is False else ~known] = value
    return copied

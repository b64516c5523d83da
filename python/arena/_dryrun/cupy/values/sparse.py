"""Sparse matrices whose number of elements cuSPARSE would count: it is counted here, or assumed."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy

from ... import marks, unknown
from . import arrays
from .compute import Computer
from .indexing import how_many, size_of

__all__ = ["install"]

Function = Callable[..., Any]

_PARTS = ("data", "indices", "indptr", "row", "col")


class _Pending(threading.local):
    count: int | None = None


_pending = _Pending()  # the size that this thread's next question to cuSPARSE gets


def install(computer: Computer, module: ModuleType) -> None:
    """Wrap the functions of ``cupyx.cusparse`` that ask cuSPARSE for a size."""
    library: Any = getattr(module, "_cusparse", None)
    if not hasattr(library, "spMatGetSize"):
        return
    original = library.spMatGetSize

    @functools.wraps(original)
    def answered(descriptor: Any, rows: Any, columns: Any, count: Any) -> Any:
        result = original(descriptor, rows, columns, count)
        if _pending.count is not None:
            ctypes.c_int64.from_address(int(count)).value = _pending.count
        return result

    library.spMatGetSize = answered
    for name, most in (("spgemm", most_of_product), ("spgeam", most_of_sum)):
        if hasattr(module, name):
            setattr(module, name, assumed(computer, getattr(module, name), most))
    if hasattr(module, "denseToSparse"):
        module.denseToSparse = counted(computer, module.denseToSparse)  # type: ignore[attr-defined]
    if hasattr(module, "coo2csr"):
        convert = getattr(module.coo2csr, "__wrapped__", module.coo2csr)  # it writes nothing but what is computed here
        module.coo2csr = by_rows(computer, convert)  # type: ignore[attr-defined]


def by_rows(computer: Computer, original: Function) -> Function:
    @functools.wraps(original)
    def coo2csr(x: Any) -> Any:
        result = original(x)
        starts = functools.partial(numpy.arange, x.shape[0] + 1)
        computer.fill([x.row], [result.indptr], lambda: numpy.searchsorted(arrays.alias(x.row), starts()))
        return result

    return coo2csr


def most_of_product(first: Any, second: Any) -> int:
    rows, columns = first.shape[0], second.shape[1]
    return int(min(rows * columns, first.nnz * min(columns, second.nnz)))


def most_of_sum(first: Any, second: Any) -> int:
    return int(min(first.shape[0] * first.shape[1], first.nnz + second.nnz))


def asked(original: Function, count: int, *args: Any, **kwargs: Any) -> Any:
    _pending.count = count
    try:
        return original(*args, **kwargs)
    finally:
        _pending.count = None


def forget(computer: Computer, result: Any, number: int, count: int, most: int) -> None:
    for name in _PARTS:
        part = getattr(result, name, None)
        if isinstance(part, computer.array):
            arrays.mark(part, marks.UNKNOWN)
            if number and name != "indptr":
                size_of(part, number, count, most)


def assumed(computer: Computer, original: Function, most_of: Callable[[Any, Any], int]) -> Function:
    @functools.wraps(original)
    def function(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        most = most_of(a, b)
        number, count = unknown.size_here(unknown.NONZERO, most) if most else (0, 0)
        result = asked(original, count, a, b, *args, **kwargs)
        forget(computer, result, number, count, most)
        return result

    return function


def counted(computer: Computer, original: Function) -> Function:
    @functools.wraps(original)
    def function(x: Any, format: str = "csr") -> Any:
        if not isinstance(x, computer.array) or not computer.ready():
            return original(x, format)
        (count, most), number = how_many(computer, x), 0
        if most > count:
            number, more = unknown.size_here(unknown.NONZERO, most - count)
            count += more
        result = asked(original, count, x, format)
        forget(computer, result, number, count, most)
        if not number:
            fill(computer, x, result, format)
        return result

    return function


def fill(computer: Computer, x: Any, result: Any, format: str) -> None:
    """Compute the parts of a sparse matrix of a known dense one."""
    dense = arrays.alias(x)
    major, minor = numpy.nonzero(dense.T if format == "csc" else dense)
    values = (dense.T if format == "csc" else dense)[major, minor]
    starts = numpy.searchsorted(major, numpy.arange(x.shape[format == "csc"] + 1))
    parts = {"data": values, "indices": minor, "indptr": starts, "row": major, "col": minor}
    for name, value in parts.items():
        part = getattr(result, name, None)
        if isinstance(part, computer.array):
            computer.put(part, value, True)

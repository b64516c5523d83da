"""Kernels: reductions that NumPy has, and those of users, whose results stay unknown.

A kernel of a user changes what its declared outputs hold, or, for a raw kernel, all arrays that it gets. The driver
would mark the whole memory that they are part of, which is CuPy's pool.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy

from ... import marks
from . import arrays
from .compute import Computer, inside
from .slots import replace
from .ufuncs import broadcast

__all__ = ["install"]

Function = Callable[..., Any]

_NAMES = re.compile(r"^cupy_(\w+?)(_with_dtype|_complex_dtype|_auto_dtype)?$")
# Kernels of CuPy itself that other operations wait for, as functions of their inputs.
_OWN: dict[str, Function] = {
    "cupy_fill": lambda value: value,
    "cupy_exists_kernel": lambda x, bins, _, invert: numpy.isin(x, bins, invert=bool(invert)),
    "cupy_exists_and_searchsorted_kernel": lambda x, bins, _, invert: (
        numpy.isin(x, bins, invert=bool(invert)),
        numpy.searchsorted(bins, x),
    ),
    "cupyx_scipy_sparse_coo_sum_duplicates_diff": lambda row, column: numpy.concatenate(
        [numpy.zeros(1, bool), (row[1:] != row[:-1]) | (column[1:] != column[:-1])]
    ),
    "cupyx_scipy_sparse_coo_sum_duplicates_assign": lambda data, row, column, index: summed(data, row, column, index),
    "first_nonzero": lambda array, size: numpy.flatnonzero(numpy.append(array, True))[0],
}


def summed(data: Any, row: Any, column: Any, index: Any) -> tuple[Any, Any, Any]:
    """The elements of a sparse matrix at each place, summed. ``index``: which of the places each is at, in order."""
    total = numpy.zeros(int(index[-1]) + 1, data.dtype)
    numpy.add.at(total, index, data)
    first = numpy.searchsorted(index, numpy.arange(len(total)))
    return total, row[first], column[first]


def install(cupy: Any, computer: Computer) -> None:
    """Have calls of kernels computed or marked."""
    from cupy._core import _kernel, _reduction, raw

    install_reductions(_reduction._SimpleReductionKernel, computer)
    for kind in (_kernel.ElementwiseKernel, _reduction.ReductionKernel):
        install_declared(kind, computer)
    install_raw(raw.RawKernel, computer)


def install_reductions(kind: type, computer: Computer) -> None:
    original = kind.__call__

    def call(self: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(a, computer.array):
            return original(self, a, *args, **kwargs)
        marks.enter()
        try:
            result = original(self, a, *args, **kwargs)
        finally:
            marks.leave()
        if isinstance(result, computer.array):
            computer.fill([a], [result], functools.partial(reduced, self.name, a, result, args, kwargs))
        return result

    replace(kind, "__call__", call)


def reduced(name: str, a: Any, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """NumPy's value of a reduction of CuPy, which has the arguments (a, axis, dtype, out, keepdims)."""
    given = dict(zip(("axis", "dtype", "out", "keepdims"), args, strict=False)) | kwargs
    found = _NAMES.match(name)
    twin = getattr(numpy, found[1], None) if found else None
    if twin is None:
        return None
    options: dict[str, Any] = {"axis": given.get("axis"), "keepdims": bool(given.get("keepdims"))}
    if found and found[1] in ("sum", "prod", "nansum", "nanprod"):
        options["dtype"] = output.dtype
    return twin(arrays.alias(a), **options)


def install_declared(kind: type, computer: Computer) -> None:
    original = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        marks.enter()
        try:
            result = original(self, *args, **kwargs)
        finally:
            marks.leave()
        if self.name in _OWN:
            own(_OWN[self.name], args[: self.nin], computer.arrays(result) or computer.arrays(args[self.nin :]))
        elif not inside.value:
            computer.unknown(computer.arrays(result, args[self.nin :], kwargs.get("out")))
        return result

    def own(twin: Function, given: tuple[Any, ...], outputs: list[Any]) -> None:
        values = arrays.mapped(given, computer.array)
        computer.fill(computer.arrays(given), outputs, lambda: broadcast(twin(*values), outputs))

    replace(kind, "__call__", call)


def install_raw(kind: type, computer: Computer) -> None:
    original = kind.__call__

    def call(self: Any, grid: Any, block: Any, args: Any, **kwargs: Any) -> Any:
        given = [one for one in args if isinstance(one, computer.array)]
        if len(given) + sum(isinstance(one, (numpy.generic, float, bool)) for one in args) < len(args):
            return original(self, grid, block, args, **kwargs)  # may have addresses: the driver finds what they are of
        marks.enter()
        try:
            result = original(self, grid, block, args, **kwargs)
        finally:
            marks.leave()
        computer.unknown(given)
        return result

    replace(kind, "__call__", call)

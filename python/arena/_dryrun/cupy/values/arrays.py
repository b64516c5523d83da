"""CuPy's arrays as NumPy's: the same memory, which the simulated driver has on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

from ... import marks

__all__ = [
    "alias",
    "arrays_in",
    "assign",
    "known_elements",
    "mapped",
    "mark",
    "mark_elements",
    "overlap",
    "settle",
    "span",
]

_MOST_RUNS = 1024  # an array in more pieces is marked together with what lies between them


class _Memory:
    __slots__ = ("__array_interface__",)

    def __init__(self, array: Any, typestr: str) -> None:
        self.__array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": typestr,
            "data": (array.data.ptr, False),
            "version": 3,
        }


def alias(array: Any) -> Any:
    """A NumPy array on the memory of a CuPy array."""
    dtype = array.dtype
    if not array.size:
        return numpy.empty(array.shape, dtype)
    if dtype.isbuiltin == 1 and dtype.char != "V":
        return numpy.asarray(_Memory(array, dtype.str))
    return numpy.asarray(_Memory(array, f"|V{dtype.itemsize}")).view(dtype)


def mapped(value: Any, array: type, absent: Any = ()) -> Any:
    """The same argument with NumPy's arrays in place of CuPy's; None for those in ``absent``."""
    if isinstance(value, array):
        return None if any(value is one for one in absent) else alias(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(mapped(one, array, absent) for one in value)
    if kind is dict:
        return {key: mapped(one, array, absent) for key, one in value.items()}
    return value


def arrays_in(value: Any, array: type) -> Iterator[Any]:
    """CuPy's arrays in an argument or a result."""
    if isinstance(value, array):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from arrays_in(one, array)
    elif type(value) is dict:
        for one in value.values():
            yield from arrays_in(one, array)


def span(array: Any) -> tuple[int, int]:
    """The address of an array's first byte in memory, and the number of bytes up to its last."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return array.data.ptr, array.nbytes
    if not array.size:
        return array.data.ptr, 0
    low, high = array.data.ptr, array.data.ptr + array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high - low


def overlap(first: Any, second: Any) -> bool:
    """Whether two arrays may share memory."""
    (low, size), (other, length) = span(first), span(second)
    return bool(size and length) and low < other + length and other < low + size


def _bytes_of(array: Any) -> tuple[Any, Any]:
    """For the marks of an array: a byte for each of its span, and the same as an array of (..., itemsize)."""
    low, size = span(array)
    marked = numpy.zeros(size, numpy.uint8)
    offset = array.data.ptr - low
    shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
    return marked, numpy.ndarray(shape, numpy.uint8, marked, offset, strides)


def known_elements(array: Any) -> Any:
    """True if all elements are known, False if none is, or an array of bools."""
    low, size = span(array)
    found = marks.query(low, size) if size else 1
    if found != 2:
        return found == 1
    marked, elements = _bytes_of(array)
    marks.read(low, size, marked.ctypes.data)
    known = elements.all(axis=-1)
    return True if known.all() else known if known.any() else False


def settle(array: Any) -> None:
    """Make zeros of what reads as zeros in an array."""
    marks.settle(*span(array))


def mark(array: Any, state: int) -> None:
    """Say what a whole array holds."""
    low, size = span(array)
    if not size:
        return
    if array.flags.c_contiguous or array.flags.f_contiguous or array.size * array.itemsize == size:
        marks.mark(low, size, state)
    elif state == marks.UNKNOWN:
        _mark_runs(array, low, size)
    else:
        mark_elements(array, state == marks.KNOWN)


def mark_elements(array: Any, known: Any) -> None:
    """Say of every element whether it is known; the array was computed."""
    is_uniform = isinstance(known, (bool, numpy.bool_))
    if is_uniform and (array.flags.c_contiguous or array.flags.f_contiguous):
        marks.mark(*span(array), marks.KNOWN if known else marks.ZERO)
        return
    low, size = span(array)
    marked, elements = _bytes_of(array)
    marks.read(low, size, marked.ctypes.data)
    elements[...] = known if is_uniform else known[..., None]
    marks.write(low, size, marked.ctypes.data)


def _mark_runs(array: Any, low: int, size: int) -> None:
    """Unknown: piece by piece if there are few, or everything that the array spans."""
    run, rest = array.itemsize, list(zip(array.shape, array.strides, strict=True))
    while rest and rest[-1][1] == run:
        run *= rest.pop()[0]
    count = 1
    for length, _ in rest:
        count *= length
    if count > _MOST_RUNS:
        marks.mark(low, size, marks.UNKNOWN)
        return
    starts = numpy.zeros((), numpy.int64)
    for length, stride in rest:
        starts = starts[..., None] + numpy.arange(length) * stride
    for start in starts.ravel().tolist():
        marks.mark(array.data.ptr + start, run, marks.UNKNOWN)


def assign(array: Any, value: Any) -> bool:
    """Write a computed value into the memory of an array. False if it has another shape."""
    target = alias(array)
    found = numpy.asarray(value)
    if found.shape != target.shape:
        return False
    with numpy.errstate(all="ignore"):
        numpy.copyto(target, found, casting="unsafe")
    return True

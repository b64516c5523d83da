"""Indexing with arrays, and results whose size is a value: it is counted before CuPy asks the device."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ... import marks, unknown
from . import arrays
from .compute import LIMIT, Computer, evaluated

__all__ = ["Indexing", "counted"]

_BASIC = (int, slice, type(None), type(Ellipsis))
_SCATTERS = {
    "update": None,
    "add": numpy.add,
    "sub": numpy.subtract,
    "max": numpy.maximum,
    "min": numpy.minimum,
    "and": numpy.bitwise_and,
    "or": numpy.bitwise_or,
    "xor": numpy.bitwise_xor,
}


def is_basic(index: Any) -> bool:
    """Whether indexing gives a view."""
    kind = type(index)
    if kind is tuple:
        return all(type(one) in _BASIC or isinstance(one, numpy.integer) for one in index)
    return kind in _BASIC or isinstance(index, numpy.integer)


def wrapped(index: Any, shape: tuple[int, ...]) -> Any:
    """The same index with numbers in range: CuPy takes them modulo the length, where NumPy raises."""
    parts = index if type(index) is tuple else (index,)
    axes = [axes_of(one) for one in parts]
    missing = len(shape) - sum(one or 0 for one in axes)
    found, axis = [], 0
    for one, taken in zip(parts, axes, strict=True):
        is_numbers = isinstance(one, (list, numpy.ndarray)) and taken == 1 and axis < len(shape)
        found.append(in_range(one, shape[axis]) if is_numbers else one)
        axis += missing if taken is None else taken
    return tuple(found) if type(index) is tuple else found[0]


def axes_of(part: Any) -> int | None:
    """How many axes a part of an index takes; None for an ellipsis, which takes all others."""
    if part is Ellipsis:
        return None
    if part is None or isinstance(part, (bool, numpy.bool_)):
        return 0
    return part.ndim if isinstance(part, numpy.ndarray) and part.dtype.kind == "b" else 1


def in_range(numbers: Any, length: int) -> Any:
    found = numpy.asarray(numbers)
    if found.dtype.kind not in "iu" or not found.size or not length:
        return numbers
    return numbers if -length <= found.min() and found.max() < length else found % length


@contextlib.contextmanager
def counted(computer: Computer, conditions: list[Any]) -> Iterator[Callable[[Any], None]]:
    """Tell the driver how many elements are not zero, which CuPy sums on the device and copies to the host.

    Where that is not known, it is assumed. Call what is yielded with the result, whose size then is.
    """
    sizes = []
    for one in conditions if computer.ready() else ():
        if not one.size:
            continue
        count, most = how_many(computer, one)
        if most > count:
            number, more = unknown.size_here(unknown.NONZERO, most - count)
            count += more
            sizes.append((number, count, most))
        marks.expect((numpy.int32 if one.size < 1 << 31 else numpy.int64)(count).tobytes())

    def note(result: Any) -> None:
        for number, count, most in sizes[:1]:
            for one in computer.arrays(result):
                size_of(one, number, count, most)

    try:
        yield note
    finally:
        marks.forget()


def how_many(computer: Computer, condition: Any) -> tuple[int, int]:
    """How many elements are surely not zero, and how many may be."""
    if not isinstance(condition, computer.array):
        count = int(numpy.count_nonzero(condition))
        return count, count
    known = arrays.known_elements(condition)
    if known is False:
        return 0, condition.size
    found = numpy.logical_and(arrays.alias(condition), known)
    count = int(numpy.count_nonzero(found))
    return count, count + (0 if known is True else condition.size - int(numpy.count_nonzero(known)))


def size_of(array: Any, number: int, count: int, most: int) -> None:
    """Note that the size of an array is a number that is not known, for as long as it lives."""
    taken = array.nbytes
    bound = taken // count * most if count else max(array.itemsize, 1) * most
    unknown.note_sized(number, taken, bound)
    weakref.finalize(array, unknown.note_freed, number, taken, bound)


class Indexing:
    """``a[index]`` and ``a[index] = value``, where the index has arrays."""

    def __init__(self, computer: Computer, base: Any) -> None:
        self.computer = computer
        self.get, self.set, self.scatter = base.__getitem__, base.__setitem__, base._scatter_op

    def conditions(self, index: Any) -> list[Any]:
        """The masks in an index."""
        found = []
        for one in index if type(index) is tuple else (index,):
            if isinstance(one, self.computer.array):
                if one.dtype.kind == "b":
                    found.append(one)
            elif isinstance(one, (list, tuple, bool, numpy.bool_, numpy.ndarray)):
                mask = evaluated(functools.partial(numpy.asarray, one))
                if mask is not None and mask.dtype.kind == "b":
                    found.append(mask)
        return found

    def mapped(self, index: Any, shape: tuple[int, ...]) -> Any:
        """An index for NumPy, of CuPy's arrays and of lists that CuPy would have copied to the device."""
        return wrapped(arrays.mapped(index, self.computer.array), shape)

    def __getitem__(self, array: Any, index: Any) -> Any:
        if is_basic(index) or array.dtype.fields is not None:
            return self.get(array, index)
        computer = self.computer
        with counted(computer, self.conditions(index)) as note:
            result = computer.run(self.get, (array, index), {})
            note(result)
        inputs = [array, *computer.arrays(index)]
        if not arrays.overlap(array, result):
            here = functools.partial(numpy.ndarray.__getitem__, arrays.alias(array))
            computer.fill(inputs, [result], lambda: here(self.mapped(index, array.shape)), self.spread(array, index))
        return result

    def spread(self, array: Any, index: Any) -> Callable[[list[Any]], Any]:
        def known(states: list[Any]) -> Any:
            if not all(state is True for state in states[1:]):
                return False
            return numpy.broadcast_to(states[0], array.shape)[self.mapped(index, array.shape)]

        return known

    def __setitem__(self, array: Any, index: Any, value: Any) -> None:
        self.update(array, index, value, "update", functools.partial(self.set, array, index, value))

    def scatter_op(self, array: Any, index: Any, value: Any, op: str) -> None:
        """``cupy.add.at`` and the like."""
        self.update(array, index, value, op, functools.partial(self.scatter, array, index, value, op))

    def update(self, array: Any, index: Any, value: Any, op: str, original: Callable[[], Any]) -> None:
        if is_basic(index) or array.dtype.fields is not None:
            original()
            return
        computer = self.computer
        with counted(computer, self.conditions(index)):
            computer.run(original, (), {})
        given = computer.arrays(index, value)
        known = self.is_known(array, given)
        if not (known or computer.wants([array, *given], [array])) or not computer.ready():
            computer.unknown([array])
            return
        before = True if known else arrays.known_elements(array)
        for one in [] if known else [array, *given]:
            arrays.settle(one)
        if evaluated(lambda: self.write(arrays.alias(array), index, value, op)) is None:
            computer.unknown([array])
        elif not known:
            arrays.mark_elements(array, self.after(array, before, index, value))

    def is_known(self, array: Any, given: list[Any]) -> bool:
        """Whether all is known, and little is to be done."""
        few = sum(one.size for one in given) <= LIMIT
        return few and all(self.computer.is_known(one) for one in [array, *given])

    def write(self, target: Any, index: Any, value: Any, op: str) -> bool:
        place, new = self.mapped(index, target.shape), arrays.mapped(value, self.computer.array)
        if _SCATTERS[op] is None:
            target[place] = new
        else:
            _SCATTERS[op].at(target, place, new)  # type: ignore[union-attr]
        return True

    def after(self, array: Any, before: Any, index: Any, value: Any) -> Any:
        """What is known of an array whose elements at an index were written."""
        if not all(self.computer.is_known(one) for one in self.computer.arrays(index)):
            return False
        known = numpy.array(numpy.broadcast_to(before, array.shape))
        new = all(self.computer.is_known(one) for one in self.computer.arrays(value))
        known[self.mapped(index, array.shape)] = new
        return known

"""Methods of CuPy's arrays that do more than call ufuncs: NumPy's methods of the same names compute them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from . import arrays
from .compute import Computer, evaluated, inside
from .indexing import Indexing, counted
from .slots import replace

__all__ = ["change", "install"]

Function = Callable[..., Any]

# With the same arguments as NumPy's. Operators, `astype`, `copy`, `fill` and assignments to slices need nothing here.
# fmt: off
_SAME = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "choose", "clip", "cumprod", "cumsum", "dot", "max",
    "mean", "min", "prod", "ptp", "repeat", "round", "std", "sum", "trace", "var",
)
# fmt: on


def same(name: str) -> Function:
    def twin(array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, name)(*args, **kwargs)

    return twin


def argmax(name: str) -> Function:
    def twin(array: Any, axis: Any = None, out: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        return getattr(numpy, name)(array, axis=axis, keepdims=keepdims)

    return twin


def take(array: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = None) -> Any:
    return numpy.take(array, indices, axis, mode="wrap")


def argsort(array: Any, axis: Any = -1, kind: Any = None) -> Any:
    return numpy.argsort(numpy.atleast_1d(array), axis, kind="stable")


def matmul(first: Any, second: Any) -> Any:
    return numpy.matmul(first, second)


TWINS: dict[str, Function] = {
    **{name: same(name) for name in _SAME},
    "argmax": argmax("argmax"),
    "argmin": argmax("argmin"),
    "argsort": argsort,
    "take": take,
    "__matmul__": matmul,
    "__rmatmul__": lambda second, first: numpy.matmul(first, second),
}


def sort(array: Any, axis: Any = -1, kind: Any = None) -> None:
    array.sort(axis)


def put(array: Any, indices: Any, values: Any, mode: Any = "wrap") -> None:
    numpy.put(array, indices, values, mode)


# These change the array itself.
IN_PLACE: dict[str, Function] = {
    "partition": lambda array, kth, axis=-1: array.partition(kth, axis),
    "put": put,
    "sort": sort,
}


def install(computer: Computer) -> None:
    """Replace the methods of ``cupy.ndarray`` by ones that also compute."""
    kind = computer.array
    for name, twin in TWINS.items():
        if hasattr(kind, name) and name != "repeat":
            replace(kind, name, computed(computer, getattr(kind, name), twin))
    for name, twin in IN_PLACE.items():
        replace(kind, name, changed(computer, getattr(kind, name), twin))
    replace(kind, "repeat", repeat(computer, kind.repeat))
    replace(kind, "nonzero", nonzero(computer, kind.nonzero))
    replace(kind, "compress", compress(computer, kind.compress))
    install_indexing(kind, Indexing(computer, kind))


def computed(computer: Computer, original: Function, twin: Function) -> Function:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return computer.whole(original, twin, args, kwargs)

    return method


def changed(computer: Computer, original: Function, twin: Function) -> Function:
    """A method that changes its array and returns nothing."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = computer.run(original, (self, *args), kwargs)
        inputs = [self, *computer.arrays(args, kwargs)]
        change(computer, [self], inputs, lambda: computer.call(twin, (self, *args), kwargs, ()))
        return result

    return method


def change(computer: Computer, changed: Sequence[Any], inputs: Sequence[Any], evaluate: Callable[[], Any]) -> None:
    """Compute what becomes of arrays: ``evaluate`` changes them."""
    if not computer.wants(inputs, changed) or not computer.ready():
        computer.unknown(changed)
        return
    known = all(computer.is_known(one) for one in inputs)
    for one in [] if known else inputs:
        arrays.settle(one)
    if evaluated(lambda: (evaluate(), True)) is None:
        computer.unknown(changed)
        return
    for one in [] if known else changed:
        arrays.mark_elements(one, False)


def repeat(computer: Computer, original: Function) -> Function:
    """With a number for each element, CuPy reads their sum: so what it calls for that has to be computed."""
    whole = computed(computer, original, TWINS["repeat"])

    @functools.wraps(original)
    def method(self: Any, repeats: Any, axis: Any = None) -> Any:
        has_many = getattr(repeats, "size", 0) > 1 or (isinstance(repeats, (list, tuple)) and len(repeats) > 1)
        return original(self, repeats, axis) if has_many and not inside.value else whole(self, repeats, axis)

    return method


def nonzero(computer: Computer, original: Function) -> Function:
    @functools.wraps(original)
    def method(self: Any) -> Any:
        with counted(computer, [self]) as note:
            result = computer.whole(original, numpy.nonzero, (self,), {})
            note(result)
        return result

    return method


def compress(computer: Computer, original: Function) -> Function:
    def twin(array: Any, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return numpy.compress(numpy.asarray(condition) != 0, array, axis)

    @functools.wraps(original)
    def method(self: Any, condition: Any, *args: Any, **kwargs: Any) -> Any:
        given = condition if isinstance(condition, computer.array) else evaluated(lambda: numpy.asarray(condition))
        with counted(computer, [] if given is None else [given]) as note:
            result = computer.whole(original, twin, (self, condition, *args), kwargs)
            note(result)
        return result

    return method


def install_indexing(kind: Any, indexing: Indexing) -> None:
    @functools.wraps(kind.__getitem__)
    def get_item(self: Any, slices: Any) -> Any:
        return indexing.__getitem__(self, slices)

    @functools.wraps(kind.__setitem__)
    def set_item(self: Any, slices: Any, value: Any) -> None:
        indexing.__setitem__(self, slices, value)

    @functools.wraps(kind._scatter_op)
    def _scatter_op(self: Any, slices: Any, value: Any, op: str) -> None:
        indexing.scatter_op(self, slices, value, op)

    replace(kind, "__getitem__", get_item)
    replace(kind, "__setitem__", set_item)
    replace(kind, "_scatter_op", _scatter_op)

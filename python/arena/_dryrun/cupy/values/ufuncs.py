"""Element-wise functions: every call of a ufunc of CuPy, by a program, an operator or CuPy itself."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy

from ... import marks
from . import arrays
from .compute import Computer, evaluated
from .fusing import is_evaluating
from .slots import replace

__all__ = ["broadcast", "install", "twin_of"]

Function = Callable[..., Any]


def is_close(a: Any, b: Any, rtol: Any, atol: Any, equal_nan: Any) -> Any:
    near = numpy.isclose(a, b, rtol=rtol, atol=atol)
    return near | (numpy.isnan(a) & numpy.isnan(b) & bool(equal_nan))


# Functions that NumPy has under another name, or not at all.
_OTHERS: dict[str, Function] = {
    "cupy_copy": lambda x: x,
    "cupy_angle_deg": lambda x: numpy.angle(x, deg=True),
    "cupy_is_close": is_close,
    "cupy_is_close_complex": is_close,
    "cupy_nan_to_num_": lambda x, nan, high, low: numpy.nan_to_num(x, nan=nan, posinf=high, neginf=low),
    "cupy_rsqrt": lambda x: 1 / numpy.sqrt(x),
    "cupy_round_neg_uint": lambda x, decimals: numpy.round(x, -int(decimals)),
    "cupy_round": lambda x, decimals: numpy.round(x, int(decimals)),
}
# Functions of the element's position.
_INDEXED: dict[str, Function] = {
    "cupy_arange": lambda i, start, step: start + i * step,
    "cupy_linspace": lambda i, start, step, parts=1: start + i * step / parts,
}
_SPECIAL = ("cupyx_scipy_special_", "cupyx_scipy_", "cupy_")


@functools.cache
def twin_of(name: str) -> Function | None:
    """NumPy's function, or SciPy's if SciPy is installed, for a ufunc of CuPy."""
    if name in _OTHERS:
        return _OTHERS[name]
    if name.startswith("cupy_") and callable(found := getattr(numpy, name.removeprefix("cupy_"), None)):
        return found  # type: ignore[no-any-return]
    try:
        special = importlib.import_module("scipy.special")
    except ImportError:
        return None
    short = next((name.removeprefix(prefix) for prefix in _SPECIAL if name.startswith(prefix)), name)
    found = getattr(special, short, None)
    return found if callable(found) else None


def install(cupy: Any, computer: Computer) -> None:
    """Have every ufunc's result computed, and that of every reduction that CuPy makes of one."""
    array = computer.array
    kind = type(cupy.add)
    original = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_evaluating() and (twin := twin_of(self.name)) is not None:
            return twin(*args, **kwargs)  # in a fused function, on NumPy's arrays
        marks.enter()
        try:
            result = original(self, *args, **kwargs)
        finally:
            marks.leave()
        if isinstance(result, array):
            fill(self, args, kwargs, (result,))
        elif isinstance(result, tuple):
            fill(self, args, kwargs, computer.arrays(result))
        return result

    def fill(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        given = args[: self.nin]
        inputs = [one for one in (*given, kwargs.get("_where")) if isinstance(one, array)]
        twin = twin_of(self.name)
        if self.name in _INDEXED:
            evaluate, spread = functools.partial(indexed, self.name, given, outputs), None
        elif twin is None:
            computer.unknown(outputs)
            return
        else:
            evaluate = functools.partial(applied, twin, given, kwargs, outputs)
            spread = functools.partial(elementwise, self.name, given, outputs[0].shape, kwargs)
        computer.fill(inputs, outputs, evaluate, spread)

    def indexed(name: str, given: tuple[Any, ...], outputs: Any) -> Any:
        positions = numpy.arange(outputs[0].size).reshape(outputs[0].shape)
        values = [arrays.mapped(one, array) for one in given]
        if name == "cupy_arange":
            values = [numpy.asarray(one).astype(outputs[0].dtype) for one in values]
            positions = positions.astype(outputs[0].dtype)
        return _INDEXED[name](positions, *values)

    def applied(twin: Function, given: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> Any:
        values = [arrays.mapped(one, array) for one in given]
        dtype = kwargs.get("dtype")
        if dtype is not None and isinstance(twin, numpy.ufunc) and twin.nout == 1:
            result = evaluated(lambda: twin(*values, dtype=dtype))
            result = twin(*values) if result is None else result
        else:
            result = twin(*values)
        where = kwargs.get("_where")
        if where is None:
            return broadcast(result, outputs)
        chosen = arrays.mapped(where, array)
        before = [arrays.alias(one) for one in outputs]
        results = result if isinstance(result, tuple) else (result,)
        found = tuple(numpy.where(chosen, new, old) for new, old in zip(results, before, strict=True))
        return found if len(found) > 1 else found[0]

    def elementwise(name: str, given: tuple[Any, ...], shape: Any, kwargs: dict[str, Any], states: list[Any]) -> Any:
        if kwargs.get("_where") is not None:
            return False
        left = iter(states)
        known = [next(left) if isinstance(one, array) else True for one in given]
        if name == "cupy_where":
            chosen = arrays.mapped(given[0], array)
            result = known[0] & numpy.where(chosen, known[1], known[2])
        else:
            result = functools.reduce(numpy.logical_and, known)
        return numpy.array(numpy.broadcast_to(result, shape))

    replace(kind, "__call__", call)


def broadcast(result: Any, outputs: Any) -> Any:
    """A result in the shape of its output, which may have been given and be larger."""
    if isinstance(result, tuple):
        return tuple(numpy.broadcast_to(one, to.shape) for one, to in zip(result, outputs, strict=True))
    return numpy.broadcast_to(result, outputs[0].shape)

"""Fused functions: they are Python, so NumPy can run them."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy

from . import arrays, methods
from .compute import Computer, inside
from .slots import replace

__all__ = ["install", "is_evaluating"]


class _Evaluating(threading.local):
    value = False


_evaluating = _Evaluating()


def is_evaluating() -> bool:
    """Whether this thread computes a fused function with NumPy's arrays."""
    return _evaluating.value


def install(cupy: Any, computer: Computer) -> None:
    """Compute what fused functions return."""
    kind = cupy._core.fusion.Fusion
    original = kind.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = computer.arrays(args)
        if not given or inside.value:
            return original(self, *args, **kwargs)
        result = computer.run(original, (self, *args), kwargs)
        outputs = computer.arrays(result)
        values = arrays.mapped(args, computer.array)
        if any(arrays.overlap(one, other) for one in outputs for other in given) or not outputs:
            methods.change(computer, given, given, lambda: evaluated(self.func, values))
        elif not computer.fill(given, outputs, lambda: evaluated(self.func, values, writes=False)):
            computer.unknown(given)  # it may write what it was given
        return result

    replace(kind, "__call__", call)


def evaluated(function: Any, args: Any, writes: bool = True) -> Any:
    """What a function computes of NumPy's arrays, and whether it may write them."""
    for one in args:
        if isinstance(one, numpy.ndarray) and not writes:
            one.setflags(write=False)
    _evaluating.value = True
    try:
        return function(*args)
    finally:
        _evaluating.value = False

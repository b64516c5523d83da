"""One operation: CuPy's runs first, then its result is computed in the memory of its outputs, if it is worth it.

What is worth it depends on the mode. ``all``: everything. ``control``: small operations, and those whose inputs are
known and whose results are small, or integers or bools. Other outputs are marked as unknown.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from ... import marks
from . import arrays

__all__ = ["LIMIT", "Computer", "inside"]

LIMIT = 64 << 10  # elements of all arrays of an operation, in `control`


class _Depth(threading.local):
    value = 0


inside = _Depth()  # how many operations are running that compute their results as a whole


class Computer:
    """Computes results with NumPy. There is one, for the CuPy of this process."""

    def __init__(self, cupy: Any, mode: str) -> None:
        self.cupy = cupy
        self.array: Any = cupy.ndarray  # the class
        self.everything = mode == "all"
        self.current_stream: Callable[[], Any] = cupy.cuda.get_current_stream

    def arrays(self, *values: Any) -> list[Any]:
        return [one for value in values for one in arrays.arrays_in(value, self.array)]

    def wants(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Whether an operation is worth computing."""
        if self.everything:
            return True
        total = 0
        for one in inputs:
            total += one.size
        for one in outputs:
            total += one.size
        if total <= LIMIT:
            return True
        if not all(one.size <= LIMIT or one.dtype.kind in "biu" for one in outputs):
            return False
        return all(self.is_known(one) for one in inputs)

    @staticmethod
    def is_known(array: Any) -> bool:
        low, size = arrays.span(array)
        return not size or marks.query(low, size) == 1

    def ready(self) -> bool:
        """Wait until memory can be read directly. Not possible while the stream is captured."""
        return marks.drain(self.current_stream().ptr)

    def unknown(self, outputs: Sequence[Any]) -> None:
        for one in outputs:
            arrays.mark(one, marks.UNKNOWN)

    def fill(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        evaluate: Callable[[], Any],
        spread: Callable[[list[Any]], Any] | None = None,
    ) -> bool:
        """Compute ``outputs`` from ``inputs``; ``spread``: from what is known of these to what is of the output."""
        if not self.wants(inputs, outputs) or not self.ready():
            self.unknown(outputs)
            return False
        states = [arrays.known_elements(one) for one in inputs]
        known: Any = True
        for one, state in zip(inputs, states, strict=True):
            if state is not True:
                known = False
                arrays.settle(one)
        found = evaluated(evaluate)
        values = found if isinstance(found, (tuple, list)) and len(outputs) == len(found) else (found,)
        if found is None or len(values) != len(outputs):
            self.unknown(outputs)
            return False
        if known is False and spread is not None:
            known = evaluated(lambda: spread(states))
        for one, value in zip(outputs, values, strict=True):
            self.put(one, value, known)
        return True

    def put(self, output: Any, value: Any, known: Any) -> None:
        """Write one output, and say what is known of it."""
        if not arrays.assign(output, value):
            arrays.mark(output, marks.UNKNOWN)
        elif isinstance(known, numpy.ndarray) and known.shape == output.shape:
            arrays.mark_elements(output, known)
        else:
            arrays.mark_elements(output, known is True)

    def run(self, original: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """CuPy's operation, whose kernels change no marks: its results are computed as a whole afterwards."""
        marks.enter()
        inside.value += 1
        try:
            return original(*arguments, **named)
        finally:
            inside.value -= 1
            marks.leave()

    def whole(
        self,
        original: Callable[..., Any],
        twin: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        spread: Callable[..., Any] | None = None,
    ) -> Any:
        """Run CuPy's operation, and compute its results with a function of NumPy that has the same arguments."""
        result = self.run(original, arguments, named)
        self.complete(result, twin, arguments, named, spread)
        return result

    def complete(
        self,
        result: Any,
        twin: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        spread: Callable[..., Any] | None = None,
    ) -> None:
        """Compute the results of an operation that ran. Views of its arguments are what they were."""
        outputs = self.arrays(result)
        inputs = [one for one in self.arrays(arguments, named) if not any(one is output for output in outputs)]
        if not any(arrays.overlap(output, one) for output in outputs for one in inputs):
            self.fill(inputs, outputs, lambda: self.call(twin, arguments, named, outputs), spread)

    def call(self, twin: Callable[..., Any], arguments: Any, named: dict[str, Any], outputs: Sequence[Any]) -> Any:
        """A function of NumPy on the memory of CuPy's arrays."""
        kept = {key: value for key, value in named.items() if key not in ("out", "blocking", "stream")}
        return twin(*arrays.mapped(arguments, self.array, outputs), **arrays.mapped(kept, self.array))


def evaluated(evaluate: Callable[[], Any]) -> Any:
    """What NumPy computes, without its warnings; None where it does not know how to."""
    try:
        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return evaluate()
    except Exception:
        return None

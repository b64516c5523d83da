"""Computes every case of value_cases.py with CuPy in a dry run and with NumPy, and prints what differs as JSON.

Started by test_cupy_values.py: ``python -m tests.dryrun_cupy.value_worker WHAT``. ``small`` and ``big`` are the sizes
of the arrays to compare; with ``held`` it prints how much memory the results of small ones hold. Which values are
computed is said in the environment.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import cupy
import numpy

from arena._dryrun.cupy.values import arrays

from .value_cases import AREAS, Case

BIG = (250, 262)  # two are more than 64 Ki elements, and as float16 their number is finite
SKIPPED = "skipped"


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Small numbers, of which many are equal and some zero."""
    generator = numpy.random.default_rng(seed)
    found = generator.integers(0, 5, shape).astype(float)
    if dtype.startswith("complex"):
        found = found + 1j * generator.integers(0, 3, shape)
    return numpy.asarray(found, dtype)


def layouts(dtype: str, *, big: bool) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of arrays of NumPy, with the name of how they lie in memory."""
    if big:
        yield "big", numbers(BIG, dtype, 7), numbers(BIG, dtype, 8)
        return
    whole = numbers((6, 8), dtype, 1), numbers((6, 8), dtype, 2)
    yield "0-d", numbers((), dtype, 3), numbers((), dtype, 4)
    yield "empty", numbers((0, 3), dtype, 3), numbers((0, 3), dtype, 4)
    yield "one axis", numbers((11,), dtype, 3), numbers((11,), dtype, 4)
    yield "C", *whole
    yield "F", numpy.asfortranarray(whole[0]), numpy.asfortranarray(whole[1])
    yield "strided", whole[0][::2, ::-3], whole[1][::2, ::-3]
    yield "broadcast", numpy.broadcast_to(whole[0][0], (4, 8)), numpy.broadcast_to(whole[1][0], (4, 8))
    yield "three axes", numbers((2, 3, 4), dtype, 5), numbers((2, 3, 4), dtype, 6)


def on_device(host: Any) -> Any:
    """The same numbers in the same order in memory, so that views are views here, too."""
    if host.base is not None and host.ndim == 2 and 0 in host.strides:
        return cupy.broadcast_to(cupy.asarray(host[0]), host.shape)
    if host.base is not None and host.ndim == 2 and host.size and not host.flags.f_contiguous:
        whole = cupy.asarray(host.base)
        return whole[::2, ::-3]
    return cupy.asarray(host, order="K")


def parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def same(found: Any, expected: Any) -> bool:
    found, expected = numpy.asarray(found), numpy.asarray(expected)
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind in "fc":
        # Which of the two wider types a result has differs between the libraries in places, and so does rounding.
        narrowest = min(found.dtype.itemsize, expected.dtype.itemsize) // (2 if found.dtype.kind == "c" else 1)
        rtol = {2: 1e-2, 4: 1e-4}.get(narrowest, 1e-9)
        return bool(numpy.allclose(found, expected, rtol=rtol, atol=rtol, equal_nan=True))
    return bool((found == expected).all())


def compared(case: Case, first: Any, second: Any) -> str:
    """What is wrong with a case; empty if nothing is."""
    try:
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = case(numpy, first, second)
    except Exception:
        return SKIPPED  # NumPy has no such function of these
    try:
        given = on_device(first), on_device(second)
        result = case(cupy, *given)
    except (TypeError, NotImplementedError) as error:
        return SKIPPED if "arena" not in repr(error) else f"raised {error!r}"  # CuPy does not support all of NumPy
    except Exception as error:
        return f"raised {error!r}"
    for one, (before, host) in enumerate(zip(given, (first, second), strict=True)):
        if not same(before.get(), host):
            return f"changed argument {one}"
    for found, wanted in zip(parts(result), parts(expected), strict=True):
        if isinstance(found, cupy.ndarray):
            if arrays.known_elements(found) is not True:
                return "is unknown"
            found = found.get()
        if not same(found, wanted):
            return f"gives {found!r}, not {wanted!r}"
    return ""


def held_by(case: Case, first: Any, second: Any) -> int | str:
    """How many bytes the results hold, or how it ended."""
    given = on_device(first), on_device(second)
    before = cupy.get_default_memory_pool().used_bytes()
    try:
        result = case(cupy, *given)
    except Exception as error:
        return type(error).__name__
    gc.collect(0)
    held = cupy.get_default_memory_pool().used_bytes() - before
    del result
    return int(held)


def main() -> None:
    what = sys.argv[1]
    warnings.simplefilter("error", RuntimeWarning)  # NumPy's must not reach the program
    facts: dict[str, Any] = {}
    for area, (cases, dtypes) in AREAS.items():
        found: dict[str, Any] = {}
        for dtype in dtypes:
            for layout, first, second in layouts(dtype, big=what == "big"):
                for name, case in cases.items():
                    key = f"{name} of {dtype}, {layout}"
                    found[key] = (held_by if what == "held" else compared)(case, first, second)
        if what != "held":
            wrong = {key: said for key, said in found.items() if said not in ("", SKIPPED)}
            found = {"compared": sum(said != SKIPPED for said in found.values()), "wrong": wrong}
        facts[area] = found
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

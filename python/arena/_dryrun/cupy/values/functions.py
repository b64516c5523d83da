"""Functions of CuPy's modules, computed by NumPy's functions of the same names.

Most are Python that calls ufuncs, methods and each other, so their results are computed already. Where a kernel of
their own leaves something unknown, NumPy computes the result as a whole. Those that call a library (cuBLAS, cuSOLVER,
cuFFT, CUB) are always computed as a whole: what a library writes in place is not seen.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy

from ... import marks
from . import arrays
from .compute import Computer, inside
from .indexing import counted
from .methods import change
from .slots import replace

__all__ = ["UNSEEN", "install", "unseen"]

Function = Callable[..., Any]

# Functions whose results are new memory that a copy fills, or no arrays at all.
# fmt: off
_LEFT_ALONE = frozenset({
    "array", "asanyarray", "asarray", "ascontiguousarray", "broadcast", "broadcast_arrays",
    "broadcast_to", "can_cast", "copyto", "copy", "empty", "empty_like", "from_dlpack", "frombuffer",
    "fromfile", "fromfunction", "fromiter", "fromstring", "get_array_wrap", "get_include", "load", "loads",
    "loadtxt", "genfromtxt", "may_share_memory", "meshgrid", "min_scalar_type", "ndim", "promote_types",
    "result_type", "save", "savez", "savez_compressed", "savetxt", "set_printoptions", "get_printoptions",
    "printoptions", "shape", "shares_memory", "show_config", "size", "vectorize", "who", "zeros",
    "zeros_like", "put", "putmask", "place", "fill_diagonal", "apply_along_axis", "apply_over_axes",
    "piecewise", "put_along_axis", "array_repr", "array_str", "array2string", "format_float_positional",
    "format_float_scientific",
})
# fmt: on
# fmt: off
_LIBRARIES = frozenset({
    "einsum", "tensordot", "inner", "outer", "vdot", "kron", "bincount", "cumprod", "cumsum", "histogram",
    "histogram2d", "histogramdd",
})
# fmt: on
_IN_PLACE = ("fill_diagonal", "place", "putmask", "put_along_axis")
# Modules that call libraries, and have no counterpart here. They are imported when a program needs them.
UNSEEN = frozenset({"cupy.cublas", "cupyx.cusolver", "cupyx.cusparse", "cupyx.cutensor", "cupyx.lapack"})


def install(cupy: Any, computer: Computer) -> None:
    """Replace the functions wherever CuPy has them."""
    for module, twins in ((cupy, numpy), (cupy.linalg, numpy.linalg), (cupy.fft, numpy.fft)):
        for name, function in list(vars(module).items()):
            twin = getattr(twins, name, None)
            if callable(twin) and is_function(function) and name not in _LEFT_ALONE:
                always = module is not cupy or name in _LIBRARIES
                patch(function, as_a_whole(computer, function, twin) if always else completed(computer, function, twin))
    for name in _IN_PLACE:
        patch(getattr(cupy, name), in_place(computer, getattr(cupy, name), getattr(numpy, name)))
    install_flat(cupy.flatiter, computer)
    patch(cupy.argwhere, argwhere(computer, cupy.argwhere))
    patch(cupy.piecewise, completed(computer, cupy.piecewise, piecewise))
    install_products(cupy, computer)


def is_function(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) or (
        type(value).__name__ == "cython_function_or_method"
    )


def patch(function: Any, wrapper: Function) -> None:
    """Put a wrapper in the place of a function in all of CuPy's modules, so that there is one of that name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("cupy", "cupyx") and isinstance(module, types.ModuleType):
            for key in [key for key, value in vars(module).items() if value is function]:
                setattr(module, key, wrapper)


def completed(computer: Computer, original: Function, twin: Function) -> Function:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        marks.enter()
        try:
            result = original(*args, **kwargs)
        finally:
            marks.leave()
        if not inside.value:
            outputs = computer.arrays(result)
            if outputs and not all(computer.is_known(one) for one in outputs):
                inputs = computer.arrays(args, kwargs)
                if computer.wants(inputs, outputs):
                    computer.complete(result, twin, args, kwargs)
        return result

    return function


def as_a_whole(computer: Computer, original: Function, twin: Function) -> Function:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if inside.value:
            return original(*args, **kwargs)
        return computer.whole(original, twin, args, kwargs)

    return function


def in_place(computer: Computer, original: Function, twin: Function) -> Function:
    @functools.wraps(original)
    def function(a: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(a, computer.array) or inside.value:
            return original(a, *args, **kwargs)
        result = computer.run(original, (a, *args), kwargs)
        inputs = [a, *computer.arrays(args, kwargs)]
        change(computer, [a], inputs, lambda: computer.call(twin, (a, *args), kwargs, ()))
        return result

    return function


def argwhere(computer: Computer, original: Function) -> Function:
    @functools.wraps(original)
    def function(a: Any) -> Any:
        with counted(computer, [a] if isinstance(a, computer.array) else []) as note:
            result = computer.whole(original, numpy.argwhere, (a,), {})
            note(result)
        return result

    return function


def piecewise(x: Any, condlist: Any, funclist: Any) -> Any:
    """NumPy's, unless it would call functions of the program, which CuPy has called already."""
    return None if any(map(callable, funclist)) else numpy.piecewise(x, condlist, funclist)


def install_flat(kind: Any, computer: Computer) -> None:
    """Elements and slices of ``array.flat``."""
    get, put = kind.__getitem__, kind.__setitem__

    @functools.wraps(get)
    def get_item(self: Any, ind: Any) -> Any:
        result = computer.run(get, (self, ind), {})
        computer.fill([self.base], computer.arrays(result), lambda: numpy.asarray(arrays.alias(self.base).flat[ind]))
        return result

    @functools.wraps(put)
    def set_item(self: Any, ind: Any, value: Any) -> None:
        computer.run(put, (self, ind, value), {})
        inputs = [self.base, *computer.arrays(value)]
        flat = arrays.alias(self.base).flat
        change(computer, [self.base], inputs, lambda: flat.__setitem__(ind, arrays.mapped(value, computer.array)))

    kind.__getitem__, kind.__setitem__ = get_item, set_item


def install_products(cupy: Any, computer: Computer) -> None:
    """Products of matrices, which are generalized ufuncs of CuPy, and what their own code calls."""
    kind = type(cupy.matmul)
    original = kind.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = getattr(numpy, self.__name__, None)
        if twin is None or inside.value or not computer.arrays(args):
            return original(self, *args, **kwargs)
        return computer.whole(functools.partial(original, self), twin, args, kwargs)

    replace(kind, "__call__", call)
    core = importlib.import_module("cupy._core")
    for name in ("dot", "matmul"):
        found = getattr(core, name)
        patch(found, as_a_whole(computer, found, getattr(numpy, name)))


def unseen(computer: Computer, module: types.ModuleType) -> None:
    """What the functions of a module may have written is unknown."""
    for name, original in list(vars(module).items()):
        if isinstance(original, types.FunctionType) and original.__module__ == module.__name__:
            setattr(module, name, forgotten(computer, original))


def forgotten(computer: Computer, original: Function) -> Function:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not inside.value:
            found = computer.arrays(result)
            sparse = [one.data for one in (result,) if isinstance(getattr(one, "data", None), computer.array)]
            written = found or sparse or computer.arrays(args, kwargs)
            computer.unknown([*written, *computer.arrays(kwargs.get("out"), kwargs.get("y"))])
        return result

    return function

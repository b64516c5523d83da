"""Functions whose values a dry run computes, by area, to be called with CuPy and with NumPy.

A case takes the module and two arrays that the worker made of the same numbers, both of one dtype and layout.
It returns an array, a number, or several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["AREAS", "DTYPES", "FLOATS", "Case"]

Case = Callable[[Any, Any, Any], Any]

FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
WHOLE = ("int8", "int32", "int64", "uint8", "uint16", "uint64")
DTYPES = ("bool", *WHOLE, *FLOATS, *COMPLEX)
REAL = ("bool", *WHOLE, *FLOATS)
NUMBERS = (*WHOLE, *FLOATS, *COMPLEX)


def unary(*names: str) -> dict[str, Case]:
    return {name: lambda xp, a, b, name=name: getattr(xp, name)(a) for name in names}  # type: ignore[misc]


def binary(*names: str) -> dict[str, Case]:
    return {name: lambda xp, a, b, name=name: getattr(xp, name)(a, b) for name in names}  # type: ignore[misc]


def along(*names: str) -> dict[str, Case]:
    """Over everything, over the first and over the last axis, which is kept."""

    def over(name: str, **options: Any) -> Case:
        return lambda xp, a, b: getattr(xp, name)(a, **options) if a.ndim or not options else a

    ways: dict[str, dict[str, Any]] = {"": {}, "(axis=0)": {"axis": 0}, "(axis=-1)": {"axis": -1, "keepdims": True}}
    return {f"{name}{way}": over(name, **options) for name in names for way, options in ways.items()}


def changed(a: Any, change: Callable[[Any], Any]) -> Any:
    """A copy after a change in place."""
    copy = a.copy()
    change(copy)
    return copy


def assigned(a: Any, index: Any, value: Any) -> Any:
    copy = a.copy()
    copy[index] = value
    return copy


# fmt: off
ELEMENTWISE = {
    **unary("negative", "abs", "sqrt", "exp", "sin", "isnan", "isfinite", "square", "sign", "reciprocal"),
    **unary("logical_not"),
    **binary("add", "multiply", "subtract", "equal", "less", "maximum", "logical_and", "power"),
    "divide": lambda xp, a, b: a / (b + 1),
    "by zero": lambda xp, a, b: a / (b - b),
    "scalar": lambda xp, a, b: 2 * a + 1,
    "python complex": lambda xp, a, b: a * 1j,
    "where": lambda xp, a, b: xp.where(a > b, a, b),
    "clip": lambda xp, a, b: xp.clip(a, 1, 3),
    "out": lambda xp, a, b: xp.add(a, b, out=a.copy()),
    "in place": lambda xp, a, b: changed(a, lambda copy: copy.__iadd__(b)),
    "nan_to_num": lambda xp, a, b: xp.nan_to_num(a),
    "isclose": lambda xp, a, b: xp.isclose(a, b),
    "row": lambda xp, a, b: a + xp.arange(a.shape[-1]) if a.ndim else a,
}
ELEMENTWISE_REAL = {
    **unary("floor", "ceil", "log1p", "expm1", "tanh", "rint", "signbit"),
    **binary("minimum", "arctan2", "hypot", "fmod", "copysign"),
    "floor_divide": lambda xp, a, b: a // (b + 2),
    "remainder": lambda xp, a, b: a % (b + 2),
    "round": lambda xp, a, b: xp.round(a, 1),
    "frexp": lambda xp, a, b: xp.frexp(a),
    "modf": lambda xp, a, b: xp.modf(a),
}
ELEMENTWISE_WHOLE = {
    **binary("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"),
    "shift": lambda xp, a, b: a << 1,
    "divmod": lambda xp, a, b: xp.divmod(a, 3),
    "invert": lambda xp, a, b: ~a,
    "overflow": lambda xp, a, b: a * a.dtype.type(100),
}
REDUCTIONS = {
    **along("sum", "prod", "mean", "any", "all", "nansum"),
    "count_nonzero": lambda xp, a, b: xp.count_nonzero(a),
    "count_nonzero(axis=0)": lambda xp, a, b: xp.count_nonzero(a, axis=0) if a.ndim else a,
    "cumsum": lambda xp, a, b: xp.cumsum(a),
    "cumsum(axis=0)": lambda xp, a, b: xp.cumsum(a, axis=0) if a.ndim else a,
    "cumprod": lambda xp, a, b: xp.cumprod(a),
    "sum of float64": lambda xp, a, b: a.sum(dtype=complex if a.dtype.kind == "c" else float),
    "trace": lambda xp, a, b: xp.trace(a) if a.ndim == 2 else a,
    "diff": lambda xp, a, b: xp.diff(a) if a.ndim and a.dtype != bool else a,
}
REDUCTIONS_REAL = {
    **along("max", "min", "argmax", "argmin", "nanmax"),
    "std": lambda xp, a, b: xp.std(a),
    "var": lambda xp, a, b: xp.var(a, axis=-1) if a.ndim else a,
    "median": lambda xp, a, b: xp.median(a) if a.dtype != bool and a.size else a,
    "percentile": lambda xp, a, b: xp.percentile(a, 30) if a.dtype != bool else a,
    "average": lambda xp, a, b: xp.average(a),
    "ptp": lambda xp, a, b: xp.ptp(a) if a.dtype != bool else a,
    "argmax method": lambda xp, a, b: a.argmax(),
}
SIZES = {
    "nonzero": lambda xp, a, b: xp.nonzero(a) if a.ndim else a,
    "flatnonzero": lambda xp, a, b: xp.flatnonzero(a),
    "argwhere": lambda xp, a, b: xp.argwhere(a) if a.ndim else a,
    "where of one": lambda xp, a, b: xp.where(a != 0) if a.ndim else a,
    "mask": lambda xp, a, b: a[a != 0],
    "mask of rows": lambda xp, a, b: a[xp.arange(a.shape[0]) % 2 == 0] if a.ndim else a,
    "extract": lambda xp, a, b: xp.extract(a != 0, a),
    "unique": lambda xp, a, b: xp.unique(a) if a.dtype.kind != "c" else a,
    "unique with all": lambda xp, a, b: (
        xp.unique(a.ravel(), return_index=True, return_inverse=True, return_counts=True) if a.dtype.kind != "c" else a
    ),
    "compress": lambda xp, a, b: a.compress(xp.arange(a.shape[0]) % 2, axis=0) if a.ndim else a,
    "repeat": lambda xp, a, b: xp.repeat(a, 2),
    "repeat each": lambda xp, a, b: (
        xp.repeat(a, xp.arange(a.shape[0]) % 3, axis=0) if a.ndim and a.shape[0] else a
    ),
    "union1d": lambda xp, a, b: xp.union1d(a, b) if a.dtype.kind != "c" else a,
    "setdiff1d": lambda xp, a, b: xp.setdiff1d(a, b) if a.dtype.kind != "c" else a,
    "in1d": lambda xp, a, b: xp.isin(a, b) if a.dtype.kind != "c" else a,
    "trim_zeros": lambda xp, a, b: xp.trim_zeros(a) if a.ndim == 1 else a,
}
INDEXING = {
    "rows": lambda xp, a, b: a[xp.asarray([0, -1, 0])] if a.ndim and a.shape[0] else a,
    "pairs": lambda xp, a, b: a[xp.asarray([0, 1]), xp.asarray([1, 0])] if a.ndim == 2 and a.size else a,
    "take": lambda xp, a, b: xp.take(a, xp.asarray([0, 0]), axis=-1) if a.ndim and a.size else a,
    "take_along_axis": lambda xp, a, b: (
        xp.take_along_axis(a, xp.argsort(a, axis=-1), -1) if a.ndim and a.dtype.kind != "c" else a
    ),
    "set slice": lambda xp, a, b: assigned(a, slice(0, 2), 1) if a.ndim else a,
    "set mask": lambda xp, a, b: assigned(a, a != 0, 1),
    "set rows": lambda xp, a, b: assigned(a, xp.asarray([0]), 3) if a.ndim and a.shape[0] else a,
    "set all": lambda xp, a, b: assigned(a, Ellipsis, b),
    "choose": lambda xp, a, b: xp.choose((a != 0).astype(int), xp.stack([a, b])),
    "piecewise": lambda xp, a, b: xp.piecewise(a, [a == 0, a == 1], [2, 3, 4]),
    "select": lambda xp, a, b: xp.select([a != 0, b != 0], [a, b], 7),
    "diag": lambda xp, a, b: xp.diag(a) if a.ndim else a,
    "tril": lambda xp, a, b: xp.tril(a) if a.ndim == 2 else a,
    "put": lambda xp, a, b: changed(a, lambda copy: copy.put([0], 1)) if a.size else a,
    "putmask": lambda xp, a, b: changed(a, lambda copy: xp.putmask(copy, a != 0, b)),
    "add.at": lambda xp, a, b: (
        changed(a, lambda copy: xp.add.at(copy, xp.asarray([0, 0]), 1))
        if a.ndim and a.shape[0] and a.dtype.name in ("int32", "uint64", "float32", "float64") else a
    ),
    "flat": lambda xp, a, b: xp.asarray(a.flat[0]) if a.size else a,
    "fill_diagonal": lambda xp, a, b: changed(a, lambda copy: xp.fill_diagonal(copy, 1)) if a.ndim == 2 else a,
    "roll": lambda xp, a, b: xp.roll(a, 1),
    "flip": lambda xp, a, b: xp.flip(a) + xp.flip(b) if a.dtype != bool else xp.flip(a),
    "searchsorted": lambda xp, a, b: (
        xp.searchsorted(xp.sort(a.ravel()), b) if a.dtype.kind not in "cb" else a
    ),
    "digitize": lambda xp, a, b: xp.digitize(a, xp.asarray([1.0, 2.0, 3.0])) if a.dtype.kind in "iuf" else a,
}
SORTING = {
    "sort": lambda xp, a, b: xp.sort(a) if a.ndim else a,
    "sort(axis=0)": lambda xp, a, b: xp.sort(a, axis=0) if a.ndim else a,
    "sort method": lambda xp, a, b: changed(a, lambda copy: copy.sort()) if a.ndim else a,
    "sort of all": lambda xp, a, b: xp.sort(a, axis=None),
    "argsort": lambda xp, a, b: xp.argsort(a, kind="stable") if a.ndim else a,
    "lexsort": lambda xp, a, b: xp.lexsort(xp.stack([a.ravel(), b.ravel()])),
    "partition": lambda xp, a, b: xp.sort(xp.partition(a, 0)) if a.ndim and a.shape[-1] else a,
    "msort": lambda xp, a, b: xp.sort(a.T) if a.ndim else a,
}
CREATION = {
    "arange": lambda xp, a, b: xp.arange(a.size, dtype=a.dtype) if a.dtype != bool else a,
    "arange with step": lambda xp, a, b: xp.arange(10, 0, -3, dtype=a.dtype) if a.dtype.kind in "if" else a,
    "linspace": lambda xp, a, b: xp.linspace(0, 3, 7),
    "logspace": lambda xp, a, b: xp.logspace(0, 3, 7),
    "full": lambda xp, a, b: xp.full((3, 4), 1, a.dtype),
    "full_like": lambda xp, a, b: xp.full_like(a, 1),
    "zeros_like": lambda xp, a, b: xp.zeros_like(a),
    "ones_like": lambda xp, a, b: xp.ones_like(a),
    "eye": lambda xp, a, b: xp.eye(5, 4, 1, dtype=a.dtype),
    "tri": lambda xp, a, b: xp.tri(4, 5, dtype=a.dtype),
    "meshgrid": lambda xp, a, b: xp.meshgrid(a.ravel()[:5], b.ravel()[:6]),
    "indices": lambda xp, a, b: xp.indices((2, 3)),
    "fill": lambda xp, a, b: changed(a, lambda copy: copy.fill(1)),
    "fromfunction": lambda xp, a, b: xp.fromfunction(lambda i, j: i * j, (3, 4)),
    "identity": lambda xp, a, b: xp.identity(3, a.dtype),
}
COPIES = {
    "copy": lambda xp, a, b: a.copy(),
    "get": lambda xp, a, b: a.get(order="F") if hasattr(a, "get") else a,
    "copy in F": lambda xp, a, b: a.copy(order="F"),
    "asfortranarray": lambda xp, a, b: xp.asfortranarray(a),
    "ascontiguousarray": lambda xp, a, b: xp.ascontiguousarray(a),
    "ravel": lambda xp, a, b: a.ravel(),
    "flatten": lambda xp, a, b: a.flatten(),
    "reshape": lambda xp, a, b: a.reshape(-1),
    "T": lambda xp, a, b: a.T.copy(),
    "concatenate": lambda xp, a, b: xp.concatenate([a.ravel(), b.ravel()]),
    "stack": lambda xp, a, b: xp.stack([a, b]),
    "hstack": lambda xp, a, b: xp.hstack([a, b]),
    "tile": lambda xp, a, b: xp.tile(a, 2),
    "pad": lambda xp, a, b: xp.pad(a, 1),
    "split": lambda xp, a, b: xp.array_split(a, 2) if a.ndim else a,
    "copyto": lambda xp, a, b: changed(a, lambda copy: xp.copyto(copy, b)),
    "copyto where": lambda xp, a, b: changed(a, lambda copy: xp.copyto(copy, b, where=a != 0)),
    "view": lambda xp, a, b: a.copy().view("uint8") if a.ndim else a,
    "real": lambda xp, a, b: a.real + 1,
    "imag": lambda xp, a, b: a.imag.copy(),
    "broadcast": lambda xp, a, b: xp.broadcast_to(a, (2, *a.shape)).copy(),
    "moveaxis": lambda xp, a, b: xp.moveaxis(a, 0, -1).copy() if a.ndim else a,
    "array": lambda xp, a, b: xp.array([a, b]),
    "astype bool": lambda xp, a, b: a.astype(bool),
    "astype float32": lambda xp, a, b: a.astype("float32") if a.dtype.kind != "c" else a,
    "astype int16": lambda xp, a, b: a.astype("int16") if a.dtype.kind in "biu" else a,
    "astype complex": lambda xp, a, b: a.astype(complex),
}
PRODUCTS = {
    "dot": lambda xp, a, b: xp.dot(a, b.T) if a.ndim else a,
    "matmul": lambda xp, a, b: a @ b.T if a.ndim else a,
    "outer": lambda xp, a, b: xp.outer(a.ravel()[:20], b.ravel()[:20]),
    "inner": lambda xp, a, b: xp.inner(a, b),
    "vdot": lambda xp, a, b: xp.vdot(a.ravel(), b.ravel()),
    "tensordot": lambda xp, a, b: xp.tensordot(a, b, axes=a.ndim),
    "einsum": lambda xp, a, b: xp.einsum("ij,kj->ik", a, b) if a.ndim == 2 else a,
    "norm": lambda xp, a, b: xp.linalg.norm(a.ravel()),
    "kron": lambda xp, a, b: xp.kron(a.ravel()[:5], b.ravel()[:5]),
    "cross": lambda xp, a, b: xp.cross(a.ravel()[:3], b.ravel()[:3]) if a.size >= 3 and a.dtype != bool else a,
}
COUNTING = {
    "bincount": lambda xp, a, b: xp.bincount(a.ravel()) if a.dtype.kind in "iu" and a.dtype != "uint64" else a,
    "histogram": lambda xp, a, b: xp.histogram(a, 4, (0.0, 4.0))[0] if a.dtype.kind in "iuf" else a,
    "interp": lambda xp, a, b: (
        xp.interp(a, xp.arange(5.0), xp.arange(5.0) ** 2) if a.dtype.kind in "iuf" else a
    ),
    "array_equal": lambda xp, a, b: xp.array_equal(a, b),
    "allclose": lambda xp, a, b: xp.allclose(a, a),
    "gradient": lambda xp, a, b: xp.gradient(a) if a.ndim == 1 and a.size > 2 and a.dtype.kind == "f" else a,
    "convolve": lambda xp, a, b: xp.convolve(a, b) if a.ndim == 1 and 0 < a.size < 100 else a,
    "corrcoef": lambda xp, a, b: xp.cov(a) if a.ndim == 2 and a.size and a.dtype.kind == "f" else a,
    "polyval": lambda xp, a, b: xp.polyval(xp.asarray([1.0, 2.0]), a) if a.dtype.kind != "c" else a,
}


def square(xp: Any, a: Any) -> Any:
    """A matrix that is easily inverted."""
    size = min(a.shape)
    return a[:size, :size].astype(a.dtype if a.dtype.kind in "fc" else float) + 9 * xp.eye(size, dtype=a.dtype)


def of_matrix(function: Callable[[Any, Any], Any]) -> Case:
    """Of a square one, if there are matrices of that type in LAPACK."""
    return lambda xp, a, b: (
        function(xp, square(xp, a)) if a.ndim == 2 and a.size and a.dtype.name in _LAPACK else a
    )


_LAPACK = ("float32", "float64", "complex64", "complex128")
LINALG = {
    "inv": of_matrix(lambda xp, m: xp.linalg.inv(m)),
    "det": of_matrix(lambda xp, m: xp.linalg.det(m)),
    "solve": of_matrix(lambda xp, m: xp.linalg.solve(m, m[:, :2])),
    "svd": of_matrix(lambda xp, m: xp.linalg.svd(m, compute_uv=False)),
    "eigvalsh": of_matrix(lambda xp, m: xp.linalg.eigvalsh(m @ m.T.conj())),
    "cholesky": of_matrix(lambda xp, m: xp.linalg.cholesky(m @ m.T.conj())),
    "qr": of_matrix(lambda xp, m: abs(xp.linalg.qr(m)[1])),
    "pinv": of_matrix(lambda xp, m: xp.linalg.pinv(m)),
    "lstsq": of_matrix(lambda xp, m: xp.linalg.lstsq(m, m[:, 0], rcond=None)[0]),
    "matrix_power": of_matrix(lambda xp, m: xp.linalg.matrix_power(m, 3)),
    "matrix_rank": of_matrix(lambda xp, m: xp.linalg.matrix_rank(m)),
    "slogdet": of_matrix(lambda xp, m: tuple(xp.linalg.slogdet(m))),
    "fft": lambda xp, a, b: xp.fft.fft(a) if a.ndim and a.size and a.dtype != "float16" else a,
    "ifft": lambda xp, a, b: xp.fft.ifft(a) if a.ndim and a.size and a.dtype != "float16" else a,
    "rfft": lambda xp, a, b: xp.fft.rfft(a) if a.ndim and a.size and a.dtype.kind != "c" and a.itemsize != 2 else a,
    "fft2": lambda xp, a, b: xp.fft.fft2(a) if a.ndim == 2 and a.size and a.dtype != "float16" else a,
    "fftfreq": lambda xp, a, b: xp.fft.fftfreq(8),
    "fftshift": lambda xp, a, b: xp.fft.fftshift(a),
}
# fmt: on
AREAS: dict[str, tuple[dict[str, Case], tuple[str, ...]]] = {
    "element-wise": (ELEMENTWISE, DTYPES),
    "element-wise, real": (ELEMENTWISE_REAL, ("int32", "uint8", *FLOATS)),
    "element-wise, whole": (ELEMENTWISE_WHOLE, WHOLE),
    "reductions": (REDUCTIONS, DTYPES),
    "reductions, real": (REDUCTIONS_REAL, REAL),
    "sizes": (SIZES, DTYPES),
    "indexing": (INDEXING, DTYPES),
    "sorting": (SORTING, DTYPES),
    "creation": (CREATION, DTYPES),
    "copies": (COPIES, DTYPES),
    "products": (PRODUCTS, NUMBERS),
    "counting": (COUNTING, NUMBERS),
    "linear algebra": (LINALG, DTYPES),
}

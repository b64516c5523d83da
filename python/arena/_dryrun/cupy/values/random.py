"""Random numbers: NumPy's, from the same seed, so that they are the same in every run.

They are not the numbers that a GPU gives for that seed. Without a seed they are the same in every run, too.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import numpy

from .compute import Computer, inside
from .slots import replace

__all__ = ["install"]

Function = Callable[..., Any]

# What cuRAND writes, for the methods of RandomState that all others use.
_RAW = {"_random_sample_raw": "random", "_generate_normal": "normal", "_curand_generate": "bits"}
_SKIPPED = frozenset({"seed", "shuffle", "permutation", "choice", "tomaxint"})


class Twins:
    """NumPy's generator for each of CuPy's."""

    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[Any, numpy.random.Generator] = weakref.WeakKeyDictionary()

    def seed(self, state: Any, seed: Any) -> None:
        try:
            self.of[state] = numpy.random.default_rng(0 if seed is None else seed)
        except (TypeError, ValueError):
            self.of[state] = numpy.random.default_rng(0)

    def __getitem__(self, state: Any) -> numpy.random.Generator:
        if state not in self.of:
            self.seed(state, None)
        return self.of[state]


def install(cupy: Any, computer: Computer) -> None:
    """Have both of CuPy's interfaces to random numbers computed."""
    twins = Twins()
    install_states(cupy.random.RandomState, computer, twins)
    install_generators(cupy.random, computer, twins)


def install_states(kind: Any, computer: Computer, twins: Twins) -> None:
    seed = kind.seed

    @functools.wraps(seed)
    def seeded(self: Any, seed_: Any = None) -> None:
        seed(self, seed_)
        twins.seed(self, seed_)

    seeded.__signature__ = inspect.signature(seed)  # type: ignore[attr-defined]
    kind.seed = lambda self, seed=None: seeded(self, seed)
    functools.update_wrapper(kind.seed, seed)
    for name, what in _RAW.items():
        setattr(kind, name, raw(computer, twins, getattr(kind, name), what))
    permutation = kind._permutation
    kind._permutation = functools.wraps(permutation)(
        lambda self, num: computer.whole(permutation, lambda *_: twins[self].permutation(num), (self, num), {})
    )
    kind.choice = chosen(computer, twins, kind.choice)
    for name, original in list(vars(kind).items()):
        is_distribution = not name.startswith("_") and name not in _SKIPPED and inspect.isfunction(original)
        if is_distribution and hasattr(numpy.random.RandomState, name):
            setattr(kind, name, distribution(computer, twins, original, name))


def chosen(computer: Computer, twins: Twins, original: Function) -> Function:
    """``choice``: what it draws without replacement from a range comes from a raw kernel."""

    @functools.wraps(original)
    def choice(self: Any, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        result = original(self, a, size, replace, p)
        if isinstance(a, int) and not replace and isinstance(result, computer.array) and not computer.is_known(result):
            twin = twins[self]
            computer.fill([], [result], lambda: twin.choice(a, result.shape, replace=False))
        return result

    return choice


def raw(computer: Computer, twins: Twins, original: Function, what: str) -> Function:
    """What cuRAND writes into an array."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = computer.run(original, (self, *args), kwargs)
        owner = [result if result.base is None else result.base]
        computer.fill([], owner, functools.partial(written, twins[self], what, owner[0], original, args))
        return result

    return method


def written(twin: numpy.random.Generator, what: str, output: Any, original: Function, args: tuple[Any, ...]) -> Any:
    if what == "bits":
        info = numpy.iinfo(output.dtype)
        return twin.integers(info.min, info.max, output.shape, output.dtype, endpoint=True)
    if what == "random":
        return 1 - twin.random(output.shape)  # from above 0 to 1, as cuRAND's
    mean, deviation = args[3:5] if len(args) >= 5 else (0.0, 1.0)
    values = twin.normal(mean, deviation, output.shape)
    return numpy.exp(values) if "LogNormal" in getattr(args[0], "__name__", "") else values


def distribution(computer: Computer, twins: Twins, original: Function, name: str) -> Function:
    """A method of a distribution, if what it does with raw numbers leaves something unknown."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        outputs = computer.arrays(result)
        if inside.value or not outputs or all(computer.is_known(one) for one in outputs):
            return result
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        parameters = {key: value for key, value in given.items() if key not in ("self", "size", "dtype", "out")}
        drawn(computer, twins[self], name, result, parameters)
        return result

    return method


def drawn(computer: Computer, twin: Any, name: str, output: Any, parameters: dict[str, Any]) -> None:
    """Fill an array with numbers of a distribution."""

    def evaluate() -> Any:
        state = numpy.random.RandomState(int(twin.integers(1 << 32)))
        source = twin if hasattr(twin, name) else state
        values = computer.call(lambda **given: list(given.values()), (), parameters, ())
        shape = output.shape
        if name in ("dirichlet", "multivariate_normal"):
            shape = shape[:-1]
        return numpy.asarray(getattr(source, name)(*values, size=shape))

    computer.fill(computer.arrays(parameters), [output], evaluate)


def install_generators(random: Any, computer: Computer, twins: Twins) -> None:
    """``cupy.random.default_rng`` and its methods, which are compiled."""
    kind = random.Generator
    for name in dir(kind):
        if not name.startswith("_") and hasattr(numpy.random.Generator, name) and callable(getattr(kind, name)):
            replace(kind, name, generated(computer, twins, getattr(kind, name), name))
    for name in ("XORWOW", "MRG32k3a", "Philox4x3210"):
        bits = getattr(random, name, None)
        if bits is not None:
            replace(bits, "__init__", seeded_bits(twins, bits.__init__))


def seeded_bits(twins: Twins, original: Function) -> Function:
    @functools.wraps(original)
    def begin(self: Any, seed: Any = None, **kwargs: Any) -> None:
        original(self, seed, **kwargs)
        twins.seed(self, seed)

    return begin


_PARAMETERS = {
    "beta": ["a", "b"],
    "binomial": ["n", "p"],
    "chisquare": ["df"],
    "dirichlet": ["alpha"],
    "exponential": ["scale"],
    "f": ["dfnum", "dfden"],
    "gamma": ["shape", "scale"],
    "geometric": ["p"],
    "hypergeometric": ["ngood", "nbad", "nsample"],
    "logseries": ["p"],
    "poisson": ["lam"],
    "power": ["a"],
    "standard_gamma": ["shape"],
    "uniform": ["low", "high"],
}


def generated(computer: Computer, twins: Twins, original: Function, name: str) -> Function:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = computer.run(original, (self, *args), kwargs)
        if isinstance(result, computer.array) and not inside.value:
            twin = twins[self.bit_generator]
            if name == "integers":
                integers(computer, twin, result, *args, **kwargs)
            else:
                named = dict(zip(_PARAMETERS.get(name, ()), args, strict=False))
                named |= {key: value for key, value in kwargs.items() if key in _PARAMETERS.get(name, ())}
                drawn(computer, twin, name, result, named)
        return result

    return method


def integers(
    computer: Computer,
    twin: Any,
    output: Any,
    low: Any,
    high: Any = None,
    size: Any = None,
    dtype: Any = None,
    endpoint: bool = False,
) -> None:
    bounds = (0, low) if high is None else (low, high)
    kind = output.dtype if output.dtype.kind in "iub" else numpy.int64
    computer.fill([], [output], lambda: twin.integers(*bounds, output.shape, kind, endpoint=endpoint))

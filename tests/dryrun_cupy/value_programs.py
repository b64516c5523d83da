"""What CuPy programs do to values beyond calling functions: each returns what it found, and what is right.

Run in a dry run by test_cupy_values.py: ``python -m tests.dryrun_cupy.value_programs`` prints what is wrong as JSON.
"""

from __future__ import annotations

import json
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import cupy
import numpy
from cupyx import jit
from cupyx.scipy import sparse

from arena._dryrun.cupy.values import arrays

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def equal(found: Any, expected: Any) -> None:
    """A known array, or a number, with these values."""
    if isinstance(found, cupy.ndarray):
        assert arrays.known_elements(found) is True, "is unknown"
        found = found.get()
    numpy.testing.assert_array_equal(found, expected)


def unknown(array: Any) -> None:
    assert arrays.known_elements(array) is False, "is known"
    assert not array.get().any(), "leftovers reached the host"


@program
def views_that_overlap() -> None:
    for change in (
        lambda a: a.__setitem__(slice(1, None), a[:-1].copy()),
        lambda a: a[::-1][:5].__iadd__(1),
        lambda a: a.reshape(2, 5).T.__iadd__(3),
        lambda a: a.reshape(5, 2)[:, 1].__imul__(2),
    ):
        host, device = numpy.arange(10.0), cupy.arange(10.0)
        change(host)
        change(device)
        equal(device, host)


@program
def memory_that_was_freed() -> None:
    held = cupy.arange(1000.0)
    address = held.data.ptr
    del held
    again = cupy.empty(1000)
    assert again.data.ptr == address
    unknown(again)


@program
def a_view_outlives_its_array() -> None:
    whole = cupy.full(10, 3.0)
    part = whole[2:5]
    del whole
    equal(part, [3.0, 3.0, 3.0])


@program
def numbers_without_a_value() -> None:
    odd = cupy.asarray([numpy.nan, numpy.inf, -numpy.inf, 1e20, -1.5])
    for dtype in ("int32", "uint8", "float16", bool):
        odd.astype(dtype)
    equal(odd / 0, [numpy.nan, numpy.inf, -numpy.inf, numpy.inf, -numpy.inf])
    equal(cupy.log(cupy.asarray([-1.0, 0.0])), [numpy.nan, -numpy.inf])
    cupy.asarray([1, 2]) // 0
    equal(cupy.asarray(numpy.array([127], "int8")) + cupy.asarray(numpy.array([1], "int8")), [-128])
    equal(cupy.asarray([2**63 - 1]) + 1, [-(2**63)])
    equal(cupy.full(300, 100, "int8").sum(), 30_000)


@program
def operations_that_fail() -> None:
    numbers = cupy.arange(10)
    for attempt in (
        lambda: numbers + cupy.arange(3),
        lambda: numbers.reshape(3, 4),
        lambda: cupy.add(numbers, 1, out=cupy.zeros(3)),
        lambda: numbers.sum(axis=3),
        lambda: cupy.zeros(5) @ cupy.zeros(4),
    ):
        try:
            attempt()
        except Exception:
            continue
        raise AssertionError("no error")
    equal(numbers + 1, numpy.arange(1, 11))
    kernel(numbers)  # marks are not left as they were inside an operation
    unknown(numbers)


def kernel(*given: Any) -> None:
    cupy.RawKernel('extern "C" __global__ void f(double* x) { x[0] = 1; }', "f")((1,), (1,), given)


@program
def kernels_of_the_program() -> None:
    written, other = cupy.zeros(10), cupy.ones(10)
    kernel(written)
    unknown(written)
    equal(other, numpy.ones(10))
    double = cupy.ElementwiseKernel("T x", "T y", "y = x * 2", "double_it")
    unknown(double(cupy.arange(4.0)))
    target = cupy.ones(4)
    double(cupy.arange(4.0), target)
    unknown(target)
    unknown(cupy.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "total")(cupy.arange(4.0)))

    @jit.rawkernel()
    def copied(x, y):  # type: ignore[no-untyped-def]
        y[jit.grid(1)] = x[jit.grid(1)]

    target = cupy.ones(4)
    copied[1, 4](cupy.arange(4.0), target)
    unknown(target)


@program
def fused_functions() -> None:
    length = cupy.fuse()(lambda x, y: cupy.sqrt(x * x + y * y))
    equal(length(cupy.asarray([3.0, 0.0]), cupy.asarray([4.0, 1.0])), [5.0, 1.0])
    equal(cupy.fuse()(lambda x: cupy.sum(x * 2))(cupy.arange(5.0)), 20.0)

    @cupy.fuse()
    def increment(x: Any) -> None:
        x += 1

    changed = cupy.zeros(3)
    increment(changed)
    equal(changed, [1.0, 1.0, 1.0])


@program
def threads_with_streams() -> None:
    sums: list[Any] = [None] * 6

    def work(number: int) -> None:
        with cupy.cuda.Stream():
            total = cupy.arange(1000) + number
            for _ in range(10):
                total = total * 2 // 2
            sums[number] = int(total.sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(sums))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(sums, [499_500 + 1000 * number for number in range(len(sums))])


@program
def streams_and_copies_without_waiting() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        equal(cupy.arange(10) * 2, numpy.arange(10) * 2)
    stream.wait_event(stream.record())
    copied = cupy.asarray([1, 2, 3]).get(stream=stream, blocking=False)
    stream.synchronize()
    equal(copied, [1, 2, 3])


@program
def work_of_a_graph() -> None:
    stream, before = cupy.cuda.Stream(non_blocking=True), cupy.arange(10.0)
    with stream:
        stream.begin_capture()
        after = before + 1
        graph = stream.end_capture()
    for _ in range(2):
        unknown(after)
        graph.launch(stream=stream)
        stream.synchronize()


@program
def other_allocators() -> None:
    for allocator in (cupy.cuda.MemoryAsyncPool().malloc, cupy.cuda.malloc_managed, cupy.cuda.MemoryPool().malloc):
        with cupy.cuda.using_allocator(allocator):
            equal(cupy.arange(100).sum(), 4950)
            unknown(cupy.empty(100))


@program
def memory_of_others() -> None:
    first = cupy.arange(5.0)
    second = cupy.from_dlpack(first)
    second += 1
    memory = cupy.cuda.UnownedMemory(first.data.ptr, first.nbytes, first)
    third = cupy.ndarray(5, "float64", cupy.cuda.MemoryPointer(memory, 0))
    equal(third, numpy.arange(1.0, 6.0))


@program
def seeds() -> None:
    def drawn() -> list[Any]:
        cupy.random.seed(3)
        state, generator = cupy.random.RandomState(7), cupy.random.default_rng(7)
        return [cupy.random.rand(5), cupy.random.randint(0, 9, 5), state.normal(size=4), generator.random(4)]

    first, second = drawn(), drawn()
    for one, other in zip(first, second, strict=True):
        equal(one, other.get())
    assert (first[0] != cupy.random.rand(5)).any()


@program
def random_numbers() -> None:
    cupy.random.seed(1)
    uniform, normal = cupy.random.uniform(-2, 3, 5000).get(), cupy.random.normal(5, 2, 5000).get()
    assert -2 <= uniform.min() < uniform.max() <= 3
    assert abs(uniform.mean() - 0.5) < 0.2
    assert abs(normal.mean() - 5) < 0.3 > abs(normal.std() - 2)
    equal(cupy.sort(cupy.random.permutation(1000)), numpy.arange(1000))
    chosen = cupy.random.choice(100, 20, replace=False)
    assert arrays.known_elements(chosen) is True
    assert len(set(chosen.tolist())) == 20
    assert set(cupy.random.choice(3, 500, p=[0.5, 0, 0.5]).tolist()) == {0, 2}
    shuffled = cupy.arange(100)
    cupy.random.shuffle(shuffled)
    assert (shuffled != cupy.arange(100)).any()
    equal(cupy.sort(shuffled), numpy.arange(100))
    shapes: dict[str, dict[str, float]] = {
        "gamma": {"shape": 2.0},
        "rayleigh": {"scale": 1.0},
        "poisson": {},
        "laplace": {},
    }
    for name, options in {**shapes, "gumbel": {}, "standard_t": {"df": 3.0}, "exponential": {"scale": 1.0}}.items():
        assert arrays.known_elements(getattr(cupy.random, name)(**options, size=50)) is True, name


@program
def indices_beyond_the_end() -> None:
    rows = cupy.arange(6).reshape(3, 2)
    equal(rows[cupy.asarray([3, 4, -1])], [[0, 1], [2, 3], [4, 5]])
    equal(rows[..., cupy.asarray([5])], [[1], [3], [5]])
    rows[cupy.asarray([4])] = 9
    equal(rows, [[0, 1], [9, 9], [4, 5]])


@program
def counts_never_exceed_what_they_count() -> None:
    hidden = cupy.empty(1000)
    for found in (hidden.nonzero()[0], hidden[hidden > 0], cupy.flatnonzero(hidden), cupy.argwhere(hidden)):
        assert len(found) <= 1000
    mixed = cupy.empty(1000)
    mixed[:400] = 0
    mixed[400:500] = 1
    assert 100 <= len(mixed.nonzero()[0]) <= 600
    assert len(cupy.unique(hidden)) <= 1000


@program
def sparse_matrices_of_dense_ones() -> None:
    host = numpy.eye(4) * 2
    host[0, 3] = 5
    for kind, rows in ((sparse.csr_matrix, False), (sparse.csc_matrix, False), (sparse.coo_matrix, True)):
        matrix = kind(cupy.asarray(host))
        assert matrix.nnz == 5, f"{kind} has {matrix.nnz} elements"
        equal(cupy.sort(matrix.data), [2, 2, 2, 2, 5])
        if rows:
            equal(matrix.row, [0, 0, 1, 2, 3])
    csr = sparse.csr_matrix(cupy.asarray(host))
    equal(csr.indptr, [0, 2, 3, 4, 5])
    for dense in (csr.toarray(), csr @ cupy.ones(4), (csr + csr).toarray(), (csr @ csr).toarray()):
        assert arrays.known_elements(dense) is False, "is known"
    assert 0 < (csr + csr).nnz <= 10
    assert 0 < (csr @ csr).nnz <= 16
    assert sparse.csr_matrix(cupy.empty((10, 10))).nnz == 100  # at most


@program
def sparse_matrices_of_places() -> None:
    assert sparse.random(200, 200, 0.1, format="csr").nnz == 4000
    places = cupy.asarray([0, 2, 0]), cupy.asarray([1, 2, 1])
    matrix = sparse.coo_matrix((cupy.ones(3), places), shape=(3, 3))
    matrix.sum_duplicates()
    assert matrix.nnz == 2
    equal(matrix.row, [0, 2])
    equal(matrix.data, [2, 1])
    rows = matrix.tocsr()
    equal(rows.indptr, [0, 1, 1, 2])
    equal(rows.data, [2, 1])


@program
def large_arrays_of_numbers() -> None:
    equal(cupy.arange(3_000_000).sum(), 4_499_998_500_000)
    equal((cupy.arange(3_000_000) % 2 == 0).sum(), 1_500_000)
    equal(cupy.nonzero(cupy.arange(1_000_000) > 999_990)[0], numpy.arange(999_991, 1_000_000))


def main() -> None:
    warnings.simplefilter("error", RuntimeWarning)
    wrong = {}
    for name, run in PROGRAMS.items():
        try:
            run()
        except Exception:
            wrong[name] = traceback.format_exc()
    print(json.dumps({"run": list(PROGRAMS), "wrong": wrong}))


if __name__ == "__main__":
    main()

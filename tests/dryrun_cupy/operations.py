"""What CuPy programs do: about a hundred operations, each with what its results must look like.

An operation of ``SHARED`` is a function of the module to use: NumPy says which shapes and dtypes are right. One of
``OWN`` uses what only CuPy has, and comes with its shapes and dtypes. Nothing depends on values, which are zeros in a
dry run. Every result owns its memory, so it is known how much it must hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["OWN", "SHARED"]

Operation = Callable[[Any], Any]  # gives an array, or several
Expected = tuple[tuple[int, ...], str]  # shape and dtype


def matrix(xp: Any, rows: int = 60, columns: int = 40, dtype: str = "float32") -> Any:
    return xp.zeros((rows, columns), dtype)


def assigned(xp: Any) -> Any:
    array = matrix(xp)
    array[10:20] = 3
    array[::2, 5] = xp.zeros(30)
    return array


CREATION: dict[str, Operation] = {
    "empty": lambda xp: xp.empty((7, 1000), "float16"),
    "zeros": lambda xp: xp.zeros((100, 30)),
    "ones": lambda xp: xp.ones(1001, "complex64"),
    "full": lambda xp: xp.full((3, 3, 3), 7, "int8"),
    "arange": lambda xp: xp.arange(0, 1000, 3),
    "linspace": lambda xp: xp.linspace(0, 1, 513),
    "eye": lambda xp: xp.eye(33),
    "asarray": lambda xp: xp.asarray([[1, 2, 3], [4, 5, 6]]),
    "zeros_like": lambda xp: xp.zeros_like(matrix(xp)),
    "no_elements": lambda xp: xp.zeros((0, 5)),
}
ELEMENTWISE: dict[str, Operation] = {
    "add": lambda xp: matrix(xp) + 1,
    "promote": lambda xp: matrix(xp, dtype="int16") * matrix(xp, dtype="float64"),
    "broadcast": lambda xp: xp.zeros((50, 1)) - xp.zeros(70),
    "divide": lambda xp: matrix(xp) / 2,
    "compare": lambda xp: matrix(xp) > 0,
    "exp": lambda xp: xp.exp(matrix(xp)),
    "arctan2": lambda xp: xp.arctan2(matrix(xp), 1),
    "clip": lambda xp: xp.clip(matrix(xp), 0, 1),
    "where": lambda xp: xp.where(matrix(xp) > 0, matrix(xp), 0),
    "astype": lambda xp: matrix(xp).astype("complex128"),
    "absolute": lambda xp: xp.abs(matrix(xp, dtype="complex64")),
    "divmod": lambda xp: xp.divmod(matrix(xp, dtype="int32"), 3),
}
REDUCTIONS: dict[str, Operation] = {
    "sum": lambda xp: matrix(xp).sum(),
    "sum_of_an_axis": lambda xp: matrix(xp).sum(axis=0),
    "sum_keeping_dimensions": lambda xp: matrix(xp).sum(axis=1, keepdims=True),
    "mean": lambda xp: matrix(xp).mean(axis=1),
    "std": lambda xp: matrix(xp).std(),
    "max": lambda xp: matrix(xp).max(axis=0),
    "argmax": lambda xp: matrix(xp).argmax(axis=1),
    "argmin_of_all": lambda xp: matrix(xp).argmin(),
    "any": lambda xp: (matrix(xp) > 0).any(),
    "cumsum": lambda xp: xp.cumsum(matrix(xp), axis=1),
    "cumprod_of_all": lambda xp: xp.cumprod(matrix(xp)),
    "bincount": lambda xp: xp.bincount(xp.zeros(100, "int64"), minlength=17),
}
LINEAR_ALGEBRA: dict[str, Operation] = {
    "matmul": lambda xp: matrix(xp) @ matrix(xp, 40, 50),
    "matmul_of_stacks": lambda xp: xp.matmul(xp.zeros((5, 20, 30)), xp.zeros((5, 30, 10))),
    "dot": lambda xp: xp.dot(xp.zeros(100), xp.zeros(100)),
    "tensordot": lambda xp: xp.tensordot(xp.zeros((4, 5, 6)), xp.zeros((5, 6, 7)), 2),
    "einsum": lambda xp: xp.einsum("ij,kj->ik", matrix(xp), matrix(xp, 25, 40)),
    "outer": lambda xp: xp.outer(xp.zeros(30), xp.zeros(20)),
    "norm": lambda xp: xp.linalg.norm(matrix(xp), axis=1),
    "solve": lambda xp: xp.linalg.solve(xp.eye(20), xp.zeros((20, 3))),
    "svd": lambda xp: xp.linalg.svd(xp.zeros((30, 20)), full_matrices=False),
    "qr": lambda xp: [xp.array(part) for part in xp.linalg.qr(xp.eye(30, 20))],  # may be parts of something larger
    "cholesky": lambda xp: xp.linalg.cholesky(xp.eye(20)),
    "eigh": lambda xp: xp.linalg.eigh(xp.eye(20)),
    "inv": lambda xp: xp.linalg.inv(xp.eye(20)),
    "fft": lambda xp: xp.fft.fft(xp.zeros((10, 1000), "complex128")),
    "rfft2": lambda xp: xp.fft.rfft2(xp.zeros((64, 64))),
    "ifft": lambda xp: xp.fft.ifft(xp.zeros(1024, "complex128")),
}
SHAPES: dict[str, Operation] = {
    "sort": lambda xp: xp.sort(xp.zeros(5000, "float32")),
    "sort_rows": lambda xp: xp.sort(matrix(xp)),
    "argsort": lambda xp: xp.argsort(xp.zeros(5000, "int32")),
    "lexsort": lambda xp: xp.lexsort(xp.zeros((2, 500))),
    "searchsorted": lambda xp: xp.searchsorted(xp.zeros(100), xp.zeros(30)),
    "take": lambda xp: matrix(xp)[xp.zeros(25, "int64")],
    "assign": assigned,
    "concatenate": lambda xp: xp.concatenate([matrix(xp), matrix(xp)]),
    "stack": lambda xp: xp.stack([matrix(xp), matrix(xp), matrix(xp)], axis=1),
    "transpose": lambda xp: xp.ascontiguousarray(matrix(xp).T),
    "tile": lambda xp: xp.tile(xp.zeros(10), (3, 4)),
    "roll": lambda xp: xp.roll(matrix(xp), 3, axis=0),
    "pad": lambda xp: xp.pad(matrix(xp), 2),
    "repeat": lambda xp: xp.repeat(matrix(xp), 3, axis=1),
}
SHARED = {**CREATION, **ELEMENTWISE, **REDUCTIONS, **LINEAR_ALGEBRA, **SHAPES}

OWN: dict[str, tuple[Operation, list[Expected]]] = {}


def gives(*expected: Expected) -> Callable[[Operation], Operation]:
    def add(function: Operation) -> Operation:
        OWN[function.__name__] = (function, list(expected))
        return function

    return add


@gives(((100, 20), "float64"), ((50,), "float32"))
def random_numbers(cupy: Any) -> Any:
    return cupy.random.rand(100, 20), cupy.random.standard_normal(50, "float32")


@gives(((500,), "int64"))
def random_integers(cupy: Any) -> Any:
    return cupy.random.randint(0, 10, 500)


@gives(((100,), "float64"), ((30,), "int64"), ((30,), "float64"))
def random_generator(cupy: Any) -> Any:
    generator = cupy.random.default_rng(1)
    return generator.standard_normal(100), generator.integers(0, 5, 30), generator.gamma(2.0, size=30)


@gives(((6,), "int64"))
def copies_between_host_and_device(cupy: Any) -> Any:
    array = cupy.asarray([1, 2, 3, 4, 5, 6])
    assert cupy.asnumpy(array).tolist() == [1, 2, 3, 4, 5, 6]  # copies are real
    array[1:3].set(cupy.asnumpy(array[4:6]))
    moved = cupy.empty_like(array)
    moved.data.copy_from_device_async(array.data, array.nbytes)  # array.copy() would be a kernel
    assert moved.get().tolist() == [1, 5, 6, 4, 5, 6]
    return array


@gives(((1000,), "float32"))
def streams(cupy: Any) -> Any:
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream()
    with first:
        array = cupy.zeros(1000, "float32")
    second.wait_event(first.record())
    with second:
        array += 1
    second.synchronize()
    assert second.done
    return array


@gives(((1000,), "float32"))
def events(cupy: Any) -> Any:
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    array = cupy.zeros(1000, "float32") + 1
    end.record()
    end.synchronize()
    assert cupy.cuda.get_elapsed_time(begin, end) >= 0
    return array


@gives(((1000,), "float32"), ((1000,), "float32"))
def graphs(cupy: Any) -> Any:
    source, target = cupy.zeros(1000, "float32"), cupy.zeros(1000, "float32")
    cupy.add(source, 1, out=target)  # compiled before the capture
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(cupy.cuda.get_current_stream().record())
    with stream:
        stream.begin_capture()
        cupy.add(source, 1, out=target)
        target.data.copy_from_device_async(source.data, source.nbytes)
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    return source, target


@gives(((64, 64), "float64"))
def pinned_memory(cupy: Any) -> Any:
    import cupyx

    host = cupyx.zeros_pinned((64, 64))
    host[:] = 3
    array = cupy.empty((64, 64))
    stream = cupy.cuda.get_current_stream()
    array.set(host, stream)
    stream.synchronize()
    assert float(array.get()[5, 5]) == 3
    return array


@gives(((1000,), "float32"))
def raw_kernel(cupy: Any) -> Any:
    code = 'extern "C" __global__ void twice(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2; }'
    array = cupy.zeros(1000, "float32")
    cupy.RawKernel(code, "twice")((8,), (128,), (array, cupy.int32(1000)))
    return array


@gives(((1000,), "float64"))
def raw_module(cupy: Any) -> Any:
    code = "template<typename T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }"
    module = cupy.RawModule(code=code, options=("-std=c++17",), name_expressions=["fill<double>"])
    array = cupy.zeros(1000)
    module.get_function("fill<double>")((1,), (1000,), (array, 2.0))
    return array


@gives(((60, 40), "float32"))
def elementwise_kernel(cupy: Any) -> Any:
    kernel = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squared_difference")
    return kernel(matrix(cupy), cupy.zeros(40, "float32"))


@gives(((60,), "float32"))
def reduction_kernel(cupy: Any) -> Any:
    kernel = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
    return kernel(matrix(cupy), axis=1)


@gives(((60, 40), "float32"))
def fused(cupy: Any) -> Any:
    @cupy.fuse()
    def function(x: Any, y: Any) -> Any:
        return cupy.sqrt(x * x + y)

    return function(matrix(cupy), matrix(cupy))


@gives(((50,), "float32"))
def scatter_add(cupy: Any) -> Any:
    import cupyx

    array = cupy.zeros(50, "float32")
    cupyx.scatter_add(array, cupy.zeros(500, "int32"), cupy.zeros(500, "float32"))
    return array


@gives(((30, 7), "float64"))
def sparse_times_dense(cupy: Any) -> Any:
    import cupyx.scipy.sparse

    values, columns = cupy.zeros(60), cupy.zeros(60, "int32")
    rows = cupy.asarray([2 * row for row in range(31)], "int32")
    return cupyx.scipy.sparse.csr_matrix((values, columns, rows), shape=(30, 20)) @ cupy.zeros((20, 7))


@gives(((30,), "float64"))
def sparse_times_vector(cupy: Any) -> Any:
    import cupyx.scipy.sparse

    values, columns = cupy.zeros(60), cupy.zeros(60, "int32")
    rows = cupy.asarray([2 * row for row in range(31)], "int32")
    return cupyx.scipy.sparse.csr_matrix((values, columns, rows), shape=(30, 20)) @ cupy.zeros(20)


@gives(((40, 40), "float32"))
def convolution(cupy: Any) -> Any:
    import cupyx.scipy.ndimage

    return cupyx.scipy.ndimage.uniform_filter(matrix(cupy, 40, 40), 3)


@gives(((128,), "float32"))
def jit_kernel(cupy: Any) -> Any:
    from cupyx import jit

    @jit.rawkernel()
    def copy(x: Any, y: Any) -> None:
        i = jit.threadIdx.x
        y[i] = x[i]

    source, target = cupy.zeros(128, "float32"), cupy.zeros(128, "float32")
    copy((1,), (128,), (source, target))
    return target


@gives(((100,), "float32"))
def exchange_by_dlpack(cupy: Any) -> Any:
    return cupy.from_dlpack(cupy.zeros(100, "float32"))


@gives(((300,), "uint8"))
def pool_with_a_limit(cupy: Any) -> Any:
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=1 << 20)
    with cupy.cuda.using_allocator(pool.malloc):
        kept = cupy.zeros(1 << 19, "uint8")
        try:
            cupy.zeros(1 << 20, "uint8")
        except cupy.cuda.memory.OutOfMemoryError:
            pass
        else:
            raise AssertionError("more than the limit")
        assert pool.used_bytes() == kept.nbytes
    del kept
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    return cupy.zeros(300, "uint8")


@gives(((300,), "uint8"))
def managed_memory(cupy: Any) -> Any:
    pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    with cupy.cuda.using_allocator(pool.malloc):
        cupy.zeros(1000)
    pool.free_all_blocks()  # CuPy's pools keep everything when they are dropped
    return cupy.zeros(300, "uint8")

"""cuFFT, cuSOLVER, cuSPARSE and cuRAND: sizes of workspaces and results, and what is refused."""

from __future__ import annotations

import ctypes
import math

import pytest

from .library import OK, Library, ints, longs, out

C2C, R2C, Z2Z = 0x29, 0x2A, 0x69
INVALID_PLAN, INVALID_SIZE = 1, 8


def new_plan(lib: Library) -> int:
    plan = ctypes.c_int()
    assert lib.cufftCreate(ctypes.byref(plan)) == OK
    return plan.value


def test_a_plan_wants_a_copy_of_the_data_as_work_area() -> None:
    lib = Library("libcufft.so.12")
    plan = new_plan(lib)
    assert out(lib, "cufftMakePlan1d", plan, 1000, C2C, 4) == 8 * 1000 * 4
    assert out(lib, "cufftGetSize", plan) == 8 * 1000 * 4
    size = ctypes.c_size_t()
    many = (3, longs(4, 5, 6), 0, 1, 0, 1, 0, 1, 0, 5, 7, ctypes.byref(size), 5)  # complex double
    assert lib.cufftXtMakePlanMany(new_plan(lib), *many) == OK
    assert size.value == 16 * 4 * 5 * 6 * 7
    many = (2, ints(4, 5), 0, 1, 0, 0, 1, 0, Z2Z, 3, ctypes.byref(size))
    assert lib.cufftMakePlanMany(new_plan(lib), *many) == OK
    assert size.value == 16 * 4 * 5 * 3
    assert lib.cufftMakePlan1d(plan, 0, C2C, 1, ctypes.byref(size)) == INVALID_SIZE


@pytest.mark.parametrize(
    ("lengths", "kind", "least", "likely", "most"),
    [
        ((512, 512), C2C, 1, 1, 1),
        ((700, 1300), C2C, 1, 1, 1),
        ((512, 512), R2C, 0.5, 1, 1),
        ((4096,), C2C, 0, 1, 1),
        ((17 * 64,), C2C, 0, 1, 8),
        ((1009,), C2C, 1, 4, 8),
        ((64, 1009), C2C, 1, 4, 8),
    ],
)
@pytest.mark.parametrize("wanted", ["least", "likely", "most"])
def test_the_work_area_depends_on_the_prime_factors_of_the_lengths(
    monkeypatch: pytest.MonkeyPatch,
    lengths: tuple[int, ...],
    kind: int,
    least: float,
    likely: float,
    most: float,
    wanted: str,
) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_ESTIMATES", wanted)
    lib = Library("libcufft.so.12")
    size = ctypes.c_size_t()
    call = (len(lengths), ints(*lengths), 0, 1, 0, 0, 1, 0, kind, 3, ctypes.byref(size))
    assert lib.cufftEstimateMany(*call) == OK
    factor = {"least": least, "likely": likely, "most": most}[wanted]
    assert size.value == factor * 8 * math.prod(lengths) * 3


def test_devices_share_a_work_area() -> None:
    lib = Library("libcufft.so.12")
    plan, sizes = new_plan(lib), (ctypes.c_size_t * 2)()
    assert lib.cufftXtSetGPUs(plan, 2, ints(0, 1)) == OK
    assert lib.cufftMakePlan1d(plan, 1000, C2C, 1, sizes) == OK
    assert list(sizes) == [4000, 4000]


def test_a_destroyed_plan_is_refused_and_its_number_not_given_again() -> None:
    lib = Library("libcufft.so.11")
    plan = new_plan(lib)
    assert lib.cufftExecC2C(plan, 0, 0, -1) == OK
    assert lib.cufftDestroy(plan) == OK
    assert new_plan(lib) != plan
    assert lib.cufftExecC2C(plan, 0, 0, -1) == INVALID_PLAN
    assert lib.cufftDestroy(plan) == INVALID_PLAN


def test_a_factorisation_says_how_much_workspace_it_wants_in_elements_or_bytes() -> None:
    lib = Library("libcusolver.so.12")
    handle = lib.make("cusolverDnCreate")
    assert out(lib, "cusolverDnSgetrf_bufferSize", handle, 100, 200, 0, 100, kind=ctypes.c_int) == 64 * 200
    size = ctypes.c_int()
    assert lib.cusolverDnZheevd_bufferSize(handle, 1, 0, 50, 0, 50, 0, ctypes.byref(size)) == OK
    assert size.value == 1 + 6 * 50 + 2 * 50 * 50
    device, host = ctypes.c_size_t(), ctypes.c_size_t(7)
    sizes = (ctypes.byref(device), ctypes.byref(host))
    assert lib.cusolverDnXpotrf_bufferSize(handle, 0, 0, 100, 1, 0, 100, 1, *sizes) == OK
    assert (device.value, host.value) == (8 * 64 * 100, 0)


def test_results_in_host_memory_are_those_of_success() -> None:
    lib = Library("libcusolver.so.12")
    handle, iterations = lib.make("cusolverDnCreate"), ctypes.c_int(-7)
    assert lib.cusolverDnDSgesv(handle, 4, 1, 0, 4, 0, 0, 4, 0, 4, 0, 0, ctypes.byref(iterations), 0) == OK
    assert iterations.value == 0
    norms = (ctypes.c_double * 3)(-7, -7, -7)
    call = (handle, 1, 4, 4, 4, 0, 4, 16, 0, 4, 0, 4, 16, 0, 4, 16, 0, 0, 0, norms, 2)
    assert lib.cusolverDnSgesvdaStridedBatched(*call) == OK
    assert list(norms) == [0, 0, -7]
    sparse, singular = lib.make("cusolverSpCreate"), ctypes.c_int(7)
    # The tolerance, a double, comes in another register.
    call = (sparse, 4, 4, 0, 0, 0, 0, 0, ctypes.c_double(1e-6), 0, 0, ctypes.byref(singular))
    assert lib.cusolverSpScsrlsvqr(*call) == OK
    assert singular.value == -1


class Sparse:
    def __init__(self) -> None:
        self.lib = Library("libcusparse.so.12")
        self.handle = self.lib.make("cusparseCreate")

    def csr(self, rows: int, columns: int, elements: int) -> int:
        return self.lib.make("cusparseCreateCsr", rows, columns, elements, 0x1000, 0x2000, 0x3000, 2, 2, 0, 1)

    def elements(self, matrix: int) -> int:
        rows, columns, elements = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
        call = (matrix, ctypes.byref(rows), ctypes.byref(columns), ctypes.byref(elements))
        assert self.lib.cusparseSpMatGetSize(*call) == OK
        return elements.value


def test_a_sparse_matrix_gives_back_what_it_was_made_of() -> None:
    sparse = Sparse()
    matrix = sparse.csr(4, 5, 6)
    fields = [ctypes.c_int64(-1) for _ in range(6)]
    kinds = [ctypes.c_int(-1) for _ in range(4)]
    assert sparse.lib.cusparseCsrGet(matrix, *map(ctypes.byref, fields), *map(ctypes.byref, kinds)) == OK
    assert [f.value for f in fields] == [4, 5, 6, 0x1000, 0x2000, 0x3000]
    assert [k.value for k in kinds] == [2, 2, 0, 1]
    assert sparse.lib.cusparseCsrSetPointers(matrix, 0x10, 0x20, 0x30) == OK
    assert out(sparse.lib, "cusparseSpMatGetValues", matrix) == 0x30
    assert out(sparse.lib, "cusparseSpMatGetFormat", matrix, kind=ctypes.c_int) == 1
    assert sparse.lib.cusparseCooGet(matrix, *map(ctypes.byref, fields)) == 3  # it is another kind
    assert sparse.lib.cusparseDestroySpMat(matrix) == OK
    assert sparse.lib.cusparseSpMatGetFormat(matrix, ctypes.byref(kinds[0])) == 3


def test_a_product_of_sparse_matrices_has_as_many_elements_as_pairs_on_average() -> None:
    sparse = Sparse()
    a, b, c = sparse.csr(100, 50, 200), sparse.csr(50, 80, 150), sparse.csr(100, 80, 0)
    descriptor, size = sparse.lib.make("cusparseSpGEMM_createDescr"), ctypes.c_size_t()
    call = (sparse.handle, 0, 0, 0, a, b, 0, c, 0, 0, descriptor)
    assert sparse.lib.cusparseSpGEMM_workEstimation(*call, ctypes.byref(size), 0) == OK
    assert size.value == 8 * 600
    assert sparse.lib.cusparseSpGEMM_compute(*call, ctypes.byref(size), 0x1000) == OK
    assert sparse.elements(c) == 200 * 150 // 50
    assert sparse.lib.cusparseSpGEMM_copy(*call) == OK


def test_counts_of_elements_and_pivots_are_defined() -> None:
    sparse = Sparse()
    total = ctypes.c_int(-7)
    call = (sparse.handle, 4, 4, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, ctypes.byref(total), 0)
    assert sparse.lib.cusparseXcsrgeam2Nnz(*call) == OK
    assert total.value == 11
    assert sparse.lib.cusparseXcsrilu02_zeroPivot(sparse.handle, 0, ctypes.byref(total)) == OK
    assert total.value == -1
    dense = sparse.lib.make("cusparseCreateDnMat", 4, 4, 4, 0x1000, 0, 1)
    matrix = sparse.csr(4, 4, 9)
    assert sparse.lib.cusparseDenseToSparse_analysis(sparse.handle, dense, matrix, 0, 0) == OK
    assert sparse.elements(matrix) == 0  # all values are zero


def test_matrix_descriptors_return_their_modes() -> None:
    lib = Library("libcusparse.so.12")
    descriptor = lib.make("cusparseCreateMatDescr")
    assert lib.cusparseSetMatFillMode(descriptor, 1) == OK
    assert (lib.cusparseGetMatFillMode(descriptor), lib.cusparseGetMatType(descriptor)) == (1, 0)


@pytest.mark.parametrize(("kind", "count", "status"), [(100, 4, OK), (100, 5, 105), (161, 5, 105), (201, 5, OK)])
def test_normal_numbers_of_a_pseudorandom_generator_come_in_pairs(kind: int, count: int, status: int) -> None:
    lib = Library("libcurand.so.10")
    generator = lib.make("curandCreateGenerator", kind)
    assert lib.curandGenerateNormal(generator, 0, count, ctypes.c_float(0), ctypes.c_float(1)) == status
    assert lib.curandGenerateUniform(generator, 0, count) == OK
    assert lib.curandDestroyGenerator(generator) == OK
    assert lib.curandGenerateUniform(generator, 0, count) == 101

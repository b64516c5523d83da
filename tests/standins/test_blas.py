"""cuBLAS and cuBLASLt: results in host memory are those of zeros, and there is one algorithm for every product."""

from __future__ import annotations

import ctypes

from .library import OK, Library, out


class HeuristicResult(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def test_a_reduction_writes_the_result_of_zeros_where_the_pointer_mode_says_host() -> None:
    lib = Library("libcublas.so.13")
    handle = lib.make("cublasCreate_v2")
    index, dot, norm = ctypes.c_int(-7), ctypes.c_float(-7), (ctypes.c_double * 2)(-7, -7)
    assert lib.cublasIsamax_v2(handle, 10, 0, 1, ctypes.byref(index)) == OK
    assert lib.cublasSdot_v2(handle, 10, 0, 1, 0, 1, ctypes.byref(dot)) == OK
    assert lib.cublasZdotc_v2(handle, 10, 0, 1, 0, 1, norm) == OK
    assert (index.value, dot.value, list(norm)) == (1, 0.0, [0.0, 0.0])
    assert lib.cublasSetPointerMode_v2(handle, 1) == OK
    index.value = -7
    assert lib.cublasIsamax_v2(handle, 10, 0, 1, ctypes.byref(index)) == OK
    assert index.value == -7  # it would be device memory


def test_the_upper_half_of_a_register_that_holds_an_int_is_ignored() -> None:
    lib = Library("libcublas.so.13")
    handle, index, garbage = lib.make("cublasCreate_v2"), ctypes.c_int(-7), 0xDEADBEEF << 32
    assert lib.cublasSetPointerMode_v2(handle, garbage) == OK
    assert lib.cublasIsamax_v2(handle, garbage, 0, garbage + 1, ctypes.byref(index)) == OK
    assert index.value == 0  # the index of the largest of no elements
    assert out(lib, "cublasGetPointerMode_v2", handle, kind=ctypes.c_int) == 0


def test_a_result_of_any_type_is_cleared_as_a_whole() -> None:
    lib = Library("libcublas.so.13")
    handle = lib.make("cublasCreate_v2")
    for data_type, size in ((0, 4), (1, 8), (2, 2), (4, 8), (5, 16)):  # float, double, half, complex, complex double
        result = (ctypes.c_ubyte * 20)(*[255] * 20)
        assert lib.cublasDotEx(handle, 4, 0, data_type, 1, 0, data_type, 1, result, data_type, 0) == OK
        assert bytes(result) == bytes(size) + b"\xff" * (20 - size)


def test_the_status_of_a_batch_in_host_memory_is_success() -> None:
    lib = Library("libcublas.so.13")
    handle = lib.make("cublasCreate_v2")
    info = ctypes.c_int(-7)
    assert lib.cublasSgetrsBatched(handle, 0, 3, 1, 0, 3, 0, 0, 3, ctypes.byref(info), 2) == OK
    assert info.value == 0


def test_the_heuristic_gives_one_algorithm_within_the_allowed_workspace() -> None:
    lib = Library("libcublasLt.so.13")
    operation, preference = lib.make("cublasLtMatmulDescCreate", 68, 0), lib.make("cublasLtMatmulPreferenceCreate")
    limit = ctypes.c_uint64(1 << 20)
    assert lib.cublasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(limit), 8) == OK
    results, count = (HeuristicResult * 4)(), ctypes.c_int()
    call = (1, operation, 0, 0, 0, 0, preference, 4, results, ctypes.byref(count))
    assert lib.cublasLtMatmulAlgoGetHeuristic(*call) == OK
    assert (count.value, results[0].state) == (1, 0)
    assert results[0].workspace <= limit.value
    assert lib.cublasLtMatmul(1, operation) == OK
    assert lib.cublasLtMatmulAlgoGetHeuristic(0, *call[1:]) == 1
    assert lib.cublasLtMatmulPreferenceDestroy(preference) == OK
    assert lib.cublasLtMatmulDescDestroy(operation) == OK
    assert lib.cublasLtMatmul(1, operation) == 7


def test_descriptors_and_algorithms_keep_their_attributes() -> None:
    lib = Library("libcublasLt.so.13")
    operation = lib.make("cublasLtMatmulDescCreate", 68, 0)
    value, written = ctypes.c_int(1), ctypes.c_size_t()
    assert lib.cublasLtMatmulDescSetAttribute(operation, 3, ctypes.byref(value), 4) == OK
    value.value = 0
    assert lib.cublasLtMatmulDescGetAttribute(operation, 3, ctypes.byref(value), 4, ctypes.byref(written)) == OK
    assert (value.value, written.value) == (1, 4)
    algorithm = (ctypes.c_uint64 * 8)()
    assert lib.cublasLtMatmulAlgoInit(1, 68, 0, 0, 0, 0, 0, 23, algorithm) == OK
    assert lib.cublasLtMatmulAlgoConfigGetAttribute(algorithm, 0, ctypes.byref(value), 4, ctypes.byref(written)) == OK
    assert value.value == 23
    assert out(lib, "cublasLtHeuristicsCacheGetCapacity") == 8192

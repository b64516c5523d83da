"""Handles are objects: made, used, remembered, and refused once they are destroyed."""

from __future__ import annotations

import ctypes

import pytest

from .library import OK, Library, out

# library, create, destroy, a call that takes the handle alone, the status for what is no handle
HANDLES = [
    ("libcublas.so.13", "cublasCreate_v2", "cublasDestroy_v2", "cublasSgemm_v2", 1),
    ("libcublas.so.12", "cublasCreate_v2", "cublasDestroy_v2", "cublasGemmEx", 1),
    ("libcusolver.so.12", "cusolverDnCreate", "cusolverDnDestroy", "cusolverDnSlaswp", 1),
    ("libcusolver.so.11", "cusolverSpCreate", "cusolverSpDestroy", "cusolverSpScsreigvsi", 1),
    ("libcusparse.so.12", "cusparseCreate", "cusparseDestroy", "cusparseSpMM", 1),
    ("libcudnn.so.9", "cudnnCreate", "cudnnDestroy", "cudnnRNNForward", 2000),
]


@pytest.mark.parametrize(("library", "create", "destroy", "call", "refused"), HANDLES)
def test_a_handle_works_until_it_is_destroyed(library: str, create: str, destroy: str, call: str, refused: int) -> None:
    lib = Library(library)
    handle = lib.make(create)
    assert getattr(lib, call)(handle) == OK
    assert getattr(lib, call)(0) == refused
    assert getattr(lib, destroy)(handle) == OK
    assert lib.make(create) != handle
    assert getattr(lib, call)(handle) == refused
    assert getattr(lib, destroy)(handle) == refused


@pytest.mark.parametrize(
    ("library", "create", "set_", "get"),
    [
        ("libcublas.so.13", "cublasCreate_v2", "cublasSetStream_v2", "cublasGetStream_v2"),
        ("libcublas.so.13", "cublasCreate_v2", "cublasSetMathMode", "cublasGetMathMode"),
        ("libcublas.so.13", "cublasCreate_v2", "cublasSetPointerMode_v2", "cublasGetPointerMode_v2"),
        ("libcublas.so.13", "cublasCreate_v2", "cublasSetAtomicsMode", "cublasGetAtomicsMode"),
        ("libcusolver.so.12", "cusolverDnCreate", "cusolverDnSetStream", "cusolverDnGetStream"),
        ("libcusparse.so.12", "cusparseCreate", "cusparseSetStream", "cusparseGetStream"),
        ("libcusparse.so.12", "cusparseCreate", "cusparseSetPointerMode", "cusparseGetPointerMode"),
        ("libcudnn.so.9", "cudnnCreate", "cudnnSetStream", "cudnnGetStream"),
        (
            "libcudnn.so.9",
            "cudnnCreateConvolutionDescriptor",
            "cudnnSetConvolutionMathType",
            "cudnnGetConvolutionMathType",
        ),
    ],
)
def test_a_handle_remembers_what_is_set_on_it(library: str, create: str, set_: str, get: str) -> None:
    lib = Library(library)
    handle, other = lib.make(create), lib.make(create)
    assert out(lib, get, handle) == 0
    assert getattr(lib, set_)(handle, 1) == OK
    assert out(lib, get, handle) == 1
    assert out(lib, get, other) == 0


def test_a_null_pointer_for_a_result_is_refused() -> None:
    lib = Library("libcublas.so.13")
    handle = lib.make("cublasCreate_v2")
    assert lib.cublasCreate_v2(0) == 7
    assert lib.cublasGetStream_v2(handle, 0) == 7
    assert lib.cublasGetVersion_v2(handle, 0) == 7


@pytest.mark.parametrize(
    ("library", "major", "ask"),
    [
        ("libcublas.so.13", 13, "cublasGetProperty"),
        ("libcublas.so.12", 12, "cublasGetProperty"),
        ("libcublasLt.so.13", 13, "cublasLtGetProperty"),
        ("libcudnn.so.9", 9, "cudnnGetProperty"),
        ("libcufft.so.12", 12, "cufftGetProperty"),
        ("libcufft.so.11", 11, "cufftGetProperty"),
        ("libcusolver.so.12", 12, "cusolverGetProperty"),
        ("libcusolver.so.11", 11, "cusolverGetProperty"),
        ("libcusparse.so.12", 12, "cusparseGetProperty"),
        ("libcurand.so.10", 10, "curandGetProperty"),
    ],
)
def test_a_library_reports_the_version_of_its_name(library: str, major: int, ask: str) -> None:
    assert out(Library(library), ask, 0, kind=ctypes.c_int) == major


def test_versions_are_those_of_the_cuda_release() -> None:
    assert Library("libcublasLt.so.13").number("cublasLtGetCudartVersion") // 1000 == 13
    assert Library("libcublasLt.so.12").number("cublasLtGetCudartVersion") // 1000 == 12
    assert Library("libcudnn.so.9").number("cudnnGetVersion") == 92600

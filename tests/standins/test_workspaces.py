"""Workspaces are estimates, or what the environment says; statuses in device memory are cleared in stream order."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

import pytest

from arena import sim

from ..simulated.cu import Cu
from .library import OK, Library, out


def stderr_of_workspace(value: str) -> tuple[int, str]:
    """The size that two queries of cuSOLVER give with this setting, and what is written to standard error."""
    os.environ["CUDASIM_WORKSPACE_CUSOLVER"] = value
    lib = Library("libcusolver.so.12")
    handle = lib.make("cusolverDnCreate")
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        sizes = [out(lib, "cusolverDnDgeqrf_bufferSize", handle, 10, 10, 0, 10, kind=ctypes.c_int) for _ in range(2)]
        os.dup2(before, 2)
        file.seek(0)
        assert sizes[0] == sizes[1]
        return sizes[0], file.read().decode()


@pytest.mark.parametrize(
    ("value", "elements"), [("1MiB", 1 << 17), ("0", 0), ("80", 10), ("1.5 KiB", 192), ("8kB", 1000), ("", 640)]
)
def test_a_setting_replaces_the_estimate(value: str, elements: int) -> None:
    assert stderr_of_workspace(value) == (elements, "")


@pytest.mark.parametrize("value", ["much", "-1", "5 parsecs", "1e99"])
def test_a_bad_setting_is_reported_once_and_the_estimate_used(value: str) -> None:
    size, text = stderr_of_workspace(value)
    assert size == 640
    assert text.count("\n") == 1
    assert f"CUDASIM_WORKSPACE_CUSOLVER: '{value}' is not a size" in text


def test_the_log_has_the_least_certain_estimates_of_each_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "workspaces"
    monkeypatch.setenv("CUDASIM_WORKSPACE_LOG", str(log))
    lib = Library("libcufft.so.12")
    for lengths in ((512, 512), (1009, 1), (512, 512), (2 * 1009, 1), (1009, 1)):
        assert lib.cufftEstimate2d(*lengths, 0x29, ctypes.byref(ctypes.c_size_t())) == OK
    assert log.read_text() == "CUFFT 8072 32288 64576\nCUFFT 16144 64576 129152\n"


def test_a_size_that_is_set_is_certain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_LOG", str(tmp_path / "workspaces"))
    monkeypatch.setenv("CUDASIM_WORKSPACE_ESTIMATES", "most")
    assert stderr_of_workspace("1MiB") == (1 << 17, "")
    assert not (tmp_path / "workspaces").exists()


def test_a_word_that_is_no_end_of_an_estimate_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_ESTIMATES", "much")
    size, text = stderr_of_workspace("")
    assert size == 640
    assert text.count("\n") == 1
    assert "CUDASIM_WORKSPACE_ESTIMATES: 'much' is not least, likely or most" in text


@pytest.mark.parametrize(
    ("library", "create", "set_stream", "call"),
    [
        ("libcusolver.so.12", "cusolverDnCreate", "cusolverDnSetStream", "cusolverDnSpotrfBatched"),
        ("libcublas.so.13", "cublasCreate_v2", "cublasSetStream_v2", "cublasSgetrfBatched"),
    ],
)
def test_a_status_in_device_memory_is_cleared_in_stream_order(
    library: str, create: str, set_stream: str, call: str
) -> None:
    sim.configure(memory="1GiB", races=True)
    sim.enable()
    cu = Cu()
    cu.start()
    stream, info = cu.stream(), cu.alloc(4096)
    cu.ok("cuMemsetD8Async", info, 255, 4096, stream)
    lib = Library(library)
    handle = lib.make(create)
    assert getattr(lib, set_stream)(handle, stream) == OK
    arguments = (handle, 0, 3, 0, 3, info, 5) if "potrf" in call else (handle, 3, 0, 3, 0, info, 5)
    assert getattr(lib, call)(*arguments) == OK
    cu.ok("cuStreamSynchronize", stream)
    assert cu.read(info, 24) == bytes(20) + b"\xff" * 4
    assert sim.races() == []


def test_copies_between_host_and_device_are_real() -> None:
    sim.configure(memory="1GiB")
    sim.enable()
    cu = Cu()
    cu.start()
    lib, address = Library("libcublas.so.13"), cu.alloc(4096)
    host, back = (ctypes.c_float * 6)(*range(6)), (ctypes.c_float * 6)()
    assert lib.cublasSetMatrix(2, 3, 4, host, 2, address, 4) == OK  # columns of 2 in columns of 4
    assert lib.cublasGetVector(2, 4, address + 16, 1, back, 1) == OK
    assert list(back) == [2, 3, 0, 0, 0, 0]
    assert lib.cublasGetMatrix(2, 3, 4, address, 4, back, 2) == OK
    assert list(back) == list(host)

"""Programs load the stand-ins as they load NVIDIA's libraries: by SONAME, with versioned symbols."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .library import LIBRARIES, needed

SOURCES = Path(__file__).parents[2] / "src" / "standins"
TABLES = {
    "cublas": "libcublas.so.13",
    "cublaslt": "libcublasLt.so.13",
    "cudnn": "libcudnn.so.9",
    "cufft": "libcufft.so.12",
    "curand": "libcurand.so.10",
    "cusolver": "libcusolver.so.12",
    "cusparse": "libcusparse.so.12",
    "cusparselt": "libcusparseLt.so.0",
    "nccl": "libnccl.so.2",
    "nvjitlink": "nocompiler/libnvJitLink.so.13",
    "nvml": "libnvidia-ml.so.1",
    "nvrtc": "nocompiler/libnvrtc.so.13",
    "nvtx": "libnvtx3interop.so.1",
}
UNVERSIONED = {"libnccl.so.2", "libcusparseLt.so.0", "libnvidia-ml.so.1"}  # as NVIDIA's

readelf = shutil.which("readelf")
needs_readelf = pytest.mark.skipif(readelf is None, reason="readelf is not installed")


def read(library: str, option: str) -> str:
    assert readelf is not None
    return subprocess.run([readelf, "-W", option, str(LIBRARIES / library)], capture_output=True, text=True).stdout


def exported(library: str) -> dict[str, str]:
    """The version node of each function that a library defines, "" for none."""
    lines = re.findall(r"FUNC +GLOBAL +DEFAULT +\d+ (\S+)", read(library, "--dyn-syms"))
    return {name.split("@")[0]: name.partition("@@")[2] for name in lines}


@needs_readelf
@pytest.mark.parametrize("library", sorted(needed()))
def test_everything_that_pytorch_and_cupy_need_is_defined(library: str) -> None:
    assert set(needed()[library]) - set(exported(library)) == set()


@needs_readelf
@pytest.mark.parametrize("library", sorted(needed()))
def test_a_library_has_its_name_and_each_symbol_has_it_as_its_version(library: str) -> None:
    name = library.rpartition("/")[2]
    assert f"Library soname: [{name}]" in read(library, "--dynamic")
    assert set(exported(library).values()) == {"" if name in UNVERSIONED else name}


@needs_readelf
@pytest.mark.parametrize("table", sorted(TABLES))
def test_each_line_of_a_table_is_a_function_and_no_other_is_exported(table: str) -> None:
    text = (SOURCES / table / f"{table}.def").read_text()
    names = re.findall(r"^[A-Z_]+\((\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    aliases = {name for name in exported(TABLES[table]) if name.startswith("__nvJitLink")}
    assert set(names) == set(exported(TABLES[table])) - aliases


@needs_readelf
@pytest.mark.parametrize("library", sorted(needed()))
def test_a_library_needs_none_of_cuda(library: str) -> None:
    wanted = re.findall(r"Shared library: \[(\S+)\]", read(library, "--dynamic"))
    assert [name for name in wanted if name.startswith(("libcu", "libnv"))] == []

"""What the libraries export, and a program in C that is linked to one."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from arena import sim
from arena._dryrun.libraries import FOLDER

from ..programs import clean_environment

REAL = {12: ("nvidia-cuda-runtime-cu12", "nvidia/cuda_runtime/lib"), 13: ("nvidia-cuda-runtime", "nvidia/cu13/lib")}
NEWEST = {12: (12, 9), 13: (13, 4)}  # the releases that abi/runtime/unsupported.def was made from


def exported(path: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    return set(re.findall(r" [TWD] (\w*cuda\w+)@@", done.stdout))


@pytest.mark.parametrize("major", [12, 13])
def test_every_symbol_has_the_version_that_programs_ask_for(major: int) -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", FOLDER / f"libcudart.so.{major}"], capture_output=True, text=True, check=True
    )
    versions = set(re.findall(r"@@?(\S+)", done.stdout))
    assert versions == {f"libcudart.so.{major}"}


def real_library(major: int) -> tuple[Path, tuple[int, ...]]:
    package, folder = REAL[major]
    try:
        found = distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    version = tuple(int(part) for part in found.version.split(".")[:2])
    return Path(str(found.locate_file(folder))) / f"libcudart.so.{major}", version


@pytest.mark.parametrize("major", [12, 13])
def test_everything_that_nvidias_library_exports_is_there(major: int) -> None:
    path, version = real_library(major)
    if version > NEWEST[major]:
        pytest.skip(f"CUDA {version} is newer than {NEWEST[major]}, and may have more")
    assert exported(path) - exported(FOLDER / f"libcudart.so.{major}") == set()


C_PROGRAM = r"""
#include <stdio.h>
typedef struct { unsigned x, y, z; } dim3;
extern int cudaGetDeviceCount(int*), cudaMalloc(void**, unsigned long), cudaFree(void*), cudaDeviceSynchronize(void);
extern int cudaMemcpy(void*, const void*, unsigned long, int), cudaMemGetInfo(unsigned long*, unsigned long*);
int main(void) {
  int count = 0; void* data = 0; char text[] = "hello", back[6] = "";
  unsigned long free_bytes = 0, total = 0;
  if (cudaGetDeviceCount(&count) || cudaMalloc(&data, 1 << 20) || cudaMemcpy(data, text, 6, 1)) return 1;
  if (cudaMemcpy(back, data, 6, 2) || cudaDeviceSynchronize() || cudaMemGetInfo(&free_bytes, &total)) return 2;
  printf("%d %s %lu\n", count, back, total >> 30);
  return cudaFree(data);
}
"""


# Kernels are launched in static destructors, too: after the variables of the main thread were destroyed.
C_PROGRAM_AT_EXIT = r"""
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
extern unsigned __cudaPushCallConfiguration(dim3, dim3, unsigned long, void*);
extern int __cudaPopCallConfiguration(dim3*, dim3*, unsigned long*, void*);
static void configure(void) {
  dim3 one = {1, 1, 1}, grid, block;
  unsigned long shared = 0;
  void* stream = 0;
  void* volatile kept[8];  /* would be where the configurations are, if these were in memory that was freed */
  for (int i = 0; i < 4; ++i) __cudaPushCallConfiguration(one, one, 7, stream);
  for (int i = 0; i < 8; ++i) kept[i] = memset(malloc(40 << i % 4), 0xee, 40 << i % 4);
  for (int i = 0; i < 4; ++i) if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) || shared != 7) abort();
  for (int i = 0; i < 8; ++i) free(kept[i]);
}
int main(void) {
  atexit(configure);
  configure();
  return 0;
}
"""


def run_c(tmp_path: Path, text: str, major: int) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, binary = tmp_path / "program.c", tmp_path / "program"
    source.write_text(text)
    subprocess.run([compiler, source, FOLDER / f"libcudart.so.{major}", "-o", binary], check=True)
    return subprocess.run(
        [binary],
        capture_output=True,
        text=True,
        env={
            **clean_environment(),
            "LD_PRELOAD": str(sim.library()),
            "LD_LIBRARY_PATH": str(FOLDER),
            "CUDASIM_MEMORY": "3GiB",
        },
    )


@pytest.mark.parametrize("major", [12, 13])
def test_a_program_in_c_runs_on_it(tmp_path: Path, major: int) -> None:
    done = run_c(tmp_path, C_PROGRAM, major)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 hello 3\n", "")


@pytest.mark.parametrize("major", [12, 13])
def test_kernels_are_launched_while_the_process_exits(tmp_path: Path, major: int) -> None:
    done = run_c(tmp_path, C_PROGRAM_AT_EXIT, major)
    assert (done.returncode, done.stderr) == (0, "")

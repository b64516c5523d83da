#!/usr/bin/env python3
"""Prove that src/abi declares the CUDA driver's binary interface as NVIDIA's headers do.

Compiles tools/abi_check.cpp, which holds only compile-time checks, against each directory of headers: those named on
the command line, or else those of the installed PyPI packages. Also compares the list of errors that the tests inject
into the driver's functions (tools/check_errors.py). A difference exits with 1, missing headers or a missing compiler
with 2.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import check_errors

ROOT = Path(__file__).resolve().parent.parent
CHECKS = (ROOT / "tools" / "abi_check.cpp", ROOT / "tools" / "runtime_check.cpp")  # the driver, the runtime
SOURCES = ROOT / "src"

PACKAGES = {
    "nvidia-cuda-runtime": "nvidia/cu13/include",
    "nvidia-cuda-runtime-cu12": "nvidia/cuda_runtime/include",
}
COMPILER_PACKAGE = (
    "nvidia-cuda-crt",
    "nvidia/cu13/include",
)  # headers that those of the runtime include, of any version
INSTALL = "pip install 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-runtime-cu12==12.9.*' 'nvidia-cuda-crt==13.*'"


class CannotCheckError(Exception):
    """Something that the check needs is missing."""


@dataclass(frozen=True)
class Headers:
    """One directory with cuda.h and cudaTypedefs.h."""

    path: Path
    version: int

    @property
    def title(self) -> str:
        return f"CUDA {self.version // 1000}.{self.version % 1000 // 10}"


@dataclass(frozen=True)
class Mutation:
    """A mistake in src/abi, and a part of the message that it must cause."""

    mistake: str
    file: str
    right: str
    wrong: str
    message: str


MUTATIONS = (
    Mutation(
        "a result code's value",
        "results.def",
        "CUDA_ERROR_OUT_OF_MEMORY, 2,",
        "CUDA_ERROR_OUT_OF_MEMORY, 5,",
        "CUDA_ERROR_OUT_OF_MEMORY: value",
    ),
    Mutation(
        "a constant's value",
        "constants.def",
        "CU_MEM_HANDLE_TYPE_FABRIC, 8)",
        "CU_MEM_HANDLE_TYPE_FABRIC, 16)",
        "CU_MEM_HANDLE_TYPE_FABRIC: value",
    ),
    Mutation(
        "the number of a special stream",
        "constants.def",
        "CU_STREAM_PER_THREAD, 2)",
        "CU_STREAM_PER_THREAD, 3)",
        "CU_STREAM_PER_THREAD: value",
    ),
    Mutation(
        "a constant in the wrong enum",
        "constants.def",
        "kRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)",
        "kRecommended, CU_MEM_ACCESS_FLAGS_PROT_READ, 1)",
        "CU_MEM_ACCESS_FLAGS_PROT_READ: is in another enum",
    ),
    Mutation(
        "a field's size",
        "structs.def",
        "CU_FIELD(unsigned short, usage, allocFlags.usage)",
        "CU_FIELD(unsigned, usage, allocFlags.usage)",
        "usage (allocFlags.usage): size",
    ),
    Mutation(
        "a field's type, of the same size",
        "structs.def",
        "CU_FIELD(int, id, id)",
        "CU_FIELD(unsigned, id, id)",
        "id (id): type",
    ),
    Mutation(
        "the order of two fields",
        "structs.def",
        "CU_FIELD(unsigned char, from_port, from_port)\nCU_FIELD(unsigned char, to_port, to_port)\n",
        "CU_FIELD(unsigned char, to_port, to_port)\nCU_FIELD(unsigned char, from_port, from_port)\n",
        "to_port (to_port): offset",
    ),
    Mutation(
        "a struct's size",
        "structs.def",
        "CU_PAD(Bytes54, reserved)\n",
        "CU_PAD(Bytes4, reserved)\n",
        "MemPoolProps (CUmemPoolProps_v1): size",
    ),
    Mutation(
        "a parameter's type",
        "functions.def",
        "cuMemAlloc_v2, kStreamless, (DevicePtr* ptr, std::size_t size)",
        "cuMemAlloc_v2, kStreamless, (DevicePtr* ptr, unsigned size)",
        "cuMemAlloc_v2: missing, or another prototype",
    ),
    Mutation(
        "a size for a device address",
        "functions.def",
        "cuMemFree_v2, kStreamless, (DevicePtr ptr)",
        "cuMemFree_v2, kStreamless, (std::size_t ptr)",
        "cuMemFree_v2: missing, or another prototype",
    ),
    Mutation(
        "a parameter without its const",
        "functions.def",
        "(MemPool* pool, const MemPoolProps* props)",
        "(MemPool* pool, MemPoolProps* props)",
        "cuMemPoolCreate: missing, or another prototype",
    ),
    Mutation(
        "one handle for another",
        "functions.def",
        "cuStreamDestroy_v2, kStreamless, (Stream stream)",
        "cuStreamDestroy_v2, kStreamless, (Event stream)",
        "cuStreamDestroy_v2: missing, or another prototype",
    ),
    Mutation(
        "an int for an enum",
        "functions.def",
        "cuStreamBeginCapture_v2, kDefaultStream, (Stream stream, CaptureMode mode)",
        "cuStreamBeginCapture_v2, kDefaultStream, (Stream stream, int mode)",
        "cuStreamBeginCapture_v2: missing, or another prototype",
    ),
    Mutation(
        "one enum for another",
        "functions.def",
        "(Stream stream, CaptureStatus* status)",
        "(Stream stream, CaptureMode* status)",
        "cuStreamIsCapturing: missing, or another prototype",
    ),
    Mutation(
        "a callback's parameter",
        "types.hpp",
        "(*)(Stream stream, Result status, void* data)",
        "(*)(Stream stream, int status, void* data)",
        "cuStreamAddCallback: missing, or another prototype",
    ),
    Mutation(
        "a missing parameter",
        "functions.def",
        "(GraphExec* exec, Graph graph, unsigned long long flags)",
        "(GraphExec* exec, Graph graph)",
        "cuGraphInstantiateWithFlags: missing, or another prototype",
    ),
    Mutation(
        "a version that does not exist",
        "functions.def",
        "CU_FUNCTION(cuMemFreeAsync, 11020,",
        "CU_FUNCTION(cuMemFreeAsync, 11030,",
        "cuMemFreeAsync version 11030: missing, or another prototype",
    ),
    Mutation(
        "a version of another symbol with the same prototype",
        "functions.def",
        "CU_FUNCTION(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2,",
        "CU_FUNCTION(cuDeviceGetUuid, 9020, cuDeviceGetUuid_v2,",
        "cuDeviceGetUuid version 9020: is not cuDeviceGetUuid_v2",
    ),
    Mutation(
        "a symbol that does not exist",
        "functions.def",
        "cuMemHostRegister_v2,",
        "cuMemHostRegister_v3,",
        "cuMemHostRegister_v3: missing, or another prototype",
    ),
    Mutation(
        "the symbol of an old version",
        "functions.def",
        "cuDeviceTotalMem_v2,",
        "cuDeviceTotalMem,",
        "cuDeviceTotalMem: missing, or another prototype",
    ),
    Mutation(
        "a null stream that matters, said not to",
        "functions.def",
        "cuStreamQuery, kDefaultStream,",
        "cuStreamQuery, kStreamless,",
        "cuStreamQuery: is not kStreamless",
    ),
    Mutation(
        "a null stream that does not matter, said to",
        "functions.def",
        "cuEventQuery, kStreamless,",
        "cuEventQuery, kDefaultStream,",
        "cuEventQuery: is not kDefaultStream",
    ),
    Mutation(
        "a parameter's type, in the runtime",
        "runtime/functions.def",
        "cudaMallocHost, kNone, (void** ptr, std::size_t size)",
        "cudaMallocHost, kNone, (void** ptr, unsigned size)",
        "cudaMallocHost: missing, or another prototype",
    ),
    Mutation(
        "an error's value, in the runtime",
        "runtime/errors.def",
        "cudaErrorInvalidDeviceFunction, 98,",
        "cudaErrorInvalidDeviceFunction, 99,",
        "cudaErrorInvalidDeviceFunction: value",
    ),
    Mutation(
        "the attribute behind a property",
        "runtime/properties.def",
        "cudaDevAttrWarpSize, 10)",
        "cudaDevAttrWarpSize, 11)",
        "cudaDevAttrWarpSize: value",
    ),
    Mutation(
        "the order of two fields, in the runtime",
        "runtime/structs.def",
        "RT_FIELD(int, registers, numRegs)\nRT_FIELD(int, ptx_version, ptxVersion)\n",
        "RT_FIELD(int, ptx_version, ptxVersion)\nRT_FIELD(int, registers, numRegs)\n",
        "registers (numRegs): offset",
    ),
)


def compiler() -> list[str]:
    if named := shlex.split(os.environ.get("CXX", "")):
        return named
    found = shutil.which("g++") or shutil.which("c++")
    if not found:
        raise CannotCheckError("no C++ compiler: set CXX")
    return [found]


def package_folder(package: str, folder: str) -> Path:
    try:
        return Path(str(distribution(package).locate_file(folder)))
    except PackageNotFoundError:
        raise CannotCheckError(f"{package} is not installed: {INSTALL}") from None


def installed() -> Iterator[Path]:
    for package, folder in PACKAGES.items():
        yield package_folder(package, folder)


def read_headers(path: Path) -> Headers:
    for name in ("cuda.h", "cudaTypedefs.h"):
        if not (path / name).is_file():
            raise CannotCheckError(f"{path} has no {name}: name another directory, or {INSTALL}")
    found = re.search(r"^#define CUDA_VERSION (\d+)", (path / "cuda.h").read_text(errors="replace"), re.M)
    if not found:
        raise CannotCheckError(f"{path / 'cuda.h'} has no CUDA_VERSION")
    return Headers(path, int(found[1]))


def declarations(sources: Path, file: str, macro: str, headers: Headers) -> list[tuple[int, list[str]]]:
    """The line and the leading arguments of each use of `macro` that these headers should know."""
    newer = "(?:_13)?" if headers.version >= 13000 else ""
    pattern = re.compile(rf"{macro}{newer}\((.*)")
    lines = (sources / "abi" / file).read_text().splitlines()
    uses = ((number, pattern.match(line)) for number, line in enumerate(lines, 1))
    return [(number, use[1].split(", ")) for number, use in uses if use]


def compile_differences(sources: Path, headers: Headers) -> list[str]:
    return [difference for check in CHECKS for difference in compile_one(check, sources, headers)]


def compile_one(check: Path, sources: Path, headers: Headers) -> list[str]:
    more = package_folder(*COMPILER_PACKAGE)
    paths = [f"-I{sources}", "-isystem", str(headers.path), "-isystem", str(more), str(check)]
    command = [*compiler(), "-std=c++20", "-fsyntax-only", f"-DCUDART_MAJOR={headers.version // 1000}", *paths]
    try:
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise CannotCheckError(f"cannot run {command[0]}: {error.strerror}") from None
    if run.returncode == 0:
        return []
    errors = [line for line in run.stderr.splitlines() if "error:" in line]
    # Each static_assert begins with the place of the declaration. Other errors that are about a declaration
    # name the file in front, and what only follows from one does not.
    found = [match[0].rstrip('"') for line in errors if (match := re.search(r"\w+\.(def|hpp):\d+.*", line))]
    return list(dict.fromkeys(found)) or errors or [run.stderr.strip()]


def order_differences(sources: Path, headers: Headers) -> list[str]:
    """Check that the k-th version of a name goes with the k-th symbol: name, name_v2, name_v3.

    The compiler cannot distinguish versions that have the same prototype.
    """
    typedefs = (headers.path / "cudaTypedefs.h").read_text(errors="replace")
    differences = []
    for line, (name, version, symbol, *_) in declarations(sources, "functions.def", "CU_FUNCTION", headers):
        versions = sorted({int(found) for found in re.findall(rf"\bPFN_{name}_v(\d+)\)", typedefs)})
        symbols = [name, *(f"{name}_v{k}" for k in range(2, len(versions) + 1))]
        if int(version) in versions and symbols[versions.index(int(version))] != symbol:
            differences.append(f"functions.def:{line}: {name} version {version}: is not {symbol}")
    return differences


def differences(sources: Path, headers: Headers) -> list[str]:
    return compile_differences(sources, headers) + order_differences(sources, headers)


def count(headers: Headers) -> str:
    def number(file: str, macro: str) -> int:
        return len(declarations(SOURCES, file, macro, headers))

    constants = number("results.def", "CU_RESULT") + number("constants.def", "CU_VALUE")
    functions, structs = number("functions.def", "CU_FUNCTION"), number("structs.def", "CU_STRUCT")
    runtime = number("runtime/functions.def", "RT_FUNCTION")
    return f"{functions} functions of the driver and {runtime} of the runtime, {structs} structs, {constants} constants"


def check(headers: Headers) -> bool:
    found = differences(SOURCES, headers)
    verdict = f"{len(found)} differences" if found else "no difference"
    print(f"{headers.title}: {count(headers)} checked: {verdict}")
    for difference in found:
        print(f"  {difference}")
    return not found


def mutated_copy(folder: Path, mutations: Iterable[Mutation]) -> None:
    shutil.copytree(SOURCES / "abi", folder / "abi")
    for mutation in mutations:
        file = folder / "abi" / mutation.file
        text = file.read_text()
        if text.count(mutation.right) != 1:
            raise CannotCheckError(f"{mutation.file} has {mutation.right!r} not once: update MUTATIONS")
        file.write_text(text.replace(mutation.right, mutation.wrong))


def self_test(headers: Headers) -> bool:
    """Whether the check fails, and for the right reasons, for a list of mistakes made all at once."""
    with tempfile.TemporaryDirectory() as folder:
        mutated_copy(Path(folder), MUTATIONS)
        found = differences(Path(folder), headers)
    messages = {difference.partition(": ")[2] for difference in found}
    missed = [mutation for mutation in MUTATIONS if mutation.message not in messages]
    for mutation in missed:
        print(f"{headers.title}: not noticed: {mutation.mistake} ({mutation.message}); instead: {found}")
    print(f"{headers.title}: {len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} mistakes noticed")
    return not missed


def main() -> int:
    parser = argparse.ArgumentParser(description="Check src/abi against NVIDIA's headers.")
    parser.add_argument("include_dir", nargs="*", type=Path, help="where cuda.h is; default: the packages")
    parser.add_argument("--self-test", action="store_true", help="also prove that the check notices mistakes")
    options = parser.parse_args()
    try:
        sets = [read_headers(path) for path in options.include_dir or installed()]
        failed = [headers for headers in sets if not check(headers)]
        if options.self_test and not failed:
            failed = [headers for headers in sets if not self_test(headers)]
        texts = [(headers.path / "cuda.h").read_text(errors="replace") for headers in sets]
        errors_agree = check_errors.check(texts) and (not options.self_test or check_errors.self_test(texts))
    except CannotCheckError as problem:
        print(f"check_abi: {problem}", file=sys.stderr)
        return 2
    return 1 if failed or not errors_agree else 0


if __name__ == "__main__":
    sys.exit(main())

"""The libraries of a dry run: which there are, their SONAMEs, and the order in which they are opened.

They are installed in ``lib/``, one file for each SONAME. A process asks for NVIDIA's libraries by SONAME, and the
first that was loaded under a name is the one that everything in the process gets. So nothing is patched: ours are
loaded before the program starts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .._sim.library import library as driver_library
from ..errors import ArenaError
from .cuda_versions import cuda_versions

__all__ = ["FOLDER", "LIBRARIES", "Library", "foreign_libraries", "libraries", "loaded_libraries", "planners"]

FOLDER = Path(__file__).parent / "lib"


class Library(NamedTuple):
    """A library by the name that NVIDIA gives it, with its SONAME for each major version of CUDA."""

    name: str
    sonames: dict[int, str]


# Each after those that it uses.
LIBRARIES = (
    Library("CUDA runtime", {12: "libcudart.so.12", 13: "libcudart.so.13"}),
    Library("NVML", {12: "libnvidia-ml.so.1", 13: "libnvidia-ml.so.1"}),
    Library("NVTX", {12: "libnvToolsExt.so.1", 13: "libnvtx3interop.so.1"}),
    Library("cuBLASLt", {12: "libcublasLt.so.12", 13: "libcublasLt.so.13"}),
    Library("cuBLAS", {12: "libcublas.so.12", 13: "libcublas.so.13"}),
    Library("cuFFT", {12: "libcufft.so.11", 13: "libcufft.so.12"}),
    Library("cuRAND", {12: "libcurand.so.10", 13: "libcurand.so.10"}),
    Library("cuSPARSE", {12: "libcusparse.so.12", 13: "libcusparse.so.12"}),
    Library("cuSPARSELt", {12: "libcusparseLt.so.0", 13: "libcusparseLt.so.0"}),
    Library("cuSOLVER", {12: "libcusolver.so.11", 13: "libcusolver.so.12"}),
    Library("cuDNN", {12: "libcudnn.so.9", 13: "libcudnn.so.9"}),
    Library("NCCL", {12: "libnccl.so.2", 13: "libnccl.so.2"}),
    Library("NVRTC", {12: "libnvrtc.so.12", 13: "libnvrtc.so.13"}),
    Library("nvJitLink", {12: "libnvJitLink.so.12", 13: "libnvJitLink.so.13"}),
)
# Stand-ins for compilers, in a folder of their own. The real ones need no GPU and are better: they find mistakes in a
# program's kernels.
COMPILERS = FOLDER / "nocompiler"


def libraries() -> list[Path]:
    """The files to open, in order: the simulated driver first. Raises :class:`ArenaError` if they are not installed."""
    found = {file.name: file for file in sorted(FOLDER.rglob("*.so*")) if file.is_file()}
    order = [soname for library in LIBRARIES for soname in library.sonames.values()]
    runtime = LIBRARIES[0].sonames.values()
    if not driver_library().exists() or not any(soname in found for soname in runtime):
        raise ArenaError(
            f"the libraries for dry runs are not there: {FOLDER} has no {' or '.join(runtime)}. They are part of the "
            "package on Linux only; reinstall cuda-arena if this is Linux"
        )
    unused = unused_sonames()
    chosen = sorted(found.values(), key=lambda file: order.index(file.name) if file.name in order else len(order))
    chosen = [file for file in chosen if file.name not in unused]
    return [driver_library(), *(file for file in chosen if file.parent != COMPILERS or not is_installed(file.name))]


def unused_sonames() -> set[str]:
    """Libraries for a CUDA that no installed framework is for. Some look for any version, and take what is loaded."""
    used = cuda_versions()
    if not used:
        return set()
    names = [(cuda, soname) for library in LIBRARIES for cuda, soname in library.sonames.items()]
    return {soname for _, soname in names} - {soname for cuda, soname in names if cuda in used}


def is_installed(soname: str) -> bool:
    """Whether NVIDIA's library is installed with its wheels, where frameworks look for it."""
    return any((folder / soname).exists() for folder in wheel_folders())


def wheel_folders() -> Iterator[Path]:
    """Folders of libraries in NVIDIA's wheels: ``nvidia/cu13/lib``, ``nvidia/cuda_nvrtc/lib``, ..."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from Path(place).glob("*/lib")


def planners() -> dict[str, str]:
    """Environment variables with NVIDIA's own libraries that stand-ins ask what they would choose.

    cuDNN can plan without a GPU: src/standins/cudnn/planner.hpp.
    """
    for folder in wheel_folders():
        for file in sorted(folder.glob("libcudnn_graph.so.*")):
            return {"CUDASIM_WORKSPACE_CUDNN_LIBRARY": str(file)}
    return {}


def loaded_libraries() -> Iterator[Path]:
    """The files that are mapped into this process."""
    try:
        rows = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return
    yield from sorted({Path(row.split(maxsplit=5)[5]) for row in rows if row.count("/") and ".so" in row})


def foreign_libraries() -> list[Path]:
    """NVIDIA's own libraries that this process has loaded, in the place of which ours should be."""
    names = [soname for library in LIBRARIES for soname in library.sonames.values()]
    ours = {"libcuda.so.1", *names} - {file.name for file in COMPILERS.glob("*")}
    families = tuple(f"{soname.partition('.so.')[0]}.so." for soname in ours)
    mine = {os.path.realpath(file) for file in [driver_library(), *FOLDER.rglob("*.so*")]}
    loaded = [file for file in loaded_libraries() if file.name.startswith(families)]
    return [file for file in loaded if os.path.realpath(file) not in mine]

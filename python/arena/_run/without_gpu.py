"""Explains the error of a program that ended because its framework found no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .. import _core
from .._util.next_step import arena_command, record_elsewhere

__all__ = ["Explained", "chain_of", "explain"]

TOO_OLD, NO_DEVICE = 35, 100
# 34 is cudaErrorStubLibrary; 500 is cudaErrorSymbolNotFound, which the CUDA runtime reports for the simulated driver.
NO_DRIVER = (TOO_OLD, NO_DEVICE, 34, 500)


class Explained(NamedTuple):
    """Why the program ended, and what to do."""

    why: str
    next: str


def explain(error: BaseException, program: str) -> Explained | None:
    """Explain the error that ended a program, if a framework raised it because there is no GPU."""
    is_driver_here = _core.is_real_driver_here()
    for raised in chain_of(error):
        status = getattr(raised, "status", None)
        if type(raised).__module__.startswith("cupy_backends.") and status in NO_DRIVER:
            name = str(raised).partition(":")[0]
            return explain_driver(name, status) if is_driver_here else explain_cupy(name, program)
        if not is_driver_here and (whose := without_driver(raised)):
            return Explained(f"{whose} found no GPU, and needs one even to allocate", dry_run(program))
    return None


def without_driver(error: BaseException) -> str | None:
    """The framework that raised an error because there is no driver."""
    module, text = type(error).__module__, str(error)
    if type(error) is RuntimeError and text.startswith(("Found no NVIDIA driver", "No CUDA GPUs are available")):
        return "PyTorch"
    if module.startswith("numba.cuda") and type(error).__name__ == "CudaSupportError":
        return "Numba"
    if module.startswith("cuda.pathfinder") and "NVIDIA driver library" in text:
        return "cuda.core"
    return None


def dry_run(program: str) -> str:
    return f"{arena_command('dryrun', program)}, which simulates a GPU; or, {record_elsewhere(program)}"


def explain_cupy(name: str, program: str) -> Explained:
    return Explained(
        f"CuPy found no GPU ({name}). Without one, only memory allocation works, on arena's simulated device: "
        "cupy.empty(), views, cupy.cuda.alloc(). Anything that runs on a GPU does not: zeros, copies, arithmetic, "
        "streams",
        dry_run(program),
    )


def explain_driver(name: str, status: int | None) -> Explained | None:
    if status == TOO_OLD:
        return Explained(
            f"CuPy cannot use the NVIDIA driver of this machine ({name}): this CuPy needs a newer CUDA",
            "update the driver, or install the CuPy for the driver's CUDA version, such as cupy-cuda12x (arena info "
            "shows the version)",
        )
    if status == NO_DEVICE:
        return Explained(
            f"the NVIDIA driver of this machine has no device for CuPy ({name})",
            "check that nvidia-smi lists one, and that CUDA_VISIBLE_DEVICES does not hide it",
        )
    return None


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__

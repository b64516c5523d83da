"""Explains the error of a program that ended because CuPy found no GPU; CuPy's own error does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .. import _core
from .._util.next_step import record_elsewhere

__all__ = ["Explained", "chain_of", "explain"]

TOO_OLD, NO_DEVICE = 35, 100
# 34 is cudaErrorStubLibrary; 500 is cudaErrorSymbolNotFound, which the CUDA runtime reports for the simulated driver.
NO_DRIVER = (TOO_OLD, NO_DEVICE, 34, 500)


class Explained(NamedTuple):
    """Why the program ended, and what to do."""

    why: str
    next: str


def explain(error: BaseException, program: str) -> Explained | None:
    """Explain the error that ended a program, if CuPy raised it because there is no GPU."""
    for raised in chain_of(error):
        kind = type(raised)
        status = getattr(raised, "status", None)
        if kind.__module__.startswith("cupy_backends.") and status in NO_DRIVER:
            name = str(raised).partition(":")[0]
            return explain_driver(name, status) if _core.is_real_driver_here() else explain_none(name, program)
    return None


def explain_none(name: str, program: str) -> Explained:
    return Explained(
        f"CuPy found no GPU ({name}). Without one, only memory allocation works, on arena's simulated device: "
        "cupy.empty(), views, cupy.cuda.alloc(). Anything that runs on a GPU does not: zeros, copies, arithmetic, "
        "streams",
        record_elsewhere(program),
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

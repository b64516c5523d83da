"""How certain workspaces are: what stand-ins say of their estimates (src/standins/common/settings.hpp)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .._words.format import listed

__all__ = ["ESTIMATES", "LIKELY", "LOG", "Estimate", "estimates_in", "library_names", "spans"]

ESTIMATES, LOG = "CUDASIM_WORKSPACE_ESTIMATES", "CUDASIM_WORKSPACE_LOG"
LIKELY = "likely"
NAMES = {"CUBLASLT": "cuBLASLt", "CUDNN": "cuDNN", "CUFFT": "cuFFT", "CUSOLVER": "cuSOLVER", "CUSPARSE": "cuSPARSE"}
SMALL = 1 << 20  # what is less certain than this matters


@dataclass(frozen=True)
class Estimate:
    """The least certain estimate of a library, in bytes."""

    library: str
    low: int
    likely: int
    high: int


def estimates_in(path: Path) -> tuple[Estimate, ...]:
    """The least certain of each library that matter. Processes of the program write into the same file."""
    if not path.exists():
        return ()
    found: dict[str, Estimate] = {}
    for row in path.read_text().splitlines():
        library, *sizes = row.split()
        one = Estimate(NAMES.get(library, library), *map(int, sizes))
        before = found.get(one.library)
        if before is None or one.high - one.low > before.high - before.low:
            found[one.library] = one
    return tuple(one for one in found.values() if one.high - one.low >= SMALL)


def spans(estimates: Iterable[Estimate]) -> tuple[int, int]:
    """How much less and more these may be than what was asked for, if each library has one workspace at a time."""
    estimates = tuple(estimates)
    return sum(one.likely - one.low for one in estimates), sum(one.high - one.likely for one in estimates)


def library_names(estimates: Iterable[Estimate]) -> str:
    return listed(one.library for one in estimates)

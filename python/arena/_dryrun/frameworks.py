"""What a dry run knows of PyTorch, and of the errors of frameworks. :mod:`cupy_pool` is about CuPy's memory.

Runs in the program's own process. Imports neither: what the program does not import is not there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import torch as adapter
from .._frameworks import Installation
from .._run.without_gpu import chain_of
from .._util.imports import after_import
from .._util.sizes import UNITS
from .._words.plain import plain
from ..errors import OutOfMemoryError
from .torch import TorchLedger

__all__ = ["MOST_ENTRIES", "WatchedTorch", "failure_of", "line_of"]

MOST_ENTRIES = 1_000_000  # of PyTorch's history; each takes some kilobytes at worst

RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")  # PyTorch's functions

_TRIED = re.compile(
    r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)"
)  # PyTorch, with its own allocator and with an arena
_ALLOCATING = re.compile(r"Out of memory allocating ([\d,]+) bytes")  # CuPy
_NO_MEMORY = re.compile(
    r"CUDA(?: runtime)? error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY", re.I
)


class WatchedTorch:
    """PyTorch in this process, once it is imported."""

    def __init__(self, installation: Installation, ledger: TorchLedger, *, keeps_history: bool, depth: int) -> None:
        self.installation, self.ledger = installation, ledger
        self.keeps_history, self.depth = keeps_history, depth
        self.live = self.reserved = 0  # at most, before the program reset its peaks

    def wait(self) -> None:
        after_import("torch", self.imported)

    def imported(self, torch: Any) -> None:
        for name in RESETS:
            if hasattr(torch._C, name):
                setattr(torch._C, name, self.noting_peaks(torch, getattr(torch._C, name)))
        if self.ledger.problem and self.depth > 0:
            print(
                f"arena: {plain(self.ledger.problem)}; lines come from PyTorch's history, and kinds are not known",
                file=sys.stderr,
            )
            self.keeps_history = True
        if self.keeps_history and self.ledger.extension is None:
            with contextlib.suppress(AttributeError):  # a PyTorch without CUDA, or somebody's stand-in
                # Not now: that would open the driver, and a program may fork first.
                torch.cuda._lazy_call(lambda: keep_history(torch))

    def noting_peaks(self, torch: Any, reset: Any) -> Any:
        """The function that resets PyTorch's peaks, which are kept before."""

        @functools.wraps(reset)
        def reset_later(*arguments: Any) -> Any:
            with contextlib.suppress(RuntimeError, KeyError):  # another allocator, or none yet
                self.note_peaks(torch.cuda.memory_stats(0))
            return reset(*arguments)

        return reset_later

    def note_peaks(self, stats: dict[str, int]) -> None:
        self.live = max(self.live, stats["allocated_bytes.all.peak"])
        self.reserved = max(self.reserved, stats["reserved_bytes.all.peak"])

    @property
    def allocator(self) -> str:
        return "arena" if adapter.is_in_use() else "its own"

    @property
    def remark(self) -> str:
        """Why it is not the arena, if it should be."""
        return self.installation.problems.get("torch", "")

    def facts(self, folder: Path) -> dict[str, Any] | None:
        """What PyTorch took; none if it never used the device. Its history, if there is one, is saved in the folder."""
        torch: Any = sys.modules.get("torch")
        if not isinstance(torch, ModuleType) or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return None
        found: dict[str, Any] = {"version": str(torch.__version__), "allocator": self.allocator, "remark": self.remark}
        if self.allocator == "arena":
            return found
        try:
            stats = torch.cuda.memory_stats(0)
            self.note_peaks(stats)
            found["live"], found["reserved"] = self.live, self.reserved
            found["failures"] = stats["num_ooms"]
            sizes = "requested_bytes" if "requested_bytes.all.allocated" in stats else "allocated_bytes"
            found["requests"] = [stats["allocation.all.allocated"], stats[f"{sizes}.all.allocated"]]
            if self.ledger.is_followed:
                found["live"] = max(found["live"], self.ledger.live())
            found["backend"] = torch.cuda.memory.get_allocator_backend()
        except (RuntimeError, KeyError) as error:  # the program plugged in an allocator of its own
            found.update(allocator="another", remark=str(error).partition("\n")[0])
            return found
        if self.keeps_history:
            found["history"] = save_history(torch, folder / "torch.pickle")
        return found


def keep_history(torch: Any) -> None:
    if adapter.is_in_use():
        return
    with contextlib.suppress(Exception):  # a private function, that another version may have changed
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MOST_ENTRIES)


def save_history(torch: Any, path: Path) -> str | None:
    """Save PyTorch's history; return what is wrong with it, if something is."""
    try:
        snapshot = torch.cuda.memory._snapshot()
        entries = max((len(one) for one in snapshot["device_traces"]), default=0)
        if entries == 0:
            return "PyTorch kept no history"
        if entries >= MOST_ENTRIES:
            return f"PyTorch's history is longer than {MOST_ENTRIES:,} entries, and its beginning is lost"
        shorten_stacks(snapshot)
        with path.open("wb") as file:
            pickle.dump(snapshot, file)
    except Exception as error:  # private functions of PyTorch: whatever they raise, the figures above are good
        return f"PyTorch's history could not be read: {type(error).__name__}: {error}"
    return None


def shorten_stacks(snapshot: dict[str, Any]) -> None:
    """Keep the program's own lines, as many as ``--lines`` says. Stacks are shared by many entries, and stay so."""
    depth = int(os.environ.get("ARENA_LINES", "") or 1)
    known: dict[int, list[Any]] = {}
    for history in snapshot["device_traces"]:
        for entry in history:
            frames = entry.get("frames")
            if frames:
                if id(frames) not in known:
                    own = [frame for frame in frames if is_own(frame["filename"])]
                    known[id(frames)] = own[:depth] if depth else []
                entry["frames"] = known[id(frames)]


def failure_of(error: BaseException) -> dict[str, Any] | None:
    """The request that failed, if an error says that memory ran out: whose it was, its size if known, and its line."""
    for raised in chain_of(error):
        found = recognise(raised)
        if found is not None:
            whose, requested = found
            given = getattr(raised, "line", "") if isinstance(raised, OutOfMemoryError) else ""
            return {
                "framework": whose,
                "requested": requested,
                "line": given or line_of(raised) or line_of(error),
                "message": str(raised).partition("\n")[0],
            }
    return None


def recognise(error: BaseException) -> tuple[str, int | None] | None:
    if isinstance(error, OutOfMemoryError):
        return "arena", error.requested
    text, module = str(error), type(error).__module__.partition(".")[0]
    if found := _TRIED.search(text):
        return "PyTorch", round(float(found[1]) * UNITS.get(found[2], 1))
    if found := _ALLOCATING.search(text):
        return "CuPy", int(found[1].replace(",", ""))
    if type(error).__name__ == "OutOfMemoryError" or _NO_MEMORY.search(text):
        names = {"torch": "PyTorch", "cupy": "CuPy", "cupy_backends": "CuPy"}
        return names.get(module, "PyTorch" if "torch" in sys.modules else "the program"), None
    return None


def line_of(error: BaseException) -> str:
    """The last line of the program's own in a traceback: ``train.py:88 in step``."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}" if own else ""


def is_own(file: str) -> bool:
    return not file.startswith(others())


@functools.cache
def others() -> tuple[str, ...]:
    """Folders of what is not the program: Python's own modules, what is installed, and arena."""
    paths = sysconfig.get_paths()
    installed = {*site.getsitepackages(), site.getusersitepackages(), paths["purelib"], paths["platlib"]}
    found = {paths["stdlib"], *installed, str(Path(__file__).parent.parent)}
    return ("<", *(f"{path}{os.sep}" for path in found if path))

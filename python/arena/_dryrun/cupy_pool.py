"""CuPy's own memory pool in a dry run: its peak, and the lines that held it.

Runs in the program's own process, and does not import CuPy: what the program does not import is not there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import ModuleType
from typing import Any

from .. import _core
from .._util.imports import after_import
from .source import line_here

__all__ = ["Ledger", "WatchedCuPy"]

MOST_LINES = 20


class Ledger:
    """What is live, by line, now and at the peak."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.began = time.monotonic()
        self.blocks: dict[int, tuple[int, str]] = {}
        self.lines: dict[str, int] = {}
        self.live = self.peak = 0
        self.requests = [0, 0]  # their number and bytes
        self.at = 0.0
        self.at_peak: dict[str, int] | None = None  # none while the current state is the peak

    def allocated(self, address: int, size: int, requested: int, line: str) -> None:
        with self.lock:
            self.requests = [self.requests[0] + 1, self.requests[1] + requested]
            self.blocks[address] = (size, line)
            self.lines[line] = self.lines.get(line, 0) + size
            self.live += size
            if self.live > self.peak:
                self.peak, self.at, self.at_peak = self.live, time.monotonic() - self.began, None

    def freed(self, address: int) -> None:
        with self.lock:
            size, line = self.blocks.pop(address, (0, ""))
            if not size:
                return
            if self.at_peak is None:
                self.at_peak = dict(self.lines)
            self.live -= size
            self.lines[line] -= size
            if not self.lines[line]:
                del self.lines[line]

    def facts(self) -> dict[str, Any]:
        with self.lock:
            held = self.lines if self.at_peak is None else self.at_peak
            most = sorted(held.items(), key=lambda item: -item[1])[:MOST_LINES]
            lines = [{"line": line, "bytes": size} for line, size in most if line]
            return {"live": self.peak, "at": self.at, "lines": lines, "requests": self.requests}


class WatchedCuPy:
    """CuPy in this process, once it is imported."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.process = os.getpid()

    def wait(self) -> None:
        after_import("cupy", self.imported)

    def imported(self, cupy: Any) -> None:
        """Hooks of CuPy are of one thread: this one, and those that Python starts from now on."""
        try:
            made_hook(cupy, self).__enter__()
        except AttributeError:  # a stand-in for CuPy
            return

        def begin_thread(*_: Any) -> None:
            sys.setprofile(None)
            made_hook(cupy, self).__enter__()

        threading.setprofile(begin_thread)

    def facts(self) -> dict[str, Any] | None:
        """What CuPy's own pool took; none if CuPy is not imported. ``live`` is none if that is not known."""
        cupy: Any = sys.modules.get("cupy")
        if not isinstance(cupy, ModuleType):
            return None
        try:
            pool = cupy.get_default_memory_pool()
            found = {"version": str(cupy.__version__), "used": pool.used_bytes(), "total": pool.total_bytes()}
        except Exception:  # it asks the CUDA runtime for the device, which may be what failed
            return None
        known = self.ledger.facts()
        if self.ledger.peak < found["used"]:  # a thread that Python did not start
            known["live"] = None
        return {**found, **known}


def made_hook(cupy: Any, watched: WatchedCuPy) -> Any:
    """A memory hook of CuPy, which tells the ledger what its pool gives and gets back."""

    class Hook(cupy.cuda.memory_hook.MemoryHook):  # type: ignore[misc]
        name = "arena-dryrun"

        def malloc_postprocess(self, **facts: Any) -> None:
            if facts["mem_ptr"] and os.getpid() == watched.process:
                line = line_here() if _core.traced_depth() else ""
                watched.ledger.allocated(facts["mem_ptr"], facts["mem_size"], facts["size"], line)

        def free_postprocess(self, **facts: Any) -> None:
            watched.ledger.freed(facts["mem_ptr"])

    return Hook()

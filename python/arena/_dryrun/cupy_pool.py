"""CuPy's own memory pool in a dry run: its peak, and the lines that held it.

Runs in the program's own process, and does not import CuPy: what the program does not import is not there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .._util.imports import after_import
from .source import line_here

__all__ = ["ARRAYS", "TEMPORARIES", "Ledger", "WatchedCuPy"]

ARRAYS, TEMPORARIES = "arrays", "temporaries"


@dataclass
class Block:
    """Memory that CuPy's pool gave out. Events are requests and releases, by number."""

    size: int
    line: str
    born: int
    turn: int
    """How often another line than the one before took memory until then."""
    is_temporary: bool = False
    """Its line took it and gave it back: an intermediate result."""


class Ledger:
    """What is live, and what was live at the peak: what lives now and was born before, and what ended since."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.began = time.monotonic()
        self.blocks: dict[int, Block] = {}  # by address
        self.ended: list[Block] = []  # since the peak, of those that were live then
        self.events = self.turn = self.peak_event = 0
        self.line = ""  # of the last request
        self.live = self.peak = 0
        self.requests = [0, 0]  # their number and bytes
        self.at = 0.0

    def allocated(self, address: int, size: int, requested: int, line: str) -> None:
        with self.lock:
            self.requests = [self.requests[0] + 1, self.requests[1] + requested]
            self.events += 1
            self.turn += line != self.line
            self.line = line
            self.blocks[address] = Block(size, line, self.events, self.turn)
            self.live += size
            if self.live > self.peak:
                self.peak, self.peak_event, self.ended = self.live, self.events, []
                self.at = time.monotonic() - self.began

    def freed(self, address: int, line: str = "") -> None:
        with self.lock:
            block = self.blocks.pop(address, None)
            if block is None:
                return
            self.events += 1
            self.live -= block.size
            block.is_temporary = block.line == line != "" and block.turn == self.turn
            if block.born <= self.peak_event:
                self.ended.append(block)

    def facts(self) -> dict[str, Any]:
        with self.lock:
            sums: dict[tuple[str, bool], list[int]] = {}
            for block in (*self.blocks.values(), *self.ended):
                if block.born <= self.peak_event:
                    entry = sums.setdefault((block.line, block.is_temporary), [0, 0])
                    entry[0] += block.size
                    entry[1] += 1
            lines = [
                {"line": line, "bytes": size, "blocks": blocks, "kind": TEMPORARIES if is_temporary else ARRAYS}
                for (line, is_temporary), (size, blocks) in sums.items()
            ]
            return {"live": self.peak, "at": self.at, "lines": lines, "requests": self.requests}


class WatchedCuPy:
    """CuPy in this process, once it is imported."""

    def __init__(self, *, has_lines: bool) -> None:
        self.ledger, self.has_lines = Ledger(), has_lines
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
                line = line_here() if watched.has_lines else ""
                watched.ledger.allocated(facts["mem_ptr"], facts["mem_size"], facts["size"], line)

        def free_postprocess(self, **facts: Any) -> None:
            watched.ledger.freed(facts["mem_ptr"], line_here() if watched.has_lines else "")

    return Hook()

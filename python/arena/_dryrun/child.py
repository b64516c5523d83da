"""The process in which a program runs dry: ``arena run`` with the libraries of :mod:`libraries` preloaded.

Started by :mod:`run` as ``python -m arena._dryrun.child``, with the name of a file that says what to do, as JSON. What
it found is left in a file, too: processes that the program forks would hold a pipe open. Only this process reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .. import sim
from .. import torch as arena_torch
from .._pool import watch
from .._report import Report
from .._run import Session, run_program
from .._run.program import NoProgramError
from .._util import files
from ..errors import ArenaError
from . import cupy as dry_cupy
from . import marks, numba_reads, reads, repeatable, unknown
from . import torch as dry_torch
from .cupy_pool import WatchedCuPy
from .endless import Clockwork, Sample
from .ends import StepCounter, Stop
from .frameworks import MOST_ENTRIES, WatchedTorch, failure_of, line_of

__all__ = ["FACTS", "HISTORY", "main"]

FACTS, HISTORY = "facts.json", "torch.pickle"
TAKING = ("cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocFromPoolAsync")


class DrySession(Session):
    """Leaves what it found for the process that started this one, which has the last word."""

    watches = True

    def __init__(self, spec: dict[str, Any]) -> None:
        report, record = (Path(spec[name]) if spec[name] else None for name in ("report", "record"))
        super().__init__(report=report, record=record, force=spec["force"], as_json=True, only=spec["only"])
        self.folder = Path(spec["folder"])
        depth = int(os.environ.get("ARENA_LINES") or 1)
        self.ledger = dry_torch.TorchLedger(depth=depth, entries=MOST_ENTRIES if spec["history"] else 0)
        self.torch = WatchedTorch(self.installation, self.ledger, keeps_history=spec["history"], depth=depth)
        self.cupy = WatchedCuPy(has_lines=depth > 0)
        self.began = time.monotonic()
        self.ended_by: dict[str, Any] | None = None
        self.error = self.error_line = ""
        stop = Stop(**spec["stop"]) if spec["stop"] else None
        self.steps = StepCounter(self, stop)
        self.clockwork = Clockwork(self, stop, spec["patience"], self.sample)

    def begin(self) -> None:
        repeatable.enable()
        self.ledger.wait()  # before PyTorch gets the arena
        arena_torch.hand_through(self.ledger.through)
        super().begin()
        self.torch.wait()
        self.cupy.wait()
        self.steps.wait()
        dry_cupy.enable()
        if marks.mode() != "none":
            reads.begin()
            numba_reads.wait()
            dry_torch.enable(marks.mode())
        self.clockwork.start()

    def cancel(self) -> None:
        self.clockwork.done.set()
        super().cancel()

    def sample(self) -> Sample | None:
        found = driver_facts()
        return Sample(found["calls"], found["used"], self.steps.steps) if found is not None else None

    def finish(self) -> None:
        super().finish()
        self.clockwork.done.set()
        if os.getpid() == self.process and marks.mode() != "none":
            reads.end()

    def note(self, error: BaseException) -> None:
        super().note(error)
        if isinstance(error, KeyboardInterrupt):
            self.until = "Ctrl-C"
        self.error_line = line_of(error)
        self.error = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
        self.ended_by = failure_of(error)
        self.ledger.look()  # while what the error holds is there

    def facts(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.began
        dry_torch.sized_facts()
        facts, torch, cupy = super().facts(), self.torch.facts(self.folder), self.cupy.facts()
        return {
            **facts,
            "seconds": seconds,
            "until": self.signal or self.until,
            "steps": self.steps.steps,
            "driver": driver_facts(),
            "torch": torch,
            "ledger": self.ledger.facts(),
            "cupy_pool": cupy,
            "requests": requests(facts["arenas"], torch, cupy),
            "unknown": unknown.facts(),
            "error": self.error,
            "error_line": self.error_line,
            "ended_by": self.ended_by,
            "peaks": [peak_of(report) for report in self.reports_of_peaks()],
            "next": self.explained.next if self.explained else None,
        }

    def reports_of_peaks(self) -> list[Report]:
        if self.failure is not None and (self.ended_by or self.exit):  # otherwise the program handled it
            return [self.failure]
        if self.peaks:
            return self.peaks
        return [report for one in watch.watched() if (report := one.report("At the end")) is not None]

    def emit(self, facts: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the folder is gone: nobody waits for it any more
            files.write(self.folder / FACTS, [json.dumps(facts).encode()])


def driver_facts() -> dict[str, int] | None:
    """What the simulated driver counted; none if the program never used it."""
    with contextlib.suppress(ArenaError):
        if sim.census().devices:
            return {"peak": sim.peak(0), "used": sim.used(0), "calls": sim.calls()}
    return None


def requests(arenas: list[dict[str, Any]], torch: Any, cupy: Any) -> dict[str, Any]:
    """What the program asked for in all, by allocator. The same in two runs that do the same."""
    with contextlib.suppress(ArenaError):
        calls = {name: count for name, count in sim.call_table().items() if name in TAKING}
        return {
            "arenas": [(pool["allocations"], pool["peak_live"]) for pool in arenas],
            "torch": torch and torch.get("requests"),
            "cupy": cupy and cupy.get("requests"),
            "driver": [sorted(calls.items()), sim.peak(0)] if sim.census().devices else None,
        }
    return {}


def peak_of(report: Report) -> dict[str, Any]:
    lines = [{"line": line.name, "bytes": line.bytes, "blocks": line.blocks} for line in report.lines]
    return {"moment": report.moment, "live": report.account["live"], "lines": lines}


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_bytes())
    session = DrySession(spec)
    session.begin()
    try:
        session.exit = run_program(
            spec["program"], spec["arguments"], is_module=spec["is_module"], on_error=session.note
        )
    except NoProgramError as error:
        session.cancel()
        files.write(session.folder / FACTS, [json.dumps({"no_program": str(error)}).encode()])
        sys.exit(1)
    sys.exit(session.exit)


if __name__ == "__main__":
    main()

"""The process in which a program runs dry: ``arena run`` with the libraries of :mod:`libraries` preloaded.

Started by :mod:`run` as ``python -m arena._dryrun.child``, with what to do as JSON. What it found is left in a file: a
pipe would be held open by processes that the program forks. Only this process reports.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from .. import sim
from .._pool import watch
from .._report import Report
from .._run import Session, run_program
from .._run.program import NoProgramError
from .._util import files
from ..errors import ArenaError
from . import cupy as dry_cupy
from .frameworks import WatchedTorch, cupy_facts, failure_of

__all__ = ["FACTS", "HISTORY", "main"]

FACTS, HISTORY = "facts.json", "torch.pickle"
MOST_LINES = 20


class DrySession(Session):
    """Leaves what it found for the process that started this one, which has the last word."""

    watches = True

    def __init__(self, spec: dict[str, Any]) -> None:
        report, record = (Path(spec[name]) if spec[name] else None for name in ("report", "record"))
        super().__init__(report=report, record=record, force=spec["force"], as_json=True, only=spec["only"])
        self.folder = Path(spec["folder"])
        self.torch = WatchedTorch(self.installation, keeps_history=spec["history"])
        self.began = time.monotonic()
        self.ended_by: dict[str, Any] | None = None
        self.error = ""

    def begin(self) -> None:
        super().begin()
        self.torch.wait()
        dry_cupy.enable()

    def note(self, error: BaseException) -> None:
        super().note(error)
        self.error = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
        self.ended_by = failure_of(error)

    def facts(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.began
        return {
            **super().facts(),
            "seconds": seconds,
            "driver": driver_facts(),
            "torch": self.torch.facts(self.folder),
            "cupy_pool": cupy_facts(),
            "error": self.error,
            "ended_by": self.ended_by,
            "peaks": [peak_of(report) for report in self.reports_of_peaks()],
            "next": self.explained.next if self.explained else None,
        }

    def reports_of_peaks(self) -> list[Report]:
        if self.failure is not None:
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


def peak_of(report: Report) -> dict[str, Any]:
    lines = [{"line": line.name, "bytes": line.bytes} for line in report.lines[:MOST_LINES]]
    return {"moment": report.moment, "lines": lines}


def main() -> None:
    spec = json.loads(sys.argv[1])
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

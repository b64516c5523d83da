"""The report and the recording of a dry run.

The arena writes them in the program's process, as ``arena run`` does. Where PyTorch used its own allocator, they are
made afterwards from its history: the recording has PyTorch's requests, the report is of those requests in an arena.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._run.session import checked
from .._trace.save import format_of
from .._util import files
from ..errors import ArenaError, UsageError
from .run import Outcome
from .verdict import replayed

__all__ = ["Outputs"]


class Outputs:
    """Refuses at once what could not be written in the end."""

    def __init__(self, *, report: Path | None, record: Path | None, force: bool) -> None:
        self.report = checked(report, force, files.REPORTS) if report else None
        self.record = checked(record, force) if record else None
        if self.record is not None:
            format_of(self.record, None)
        if self.report is not None and self.report == self.record:
            raise UsageError(f"{report} cannot be both the report and the recording; give two names")
        self.force = force

    def write(self, outcome: Outcome) -> dict[str, Any]:
        """Write what the process did not; return the files with what each is, and what went wrong."""
        facts = outcome.facts or {}
        what = "when the last request failed" if facts.get("report_of") == "failure" else "of the peak"
        found = dict.fromkeys(facts.get("reports", ()), f"the report {what}")
        found |= {made["path"]: f"{made['events']:,} events" for made in facts.get("recordings", ())}
        problems = [str(one) for one in facts.get("problems", ()) if not (outcome.trace and "there was nothing" in one)]
        try:
            found |= self.from_history(outcome, set(found))
        except (ArenaError, OSError) as error:
            problems.append(str(error))
        return {"files": found, "problems": problems}

    def from_history(self, outcome: Outcome, written: set[str]) -> dict[str, str]:
        trace = outcome.trace
        found: dict[str, str] = {}
        if trace is None:
            return found
        if self.record is not None and str(self.record) not in written:
            trace.save(self.record, overwrite=self.force)
            found[str(self.record)] = f"{len(trace):,} events, PyTorch's requests"
        if self.report is not None and str(self.report) not in written and (done := replayed(outcome)) is not None:
            done.report.save(self.report, overwrite=self.force)
            found[str(self.report)] = "the report of the peak, of PyTorch's requests in an arena"
        return found

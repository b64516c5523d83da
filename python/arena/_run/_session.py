"""A run under ``arena run``: what is set up before the program begins, and what is told and written at its end."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from .. import _arena, _files, _oom
from .._next import arena_command, exact_size, next_after
from .._report import Report
from .._sizes import format_size
from .._trace import _record
from ..errors import ArenaError, UsageError
from . import _hook

__all__ = ["Session"]

MOST_WRITTEN = 10  # while the program runs: one that catches the error may fail a thousand times
ABOUT_CUPY = {
    "another": "the program gave CuPy another allocator: what that took is not counted",
    "not installed": "there is no CuPy here: only what was asked of arena itself is counted",
}


class Session:
    """Refuses at once what could not be written in the end; :meth:`begin` sets up; the end of the process tells.

    ``exit`` is the program's exit code, as far as it is known.
    """

    def __init__(self, *, report: Path | None, record: Path | None, force: bool, as_json: bool) -> None:
        # Absolute, because the program may go elsewhere.
        self.report = checked(report, force, _files.REPORTS) if report else None
        self.plan = _record.Plan(checked(record, force), overwrite=force) if record else None
        if report and self.plan and self.report == self.plan.path:
            raise UsageError(f"{report} cannot be both the report and the recording; give two names")
        self.force, self.as_json = force, as_json
        self.exit = 0
        self.process = os.getpid()
        self.errors = sys.stderr  # the program may put another in its place
        self.lock = threading.RLock()  # several threads may fail at once
        self.failure: Report | None = None
        self.failures = 0
        self.written: list[Path] = []
        self.problems: list[str] = []

    def begin(self) -> None:
        # Before the program, so that it comes after whatever the program registers, and after its threads.
        atexit.register(self.finish)
        _oom.keep = self.keep
        _record.plan = self.plan
        _hook.install()

    def cancel(self) -> None:
        """There was nothing to run, and so there is nothing to tell."""
        atexit.unregister(self.finish)

    def keep(self, report: Report) -> list[str]:
        """Write the report of a request that failed, at once: nobody knows what becomes of the program."""
        if os.getpid() != self.process:
            return []
        with self.lock:
            self.failure = report
            self.failures += 1
            if self.report is None or self.failures > MOST_WRITTEN:
                return []
            self.save([report])
            return [f"The whole report: {self.report}"] if self.written else []

    def finish(self) -> None:
        if os.getpid() != self.process:  # a fork that came to the end of the program by itself
            return
        if self.plan is not None:
            self.plan.stop()  # not before: the program's exit functions may use the arena
        if self.report is not None:
            if self.failure is None:
                self.save(list(_arena.report()))
            elif self.failures > MOST_WRITTEN or not self.written:
                self.save([self.failure])
        facts = self.facts()
        lines = [json.dumps(facts)] if self.as_json else self.words(facts)
        if self.errors is not None:  # or it would go to standard output, which is the program's
            with contextlib.suppress(OSError, ValueError):  # it may be closed
                print(*lines, sep="\n", file=self.errors, flush=True)

    def save(self, reports: list[Report]) -> None:
        """The first where it was asked for, others beside it. What cannot be written is told at the end."""
        assert self.report is not None
        for report in reports:
            again = self.written[:1] == [self.report]
            path = _files.free_name(self.report) if again and report is not reports[0] else self.report
            try:
                report.save(path, overwrite=self.force or again)
            except (OSError, ArenaError) as error:
                self.problems.append(f"{path} was not written: {error}")
            else:
                self.written += [path] if path not in self.written else []

    def facts(self) -> dict[str, Any]:
        arenas = []
        for pool in _arena.open_arenas():
            with contextlib.suppress(ArenaError):  # it was closed
                stats = pool.stats()
                names = ("cap", "peak_live", "peak_reserved", "live", "reserved", "allocations", "failures")
                arenas.append({"device": pool.device, **{name: getattr(stats, name) for name in names}})
        recordings = self.plan.made if self.plan else []
        return {
            "exit": self.exit,
            "cupy": _hook.whose_allocator(),
            "arenas": arenas,
            "failures": self.failures,
            "reports": [str(path) for path in self.written],
            "report_of": ("failure" if self.failure else "end") if self.written else None,
            "recordings": [{"path": str(made.path), "events": made.events} for made in recordings],
            "problems": [
                *self.problems,
                *(f"{made.path} ends early: {made._lack}" for made in recordings if made._lack),
            ],
        }

    def words(self, facts: dict[str, Any]) -> list[str]:
        said = [f"arena: {peaks(pool)}" for pool in facts["arenas"] if pool["allocations"] or pool["failures"]]
        if not said:
            said = ["arena: no arena gave memory, or those that did are gone"]
        said += [f"arena: {ABOUT_CUPY[facts['cupy']]}"] if facts["cupy"] in ABOUT_CUPY else []
        if self.failures:
            said.append(f"{self.failures:,} requests failed" if self.failures > 1 else "1 request failed")
        when = "of the moment when the last request failed" if self.failure else "of the end"
        said += [f"wrote {path}: the report {when}" for path in facts["reports"]]
        said += [f"wrote {made['path']}: {made['events']:,} events" for made in facts["recordings"]]
        said += [f"arena: {problem}" for problem in facts["problems"]]
        return [*said, f"Next: {next_step(facts)}"]


def checked(path: Path, force: bool, endings: tuple[str, ...] = ()) -> Path:
    target = _files.check(path, overwrite=force, endings=endings).absolute()
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: the folder {target.parent} is not yours to write to")
    return target


def peaks(pool: dict[str, Any]) -> str:
    live, reserved, cap = (format_size(pool[name]) for name in ("peak_live", "peak_reserved", "cap"))
    return f"device {pool['device']}: at most {live} live and {reserved} reserved, of a cap of {cap}"


def next_step(facts: dict[str, Any]) -> str:
    if facts["recordings"]:
        pool = next(iter(facts["arenas"]), None)
        cap = ("--cap", exact_size(pool["peak_reserved"])) if pool and pool["peak_reserved"] else ()
        return arena_command("replay", facts["recordings"][0]["path"], *cap)
    if facts["reports"]:
        return next_after(Path(facts["reports"][0]))
    return "the same with --report report.html, or with --record run.arena"

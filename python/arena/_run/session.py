"""A run under ``arena run``: sets up before the program starts, and prints and writes the results when it ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from .._frameworks import FRAMEWORKS, Installation
from .._pool import oom, watch
from .._pool.registry import open_arenas
from .._report import Report
from .._trace import record as _record
from .._util import files
from .._util.next_step import arena_command, exact_size, next_after
from .._util.sizes import format_size
from .._words.format import counted, listed
from .._words.plain import plain
from ..errors import ArenaError, UsageError
from . import signals
from .exits import watch_exits
from .without_gpu import Explained, explain

__all__ = ["Session"]

MOST_WRITTEN = 10  # while the program runs: one that catches the error may fail a thousand times
MOST_LINES = 3  # the largest holders at the peak


class Session:
    """One run: checks output files first, :meth:`begin` sets up, and :meth:`finish` reports when the process exits.

    Frameworks get the arena when they are imported, all or ``only`` some. ``exit`` is the program's exit code, if
    known.
    """

    watches = False  # arenas are watched for their peak, and SIGTERM is heard, also without a report

    def __init__(
        self,
        *,
        report: Path | None,
        record: Path | None,
        force: bool,
        as_json: bool,
        only: Collection[str] | None = None,
    ) -> None:
        # Absolute, because the program may change its directory.
        self.report = checked(report, force, files.REPORTS) if report else None
        self.plan = _record.Plan(checked(record, force), overwrite=force) if record else None
        if report and self.plan and self.report == self.plan.path:
            raise UsageError(f"{report} cannot be both the report and the recording; give two names")
        self.force, self.as_json = force, as_json
        self.installation = Installation(only)
        self.exit = 0
        self.process = os.getpid()
        self.errors = sys.stderr  # the program may replace sys.stderr
        self.lock = threading.RLock()  # several threads may fail at once, and signals may arrive at any time
        self.is_over = False
        self.failure: Report | None = None
        self.failures = 0
        self.signal: str | None = None  # the one that ended the run
        self.until = ""  # what else ended the program early: os._exit(), exec
        self.paths: dict[int, Path] = {}  # of reports, by the number of the arena
        self.peaks: list[Report] = []
        self.written: list[Path] = []
        self.problems: list[str] = []
        self.explained: Explained | None = None

    def begin(self) -> None:
        # Registered before the program starts, so it runs after the program's exit functions and threads.
        atexit.register(self.finish)
        oom.keep_reports(self.keep)
        _record.follow_plan(self.plan)
        if self.report is not None or self.watches:
            watch.watch_all()
        if self.report is not None or self.plan is not None or self.watches:
            signals.listen([signals.ENDING, *([signals.WRITING] if self.report else [])], self.hear)
        self.installation.begin()
        watch_exits(self)

    def cancel(self) -> None:
        """Nothing was run, so there is nothing to report."""
        atexit.unregister(self.finish)
        signals.stop()

    def note(self, error: BaseException) -> None:
        """Note the error that ended the program; it is printed unchanged."""
        program = sys.argv[0] if os.path.isfile(sys.argv[0]) else "YOUR_SCRIPT.py"  # it was run with -m
        self.explained = explain(error, program)

    def keep(self, report: Report) -> list[str]:
        """Write the report of a failed request at once: the program may not survive it."""
        if os.getpid() != self.process:
            return []
        with self.lock:
            self.failure = report
            self.failures += 1
            if self.report is None or self.failures > MOST_WRITTEN:
                return []
            self.save(self.report, report)
            return [f"Full report: {self.report}"] if self.written else []

    def hear(self, number: int) -> None:
        """Handle a signal, in a thread of its own. After one that ends the process, the process ends with it."""
        name = signal.Signals(number).name
        with self.lock:
            if self.is_over:
                return
            if number == signals.ENDING:
                self.exit, self.signal = 128 + number, name  # as in a shell
                self.conclude(f"When {name} arrived")
            else:
                known = len(self.problems)
                self.save_all("Now")
                written = [f"wrote {path}" for path in self.paths.values() if path in self.written]
                lines = [*written, *self.problems[known:]] or ["nothing to write: no memory was allocated yet"]
                self.print_errors([f"arena: {name}: {line}" for line in lines])

    def end_early(self, how: str) -> bool:
        """Leave the report before the program ends without Python's exit functions; false if that was done before."""
        with self.lock:
            if self.is_over:
                return False
            self.until = how
            self.conclude(f"At the end, by {how}")
        return True

    def go_on(self) -> None:
        """The program did not end after all."""
        self.is_over, self.until = False, ""

    def finish(self) -> None:
        if os.getpid() != self.process:  # a forked child that reached the end of the program
            return
        with self.lock:
            if not self.is_over:
                self.conclude("At the end of the run")
        signals.stop()

    def conclude(self, place: str) -> None:
        """Write the files, and print the summary."""
        self.is_over = True
        if self.plan is not None:
            self.plan.stop(self.exit)  # not earlier: the program's exit functions may use the arena
        if self.report is not None:
            if self.failure is None:
                self.save_all(place)
            elif self.failures > MOST_WRITTEN or not self.written or self.paths:
                self.save(self.report, self.failure)
        self.emit(self.facts())

    def emit(self, facts: dict[str, Any]) -> None:
        self.print_errors([json.dumps(facts)] if self.as_json else self.summary(facts))

    def print_errors(self, lines: list[str]) -> None:
        if self.errors is not None:  # otherwise print() would write to standard output, which is the program's
            with contextlib.suppress(OSError, ValueError):  # it may be closed
                print(*map(plain, lines), sep="\n", file=self.errors, flush=True)

    def save_all(self, place: str) -> None:
        """Write the report of each arena: the first to the given path, the others to free names like it."""
        assert self.report is not None
        self.peaks.clear()
        for one in watch.watched():
            report = one.report(place)
            if report is None:
                continue
            self.peaks.append(report)
            path = self.paths.setdefault(one.number, files.free_name(self.report) if self.paths else self.report)
            self.save(path, report)

    def save(self, path: Path, report: Report) -> None:
        """Save a report. Problems are printed at the end of the run."""
        try:
            report.save(path, overwrite=self.force or path in self.written)
        except (OSError, ArenaError) as error:
            self.problems.append(f"{path} was not written: {error}")
        else:
            self.written += [path] if path not in self.written else []

    def facts(self) -> dict[str, Any]:
        arenas = []
        for pool in open_arenas():
            with contextlib.suppress(ArenaError):  # it was closed
                stats, (live, reserved) = pool.stats(), pool._open.highest()  # the program may have reset its peaks
                names = ("cap", "live", "reserved", "allocations", "failures")
                arenas.append(
                    {
                        "device": pool.device,
                        "label": pool._label,
                        "peak_live": live,
                        "peak_reserved": reserved,
                        **{name: getattr(stats, name) for name in names},
                    }
                )
        recordings = self.plan.made if self.plan else []
        return {
            "exit": self.exit,
            "signal": self.signal,
            "until": self.signal or self.until or None,
            "frameworks": self.installation.allocators(),
            "arenas": arenas,
            "without_gpu": self.explained.why if self.explained else None,
            "failures": self.failures,
            "reports": [str(path) for path in self.written],
            "report_of": ("failure" if self.failure else "peak") if self.written else None,
            "recordings": [{"path": str(made.path), "events": made.events} for made in recordings],
            "problems": [
                *self.problems,
                *(self.plan.problems if self.plan else ()),
                *(f"{path} was not written: there was nothing to {what}" for path, what in self.missing()),
                *(f"{made.path} is incomplete: {made._lack}" for made in recordings if made._lack),
            ],
        }

    def missing(self) -> Iterator[tuple[Path, str]]:
        """Requested files that were not written, because the program used no arena."""
        if self.plan is not None and not self.plan.made and not self.plan.problems:
            yield self.plan.path, "record"
        if self.report is not None and not self.written and not self.problems:
            yield self.report, "report"

    def summary(self, facts: dict[str, Any]) -> list[str]:
        lines = [f"arena: {peaks(pool)}" for pool in facts["arenas"] if pool["allocations"] or pool["failures"]]
        if not lines and not facts["reports"]:
            lines = [f"arena: {without_memory(facts['frameworks'])}"]
        lines += [f"arena: {line}" for line in about_frameworks(facts["frameworks"], self.installation.problems)]
        lines += [line for report in self.peaks if not self.failure for line in holders_at(report)]
        if self.failures:
            lines.append(f"{counted(self.failures, 'request')} failed")
        ended_by = self.signal or self.until
        lines += [f"arena: ended by {ended_by}"] if ended_by else []
        when = "of the moment when the last request failed" if self.failure else "of the peak"
        lines += [f"wrote {path}: the report {when}" for path in facts["reports"]]
        lines += [f"wrote {made['path']}: {counted(made['events'], 'event')}" for made in facts["recordings"]]
        lines += [f"arena: {problem}" for problem in facts["problems"]]
        lines += [f"arena: {self.explained.why}"] if self.explained else []
        return [*lines, f"Next: {self.explained.next if self.explained else next_step(facts)}"]


def checked(path: Path, force: bool, endings: tuple[str, ...] = ()) -> Path:
    target = files.check(path, overwrite=force, endings=endings).absolute()
    folder = Path(os.path.realpath(target)).parent
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: no permission to write to the folder {folder}")
    files.probe(target)  # the disk may be full
    return target


def peaks(pool: dict[str, Any]) -> str:
    live, reserved, cap = (format_size(pool[name]) for name in ("peak_live", "peak_reserved", "cap"))
    return f"{pool['label']}: at most {live} live and {reserved} reserved, of a cap of {cap}"


def names_of(allocators: dict[str, str], whose: str) -> list[str]:
    return [framework.name for framework in FRAMEWORKS if allocators[framework.key] == whose]


def without_memory(allocators: dict[str, str]) -> str:
    """Why arena saw no memory."""
    if imported := names_of(allocators, "arena"):
        return f"the program allocated no GPU memory: it imported {listed(imported)}, but created no array"
    if names_of(allocators, "another"):
        return "no memory was allocated from an open arena"
    known = listed(framework.name for framework in FRAMEWORKS)
    return (
        f"the program allocated no GPU memory that arena can see: it imported no framework that arena knows ({known}), "
        "and has no open arena of its own"
    )


def about_frameworks(allocators: dict[str, str], problems: dict[str, str]) -> Iterator[str]:
    """Which frameworks do not use the arena, and why."""
    for framework in FRAMEWORKS:
        if allocators[framework.key] == "another":
            if problem := problems.get(framework.key):
                yield f"{framework.name} does not use arena: {problem}"
            else:
                yield f"the program set another allocator for {framework.name}: its memory is not counted"


def holders_at(report: Report) -> list[str]:
    """The lines that held the most memory at the peak."""
    if not report.lines:
        return []
    most = [f"  {format_size(line.bytes):>10}  {line.name}" for line in report.lines[:MOST_LINES]]
    return [f"{report.moment.rstrip('.')}, most of it from", *most]


def next_step(facts: dict[str, Any]) -> str:
    if facts["recordings"] and facts["failures"]:
        return arena_command("fit", facts["recordings"][0]["path"])
    if any(made["events"] for made in facts["recordings"]):
        pool = next(iter(facts["arenas"]), None)
        cap = ("--cap", exact_size(pool["peak_reserved"])) if pool and pool["peak_reserved"] else ()
        return arena_command("replay", facts["recordings"][0]["path"], *cap)
    if facts["reports"]:
        return next_after(Path(facts["reports"][0]))
    if facts["problems"] or facts["recordings"]:
        return "make sure that the program allocates memory in this process, through a framework or an arena of its own"
    return "run it again with --report report.html, or with --record run.arena"

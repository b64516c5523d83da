"""Recording: a thread takes full chunks from the core and writes them to a file."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .. import _core
from .._core import __version__
from .._util import files
from .._util.clock import now
from .._util.exit import at_exit
from .._util.shown import Shown
from .._words.plain import plain
from ..errors import ArenaError, UsageError
from . import container
from .failures import ending_of

if TYPE_CHECKING:
    from .._pool.arena import Arena

__all__ = ["Plan", "Recording", "Writer", "follow_plan", "record_by_environment"]

PERIOD = 500  # milliseconds after which a chunk is written even if it is not full


class Writer(threading.Thread):
    """The thread that writes chunks. It never uses the device, so live data may be moved while it runs."""

    def __init__(self, recorder: _core.Recorder, file: BinaryIO, path: Path) -> None:
        super().__init__(name="arena-recording", daemon=True)
        self.recorder = recorder
        self.file, self.path = file, path
        self.stopping = False
        self.problem: OSError | None = None

    def run(self) -> None:
        try:
            while not self.stopping:
                self.write(self.recorder.next(PERIOD))
                self.file.flush()
            while (chunk := self.recorder.next(0)) is not None:
                self.write(chunk)
        except OSError as error:
            self.problem = error
            self.recorder.end()  # the program continues without the recording
            text = f"the recording {self.path} stopped: {error}; what it has so far can be read"
            warnings.warn(plain(text), RuntimeWarning, stacklevel=1)

    def write(self, chunk: tuple[int, int, int, int, dict[int, tuple[Any, str]], bytes] | None) -> None:
        if chunk is None:
            return
        first, events, next_block, time, new, data = chunk
        self.file.writelines(container.lines({number: lines for number, (lines, _) in new.items() if lines}))
        self.file.writelines(container.frameworks({number: name for number, (_, name) in new.items() if name}))
        self.file.write(container.events(first, events, next_block, time, data))


class Recording(Shown):
    """A running recording, from :meth:`Arena.record`. It ends with its ``with`` block or :meth:`stop`."""

    def __init__(self, pool: Arena, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        if sys.is_finalizing():
            raise ArenaError(f"{path} cannot be recorded: the interpreter is shutting down, so no thread can write it")
        self.path: Path = files.check(path, overwrite=overwrite)
        """The file that it is written to."""
        self._core = pool._open
        self._process = os.getpid()
        facts = facts_of(pool)  # raises for an arena of the parent process, before any file is touched
        self._recorded = pool._recorded
        other = self._recorded.setdefault("by", self)  # if several threads try, one wins
        if other is not self:
            raise UsageError(
                f"{self.path} cannot be recorded: the arena is already being recorded to {other.path}; stop() that "
                "recording first"
            )
        try:
            self._begin(facts, overwrite)
        except BaseException:
            self._recorded.clear()
            raise

    def _begin(self, facts: dict[str, Any], overwrite: bool) -> None:
        try:
            self._file = files.create(self.path, container.header(facts), overwrite=overwrite)
        except OSError as error:
            raise ArenaError(f"{self.path} cannot be written: {error.strerror}") from error
        self._recorder = _core.Recorder()
        self._writer = Writer(self._recorder, self._file, self.path)
        try:
            self._writer.start()
        except BaseException:
            self._file.close()
            if not overwrite:  # we created it, and it has no events
                self.path.unlink(missing_ok=True)
            raise
        self._may_stop = [True]  # only one thread can pop it, and stops the recording
        self._core.observe(self._recorder)
        _running[id(self)] = self

    @property
    def events(self) -> int:
        """The number of events recorded so far."""
        return self._recorder.events()

    @property
    def _lack(self) -> str:
        """Why the file is incomplete; empty if it is complete."""
        if self._writer.problem is not None:
            return str(self._writer.problem)
        return "it was written too slowly" if self._recorder.overflowed() else ""

    def stop(self) -> None:
        """Stop the recording and close the file. A second call does nothing."""
        self._stop({})

    def _stop(self, ending: dict[str, Any]) -> None:
        """Stop, and write how the recorded program ended, if that is known."""
        if os.getpid() != self._process:  # a forked child has no writer thread to wait for
            return
        try:
            self._may_stop.pop()
        except IndexError:
            return
        _running.pop(id(self), None)
        self._core.observe(None)
        self._recorded.clear()
        self._recorder.end()
        self._writer.stopping = True
        self._writer.join()
        try:
            if self._writer.problem is None:
                end = {"events": self.events, "overflowed": self._recorder.overflowed(), "ended": ending}
                container.write_chunk(self._file, container.END, json.dumps(end).encode())
            self._file.close()
        except OSError as error:
            self._writer.problem = self._writer.problem or error
            self._warn(str(error))
        if self._recorder.overflowed():
            self._warn("it was written too slowly")

    def _warn(self, why: str) -> None:
        warnings.warn(plain(f"the recording {self.path} is incomplete: {why}"), RuntimeWarning, stacklevel=3)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop(ending_of(error))


_running: dict[int, Recording] = {}  # recordings that have not been stopped yet


def _stop_all() -> None:
    ending = ending_of_program()
    for recording in list(_running.values()):
        recording._stop(ending)


def ending_of_program(exit_code: int | None = None) -> dict[str, Any]:
    """How the program ended, as far as exit functions can know: with an uncaught error, or with an exit code."""
    is_interactive = hasattr(sys, "ps1") or sys.flags.interactive  # there, an error ends a line or a cell, not the run
    error = None if is_interactive else getattr(sys, "last_value", None)
    if error is not None:
        return ending_of(error)
    return ending_of(None) if exit_code == 0 else {}


at_exit(_stop_all)


class Plan:
    """What ``arena run --record`` records: the first arena of this process to that path, others to free names like it.

    Other processes, including forked ones, are not recorded: two processes cannot write one file.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path, self.overwrite = path, overwrite
        self.process = os.getpid()
        self.made: list[Recording] = []
        self.problems: list[str] = []
        self.lock = threading.Lock()  # several threads may create arenas at the same time

    def record(self, pool: Arena) -> Recording | None:
        if os.getpid() != self.process:
            return None
        with self.lock:
            first = not self.made
            path = self.path if first else files.free_name(self.path)
            try:
                self.made.append(Recording(pool, path, overwrite=self.overwrite and first))
            except (ArenaError, OSError) as error:  # it was checked before the run, which matters more now
                self.problems.append(f"{error}")
                return None
            return self.made[-1]

    def stop(self, exit_code: int) -> None:
        """Stop the recordings. Their ``_lack`` says what is missing, so warnings turned into errors are suppressed."""
        ending = ending_of_program(exit_code)
        for made in self.made:
            with contextlib.suppress(RuntimeWarning):
                made._stop(ending)


_plan: Plan | None = None


def follow_plan(plan: Plan | None) -> None:
    """Record arenas created from now on according to a plan; ``None`` ends that."""
    global _plan
    _plan = plan


_environment_used = itertools.count(1)
_environment_lock = threading.Lock()  # without a GIL, two threads could get the same number


def record_by_environment(pool: Arena) -> None:
    """Record according to the plan or ``ARENA_RECORD``: the first arena to that path, others to ``run-2.arena``, ..."""
    name = os.environ.get("ARENA_RECORD")
    if _plan is not None:
        pool._recording = _plan.record(pool)
    elif name:
        with _environment_lock:
            number = next(_environment_used)
        path = Path(name)
        pool._recording = Recording(pool, path if number == 1 else path.with_stem(f"{path.stem}-{number}"))


def facts_of(pool: Arena) -> dict[str, Any]:
    """Facts about the run, for readers of the trace."""
    stats = pool.stats()
    return {
        "arena": __version__,
        "made": now(),
        "python": platform.python_version(),
        "program": str(sys.argv[0]) if sys.argv else "",  # a program may have put anything there
        "device": {
            "number": pool.device,
            "name": pool._name,
            "simulated": pool.is_simulated,
            "total": stats.device_total,
        },
        "settings": {"cap": stats.cap, "headroom": stats.headroom, "vmm": pool.vmm},
        "live": {"blocks": stats.blocks, "bytes": stats.live},
    }

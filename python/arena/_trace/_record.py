"""Recording: a thread takes full chunks from the core and writes them to a file."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import platform
import struct
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .. import _core, _files
from .._now import now
from .._version import __version__
from ..errors import ArenaError, UsageError
from . import _file

if TYPE_CHECKING:
    from .._arena import Arena

__all__ = ["Recording", "Writer", "record_by_environment"]

PERIOD = 500  # milliseconds after which a chunk that is not full is written all the same


class Writer(threading.Thread):
    """Takes chunks and writes them. It never touches the device, so it is not in the way of re-backing."""

    def __init__(self, recorder: _core.Recorder, file: BinaryIO) -> None:
        super().__init__(name="arena-recording", daemon=True)
        self.recorder = recorder
        self.file = file
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
            self.recorder.end()  # the program goes on, without the recording
            warnings.warn(f"the recording {self.file.name} ended: {error}", RuntimeWarning, stacklevel=1)

    def write(self, chunk: tuple[int, int, int, int, dict[int, Any], bytes] | None) -> None:
        if chunk is None:
            return
        first, events, next_block, time, lines, data = chunk
        self.file.writelines(_file.lines(lines))
        _file.write_chunk(self.file, _file.EVENTS, struct.pack("<QQQQ", first, events, next_block, time) + data)


class Recording:
    """A recording under way. Made by :meth:`Arena.record`; ends with its ``with`` block, or by :meth:`stop`."""

    def __init__(self, pool: Arena, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        if sys.is_finalizing():
            raise ArenaError(f"{path} cannot be recorded: the interpreter is shutting down, so no thread can write it")
        self.path: Path = _files.check(path, overwrite=overwrite)
        """Where it is written."""
        self._core = pool._open
        self._process = os.getpid()
        facts = facts_of(pool)  # of a parent's arena there are none: no file is touched then
        self._recorded = pool._recorded
        other = self._recorded.setdefault("by", self)  # of several threads, one is the first
        if other is not self:
            raise UsageError(f"{self.path} cannot be recorded: the arena is, to {other.path}; stop() that first")
        try:
            self._begin(facts, overwrite)
        except BaseException:
            self._recorded.clear()
            raise

    def _begin(self, facts: dict[str, Any], overwrite: bool) -> None:
        self._file = self._open_file(overwrite)
        self._recorder = _core.Recorder()
        self._writer = Writer(self._recorder, self._file)
        try:
            _file.write_header(self._file, facts)
            self._file.flush()
            self._writer.start()
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._file.close()
            if not overwrite:  # it is ours alone, and there is nothing in it
                self.path.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            raise ArenaError(f"{self.path} cannot be written: {error.strerror}") from error
        self._may_stop = [True]  # emptied by whoever stops it: one thread only can pop it
        self._core.observe(self._recorder)
        _under_way[id(self)] = self

    def _open_file(self, overwrite: bool) -> BinaryIO:
        try:
            return self.path.open("wb" if overwrite else "xb")
        except FileExistsError:
            raise UsageError(f"{self.path} exists; give another name, or overwrite=True") from None
        except OSError as error:
            raise ArenaError(f"{self.path} cannot be written: {error.strerror}") from error

    @property
    def events(self) -> int:
        """Events noted so far."""
        return self._recorder.events()

    @property
    def _lack(self) -> str:
        """Why the file has not all of it; empty if it has."""
        if self._writer.problem is not None:
            return str(self._writer.problem)
        return "it was written too slowly" if self._recorder.overflowed() else ""

    def stop(self) -> None:
        """End the recording and close the file. A second call does nothing."""
        if os.getpid() != self._process:  # the child of a fork has no thread to wait for
            return
        try:
            self._may_stop.pop()
        except IndexError:
            return
        _under_way.pop(id(self), None)
        self._core.observe(None)
        self._recorded.clear()
        self._recorder.end()
        self._writer.stopping = True
        self._writer.join()
        try:
            if self._writer.problem is None:
                end = {"events": self.events, "overflowed": self._recorder.overflowed()}
                _file.write_chunk(self._file, _file.END, json.dumps(end).encode())
            self._file.close()
        except OSError as error:
            self._writer.problem = self._writer.problem or error
            warnings.warn(f"the recording {self.path} has no end: {error}", RuntimeWarning, stacklevel=2)
        if self._recorder.overflowed():
            warnings.warn(
                f"the recording {self.path} ended early: it was written too slowly", RuntimeWarning, stacklevel=2
            )

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


_under_way: dict[int, Recording] = {}  # recordings that have not been stopped yet


# Exit functions run in the reverse order of their registration. This one is registered when arena is imported, not when
# a recording begins, so that the recording has what the program's own exit functions do.
@atexit.register
def _stop_all() -> None:
    for recording in list(_under_way.values()):
        recording.stop()


class Plan:
    """What ``arena run --record`` asks for: the first arena of this process there, others beside it under free names.

    Other processes, also forked ones, are not recorded: two cannot write one file.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path, self.overwrite = path, overwrite
        self.process = os.getpid()
        self.made: list[Recording] = []
        self.lock = threading.Lock()  # several threads may make arenas at once

    def record(self, pool: Arena) -> Recording | None:
        if os.getpid() != self.process:
            return None
        with self.lock:
            first = not self.made
            path = self.path if first else _files.free_name(self.path)
            self.made.append(Recording(pool, path, overwrite=self.overwrite and first))
            return self.made[-1]

    def stop(self) -> None:
        """End the recordings. What a file lacks is in ``_lack``, so warnings about it that are errors are not shown."""
        for made in self.made:
            with contextlib.suppress(RuntimeWarning):
                made.stop()


plan: Plan | None = None
_environment_used = itertools.count(1)
_environment_lock = threading.Lock()  # without a GIL, two threads could be given the same number


def record_by_environment(pool: Arena) -> None:
    """Record what the plan says, or ``ARENA_RECORD``: the first arena there, others beside it (``run-2.arena``)."""
    name = os.environ.get("ARENA_RECORD")
    if plan is not None:
        pool._recording = plan.record(pool)
    elif name:
        with _environment_lock:
            number = next(_environment_used)
        path = Path(name)
        pool._recording = Recording(pool, path if number == 1 else path.with_stem(f"{path.stem}-{number}"))


def facts_of(pool: Arena) -> dict[str, Any]:
    """What a reader of the trace may want to know of the run."""
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

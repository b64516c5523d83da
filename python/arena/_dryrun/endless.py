"""Says that a program goes on and on, and ends it after a time if the user wants that.

A thread samples the simulated driver every few seconds. It never launches work.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .._run.exits import EndingSession
from .._util.sizes import format_size
from .._words.format import counted
from .ends import Stop, leave

__all__ = ["Clockwork", "Progress", "Sample"]

EVERY = 300.0  # seconds between two lines
PAUSE = 5.0  # between two samples
KEPT = 64  # samples
GOING = 3  # samples in a row with new calls
GROWTH = 1.01
THREAD = b"arena-signals"  # _pool/threads.py treats threads of this name as harmless
SET_NAME = 15  # PR_SET_NAME


@dataclass(frozen=True)
class Sample:
    """What the simulated device has counted. ``used`` is in bytes, without the CUDA context."""

    calls: int
    used: int
    steps: int


@dataclass
class Progress:
    """When to say that there is no end in sight."""

    patience: float
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    next: float = 0.0

    def line(self, at: float, sample: Sample) -> str | None:
        """Add a sample, ``at`` seconds into the run; return the line if one is due."""
        self.samples.append(sample)
        if at < max(self.patience, self.next) or not self.goes_on():
            return None
        self.next = at + EVERY
        work = counted(sample.steps, "optimizer step") if sample.steps else counted(sample.calls, "driver call")
        growing = " and growing" if self.grows() else ""
        return (
            f"arena: {at:.0f} s: {work}, {format_size(sample.used)} in use{growing}, no end in sight; "
            "Ctrl-C shows the report so far"
        )

    def goes_on(self) -> bool:
        latest = list(self.samples)[-GOING - 1 :]
        return len(latest) > GOING and all(a.calls < b.calls for a, b in itertools.pairwise(latest))

    def grows(self) -> bool:
        used = [one.used for one in self.samples]
        middle = len(used) // 2
        return max(used[middle:]) > GROWTH * max(used[:middle], default=0)


class Clockwork(threading.Thread):
    """The thread. ``sample`` returns none as long as the program has not used the device."""

    def __init__(
        self, session: EndingSession, stop: Stop | None, patience: float, sample: Callable[[], Sample | None]
    ) -> None:
        super().__init__(name="arena-dryrun", daemon=True)
        self.session, self.stop_at, self.sample = session, stop.seconds if stop else None, sample
        self.how = f"--stop-after {stop.text}" if stop else ""
        self.progress = Progress(patience)
        self.pause = min(PAUSE, patience / (2 * GOING))
        self.done = threading.Event()

    def run(self) -> None:
        ctypes.CDLL(None).prctl(SET_NAME, THREAD, 0, 0, 0)
        began = time.monotonic()
        while not self.done.wait(self.seconds_left(began)):
            if self.session.is_over or os.getpid() != self.session.process:
                return
            at = time.monotonic() - began
            if self.stop_at is not None and at >= self.stop_at:
                leave(self.session, self.how)
            elif (sample := self.sample()) is not None and (line := self.progress.line(at, sample)) is not None:
                self.say(line)

    def seconds_left(self, began: float) -> float:
        left = self.pause if self.stop_at is None else self.stop_at - (time.monotonic() - began)
        return max(0.0, min(self.pause, left))

    def say(self, line: str) -> None:
        try:
            print(line, file=self.session.errors, flush=True)
        except (OSError, ValueError):  # closed
            self.done.set()

"""Ends a program with ``--stop-after``, after a time or a number of steps.

Runs in the program's own process, and leaves the report first. Processes that the program forks are not affected: only
the program itself reports.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from .._run.exits import EndingSession
from .._util.imports import after_import
from ..errors import UsageError

__all__ = ["StepCounter", "Stop", "leave"]

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
FORMS = "write a duration or a number of optimizer steps: 90s, 5m, 1h, 200steps"


@dataclass(frozen=True)
class Stop:
    """When a run ends, if the program does not."""

    text: str
    seconds: float | None = None
    steps: int | None = None

    @classmethod
    def parse(cls, text: str) -> Stop:
        """Read ``--stop-after``.

        >>> Stop.parse("5m").seconds, Stop.parse("200steps").steps
        (300.0, 200)
        """
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|h|steps?)", text.strip())
        if found is None or float(found[1]) <= 0:
            raise UsageError(f"--stop-after {text} is not accepted; {FORMS}")
        if found[2] in UNITS:
            return cls(text, seconds=float(found[1]) * UNITS[found[2]])
        if not found[1].isdigit():
            raise UsageError(f"--stop-after {text} is not accepted: steps are whole; {FORMS}")
        return cls(text, steps=int(found[1]))


def leave(session: EndingSession, how: str) -> None:
    """End the process, with a report of what was seen."""
    if session.end_early(how):
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
        _leave(0)


def flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):  # closed, or none, or in use by this thread
        return


_leave: Callable[[int], NoReturn] = os._exit


class StepCounter:
    """Counts the steps of PyTorch's optimizers, and ends the program after some."""

    def __init__(self, session: EndingSession, stop: Stop | None) -> None:
        self.session, self.stop, self.steps = session, stop, 0

    def wait(self) -> None:
        after_import("torch", self.imported)

    def imported(self, torch: Any) -> None:
        try:
            sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self.stepped)
        except (AttributeError, KeyError):  # before PyTorch 2.1
            return

    def stepped(self, *_: Any) -> None:
        if os.getpid() != self.session.process:
            return
        self.steps += 1
        if self.stop is not None and self.stop.steps is not None and self.steps >= self.stop.steps:
            leave(self.session, f"--stop-after {self.stop.text}")

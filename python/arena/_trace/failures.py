"""Requests that failed in a recorded run: the one that ended it, if one did, and those that the program survived.

A recording says how it ended, if that is known (``docs/trace-format.md``). Where it is not known, and in the formats of
others, the events decide: a failed request after which nothing was allocated is taken to have ended the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._inspect.holders import line_text
from .._util.sizes import format_size
from .._words.account import rounded
from ..errors import OutOfMemoryError

if TYPE_CHECKING:
    from .read import Trace

__all__ = ["FINISHED", "Failure", "Survived", "ending_of", "find_end", "find_failures", "find_survived"]

FINISHED = {"by": "itself"}
OUT_OF_MEMORY = "out of memory"
MOST_CAUSES = 100  # from an error to those behind it


@dataclass(frozen=True)
class Failure:
    """A request that failed in the recorded run."""

    event: int
    """Its number in the trace, from 0."""
    time: float
    """When it failed, in seconds of the recorded run."""
    requested: int
    live: int
    """Bytes that were live then."""
    needed: int
    """What was live and what it asked for: with less than that, the run could not go on."""
    where: str
    """The line that asked; empty if lines were not recorded."""
    retried: bool
    """Whether the next allocation of its thread has the same size: the program got the memory after all."""
    is_last: bool
    """Whether nothing was allocated after it."""
    verdict: str = ""
    """Why it failed, if the recording says so."""
    certain: bool = False
    """Whether the recording says that the run ended by it. Otherwise that is taken from the events."""

    def sentences(self, events: int) -> str:
        """What to say of a run that ended by it, after so many events."""
        head = "The recorded run did not finish" if self.certain else "The recorded run ended with a failed request"
        why = f" ({self.verdict})" if self.verdict else ""
        return (
            f"{head}: event {self.event:,} of {events:,} asked for {self._what()}, and failed{why}. "
            f"{format_size(self.live)} were live, so it needs at least {format_size(self.needed)} to go on. "
            "What it needs after that is not in the recording."
        )

    def _what(self) -> str:
        return format_size(self.requested) + (f" from {self.where}" if self.where else "")


@dataclass(frozen=True)
class Survived:
    """The failed requests of a recorded run after which the program went on."""

    count: int
    retried: int
    """How many of them it made again, and got."""
    largest: Failure | None
    """The largest of those that it did without."""

    def sentences(self) -> str:
        """Nothing if it got all that it asked for in the end: that is in the trace as allocations."""
        if self.largest is None:
            return ""
        missed, largest = self.count - self.retried, f"{self.largest._what()}, event {self.largest.event:,}"
        head = (
            f"A request of the recorded run failed, and the program went on without it: {largest}."
            if missed == 1
            else f"{missed:,} requests of the recorded run failed, and the program went on without them. "
            f"The largest: {largest}."
        )
        return f"{head} With more memory it may do something else, which is not in the recording."


def ending_of(error: BaseException | None) -> dict[str, Any]:
    """How a run ended that an error ended, or none, as a recording has it; empty if memory was not the reason."""
    if error is None:
        return FINISHED
    for _ in range(MOST_CAUSES):
        if error is None:
            break
        if isinstance(error, OutOfMemoryError):
            return {"by": OUT_OF_MEMORY, "requested": error.requested, "verdict": error.verdict}
        error = error.__cause__ or error.__context__
    return {}


def find_failures(trace: Trace) -> tuple[Failure, ...]:
    """All of a trace, in order."""
    return tuple(_failures(trace))


def _failures(trace: Trace) -> Iterator[Failure]:
    for number, live, retried, is_last in trace._core.failures():
        event = trace[number]
        yield Failure(
            event=number,
            time=event.time,
            requested=event.size,
            live=live,
            needed=live + rounded(event.size),
            where=line_text(trace.lines.get(event.line, ())),
            retried=retried,
            is_last=is_last,
        )


def find_end(failures: Sequence[Failure], ending: dict[str, Any]) -> Failure | None:
    """The failure that ended the run: as the recording says, or, if it does not, the last one."""
    if ending.get("by") == OUT_OF_MEMORY:
        same = [failure for failure in failures if failure.requested == ending.get("requested")]
        if same:  # otherwise it was a request to another arena
            verdict = str(ending.get("verdict", ""))
            return dataclasses.replace(same[-1], verdict=verdict if verdict.isprintable() else "", certain=True)
    if not failures or not failures[-1].is_last or ending == FINISHED:
        return None
    return failures[-1]


def find_survived(failures: Sequence[Failure], end: Failure | None) -> Survived:
    survived = [failure for failure in failures if end is None or failure.event != end.event]
    missed = [failure for failure in survived if not failure.retried]
    largest = max(missed, key=lambda failure: failure.requested, default=None)
    return Survived(len(survived), len(survived) - len(missed), largest)

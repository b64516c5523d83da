"""Failed requests of a recorded run: the one that ended it, if any, and those that the program survived.

A recording contains how the run ended, if that is known (``docs/trace-format.md``). If it is not known, and in other
formats, a failed request after which nothing was allocated counts as the end of the run.
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
MOST_CAUSES = 100  # in a chain of errors


@dataclass(frozen=True)
class Failure:
    """A request that failed in the recorded run."""

    event: int
    """Its index in the trace, from 0."""
    time: float
    """When it failed, in seconds of the recorded run."""
    requested: int
    live: int
    """Bytes live at that moment."""
    needed: int
    """Live and requested bytes together: the least that the run needs to continue."""
    where: str
    """The source line of the request; empty if lines were not recorded."""
    retried: bool
    """Whether the next allocation of its thread has the same size: a retry succeeded."""
    is_last: bool
    """Whether nothing was allocated after it."""
    verdict: str = ""
    """Why it failed, if the recording contains that."""
    certain: bool = False
    """Whether the recording says that this ended the run. Otherwise that is inferred from the events."""

    def sentences(self, events: int) -> str:
        """Describe a run of this many events that ended with this failure."""
        head = "The recorded run did not finish" if self.certain else "The recorded run ended with a failed request"
        why = f" ({self.verdict})" if self.verdict else ""
        return (
            f"{head}: event {self.event:,} of {events:,}, a request of {self._origin()}, failed{why}. "
            f"{format_size(self.live)} was live, so it needs at least {format_size(self.needed)} to continue. "
            "What it needs after that is not in the recording."
        )

    def _origin(self) -> str:
        return format_size(self.requested) + (f" from {self.where}" if self.where else "")


@dataclass(frozen=True)
class Survived:
    """The failed requests after which the recorded program continued."""

    count: int
    retried: int
    """How many of them succeeded when retried."""
    largest: Failure | None
    """The largest of those that the program did without."""

    def sentences(self) -> str:
        """Describe them. Empty if all retries succeeded: those are in the trace as allocations."""
        if self.largest is None:
            return ""
        missed, largest = self.count - self.retried, f"{self.largest._origin()}, event {self.largest.event:,}"
        head = (
            f"A request of the recorded run failed, and the program continued without it: {largest}."
            if missed == 1
            else f"{missed:,} requests of the recorded run failed, and the program continued without them. "
            f"The largest: {largest}."
        )
        return f"{head} With more memory it may behave differently, which the recording cannot show."


def ending_of(error: BaseException | None) -> dict[str, Any]:
    """How a run ended, for the recording, given the error that ended it or ``None``; empty if it was not memory."""
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
    """All failed requests of a trace, in order."""
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
    """The failure that ended the run: the one in the recording or, without that, the last one."""
    if ending.get("by") == OUT_OF_MEMORY:
        same = [failure for failure in failures if failure.requested == ending.get("requested")]
        if same:  # otherwise the request went to another arena
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

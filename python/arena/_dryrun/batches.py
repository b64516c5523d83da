"""The largest batch that fits, found by running the program dry with one batch after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from .._util.arguments import is_number
from ..errors import ArenaError, UsageError
from .run import Plan
from .trials import settle
from .verdict import Verdict

__all__ = ["MARK", "Found", "OtherEndError", "Span", "check", "find_batch", "steps", "with_batch"]

MARK = "{}"  # what stands for the batch in the program's arguments


@dataclass(frozen=True)
class Span:
    """Batches from ``low`` to ``high``."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Span:
        low, colon, high = text.partition(":")
        if not colon or not is_number(low) or not is_number(high) or not 1 <= int(low) <= int(high):
            raise UsageError(f"--find-batch {text} is not accepted; write the smallest and the largest batch: 1:512")
        return cls(int(low), int(high))


@dataclass(frozen=True)
class Found:
    """What the search found."""

    batch: int | None
    """The largest that fits; none if not even the smallest does."""
    best: Verdict
    """Of the largest that fits, or of the smallest."""
    tried: dict[int, Verdict]


class OtherEndError(ArenaError):
    """A program that ended for a reason of its own, and what it printed last."""

    def __init__(self, text: str, output: str) -> None:
        super().__init__(text)
        self.output = output


def with_batch(plan: Plan, batch: int) -> Plan:
    arguments = tuple(word.replace(MARK, str(batch)) for word in plan.arguments)
    return dataclasses.replace(plan, arguments=arguments)


def check(plan: Plan) -> None:
    if not any(MARK in word for word in plan.arguments):
        raise UsageError(
            f"--find-batch needs {MARK} in the program's arguments, where the batch goes: train.py --batch {MARK}"
        )


def steps(span: Span) -> int:
    """How many runs it takes at most."""
    return 1 + (span.high - span.low).bit_length() + (span.high > span.low)


def find_batch(
    plan: Plan, span: Span, progress: Callable[[int, Verdict | None], object], *, again: bool = True
) -> Found:
    """Try the smallest, the largest, and then halves. A larger batch is taken to need more.

    ``progress`` is called with each batch, before (without a verdict) and after it was tried. Where the verdict is
    unsure, the batch counts as too large. Without ``again``, each is run once.
    """
    check(plan)
    plan = dataclasses.replace(plan, report=None, record=None, history=False)
    tried: dict[int, Verdict] = {}

    def fits(batch: int) -> bool:
        progress(batch, None)
        tried[batch] = verdict = settle(with_batch(plan, batch), quiet=True, again=again, thorough=False)
        refuse_other_ends(batch, verdict)
        progress(batch, verdict)
        return verdict.fits is True

    if not fits(span.low):
        return Found(None, tried[span.low], tried)
    below, above, candidate = span.low, span.high + 1, span.high
    while below < above - 1:
        if fits(candidate):
            below = candidate
        else:
            above = candidate
        candidate = (below + above) // 2
    return Found(below, tried[below], tried)


def refuse_other_ends(batch: int, verdict: Verdict) -> None:
    """A search makes sense only as long as nothing but memory decides."""
    if verdict.ran is not None:
        return
    if verdict.outcome.exit in (130, -2):
        raise KeyboardInterrupt
    if verdict.outcome.exit == 0:
        raise ArenaError(f"with batch {batch} the program used no GPU memory, so no batch can be found")
    raise OtherEndError(
        f"with batch {batch} the program ended with exit code {verdict.outcome.exit}, and not because of memory",
        verdict.outcome.output,
    )

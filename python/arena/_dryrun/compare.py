"""The same program under the arena and under the framework's own allocator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .run import Plan
from .trials import settle
from .verdict import Verdict

__all__ = ["Row", "compare"]


@dataclass(frozen=True)
class Row:
    """One allocator's figures, in bytes."""

    who: str
    word: str | None
    """``fits``, ``does not fit`` or ``unsure``."""
    fits: bool | None
    live: int | None
    reserved: int | None
    peak: int | None
    """In use on the device, the CUDA context included."""


def compare(plan: Plan, verdict: Verdict) -> list[Row]:
    """Rows for the run that is done, and for the same program with the other allocator."""
    other = "native" if plan.allocator == "arena" else "arena"
    second = settle(dataclasses.replace(plan, allocator=other, report=None, record=None), quiet=True)
    return [row_of(verdict), row_of(second)]


def row_of(verdict: Verdict) -> Row:
    accounts = verdict.accounts
    unknown = "the arena" if verdict.outcome.plan.allocator == "arena" else "the framework's own"
    who = " and ".join(account.who for account in accounts) or unknown
    reserved = [account.reserved for account in accounts if account.reserved is not None]
    return Row(who, verdict.word, verdict.fits, verdict.live, sum(reserved) if reserved else None, verdict.peak)

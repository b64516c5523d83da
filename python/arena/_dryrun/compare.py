"""The same program under the arena and under the framework's own allocator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .run import Plan, run_dry
from .verdict import Verdict, judge, replayed

__all__ = ["Row", "compare"]


@dataclass(frozen=True)
class Row:
    """One allocator's figures, in bytes."""

    who: str
    fits: bool | None
    live: int | None
    reserved: int | None
    peak: int | None
    """In use on the device, the CUDA context included."""
    replayed: bool = False
    """Whether it was not the program that ran, but its recorded requests."""


def compare(plan: Plan, verdict: Verdict) -> list[Row]:
    """Rows for the run that is done, and for the other allocator.

    Where the arena has no adapter for PyTorch, both runs would be PyTorch's allocator: its requests are replayed in an
    arena instead.
    """
    rows = rows_of(verdict)
    if any(account.who == "PyTorch's allocator" for account in verdict.accounts) and plan.allocator == "arena":
        return [*rows, *replay_row(verdict)]
    other = "native" if plan.allocator == "arena" else "arena"
    changed = dataclasses.replace(plan, allocator=other, report=None, record=None)
    second = judge(run_dry(changed, quiet=True))
    more = rows_of(second)
    if other == "arena" and any(account.who == "PyTorch's allocator" for account in second.accounts):
        more = replay_row(verdict)
    return [*rows, *more]


def rows_of(verdict: Verdict) -> list[Row]:
    accounts = verdict.accounts
    if len(accounts) == 1:
        one = accounts[0]
        return [Row(one.who, verdict.fits, one.live, one.reserved, verdict.peak)]
    unknown = "the arena" if verdict.outcome.plan.allocator == "arena" else "the framework's own"
    who = " and ".join(account.who for account in accounts) or unknown
    reserved = [account.reserved for account in accounts if account.reserved is not None]
    return [Row(who, verdict.fits, verdict.live, sum(reserved) if reserved else None, verdict.peak)]


def replay_row(verdict: Verdict) -> list[Row]:
    """The arena's figures for PyTorch's requests, as far as they were recorded."""
    done = replayed(verdict.outcome, max(1, verdict.memory - verdict.context))
    if done is None:
        return []
    fits = done.fits if verdict.fits is not False else None
    return [Row("arena", fits, done.peak_live, done.peak_reserved, done.peak_reserved + verdict.context, True)]

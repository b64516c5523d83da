"""A verdict from more than one run: where values that were never computed could change it, both ends are tried.

The further runs are quiet, and write no files.
"""

from __future__ import annotations

import dataclasses

from .assume import Assumptions, place_of
from .qualified import Unknown, is_flipped, open_reads
from .run import Plan, run_dry
from .verdict import READS, SCRATCH, SIZES, TOP, Verdict, because_of, judge
from .workspaces import library_names

__all__ = ["settle", "tried_with_arena"]

MOST_CHECKS = 8
AT_LEAST, TIMES = 60.0, 2.0  # how long another run may take, in seconds, and by the time of the first


def settle(plan: Plan, *, quiet: bool = False, again: bool = True, thorough: bool = True) -> Verdict:
    """Run the program, and again where that can settle what is open, unless not ``again``.

    ``thorough``: also where only values were read that programs seldom decide by, such as a loss.
    """
    if plan.spread:
        return both_ends(plan, quiet=quiet)
    return settled(judge(run_dry(plan, quiet=quiet)), again=again, thorough=thorough)


def settled(verdict: Verdict, *, again: bool = True, thorough: bool = True, ends: bool = True) -> Verdict:
    if not again or verdict.ran is None:
        return verdict
    if SIZES in verdict.doubts and not verdict.ran:
        verdict = with_nothing_found(verdict)
    if SCRATCH in verdict.doubts:
        verdict = with_least_workspaces(verdict)
    if verdict.ran and thorough and ends and is_open_below(verdict):
        verdict = with_fewest(verdict)
    if SIZES not in verdict.doubts and (READS in verdict.doubts or (thorough and open_reads(verdict.unknown))):
        verdict = with_reads_flipped(verdict)
    if verdict.ran and verdict.less + verdict.more:
        verdict = with_both_workspaces(verdict)
    if verdict.ran and SIZES not in verdict.doubts and (verdict.high or 0) > verdict.memory > 0:
        verdict = with_most_on_top(verdict)
    return verdict


def both_ends(plan: Plan, *, quiet: bool) -> Verdict:
    """``nonzero=range``: with as many elements as possible, and with none."""
    first = settled(judge(run_dry(with_nonzero(plan, "all"), quiet=quiet)), ends=False)
    if first.ran is None:
        return first
    second = settled(another(first, with_nonzero(plan, "none")))
    least = min(one.least if one.least is not None else one.peak or 0 for one in (first, second))
    most = max(one.most if one.most is not None else one.peak or 0 for one in (first, second))
    found = dataclasses.replace(first, least=least, most=most)
    if first.word == second.word:
        return found
    because = f"with nonzero=all it {named(first)}, with nonzero=none it {named(second)}"
    return dataclasses.replace(found, word="unsure", because=because, doubts=(SIZES,))


def with_nothing_found(verdict: Verdict) -> Verdict:
    """The run did not fit, with as many elements as assumed: try none."""
    plan = verdict.outcome.plan
    other = another(verdict, with_nonzero(plan, "none"))
    if other.ran is False:
        return without(verdict, SIZES)
    ended = "it fits" if other.ran else "it ends for another reason"
    return dataclasses.replace(verdict, because=f"with nonzero=none {ended}")


def is_open_below(verdict: Verdict) -> bool:
    """Whether fewer elements could have been found than were assumed."""
    is_more = verdict.outcome.plan.assume.nonzero != "none"
    return is_more and any(one.kind == "size" and one.assumed > 0 and not one.given for one in verdict.unknown)


def with_fewest(verdict: Verdict) -> Verdict:
    """It fits with as many elements as assumed: with none it may take another way, and what follows from them by way of
    the program's own numbers is gone, too."""
    other = another(verdict, with_nonzero(verdict.outcome.plan, "none"))
    if other.peak is None or other.ran is None:  # a program that goes on only if something was found
        return verdict
    least, most = min(verdict.least or 0, other.peak), max(verdict.most or 0, other.peak)
    verdict = dataclasses.replace(verdict, least=least, most=most)
    if other.ran:
        return verdict
    doubts = tuple(dict.fromkeys((SIZES, *verdict.doubts)))
    return dataclasses.replace(verdict, word="unsure", doubts=doubts, because="with nonzero=none it does not fit")


def with_reads_flipped(verdict: Verdict) -> Verdict:
    """Values that were never computed were 0: try 1."""
    reads = open_reads(verdict.unknown)
    runs = [flipped(verdict)]
    verdict = dataclasses.replace(verdict, checks=pass_checks(verdict, runs))
    others = [runs[-1]]
    if needs_numbers_alone(verdict, others[0], reads):
        others.append(flipped(verdict, bools=0))
        runs.append(others[-1])
    names = ", ".join(one.name for one in sorted(reads, key=lambda one: not one.is_control)[:3])
    never = f"which {'was' if len(reads) == 1 else 'were'} never computed"
    because = f"with 1 instead of 0 for {names}, {never}, it "
    if any(other.outcome.facts is None for other in others):
        because += "does not end in time"
    elif not is_flipped(verdict.unknown, [one for run in runs for one in run.unknown]):
        if READS not in verdict.doubts:
            return verdict
        because = f"what follows may depend on {names}, {never}, and 1 could not be tried instead of 0"
    elif early := next((other for other in others if other.ran is None), None):
        because += ended(early)
    elif differs := next((other for other in others if other.ran is not verdict.ran or SIZES in other.doubts), None):
        because += named(differs)
    elif is_open(verdict, others[-1], reads):
        because = f"what memory it needs depends on {names}, {never}"
    else:
        most = max(one.most or 0 for one in (verdict, *runs))
        return dataclasses.replace(without(verdict, READS), settled=True, most=most)
    doubts = tuple(dict.fromkeys((*verdict.doubts, READS)))
    return dataclasses.replace(verdict, word="unsure", doubts=doubts, because=because)


def flipped(verdict: Verdict, *, bools: int | None = None) -> Verdict:
    plan = verdict.outcome.plan
    kept = tuple(place for check in verdict.checks if (place := place_of(check.partition(" in ")[0])) is not None)
    assume = dataclasses.replace(plan.assume, reads=1, bools=bools, kept=kept)
    return another(verdict, dataclasses.replace(plan, assume=assume))


def pass_checks(verdict: Verdict, runs: list[Verdict]) -> tuple[str, ...]:
    """Run on past the checks that end the last of the runs: lines that raise an error if a bool has its other value.

    Whatever such a bool is on a card, the program ends there or goes on as in the first run. Adds each run; returns the
    lines.
    """
    checks: list[str] = []
    while len(checks) < MOST_CHECKS and (line := failed_check(runs[-1])) not in ("", *checks):
        checks.append(line)
        runs.append(flipped(dataclasses.replace(verdict, checks=tuple(checks))))
    return tuple(checks)


def failed_check(verdict: Verdict) -> str:
    """The line at which an unknown bool ended the program; empty if none did."""
    facts = verdict.outcome.facts or {}
    if verdict.ran is not None or not facts.get("error") or facts.get("until"):
        return ""
    line = str(facts.get("error_line", ""))
    return line if any(one.line == line and one.dtype == "bool" for one in verdict.unknown) else ""


def needs_numbers_alone(verdict: Verdict, other: Verdict, reads: list[Unknown]) -> bool:
    """Whether bools hide what numbers do: the program took another way, and asked for other memory or read less."""
    if other.outcome.facts is None or len({one.dtype == "bool" for one in reads}) < 2:
        return False
    return requests_of(verdict) != requests_of(other) or not is_flipped(verdict.unknown, other.unknown)


def is_open(verdict: Verdict, other: Verdict, reads: list[Unknown]) -> bool:
    """Whether other values than 0 and 1 may need other memory: the requests differ, and not just from run to run."""
    if requests_of(verdict) == requests_of(other) or all(one.dtype == "bool" for one in reads):
        return False
    same = another(verdict, verdict.outcome.plan)
    return requests_of(same) == requests_of(verdict) or READS in verdict.doubts


def requests_of(verdict: Verdict) -> object:
    """What the program asked for in all: numbers of requests and bytes, by allocator."""
    return (verdict.outcome.facts or {}).get("requests")


def ended(verdict: Verdict) -> str:
    error = (verdict.outcome.facts or {}).get("error", "")
    return f"ends with {error}" if error else "ends early"


def with_least_workspaces(verdict: Verdict) -> Verdict:
    """The run did not fit, with workspaces as they are likely: try the least that they may be."""
    other = another(verdict, dataclasses.replace(verdict.outcome.plan, workspaces="least"))
    if other.ran is False:
        return without(verdict, SCRATCH)
    ended = "it fits" if other.ran else "it ends for another reason"
    which = library_names(verdict.outcome.workspaces)
    return dataclasses.replace(verdict, because=f"with the smallest workspaces that {which} may want {ended}")


def with_both_workspaces(verdict: Verdict) -> Verdict:
    """What it needs if workspaces are the least and the most that they may be."""
    plan, peak = verdict.outcome.plan, verdict.peak or 0
    low, high = (another(verdict, dataclasses.replace(plan, workspaces=end)) for end in ("least", "most"))
    if low.ran:
        verdict = dataclasses.replace(verdict, less=max(0, peak - (low.peak or 0)))
    if high.ran:
        verdict = dataclasses.replace(verdict, more=max(0, (high.peak or 0) - peak))
    elif high.ran is False:  # it needs more than there is
        verdict = dataclasses.replace(verdict, more=max(verdict.more, verdict.memory + 1 - peak))
    is_clear = TOP in verdict.doubts and (verdict.high or 0) <= verdict.memory
    return without(verdict, TOP) if is_clear else verdict


def with_most_on_top(verdict: Verdict) -> Verdict:
    """It fits if the CUDA context, kernels and workspaces are as assumed. With the most, an allocator may make do."""
    other = another(verdict, dataclasses.replace(verdict.outcome.plan, most_on_top=True, workspaces="most"))
    if other.ran:
        return dataclasses.replace(without(verdict, TOP), fits_with_most=True)
    verdict = dataclasses.replace(verdict, word="unsure", doubts=tuple(dict.fromkeys((*verdict.doubts, TOP))))
    return dataclasses.replace(verdict, because=verdict.because or because_of(verdict))


def tried_with_arena(verdict: Verdict) -> Verdict:
    """Whether the arena changes a verdict of the framework's own allocator, if the live data alone would fit."""
    plan, failure = verdict.outcome.plan, verdict.failure or {}
    if verdict.fits is not False or plan.allocator != "native" or verdict.live is None:
        return verdict
    if failure.get("framework") not in ("PyTorch", "CuPy") or not failure.get("requested"):
        return verdict
    if verdict.live + failure["requested"] > verdict.memory - verdict.context:
        return verdict
    fits = another(verdict, dataclasses.replace(plan, allocator="arena", most_on_top=True, workspaces="most")).ran
    if fits is False and (plan.on_top.span or verdict.outcome.workspaces):  # with less on top it may
        fits = None if another(verdict, dataclasses.replace(plan, allocator="arena")).ran else False
    return dataclasses.replace(verdict, with_arena=fits)


def another(verdict: Verdict, plan: Plan) -> Verdict:
    """A quiet run, which may take longer than the first, but not for ever: a loop may depend on what was changed."""
    limit = AT_LEAST + TIMES * (verdict.outcome.facts or {}).get("seconds", 0)
    plan = dataclasses.replace(plan, report=None, record=None, spread=False)
    return judge(run_dry(plan, quiet=True, limit=limit))


def with_nonzero(plan: Plan, share: str) -> Plan:
    assume = Assumptions.of([*plan.assume.text().splitlines(), f"nonzero={share}"])
    return dataclasses.replace(plan, assume=assume, spread=False)


def without(verdict: Verdict, doubt: str) -> Verdict:
    """A doubt less: if none is left, the verdict is what the run said."""
    doubts = tuple(one for one in verdict.doubts if one != doubt)
    word = "unsure" if doubts else "fits" if verdict.ran else "does not fit"
    verdict = dataclasses.replace(verdict, doubts=doubts, word=word)
    return dataclasses.replace(verdict, because=because_of(verdict))


def named(verdict: Verdict) -> str:
    return {True: "fits", False: "does not fit", None: "ends for another reason"}[verdict.ran]

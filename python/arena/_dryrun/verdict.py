"""What a dry run means: whether the program fits, what it held and where, and which cards are large enough."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
from dataclasses import dataclass
from typing import Any

from .._analysis.replay import Replayed
from .._cards import Card, read_cards
from .._util.sizes import format_size
from .._words.format import counted, format_range, format_share
from .on_top import OnTop
from .qualified import Unknown, control_reads, span_of, suspect, unknown_in_words, unknown_of
from .run import Outcome
from .table import Table, tabulate
from .table_words import table_in_words
from .workspaces import LIKELY, library_names, spans

__all__ = [
    "READS",
    "SCRATCH",
    "SIZES",
    "TOP",
    "Account",
    "Verdict",
    "because_of",
    "cards_in_words",
    "in_words",
    "judge",
    "limits_of",
    "replayed",
]

UNCOMPUTED = {
    "none": "Nothing is computed: values are zero or left over, so shapes and branches that depend on data may differ.",
    "control": "Large tensors and raw kernels are not computed. Where the program reads them, they are zero.",
    "all": "Raw kernels, and what has no CPU version, are not computed. Where the program reads them, they are zero.",
}
ESTIMATES = "Memory of the CUDA context, and workspaces of libraries that cannot be asked, are estimates."
SIZES, READS, SCRATCH, TOP = "sizes", "reads", "scratch", "top"  # what a verdict may depend on


@dataclass(frozen=True)
class Account:
    """What one allocator gave the program, at most."""

    who: str
    live: int | None
    reserved: int | None
    failures: int


@dataclass(frozen=True)
class Verdict:
    """What is known after a dry run. Sizes are in bytes."""

    outcome: Outcome
    word: str | None
    """``fits``, ``does not fit`` or ``unsure``; none if the program ended for another reason or used no device."""
    ran: bool | None
    """What this run alone says, with the values that it assumed."""
    memory: int
    """What the device has."""
    top: OnTop
    """What comes on top of what the simulated driver counted."""
    peak: int | None
    """The most that was in use on the simulated device; none if the program did not use it."""
    accounts: tuple[Account, ...]
    table: Table | None
    """What was live at the peak or, if a request ended the program, then; none if the device was not used."""
    failure: dict[str, Any] | None
    """The request that ended the program, if one did."""
    unknown: tuple[Unknown, ...] = ()
    """The values that were never computed and reached the program."""
    least: int | None = None
    most: int | None = None
    """The peak with the smallest and the largest sizes that unknown values could have."""
    less: int = 0
    more: int = 0
    """How much less and more it may be because workspaces are estimates."""
    doubts: tuple[str, ...] = ()
    """What another run could settle: ``sizes``, ``reads``, ``scratch``, ``top``."""
    because: str = ""
    """Why it is unsure."""
    settled: bool = False
    """Whether another run has shown that the values read do not matter."""
    checks: tuple[str, ...] = ()
    """The lines where the program ends if an unknown bool has its other value."""
    fits_with_most: bool = False
    """Whether another run has shown that it fits with the most that can come on top."""
    with_arena: bool | None = None
    """Whether it fits with the arena, if that was tried because it does not with the framework's own allocator."""

    @property
    def context(self) -> int:
        """What the CUDA context takes on the simulated device."""
        card = self.outcome.plan.device.card
        return card.context if card is not None else 0

    @property
    def low(self) -> int | None:
        """What the program needs of the device, at least and at most."""
        return None if self.least is None else max(self.context, self.least - self.less) + self.top.low

    @property
    def high(self) -> int | None:
        if self.most is None:
            return None
        most = self.most + self.more + self.top.high
        return min(most, self.memory) if self.fits_with_most else most

    @property
    def fits(self) -> bool | None:
        return {"fits": True, "does not fit": False}.get(self.word or "")

    @property
    def live(self) -> int | None:
        known = [account.live for account in self.accounts if account.live is not None]
        return sum(known) if known and len(known) == len(self.accounts) else None

    @property
    def failures(self) -> int:
        return sum(account.failures for account in self.accounts)

    @functools.cached_property
    def need(self) -> int | None:
        """What the program surely manages with, the context aside; if a request ended it, what it needs at least."""
        if self.peak is None:
            return None
        more: int | None = (self.failure or {}).get("requested")
        return max(0, self.peak - self.context) + (more or 0)

    def cards(self) -> list[tuple[Card, str]]:
        """Each card, with ``yes``, ``maybe`` or ``no``. An allocator that caches may manage with less than it took."""
        if self.need is None:
            return []
        least = self.need if self.failure or self.live is None else min(self.need, self.live)
        is_sure = self.fits or (self.ran and self.doubts == (TOP,))
        enough = "yes" if is_sure else "maybe"  # what comes after the end of the program is not known
        most = self.need + max(0, (self.most or 0) - (self.peak or 0)) + self.more
        least = max(0, least - ((self.peak or 0) - self.least) - self.less) if self.least is not None else least
        if self.failure and not self.doubts:  # this device was not enough
            least = max(least, self.memory - self.context + 1)
        found = []
        for card in read_cards():
            taken = self.outcome.plan.on_top_of(card).context
            word = "no" if card.memory - taken.low < least else enough if most <= card.memory - taken.high else "maybe"
            found.append((card, word))
        return found


def judge(outcome: Outcome) -> Verdict:
    facts = outcome.facts or {}
    card = outcome.plan.device.card
    driver = facts.get("driver")
    accounts = tuple(accounts_of(facts))
    failure = facts.get("ended_by")
    failures = sum(account.failures for account in accounts)
    memory = outcome.plan.device.memory or (card.memory if card is not None else 0)
    peak = driver["peak"] if driver and driver["peak"] else None
    context = card.context if card is not None else 0
    ran = does_fit(outcome, failure, failures, is_used=peak is not None)
    return qualify(
        Verdict(
            outcome=outcome,
            word={True: "fits", False: "does not fit", None: None}[ran],
            ran=ran,
            memory=memory,
            top=outcome.plan.on_top,
            peak=peak,
            accounts=accounts,
            table=tabulate(facts, outcome.trace, peak=peak, context=context, on_top=outcome.plan.on_top.low),
            failure=failure,
            unknown=unknown_of(outcome.unknown),
        )
    )


def qualify(verdict: Verdict) -> Verdict:
    """What is not known, of values and of the card, makes of the verdict of one run."""
    if verdict.peak is None:
        return verdict
    taken, most = span_of(verdict.unknown)
    less, more = spans(verdict.outcome.workspaces) if verdict.outcome.plan.workspaces == LIKELY else (0, 0)
    verdict = dataclasses.replace(
        verdict,
        least=max(verdict.context, verdict.peak - taken),
        most=verdict.peak + most - taken,
        less=less,
        more=more,
    )
    if verdict.ran is None:
        facts = verdict.outcome.facts or {}
        cause = suspect(verdict.unknown, facts.get("error_line", ""))
        if cause is None or not facts.get("error") or facts.get("until"):
            return verdict
        because = (
            f"{cause.name}, which was never computed, may have caused the error. Say what it is with --assume "
            f"{cause.place}=1, or have more computed with --values all"
        )
        return dataclasses.replace(verdict, word="unsure", because=because)
    found = {
        SIZES: bool(most) if not verdict.ran else (verdict.most or 0) > verdict.memory > 0,
        READS: bool(control_reads(verdict.unknown)),
        SCRATCH: not verdict.ran and less > 0,
        TOP: verdict.ran and (verdict.high or 0) > verdict.memory > 0,
    }
    doubts = tuple(doubt for doubt, is_open in found.items() if is_open)
    verdict = dataclasses.replace(verdict, word="unsure" if doubts else verdict.word, doubts=doubts)
    return dataclasses.replace(verdict, because=because_of(verdict))


def because_of(verdict: Verdict) -> str:
    """Why the verdict of one run is unsure, by the first of its doubts."""
    if SIZES in verdict.doubts:
        if not verdict.ran:
            return "sizes that were never computed took part of the memory"
        share = format_share((verdict.most or 0) + verdict.top.low, verdict.memory)
        return f"with the largest sizes possible, {share} would be in use"
    if READS in verdict.doubts:
        name = control_reads(verdict.unknown)[0].name
        return f"what follows may depend on {name}, which was never computed"
    if SCRATCH in verdict.doubts:
        return f"workspaces of {library_names(verdict.outcome.workspaces)} may be smaller"
    if TOP in verdict.doubts:
        context, more = verdict.top.context.high if verdict.top.span else 0, verdict.more
        kernels = f"the CUDA context and kernels take the most ({format_size(context)})" if context else ""
        scratch = f"workspaces of {library_names(verdict.outcome.workspaces)} are the largest" if more else ""
        needed = format_share(verdict.high or 0, verdict.memory)
        return f"if {' and '.join(filter(None, (kernels, scratch)))}, it needs {needed}"
    return ""


def does_fit(outcome: Outcome, failure: dict[str, Any] | None, failures: int, *, is_used: bool) -> bool | None:
    until = (outcome.facts or {}).get("until", "")
    if failure or (failures and outcome.exit and not until):
        return False
    if until.startswith("exec"):
        return None
    if outcome.exit or outcome.facts is None or not is_used:
        return None
    return True


def accounts_of(facts: dict[str, Any]) -> list[Account]:
    found = []
    for pool in facts.get("arenas", ()):
        if pool["allocations"] or pool["failures"]:
            found.append(Account("arena", pool["peak_live"], pool["peak_reserved"], pool["failures"]))
    torch, cupy = facts.get("torch"), facts.get("cupy_pool")
    if torch is not None and torch["allocator"] == "its own":
        found.append(Account("PyTorch's allocator", torch["live"], torch["reserved"], torch["failures"]))
    elif torch is not None and torch["allocator"] == "another":
        found.append(Account("an allocator that the program gave PyTorch", None, None, 0))
    if cupy is not None and (cupy["total"] or facts.get("cupy") == "another"):
        found.append(Account("CuPy's pool", cupy["live"] if cupy["total"] else None, cupy["total"] or None, 0))
    return found


def replayed(outcome: Outcome) -> Replayed | None:
    """PyTorch's requests in an arena with memory for all: what was live when is the same in every allocator."""
    if outcome.trace is None or not any(event.kind == "allocate" for event in outcome.trace):
        return None
    return outcome.trace.replay(device="sim:1TiB")


def limits_of(values: str) -> tuple[str, ...]:
    """What the figures are subject to."""
    return UNCOMPUTED[values], ESTIMATES


def cards_in_words(verdict: Verdict) -> str:
    """The smallest card that is large enough, in words."""
    cards = verdict.cards()
    sure = [card for card, word in cards if word == "yes"]
    maybe = [card for card, word in cards if word == "maybe"]
    if not sure and not maybe:
        return "no card that arena cards lists is large enough" if cards else ""
    if not sure:
        return f"cards that may be large enough: {named(maybe[0])} and larger"
    text = f"cards that are large enough: {named(sure[0])} and larger"
    smaller = [card for card in maybe if card.memory < sure[0].memory]
    return f"{text}; perhaps {named(smaller[0])}" if smaller else text


def named(card: Card) -> str:
    return f"{card.key} ({format_size(card.memory)})"


def in_words(verdict: Verdict, by: str = "line") -> list[str]:
    """The verdict and the figures, a line each, with the table of the peak by line, module or kind."""
    device = verdict.outcome.plan.device.label
    return [
        f"arena: {headline(verdict, device)}",
        *(f"  {account_in_words(account)}" for account in verdict.accounts),
        *(
            f"arena: {line}"
            for line in unknown_in_words(
                verdict.unknown, settled=verdict.settled, doubted=READS in verdict.doubts, checks=verdict.checks
            )
        ),
        *(
            table_in_words(verdict.table, by, is_least=verdict.top.high > verdict.top.low)
            if verdict.table is not None
            else ()
        ),
        *([text] if (text := cards_in_words(verdict)) else []),
    ]


def headline(verdict: Verdict, device: str) -> str:
    if verdict.outcome.facts is None:
        return without_facts(verdict.outcome.exit)
    if verdict.peak is None:
        return "the program used no GPU: neither PyTorch nor CuPy asked the simulated device for anything"
    part = format_share(verdict.peak, verdict.memory) if verdict.memory else format_size(verdict.peak)
    until = verdict.outcome.facts.get("until", "")
    if verdict.word == "unsure":
        return f"unsure whether it fits on {device}: {verdict.because}. {in_this_run(verdict, part)}"
    if verdict.ran is None:
        early = early_end(until)
        return f"whether it fits on {device} is not known: {early}. Up to then {part} were in use"
    if verdict.fits:
        context = f", {context_in_words(verdict)} of it for the CUDA context and kernels" if verdict.context else ""
        note = f"; {counted(verdict.failures, 'request')} failed, and the program went on" if verdict.failures else ""
        seen = f" for what was seen until {until}" if until.startswith("--stop-after") else ""
        return f"fits on {device}{seen}: {most_in_words(verdict, part)}{context}{scratch_in_words(verdict)}{note}"
    return f"does not fit on {device}: {request_in_words(verdict)}, with {part} in use at the peak"


def without_facts(code: int) -> str:
    """What is said of a process that left nothing."""
    if code < 0:
        return f"the program was killed ({ended(code)}), and nothing is known of its memory"
    return (
        f"the program ended with {ended(code)} and left no report, so nothing is known of its memory: something "
        "outside of Python called exit or _exit, or another program took its place"
    )


def early_end(until: str) -> str:
    if until.startswith("exec: "):
        other = until.removeprefix("exec: ")
        return f"the program replaced itself by another ({other}), whose memory is not counted"
    return f"the program ended early{f' ({until})' if until else ''}"


def most_in_words(verdict: Verdict, part: str) -> str:
    """The peak; from the smallest to the largest, if it is not known exactly."""
    if verdict.low is None or verdict.high is None or verdict.low == verdict.high:
        return f"at most {part} in use"
    return f"needs {format_range(verdict.low, verdict.high, verdict.memory)}"


def scratch_in_words(verdict: Verdict) -> str:
    """What part of the range is because workspaces are estimates."""
    if not verdict.less + verdict.more:
        return ""
    part = format_size(verdict.less + verdict.more)
    return (
        f"; workspaces of {library_names(verdict.outcome.workspaces)}, which are estimates, make {part} of that range"
    )


def context_in_words(verdict: Verdict) -> str:
    return format_range(verdict.top.context.low, verdict.top.context.high)


def in_this_run(verdict: Verdict, part: str) -> str:
    if verdict.ran:
        return f"In this run it fits, with at most {part} in use"
    if verdict.ran is None:
        return f"Up to the error {part} were in use"
    return f"In this run {request_in_words(verdict)}, with {part} in use at the peak"


def request_in_words(verdict: Verdict) -> str:
    failure = verdict.failure or {}
    size = f"a request for {format_size(failure['requested'])} failed" if failure.get("requested") else "memory ran out"
    return f"{size} at {failure['line']}" if failure.get("line") else size


def ended(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def account_in_words(account: Account) -> str:
    figures = [
        f"{format_size(value)} {word}"
        for value, word in ((account.live, "live"), (account.reserved, "reserved"))
        if value is not None
    ]
    return f"{account.who}: at most {' and '.join(figures)}" if figures else f"{account.who}: not known"

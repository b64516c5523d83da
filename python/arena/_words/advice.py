"""What to do about a request that failed: the one place that decides. The error, and every report of it, say this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .account import graphs_hint, is_held_by_graphs, rounded
from .format import apart, format_size
from .moving import ALLOWED, how_to_allow, in_words, sentence
from .verdicts import Verdict

if TYPE_CHECKING:  # `import arena` brings this module, and classes of typing take long to make
    from typing import Protocol

    class Failed(Protocol):
        """What is known of a request that failed: see :class:`OutOfMemoryError`."""

        verdict: str
        requested: int
        largest: int
        account: dict[str, int]
        set_free_by_moving: int
        moving: str
        most: int
        scope: str
        budget: int
        budget_used: int

    Advice = tuple[str, tuple[str, ...]]

__all__ = ["advise", "is_of_budget"]

_NOT_BY_GRAPHS = (Verdict.CAPTURING, Verdict.IN_TRANSIT)  # verdicts with a better next step

_STEPS: dict[str, str] = {
    Verdict.CAP_REACHED: "raise the cap with set_cap(), or free something first.",
    Verdict.HEADROOM_KEPT: "lower headroom=, or free memory that is in use outside this arena.",
    Verdict.DEVICE_FULL: "free memory that is in use outside this arena (by this process's CUDA context and "
    "libraries, or by other processes: see nvidia-smi), or use a smaller cap.",
    Verdict.CAPTURING: "make room before the capture begins: raise the cap, or free memory and synchronize. During a "
    "capture only new or idle memory can be used.",
    Verdict.IN_TRANSIT: "try again: another thread is getting memory, or giving it back.",
    Verdict.FRAGMENTED: "free what lies between the free pieces, or use virtual memory (vmm=True, no upstream=), where "
    "free memory in pieces is never useless.",
    Verdict.TOO_FEW_ADDRESSES: "free what lies between the free pieces, or use a smaller cap: the driver gave so few "
    "addresses for this one that no place is left in one piece, although there is memory.",
    Verdict.PINNED: "unpin() what need not stay in its place: moving live data would have made room.",
}


def advise(failed: Failed) -> Advice:
    """Decide what helps: what to say beyond the verdict, if anything, and the steps to take, the first one first."""
    if failed.most and failed.requested > failed.most:
        return "", (_never(failed),)
    if is_of_budget(failed.verdict):
        return "", (_budget_step(failed),)
    found = _moving_advice(failed) or _verdict_advice(failed)
    captured = failed.account.get("captured", 0)
    if not captured or failed.verdict in _NOT_BY_GRAPHS:
        return found
    hint = graphs_hint(f"{captured:,} bytes")
    if failed.requested <= failed.largest + captured and not failed.set_free_by_moving:
        return "", (hint,)  # nothing else is needed
    why, steps = found
    return (why, (*steps, hint)) if is_held_by_graphs(failed.account) else found


def is_of_budget(verdict: str) -> bool:
    """Whether the budget of a scope is why a request failed."""
    return Verdict.BUDGET_REACHED.is_in(verdict)


def _never(failed: Failed) -> str:
    """No matter what is freed: which limit is in the way."""
    cap, total, headroom = (failed.account.get(name, 0) for name in ("cap", "device_total", "headroom"))
    if failed.budget and failed.requested > failed.budget:
        size, limit = apart(failed.requested, failed.budget)
        what = f"the budget of scope {failed.scope}, {limit}, whatever is freed: raise budget="
    elif failed.requested > total or (cap >= total and not headroom):
        size, limit = apart(failed.requested, total if failed.requested > total else failed.most)
        return f"{size} can never pass on this device, which has {limit} in all: ask for less at a time."
    elif total - headroom < cap:
        size, limit = apart(failed.requested, total - headroom)
        what = f"a headroom of {format_size(headroom)}, which leaves {limit} of the device: lower headroom="
    elif failed.requested <= cap:
        size, limit = apart(failed.requested, failed.most)
        what = f"a cap of {format_size(cap)}, which is {limit} in whole granules: raise the cap with set_cap()"
    else:
        size, limit = apart(failed.requested, cap)
        what = f"a cap of {limit}, whatever is freed: raise the cap with set_cap()"
    return f"{size} can never pass under {what}, or ask for less at a time."


def _budget_step(failed: Failed) -> str:
    if not failed.budget:  # an error from before that was known
        return "raise the scope's budget=, or free what it holds first."
    needed = failed.budget_used + rounded(failed.requested)
    now, then = apart(failed.budget, needed)
    return f"raise budget= of scope {failed.scope} from {now} to {then} or more, or free what it holds first."


def _verdict_advice(failed: Failed) -> Advice:
    account = failed.account
    outside = account.get("device_total", 0) - sum(account.get(name, 0) for name in ("device_free", "reserved"))
    if failed.verdict == Verdict.DEVICE_FULL and outside <= 0:
        return "", ("free something first: all that the device has is in this arena.",)
    if failed.verdict == Verdict.PINNED and failed.moving not in ("", ALLOWED):
        step = (
            "unpin() what need not stay in its place, and allow moving: only both together would have made room. To "
            f"allow it, {how_to_allow(failed.moving)}"
        )
        return sentence(in_words(failed.moving)), (step,)
    return "", (_STEPS[failed.verdict],) if failed.verdict in _STEPS else ()


def _moving_advice(failed: Failed) -> Advice | None:
    """What to do if moving live data would have been enough; nothing otherwise."""
    if not failed.set_free_by_moving:
        return None
    is_captured = failed.verdict == Verdict.CAPTURING
    why = "live data is not moved during a capture" if is_captured else in_words(failed.moving)
    if not why or (failed.moving == ALLOWED and not is_captured):  # it was not tried, or others were faster
        why = "live data was not moved"
    gain = f"Moving it would have set {failed.set_free_by_moving:,} bytes free, and this request would have passed."
    step = how_to_allow(failed.moving, is_captured=is_captured)
    return f"{sentence(why)} {gain}", (f"{step} Or {_STEPS[Verdict.CAPTURING]}" if is_captured else step,)

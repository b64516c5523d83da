"""What to do about a failed request. The error and every report of it take their advice from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .account import graphs_hint, is_held_by_graphs, rounded
from .format import distinct_sizes, format_size
from .moving import ALLOWED, how_to_allow, in_words, sentence
from .verdicts import Verdict

if TYPE_CHECKING:  # `import arena` loads this module, and creating typing's classes is slow
    from typing import Protocol

    class Failed(Protocol):
        """The facts about a failed request: see :class:`OutOfMemoryError`."""

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

_NO_GRAPHS_HINT = (Verdict.CAPTURING, Verdict.IN_TRANSIT)  # verdicts with a better next step

_STEPS: dict[str, str] = {
    Verdict.CAP_REACHED: "raise the cap with set_cap(), or free something first.",
    Verdict.HEADROOM_KEPT: "lower headroom=, or free memory that is in use outside this arena.",
    Verdict.DEVICE_FULL: "free memory that is in use outside this arena (by this process's CUDA context and "
    "libraries, or by other processes: see nvidia-smi), or use a smaller cap.",
    Verdict.CAPTURING: "make room before the capture begins: raise the cap, or free memory and synchronize. During a "
    "capture only new or idle memory can be used.",
    Verdict.IN_TRANSIT: "try again: another thread is allocating or releasing memory right now.",
    Verdict.FRAGMENTED: "free the blocks between the free pieces, or use virtual memory (vmm=True, no upstream=), "
    "which can combine free pieces from anywhere.",
    Verdict.TOO_FEW_ADDRESSES: "free the blocks between the free pieces, or use a smaller cap: the driver reserved so "
    "few addresses for this one that no contiguous range is large enough, although there is memory.",
    Verdict.PINNED: "unpin() what does not have to stay in place: moving live data would have made room.",
}


def advise(failed: Failed) -> Advice:
    """Return an explanation beyond the verdict (or nothing) and the steps to take, in order."""
    if failed.most and failed.requested > failed.most:
        return "", (_never_fits(failed),)
    if is_of_budget(failed.verdict):
        return "", (_budget_step(failed),)
    found = _moving_advice(failed) or _verdict_advice(failed)
    captured = failed.account.get("captured", 0)
    if not captured or failed.verdict in _NO_GRAPHS_HINT:
        return found
    hint = graphs_hint(f"{captured:,} bytes")
    if failed.requested <= failed.largest + captured and not failed.set_free_by_moving:
        return "", (hint,)  # that alone is enough
    why, steps = found
    return (why, (*steps, hint)) if is_held_by_graphs(failed.account) else found


def is_of_budget(verdict: str) -> bool:
    """Whether a request failed because of a scope's budget."""
    return Verdict.BUDGET_REACHED.is_in(verdict)


def _never_fits(failed: Failed) -> str:
    """The limit that is in the way, no matter what is freed."""
    cap, total, headroom = (failed.account.get(name, 0) for name in ("cap", "device_total", "headroom"))
    if failed.budget and failed.requested > failed.budget:
        size, limit = distinct_sizes(failed.requested, failed.budget)
        what = f"the budget of scope {failed.scope} ({limit}), no matter what is freed: raise budget="
    elif failed.requested > total or (cap >= total and not headroom):
        size, limit = distinct_sizes(failed.requested, total if failed.requested > total else failed.most)
        return f"{size} can never fit on this device, which has {limit} in total: request less at a time."
    elif total - headroom < cap:
        size, limit = distinct_sizes(failed.requested, total - headroom)
        what = f"a headroom of {format_size(headroom)}, which leaves {limit} of the device: lower headroom="
    elif failed.requested <= cap:
        size, limit = distinct_sizes(failed.requested, failed.most)
        what = f"a cap of {format_size(cap)}, which is {limit} in whole granules: raise the cap with set_cap()"
    else:
        size, limit = distinct_sizes(failed.requested, cap)
        what = f"a cap of {limit}, no matter what is freed: raise the cap with set_cap()"
    return f"{size} can never fit under {what}, or request less at a time."


def _budget_step(failed: Failed) -> str:
    if not failed.budget:  # an error from a file that does not have the budget
        return "raise the scope's budget=, or free what it holds first."
    needed = failed.budget_used + rounded(failed.requested)
    now, then = distinct_sizes(failed.budget, needed)
    return f"raise budget= of scope {failed.scope} from {now} to {then} or more, or free what it holds first."


def _verdict_advice(failed: Failed) -> Advice:
    account = failed.account
    outside = account.get("device_total", 0) - sum(account.get(name, 0) for name in ("device_free", "reserved"))
    if failed.verdict == Verdict.DEVICE_FULL and outside <= 0:
        return "", ("free something first: this arena already holds all memory of the device.",)
    if failed.verdict == Verdict.PINNED and failed.moving not in ("", ALLOWED):
        step = (
            "unpin() what does not have to stay in place, and allow moving: both are needed to make room. To "
            f"allow moving, {how_to_allow(failed.moving)}"
        )
        return sentence(in_words(failed.moving)), (step,)
    return "", (_STEPS[failed.verdict],) if failed.verdict in _STEPS else ()


def _moving_advice(failed: Failed) -> Advice | None:
    """What to do if moving live data would have been enough, otherwise ``None``."""
    if not failed.set_free_by_moving:
        return None
    is_captured = failed.verdict == Verdict.CAPTURING
    why = "live data is not moved during a capture" if is_captured else in_words(failed.moving)
    if not why or (failed.moving == ALLOWED and not is_captured):  # not tried, or another thread took the memory
        why = "live data was not moved"
    gain = f"Moving it would have freed {failed.set_free_by_moving:,} bytes, and this request would have passed."
    step = how_to_allow(failed.moving, is_captured=is_captured)
    return f"{sentence(why)} {gain}", (f"{step} Or {_STEPS[Verdict.CAPTURING]}" if is_captured else step,)

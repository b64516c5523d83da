"""The functions for a whole cluster: :func:`arena.dask.report` and :func:`arena.dask.trim`."""

from __future__ import annotations

from typing import Any

from .._util.sizes import format_size
from .._words.format import counted
from .._words.plain import plain
from ..errors import UsageError
from .account import VERSION, answer_with_accounts, answer_with_trimmed
from .ask import TIMEOUT, Answers, ask_scheduler, ask_workers, check
from .build import build
from .model import ClusterReport, Missing
from .names import worker_text

__all__ = ["Trimmed", "report", "trim"]


def report(client: Any, *, timeout: str | float = TIMEOUT) -> ClusterReport:
    """Ask all workers for their accounts, and return one report: to print, to show, or to ``save("cluster.html")``.

    A worker that dies meanwhile, or does not answer within ``timeout``, is named in ``missing``. With an asynchronous
    client, await the result.
    """
    seconds = check(client, timeout)
    made: ClusterReport = client.sync(_report, client, seconds)
    return made


def trim(client: Any, *, compact: bool = False, timeout: str | float = TIMEOUT) -> Trimmed:
    """Let every worker return unused memory to its card, and return how much each did, by its address.

    ``compact=True`` also moves live data, as :meth:`arena.Arena.trim` does. A worker where that is not possible now, or
    that does not answer within ``timeout``, is named in ``missing``. With an asynchronous client, await the result.
    """
    seconds = check(client, timeout)
    if not isinstance(compact, bool):
        raise UsageError(f"compact={compact!r} is not accepted; write True or False")
    made: Trimmed = client.sync(_trim, client, compact, seconds)
    return made


class Trimmed(dict[str, int]):
    """The bytes that each worker gave back, by its address."""

    missing: list[Missing]
    """The workers that did not answer, or could not do it, and why."""

    def __init__(self, given: dict[str, int], missing: list[Missing]) -> None:
        super().__init__(given)
        self.missing = missing

    @property
    def total(self) -> int:
        """The sum."""
        return sum(self.values())

    def __str__(self) -> str:
        lines = [f"{format_size(self.total)} returned by {counted(len(self), 'worker')}"]
        lines += [f"  {format_size(size)} by {address}" for address, size in self.items() if size]
        lines += [f"  none by {worker_text(one.name, one.address)}: {one.reason}" for one in self.missing]
        return "\n".join(map(plain, lines))


async def _report(client: Any, timeout: float) -> ClusterReport:
    answers = await ask_workers(client, answer_with_accounts, timeout, lambda many: {"buckets": buckets_for(many)})
    _refuse_other_versions(answers)
    # Afterwards, so that a worker that leaves right now is in one of the lists.
    silent = {one.address for one in answers.missing}
    departed = [one for one in await ask_scheduler(client, timeout) if one["address"] not in silent]
    return build(answers.scheduler, answers.by_worker, answers.missing, departed)


def _refuse_other_versions(answers: Answers) -> None:
    for address, answer in list(answers.by_worker.items()):
        if answer.get("version") != VERSION:
            del answers.by_worker[address]
            reason = "its arena is of another version than the client's; install the same one everywhere"
            answers.missing.append(Missing(str(answer.get("name", "")), address, reason))


def buckets_for(workers: int) -> int:
    """How detailed each timeline is: a cluster of a thousand workers sends no more than one of sixteen.

    >>> buckets_for(8), buckets_for(100), buckets_for(1000)
    (200, 32, 10)
    """
    return min(200, max(10, 3200 // max(workers, 1)))


async def _trim(client: Any, compact: bool, timeout: float) -> Trimmed:
    answers = await ask_workers(client, answer_with_trimmed, timeout, lambda many: {"compact": compact})
    return Trimmed(answers.by_worker, answers.missing)

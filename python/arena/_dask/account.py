"""What a worker answers when a client asks: the accounts of its process's arenas, as plain data. Also what it trims."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from .._inspect.holders import by_framework
from .._inspect.snapshot import Line, Piece
from .._pool.arena import Arena
from .._pool.registry import open_arenas
from .._report import timeline as _timeline
from .._report.build import ACCOUNT, COUNTS
from .._report.model import FIGURES
from ..errors import UsageError
from .card import card_of, host_name
from .held import Held, all_held
from .seat import process_name

__all__ = ["VERSION", "answer_with_accounts", "answer_with_trimmed"]

VERSION = 1  # of the answer


async def answer_with_accounts(buckets: int, dask_worker: Any = None) -> dict[str, Any]:
    """Run on each worker by a client. ``buckets`` limits the samples of the timeline: three are sent for each."""
    # Clocks differ between machines; the worker knows by how much its own differs from the scheduler's.
    now = time.time() + float(getattr(dask_worker, "scheduler_delay", 0.0))
    # In a thread: a snapshot of many blocks would hold up the worker's event loop.
    arenas = await asyncio.to_thread(_accounts, now, buckets)
    return {
        "version": VERSION,
        "name": str(dask_worker.name),
        "host": host_name(),
        "process": process_name(),
        "arenas": arenas,
    }


async def answer_with_trimmed(compact: bool, dask_worker: Any = None) -> int:
    """Run on each worker by a client: the bytes that its arenas gave back."""
    return await asyncio.to_thread(_trim, compact)


def _trim(compact: bool) -> int:
    given = 0
    for pool in _pools():
        with contextlib.suppress(UsageError) if not compact else contextlib.nullcontext():  # closed by now
            before = pool.stats().reserved
            pool.trim(compact=compact)
            given += max(0, before - pool.stats().reserved)
    return given


def _pools() -> list[Arena]:
    return [pool for pool in open_arenas() if pool._core is not None]


def _accounts(now: float, buckets: int) -> list[dict[str, Any]]:
    held = {found.pool._number: found for found in all_held()}
    answers = []
    for pool in _pools():
        with contextlib.suppress(UsageError):  # closed by now
            answers.append(_account(pool, held.get(pool._number), now, buckets))
    return answers


def _account(pool: Arena, found: Held | None, now: float, buckets: int) -> dict[str, Any]:
    samples, peak = _history(pool, now, buckets)
    snapshot = pool.snapshot()
    stats = snapshot.stats
    return {
        "number": pool._number,
        "workers": sorted(worker.address for worker in found.workers.values()) if found is not None else [],
        "sharing": found.seat.sharing if found is not None else 1,
        "device": {
            "number": pool.device,
            "label": pool._label,
            "name": pool._name,
            "simulated": pool.is_simulated,
            "total": stats["device_total"],
            "free": stats["device_free"],
            "card": card_of(pool._driver, pool.device),
        },
        "account": {name: stats[name] for name in ACCOUNT},
        "peak": {name: stats[name] for name in ("peak_live", "peak_reserved")},
        "largest": stats["largest"],
        "counts": {name: stats[name] for name in COUNTS},
        "lines": _by_line(snapshot.live),
        "peak_lines": _by_line(peak),
        "frameworks": [(one.name, one.bytes, one.blocks) for one in by_framework(snapshot.live)],
        "timeline": samples,
    }


def _by_line(live: Iterable[Piece]) -> list[tuple[list[Line], int, int]]:
    """Bytes and blocks by line. With whole paths: workers may run different files of the same name."""
    sums: dict[tuple[Line, ...], list[int]] = defaultdict(lambda: [0, 0])
    for piece in live:
        entry = sums[piece.lines]
        entry[0] += piece.size
        entry[1] += 1
    return [([*lines], size, blocks) for lines, (size, blocks) in sums.items() if lines]


def _history(pool: Arena, now: float, buckets: int) -> tuple[dict[str, Any] | None, list[Piece]]:
    """The account over time, by the scheduler's clock, and what was live at the peak."""
    if pool._watched is None:
        return None, []
    seconds, points = pool._watched.history()
    points = _timeline.thin(points, buckets)
    peak = pool._watched.peak()
    samples = {
        "at": [now - seconds + at for at, _ in points],
        "figures": {name: [getattr(stats, name) for _, stats in points] for name in FIGURES},
    }
    return samples, peak.live if peak is not None else []

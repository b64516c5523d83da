"""Cards of arenas, memory, scopes, accounts and devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from .. import _core
from .._dask.model import ClusterReport
from .._inspect.holders import Holder, by_line
from .._inspect.since import Since
from .._inspect.snapshot import Snapshot
from .._inspect.timeline import Timeline
from .._pool.arena import Arena
from .._pool.buffer import Buffer
from .._pool.graph import GraphMemory
from .._pool.scope import Scope
from .._report.model import Report, Reports
from .._report.timeline import make, thin
from .._report.timeline_html import picture
from .._words.account import REASONS
from ..errors import UsageError
from .card import Card, card_of, counted, rows_of, size, text

__all__: list[str] = []


def account(figures: dict[str, int] | _core.Stats) -> str:
    """In a few words: ``8 MiB live, 16 MiB of 64 MiB reserved``."""
    live, reserved, cap = (
        figures[name] if isinstance(figures, dict) else getattr(figures, name) for name in ("live", "reserved", "cap")
    )
    return f"{size(live)} live, {size(reserved)} of {size(cap)} reserved"


@card_of.register
def _arena(pool: Arena) -> Card:
    core = pool._core
    where = f"arena.Arena on device {pool.device}"
    if core is None:
        return Card(f"{where}, closed")
    try:
        stats = core.stats()
    except UsageError:
        return Card(f"{where}, of the parent process")
    figures = [
        ("peaks", f"{size(stats.peak_live)} live, {size(stats.peak_reserved)} reserved"),
        ("largest request that would pass", size(stats.largest)),
        ("device", f"{pool._name}, {size(stats.device_total)}"),
    ]
    return Card(f"{where}: {account(stats)}", figures, lambda: _held_in(pool))


def _held_in(pool: Arena) -> list[Holder]:
    with contextlib.suppress(UsageError):  # closed in the meantime
        return by_line(pool.snapshot().live)
    return []


@card_of.register
def _buffer(buffer: Buffer) -> Card:
    state = ", freed" if buffer._core is None else ""
    line = f"arena.Buffer of {size(buffer.nbytes)} at {buffer.ptr:#x} on device {buffer._device}{state}"
    return Card(line, [("bytes", f"{buffer.nbytes:,}"), ("held, after rounding", f"{buffer.size:,}")])


@card_of.register
def _scope(scope: Scope) -> Card:
    state = "ended" if scope._ended else "not entered" if scope._core is None else "entered"
    budget = f", budget {size(scope.budget)}" if scope.budget is not None else ""
    line = f"arena.Scope {scope.name!r}, {state}: {size(scope.live)} live, {size(scope.peak)} at the peak{budget}"
    return Card(line, [("blocks", f"{scope.blocks:,}")], lambda: _held_by(scope))


def _held_by(scope: Scope) -> list[Holder]:
    with contextlib.suppress(UsageError):  # the arena belongs to the parent process
        return by_line(scope.outlived().pieces)
    return []


@card_of.register
def _graph(memory: GraphMemory) -> Card:
    return Card(f"arena.GraphMemory, {'released or not entered' if memory._graph is None else 'held'}")


@card_of.register
def _stats(stats: _core.Stats) -> Card:
    stranded = f", {size(stats.stranded)} stranded" if stats.stranded else ""
    line = f"arena.Stats: {account(stats)}{stranded}; the largest request that would pass is {size(stats.largest)}"
    return Card(line, more=lambda: account_table(stats))


def account_table(stats: _core.Stats) -> str:
    rows = [(text(name), f"{getattr(stats, name):,}", text(words)) for name, words in REASONS.items()]
    rows.append(("= reserved", f"{stats.reserved:,}", f"of a cap of {stats.cap:,}"))
    counts = ("blocks", "allocations", "hits", "failures", "driver_calls")
    rows += [(text(name.replace("_", " ")), f"{getattr(stats, name):,}", "") for name in counts]
    return rows_of(rows, numbers=(1,))


@card_of.register
def _snapshot(snapshot: Snapshot) -> Card:
    blocks = counted(snapshot.stats["blocks"], "block")
    line = f"arena.Snapshot of device {snapshot.device}: {account(snapshot.stats)}, {blocks}"
    figures = [
        ("largest request that would pass", size(snapshot.stats["largest"])),
        ("stranded", size(snapshot.stats["stranded"])),
        ("handles", f"{len(snapshot.handles):,}"),
    ]
    return Card(line, figures, lambda: by_line(snapshot.live))


@card_of.register
def _since(since: Since) -> Card:
    lines: Sequence[Holder] = since.lines
    most = f", most from {lines[0].name}" if lines and lines[0].name else ""
    known = [line for line in lines if line.name]
    line = f"arena.Since: {size(since.bytes)} in {counted(len(since.pieces), 'block')} still live{most}"
    return Card(line, (), lambda: known)


@card_of.register
def _report(report: Report) -> Card:
    moment = f" {report.moment}" if report.moment else ""
    failed = f" A request of {size(report.request)} failed: {report.verdict}." if report.verdict else ""
    return Card(f"arena.Report of device {report.device['number']}: {account(report.account)}.{moment}{failed}")


@card_of.register
def _reports(reports: Reports) -> Card:
    return Card(f"arena.Reports of {counted(len(reports), 'arena')}")


@card_of.register
def _cluster_report(report: ClusterReport) -> Card:
    missing = f", {counted(len(report.missing), 'worker')} missing" if report.missing else ""
    line = f"arena.dask.ClusterReport of {counted(len(report.arenas), 'arena')}: {account(report.account)}{missing}"
    return Card(line)


@card_of.register
def _timeline(timeline: Timeline) -> Card:
    samples = make(thin([(at - timeline._taken[0][0], stats) for at, stats in timeline._taken]), "s")
    line = f"arena.Timeline of device {timeline._pool.device}: {counted(len(timeline), 'sample')}"
    if samples is None:
        return Card(line)
    peak = size(samples.figures["live"][samples.peak])
    return Card(f"{line}, at most {peak} live", more=lambda: picture(samples))


@card_of.register
def _driver(driver: _core.Driver) -> Card:
    version = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
    kind = "simulated" if driver.is_simulated else "NVIDIA's"
    return Card(repr(driver).strip("<>"), [("CUDA", version), ("kind", kind), ("library", driver.path)])


@card_of.register
def _device(device: _core.DeviceInfo) -> Card:
    figures = [
        ("memory", size(device.total)),
        ("free", "unknown" if device.free is None else size(device.free)),
        ("virtual memory", f"granules of {size(device.granularity)}" if device.virtual_memory else "none"),
        ("peers", ", ".join(map(str, device.peers)) or "none"),
    ]
    return Card(repr(device).strip("<>"), [*figures, *([("problem", device.problem)] if device.problem else [])])

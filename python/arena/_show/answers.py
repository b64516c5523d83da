"""Cards of results: traces and recordings, replays, fits, comparisons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .._analysis.batch import LargestBatch
from .._analysis.compare import Comparison
from .._analysis.compare.model import FIGURES
from .._analysis.fit.answer import Fit
from .._analysis.replay import Peak, Replayed
from .._inspect.holders import Holder, line_text
from .._report.parts import name_of
from .._report.timeline import seconds
from .._trace import Recording, Trace
from .._words.format import format_range
from .card import Card, card_of, counted, size, table, text

__all__: list[str] = []

MOST_EVENTS = 100_000  # a longer trace is not searched for its peak
FITS = {True: "fits", False: "does not fit", None: "fits as far as it was recorded"}


@card_of.register
def _trace(trace: Trace) -> Card:
    is_timed = trace.timed and len(trace) > 0 and trace[-1].time > 0
    over = f" over {seconds(trace[-1].time)}" if is_timed else ""
    by = f", from {trace.facts['program']}" if trace.facts.get("program") else ""
    wrong = f"; {trace.problem}" if trace.problem else ""
    figures = [(str(name), str(value)) for name, value in trace.facts.items() if not isinstance(value, dict)]
    line = f"arena.Trace: {counted(len(trace), 'event')}{over}{by}{wrong}"
    is_quick = bool(trace.lines) and len(trace) <= MOST_EVENTS
    return Card(line, figures, lambda: held_at_peak(trace) if is_quick else (), "Requested bytes at the peak, by line")


def held_at_peak(trace: Trace) -> Sequence[Holder]:
    """What was live at the peak, by line."""
    sizes: dict[int, tuple[int, int]] = {}
    now = most = at = 0
    for index, event in enumerate(trace):
        if event.kind == "allocate":
            sizes[event.block] = (event.size, event.line)
            now += event.size
            most, at = max((most, at), (now, index), key=lambda one: one[0])
        elif event.kind == "free":
            now -= sizes.get(event.block, (0, 0))[0]
    held = set()
    for index in range(at + 1 if sizes else 0):
        event = trace[index]
        if event.kind == "allocate":
            held.add(event.block)
        elif event.kind == "free":
            held.discard(event.block)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for block in held:
        size_, line = sizes[block]
        entry = sums[line_text(trace.lines.get(line, ()))]
        entry[0] += size_
        entry[1] += 1
    return sorted((Holder(name, *entry) for name, entry in sums.items()), key=lambda one: -one.bytes)


@card_of.register
def _recording(recording: Recording) -> Card:
    state = "" if recording._may_stop else ", ended"
    lack = f", incomplete: {recording._lack}" if recording._lack else ""
    return Card(f"arena.Recording to {recording.path}: {counted(recording.events, 'event')}{state}{lack}")


@card_of.register
def _peak(peak: Peak) -> Card:
    line = f"arena.Peak: {size(peak.live)} live, {size(peak.reserved)} reserved, at event {peak.event:,}"
    return Card(f"{line}, {seconds(peak.time)} into the run" if peak.time else line)


@card_of.register
def _replayed(done: Replayed) -> Card:
    error = done.error
    what = FITS[done.fits]
    if error is not None:
        what += f": event {done.events - 1:,}, a request of {size(error.requested)}, fails ({error.verdict})"
    line = f"arena.Replayed: {what}; at most {size(done.peak_live)} live and {size(done.peak_reserved)} reserved"
    figures = [
        ("cap", size(done.stats.cap)),
        ("events", f"{done.events:,}"),
        ("peak", f"event {done.peak.event:,}" + (f", {seconds(done.peak.time)}" if done.peak.time else "")),
        ("driver calls", f"{done.stats.driver_calls:,}"),
    ]
    if done.priced_ms is not None:
        figures.append(("driver time", f"{done.priced_ms:.1f} ms, by the price table {done.prices}"))
    when = "when the request failed" if error else "at the peak"
    return Card(line, figures, lambda: done.report.lines, f"Live bytes {when}, by line")


@card_of.register
def _fit(fit: Fit) -> Card:
    line = (
        f"arena.Fit: smallest cap {size(fit.smallest_cap)}, comfortable from {size(fit.comfortable_cap)}; "
        f"{size(fit.peak_live)} live at the peak"
    )
    if fit.limit is not None:
        line += f"; {FITS[fit.fits]} in {format_range(fit.limit, fit.limit_at_most or fit.limit)}"
    card = next((card for card in fit.cards if card.fits), None)
    figures = [("smallest card", f"{card.card}, {size(card.memory)}" if card else "none")]
    figures += [("without a cap", f"{size(fit.uncapped)} reserved"), ("events", f"{fit.events:,}")]
    if fit.largest is not None:
        figures.append(("largest batch within the limit", f"{fit.largest.batch:,}"))
    figures += [(f"batch {one.batch:,} needs", size(one.smallest_cap)) for one in fit.predictions]
    return Card(line, figures, more=lambda: _sites(fit))


def _sites(fit: Fit) -> str:
    """How memory grows with the batch, by line or by size."""
    if fit.scaling is None:
        return ""
    rows = [(name_of(site.where), size(site.fixed), size(site.per_item)) for site in fit.scaling.sites[:8]]
    return table("What holds the peak", ("Where", "Fixed", "Per item"), rows, kind="sites", words=(0,))


@card_of.register
def _comparison(found: Comparison) -> Card:
    runs = ", ".join(f"{run.letter} ({run.name}) {FITS[run.done.fits]}" for run in found.runs)
    return Card(f"arena.Comparison of {counted(len(found.runs), 'run')}: {runs}", more=lambda: _side_by_side(found))


def _side_by_side(found: Comparison) -> str:
    head = ("", *(f"{run.letter}: {name_of(run.name)}" for run in found.runs))
    rows: list[tuple[str, ...]] = [("fits", *(FITS[run.done.fits] for run in found.runs))]
    for figure in FIGURES:
        cells = [f"<b>{text(cell.text)}</b>" if cell.best else text(cell.text) for cell in found.row(figure)]
        rows.append((text(figure.title), *cells))
    return f"<div>{text(found.caption)}</div>{table('', head, rows, kind='comparison', words=(0,))}"


@card_of.register
def _largest_batch(found: LargestBatch) -> Card:
    line = f"arena.LargestBatch: {found.batch:,} passes, with {size(found.peak)} live at its peak"
    tried = [
        (f"batch {batch:,}", "failed" if peak is None else size(peak)) for batch, peak in sorted(found.tried.items())
    ]
    return Card(f"{line}; {len(tried):,} tried", tried)

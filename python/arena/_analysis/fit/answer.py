"""How much memory a recorded program needs, which cards it fits on, and with which batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike

from ... import _core
from ..._cards import Card, ContextRange, context_range, find_card, loads_eagerly, read_cards
from ..._pool.settings import find_device, resolve
from ..._trace import Failure, Survived, Trace
from ..._util.arguments import as_device
from ..._util.shown import Shown
from ..._util.sizes import Size, parse_size
from ...errors import UsageError
from ..prices import Prices, using
from .batches import LargestFit, Prediction, Predictor
from .caps import LARGEST, Point, Progress, Replays, comfortable_cap, find_smallest, trade
from .model import Model, Site
from .runs import Run

__all__ = ["CardFit", "Fit", "Scaling", "fit"]

MOST_BATCH = 1 << 32  # larger batches would lose bytes in floating-point arithmetic
Source = Trace | str | PathLike[str]


@dataclass(frozen=True)
class CardFit:
    """Whether a program fits on a card."""

    card: str
    """One of those that ``arena cards`` lists."""
    memory: int
    """What its driver reports."""
    limit: int
    """The part of it left for the arena, at least."""
    fits: bool | None
    """``None`` if it depends on how much the CUDA context and kernels take."""
    comfortable: bool
    """Whether it fits and remapping is rare."""


@dataclass(frozen=True)
class Scaling:
    """How the runs with different batches compare."""

    batches: tuple[int, ...]
    """The recorded batches."""
    aligned: float
    """The share of the largest run's bytes whose allocations were matched in all runs."""
    by_line: bool
    """Whether allocations were matched by source line."""
    left_out: dict[int, float]
    """For each batch, the relative error of its peak when predicted from the others; needs three batches or more."""
    sites: tuple[Site, ...]
    """The holders of memory at the peak of the largest run, fastest growing first."""


@dataclass(frozen=True, repr=False)
class Fit(Shown):
    """The result of :func:`fit`. With several traces, the first figures are those of the largest batch."""

    events: int
    peak_live: int
    """The peak of live bytes: no cap can be smaller."""
    smallest_cap: int
    """The smallest cap that works. If a failed request ended the recorded run, the smallest with which that passes."""
    ended_by: Failure | None
    """The failed request that ended the recorded run, if any. What comes after it is unknown."""
    survived: Survived
    """The failed requests after which the recorded program continued."""
    comfortable_cap: int
    """The cap from which remapping is rare: at most one map in 1,000 allocations, or twice as many as without a cap,
    and no re-backing, in the second half of the trace."""
    uncapped: int
    """The peak of reserved bytes without a cap."""
    exceptions: tuple[int, ...]
    """Caps that were tried and failed although a smaller one works. Expected to be empty."""
    points: tuple[Point, ...]
    """The cost of some caps; the last point is without a cap."""
    prices: str
    """The price table: ``a100``, or the name of a file and what it was measured on."""
    compact: bool
    """Whether live data could be moved if nothing else made room."""
    cards: tuple[CardFit, ...]
    """All that ``arena cards`` lists, the smallest memory first."""
    limit: int | None
    """What ``cap`` and ``device`` leave for the arena, at least; ``None`` if neither was given."""
    limit_at_most: int | None
    """The same, if the CUDA context and kernels take the least."""
    scaling: Scaling | None
    predictions: tuple[Prediction, ...]
    """One for each of ``batch_to``."""
    largest: LargestFit | None
    """The largest batch within the limit; ``None`` without a limit, or if the batch makes no difference."""
    replays: int
    """The number of replays."""

    @property
    def fits(self) -> bool | None:
        """Whether the program, or any of the requested batches, is within the limit; ``None`` without a limit.

        Also ``None`` if that depends on how much the CUDA context and kernels take of the device, and if everything
        recorded is within the limit, but the recorded run ended with a failed request.
        """
        if self.limit is None or self.limit_at_most is None or (self.ended_by and self.smallest_cap <= self.limit):
            return None
        if self.predictions:
            return any(prediction.fits for prediction in self.predictions)
        if self.scaling is not None:
            return self.largest is None or self.largest.batch > 0
        return _within(self.smallest_cap, self.limit, self.limit_at_most)


def fit(
    traces: Source | Sequence[Source],
    *,
    cap: Size | None = None,
    device: int | str | None = None,
    outside: Size | None = None,
    batch_from: int | Sequence[int] | None = None,
    batch_to: int | Sequence[int] | None = None,
    growth: Size | None = None,
    vmm: bool = True,
    compact: bool = True,
    prices: Prices | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Find the smallest cap under which a recorded program works, by replaying it, and predict other batches.

    ``cap`` and ``device`` (a number, ``"sim"``, a card, ``"rtx4090"``, or a size, ``"24GiB"``) set a limit to check
    against. ``outside`` is what everything else takes of a device; by default, what the CUDA context and kernels take
    of a card, from the least to the most (docs/cards.md), and nothing of a size. Traces of one program at two or more
    batch sizes (``batch_from``) show how each allocation grows, which predicts the need of each batch in ``batch_to``
    and the largest batch within the limit. Replays run on a simulated device. ``compact`` says if live data may move:
    yes for single-threaded programs, no if other threads launch work. ``prices`` selects the price table for driver
    time: a name, or the path of a file that ``arena measure`` wrote.

    >>> import arena, tempfile
    >>> pool = arena.Arena(device="sim:8GiB")
    >>> def train(batch):
    ...     weights, activations = pool.allocate(64 << 20), pool.allocate(batch * 3 << 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for batch in (8, 16):
    ...         with pool.record(f"{folder}/{batch}.arena"):
    ...             train(batch)
    ...     found = arena.fit([f"{folder}/8.arena", f"{folder}/16.arena"], batch_from=[8, 16], batch_to=64, cap="1GiB")
    >>> found.smallest_cap >> 20, found.predictions[0].smallest_cap >> 20, found.largest.batch
    (112, 256, 320)
    """
    sources = [traces] if isinstance(traces, (Trace, str, PathLike)) else list(traces)
    given, targets = _batches("batch_from", batch_from), _batches("batch_to", batch_to)
    _check(sources, given, targets)
    for name, value in (("vmm", vmm), ("compact", compact)):
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r} is not accepted; write True or False")
    limit, limit_at_most = _limits(cap, device, outside)
    read = [source if isinstance(source, Trace) else Trace.read(source) for source in sources]
    if given:
        _refuse_unfinished(read, given)
    piece = resolve("growth", growth, LARGEST)

    def replays_of(trace: Trace, before: int) -> Replays:
        return Replays(trace, growth=piece, vmm=vmm, compact=compact, progress=progress, before=before)

    with using(prices, vmm=vmm) as table:
        model = predictor = None
        if given:  # before any replay, because it may raise
            runs = [Run(trace, batch, _name(source)) for trace, batch, source in zip(read, given, sources, strict=True)]
            model = Model(runs)
            predictor = Predictor(
                model, lambda batch, before: replays_of(model.trace(batch), len(replays.points) + before)
            )
        replays = replays_of(read[given.index(max(given))] if given else read[0], 0)
        smallest, comfortable, points, exceptions = _find_caps(replays, limit)
        return Fit(
            events=len(replays.trace),
            peak_live=replays.uncapped().peak_live,
            smallest_cap=smallest,
            ended_by=replays.ended_by,
            survived=replays.trace.survived,
            comfortable_cap=comfortable,
            uncapped=replays.uncapped().peak_reserved,
            exceptions=exceptions,
            points=points,
            prices=table.label,
            compact=compact,
            cards=_cards(smallest, comfortable, outside),
            limit=limit,
            limit_at_most=limit_at_most,
            scaling=_scaling(model) if model else None,
            predictions=tuple(predictor.predict(batch, limit) for batch in targets) if predictor else (),
            largest=predictor.largest(limit) if predictor and limit is not None else None,
            replays=len(replays.points) + (predictor.count if predictor else 0),
        )


def _find_caps(replays: Replays, limit: int | None) -> tuple[int, int, tuple[Point, ...], tuple[int, ...]]:
    """The smallest cap, the comfortable one, the cost of some, and those that fail although a smaller one works."""
    smallest = find_smallest(replays)
    comfortable = comfortable_cap(replays, smallest)
    within = (limit or 0) // replays.granule * replays.granule
    trade(replays, smallest, [comfortable, *([within] if smallest < within < LARGEST else [])])
    tried = sorted(replays.points.values(), key=lambda point: point.cap)
    exceptions = tuple(point.cap for point in tried if not point.fits and point.cap > smallest)
    if exceptions:  # use the smallest cap above which all tried caps work
        smallest = next(point.cap for point in tried if point.cap > exceptions[-1])
    comfortable = max(smallest, comfortable)
    points = trade(replays, smallest, [comfortable, *([within] if smallest < within < LARGEST else [])])
    return smallest, comfortable, points, exceptions


def _scaling(model: Model) -> Scaling:
    peaks = {run.batch: model.peak(run.batch) - model.misses[run.batch] for run in model.runs}
    return Scaling(
        batches=tuple(model.batches),
        aligned=model.aligned,
        by_line=all(run.has_lines for run in model.runs),
        left_out={batch: miss / peaks[batch] for batch, miss in model.left_out.items()},
        sites=tuple(model.sites(model.template.batch)),
    )


def _cards(smallest: int, comfortable: int, outside: Size | None) -> tuple[CardFit, ...]:
    found = []
    for card in read_cards():
        taken = _outside(card, card.memory, outside)
        limit, at_most = max(0, card.memory - taken.high), max(0, card.memory - taken.low)
        found.append(CardFit(card.key, card.memory, limit, _within(smallest, limit, at_most), comfortable <= limit))
    return tuple(found)


def _within(size: int, limit: int, at_most: int) -> bool | None:
    return True if size <= limit else None if size <= at_most else False


def _outside(card: Card | None, total: int, outside: Size | None, *, is_real: bool = False) -> ContextRange:
    """What everything but the arena takes of a device: as the caller says, or as is known of the card.

    An unknown real one takes something between the least and the most of all cards.
    """
    if outside is None:
        cards = read_cards() if is_real and card is None else [card]
        taken = [context_range(one, eager=loads_eagerly(os.environ)) for one in cards]
        return ContextRange(min(one.low for one in taken), max(one.high for one in taken))
    size = parse_size(outside, total, "outside")
    return ContextRange(size, size)


def _limits(cap: Size | None, device: int | str | None, outside: Size | None) -> tuple[int | None, int | None]:
    """What the cap, and the device without what is outside, leave for the arena: at least and at most."""
    card, total, is_real = _device(device)
    taken = _outside(card, total, outside, is_real=is_real)
    if outside is not None:
        parse_size(outside, LARGEST, "outside")
    least, most = ([], []) if device is None else ([total - taken.high], [total - taken.low])
    if cap is not None:
        size = parse_size(cap, total, "cap")
        if device is None and (isinstance(cap, float) or (isinstance(cap, str) and cap.strip().endswith("%"))):
            raise UsageError(f"cap={cap!r} is a share of a device; name the device with device=, or write a size")
        if size == 0:
            raise UsageError(f"cap={cap!r} leaves nothing; give a size")
        least.append(size)
        most.append(size)
    if least and min(least) <= 0:
        raise UsageError(f"outside={outside!r} leaves no memory of device={device!r}")
    return min(least, default=None), min(most, default=None)


def _device(device: int | str | None) -> tuple[Card | None, int, bool]:
    """The card that a device is, if that is known, its memory, and whether it is a real one."""
    if device is None:
        return None, LARGEST, False
    named = as_device(device) if isinstance(device, str) else device
    if isinstance(named, str) and named != "sim":
        size = named.removeprefix("sim:")
        if size != named or size[:1].isdigit():
            return None, parse_size(size, None, "device"), False
        card = find_card(named)
        return card, card.memory, False
    driver, number = find_device(device)
    found = _core.describe_device(driver, number)
    card_of_it = next((card for card in read_cards() if card.name == found.name), None)
    return card_of_it, found.total, not driver.is_simulated


def _batches(name: str, value: object) -> list[int]:
    if value is None:
        return []
    batches = []
    for batch in value if isinstance(value, Iterable) and not isinstance(value, str) else [value]:
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MOST_BATCH:
            raise UsageError(f"{name}={batch!r} is not accepted; write batch sizes, ints from 1 to {MOST_BATCH}")
        batches.append(batch)
    return batches


def _check(sources: list[Source], given: list[int], targets: list[int]) -> None:
    if not sources:
        raise UsageError("no trace was given; record one with pool.record()")
    if len(sources) == 1 and (given or targets):
        raise UsageError(
            "one trace cannot show what grows with the batch; record the program a second time with another batch, "
            "and pass both traces with batch_from"
        )
    if len(sources) > 1 and len(given) != len(sources):
        raise UsageError(
            f"{len(sources)} traces, but {len(given)} batch sizes in batch_from; give one for each trace, in order"
        )
    if given and len(set(given)) < 2:
        raise UsageError(f"batch_from={given}: two different batch sizes are needed to see what grows")


def _refuse_unfinished(traces: list[Trace], batches: list[int]) -> None:
    """Raise for an incomplete run: a prediction would assume that the missing part needs no memory."""
    for trace, batch in zip(traces, batches, strict=True):
        if trace.ended_by is not None:
            raise UsageError(
                f"batch {batch} cannot be compared. {trace.ended_by.sentences(len(trace))} Leave it out, or "
                "record it again with more memory"
            )


def _name(source: Source) -> str:
    return "the trace" if isinstance(source, Trace) else str(source)

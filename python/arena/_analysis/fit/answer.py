"""How much memory a recorded program needs, on which cards it runs, and with which batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike

from ... import _core
from ..._cards import find_card, read_cards
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

__all__ = ["OUTSIDE", "CardFit", "Fit", "Scaling", "fit"]

MOST_BATCH = 1 << 32  # beyond it the arithmetic of a fit would lose bytes
OUTSIDE = "600MiB"
Source = Trace | str | PathLike[str]


@dataclass(frozen=True)
class CardFit:
    """Whether a program fits on a card."""

    card: str
    """One of those that ``arena cards`` lists."""
    memory: int
    """What its driver reports."""
    limit: int
    """What is left of that for the arena."""
    fits: bool
    comfortable: bool
    """Whether it fits with remapping rare."""


@dataclass(frozen=True)
class Scaling:
    """How the runs of different batches compare."""

    batches: tuple[int, ...]
    """Those that were recorded."""
    aligned: float
    """The share of the bytes of the largest run whose allocations were found in all runs."""
    by_line: bool
    """Whether the lines that allocate were recorded, and compared."""
    left_out: dict[int, float]
    """For each batch, by how much of its peak it is missed if predicted from the others; with three batches or more."""
    sites: tuple[Site, ...]
    """What holds memory at the peak of the largest run, what grows fastest first."""


@dataclass(frozen=True, repr=False)
class Fit(Shown):
    """What :func:`fit` found. The first figures are of the trace, with several of the one of the largest batch."""

    events: int
    peak_live: int
    """The most bytes that are live: no cap can be smaller."""
    smallest_cap: int
    """The smallest cap that works; if a failed request ended the recorded run, the smallest with which that passes."""
    ended_by: Failure | None
    """The failed request that ended the recorded run, if one did. What comes after it is not known."""
    survived: Survived
    """The failed requests of the recorded run after which the program went on."""
    comfortable_cap: int
    """The cap from which on remapping is rare: at most one map in 1,000 allocations, or twice as many as without a cap,
    and no re-backing, in the second half of the trace."""
    uncapped: int
    """The most bytes that are reserved without a cap."""
    exceptions: tuple[int, ...]
    """Caps that did not work although a smaller one does, among those that were tried. Expected to be empty."""
    points: tuple[Point, ...]
    """What some caps cost, the last without a cap."""
    prices: str
    """The price table of that: ``a100``, or the name of a file and what it was measured on."""
    compact: bool
    """Whether live data was moved where nothing else made room."""
    cards: tuple[CardFit, ...]
    """All that ``arena cards`` lists, the smallest memory first."""
    limit: int | None
    """What ``cap`` and ``device`` leave for the arena; none if neither was given."""
    scaling: Scaling | None
    predictions: tuple[Prediction, ...]
    """One for each of ``batch_to``."""
    largest: LargestFit | None
    """The largest batch within the limit; none if there is no limit, or the batch makes no difference."""
    replays: int
    """How many replays it took."""

    @property
    def fits(self) -> bool | None:
        """Whether anything that was asked about is within the limit; none without a limit.

        None, too, if all that was recorded is within the limit, but the recorded run ended by a failed request.
        """
        if self.limit is None or (self.ended_by and self.smallest_cap <= self.limit):
            return None
        if self.predictions:
            return any(prediction.fits for prediction in self.predictions)
        if self.scaling is not None:
            return self.largest is None or self.largest.batch > 0
        return self.smallest_cap <= self.limit


def fit(
    traces: Source | Sequence[Source],
    *,
    cap: Size | None = None,
    device: int | str | None = None,
    outside: Size = OUTSIDE,
    batch_from: int | Sequence[int] | None = None,
    batch_to: int | Sequence[int] | None = None,
    growth: Size | None = None,
    vmm: bool = True,
    compact: bool = True,
    prices: Prices | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Find the smallest cap under which a recorded program works, by replaying it; and predict larger batches.

    ``cap`` and ``device`` (a number, ``"sim"``, a card, ``"rtx4090"``, or a size, ``"24GiB"``) are a limit to judge
    by; ``outside`` is what everything else takes on a card, by estimate. With traces of one program at two or more
    batch sizes, ``batch_from``, what each allocation needs for an item is found, and with that the need of each of
    ``batch_to``, and the largest batch within the limit. Replays run on a simulated device. ``compact`` says whether
    live data may be moved there: it may in programs of one thread, and not where others launch work. ``prices`` is the
    price table of its driver time: a name, or the path of a file that ``arena measure`` wrote.

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
    limit = _limit(cap, device, outside)
    read = [source if isinstance(source, Trace) else Trace.read(source) for source in sources]
    if given:
        _refuse_unfinished(read, given)
    piece = resolve("growth", growth, LARGEST)

    def replays_of(trace: Trace, before: int) -> Replays:
        return Replays(trace, growth=piece, vmm=vmm, compact=compact, progress=progress, before=before)

    with using(prices, vmm=vmm) as table:
        model = predictor = None
        if given:  # before any replay: it may refuse
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
            scaling=_scaling(model) if model else None,
            predictions=tuple(predictor.predict(batch, limit) for batch in targets) if predictor else (),
            largest=predictor.largest(limit) if predictor and limit is not None else None,
            replays=len(replays.points) + (predictor.count if predictor else 0),
        )


def _find_caps(replays: Replays, limit: int | None) -> tuple[int, int, tuple[Point, ...], tuple[int, ...]]:
    """The smallest cap, the comfortable one, what some cost, and those that fail although a smaller one works."""
    smallest = find_smallest(replays)
    comfortable = comfortable_cap(replays, smallest)
    within = (limit or 0) // replays.granule * replays.granule
    trade(replays, smallest, [comfortable, *([within] if smallest < within < LARGEST else [])])
    tried = sorted(replays.points.values(), key=lambda point: point.cap)
    exceptions = tuple(point.cap for point in tried if not point.fits and point.cap > smallest)
    if exceptions:  # the smallest above which all that were tried work
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


def _cards(smallest: int, comfortable: int, outside: Size) -> tuple[CardFit, ...]:
    found = []
    for card in read_cards():
        limit = max(0, card.memory - parse_size(outside, card.memory, "outside"))
        found.append(CardFit(card.key, card.memory, limit, smallest <= limit, comfortable <= limit))
    return tuple(found)


def _limit(cap: Size | None, device: int | str | None, outside: Size) -> int | None:
    """What a cap, and a device less what is taken outside, leave for the arena."""
    total = _total(device)
    parse_size(outside, LARGEST, "outside")
    limits = [] if device is None else [total - parse_size(outside, total, "outside")]
    if cap is not None:
        limits.append(parse_size(cap, total, "cap"))
        if device is None and (isinstance(cap, float) or (isinstance(cap, str) and cap.strip().endswith("%"))):
            raise UsageError(f"cap={cap!r} is a share of a device; say of which with device=, or write a size")
        if limits[-1] == 0:
            raise UsageError(f"cap={cap!r} leaves nothing; give a size")
    if limits and min(limits) <= 0:
        raise UsageError(f"outside={outside!r} leaves nothing of device={device!r}")
    return min(limits, default=None)


def _total(device: int | str | None) -> int:
    if device is None:
        return LARGEST
    named = as_device(device) if isinstance(device, str) else device
    if isinstance(named, str) and named != "sim":
        size = named.removeprefix("sim:")
        return find_card(named).memory if size == named and not size[:1].isdigit() else parse_size(size, None, "device")
    driver, number = find_device(named)
    count = _core.device_count(driver)
    if number >= count:
        raise UsageError(f"device={device!r}: there is no such device; there are {count}")
    return _core.describe_device(driver, number).total


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
            "one trace cannot tell what grows with the batch; record the program a second time with another batch, "
            "and give both, with batch_from"
        )
    if len(sources) > 1 and len(given) != len(sources):
        raise UsageError(
            f"{len(sources)} traces and {len(given)} batch sizes in batch_from; give one for each trace, in their order"
        )
    if given and len(set(given)) < 2:
        raise UsageError(f"batch_from={given}: all are of one batch; two different ones are needed to see what grows")


def _refuse_unfinished(traces: list[Trace], batches: list[int]) -> None:
    """Nothing can be predicted from a run that is there in part: what it lacks would be taken not to be needed."""
    for trace, batch in zip(traces, batches, strict=True):
        if trace.ended_by is not None:
            raise UsageError(
                f"batch {batch} cannot be compared. {trace.ended_by.sentences(len(trace))} Leave it out, or "
                f"record it again with more memory"
            )


def _name(source: Source) -> str:
    return "the trace" if isinstance(source, Trace) else str(source)

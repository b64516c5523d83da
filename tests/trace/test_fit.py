"""Caps that fit match an exhaustive search, and predicted batches match real ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import arena
from arena import Fit, Trace, TraceError, UsageError, fit, largest_batch
from arena._analysis.fit.align import NONE, align
from arena._analysis.fit.caps import LARGEST, Replays, find_smallest, is_rare
from arena._analysis.fit.model import Model, weights
from arena._analysis.fit.runs import Run, peak_live
from arena._cards import context_range, find_card

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT
from ..simulated.cu import Cu

GRANULE = 2 * MIB
TRACES = ROOT / "benchmarks/traces"


def random_trace(seed: int, steps: int = 400) -> Trace:
    choose, trace, live = random.Random(seed), Trace(), list[int]()
    for step in range(steps):
        if live and choose.random() < 0.48:
            trace._append("free", step, 0, live.pop(choose.randrange(len(live))), 0, 0)
        else:
            live.append(step)
            size = choose.choice([500, 70_000, 900_000, 5 * MIB, 11 * MIB])
            trace._append("allocate", step, 0, step, size, choose.choice([0, 0, 1]))
    return trace


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_cap_matches_an_exhaustive_search(seed: int, vmm: bool) -> None:
    trace = random_trace(seed)
    tried = Replays(trace, vmm=vmm)
    peak = tried.uncapped().peak_live
    caps = range(peak // GRANULE * GRANULE, 2 * peak, GRANULE)
    fitting = [cap for cap in caps if tried.run(cap).fits]
    replays = Replays(trace, vmm=vmm)
    found = find_smallest(replays)
    assert found in fitting
    assert found - GRANULE not in fitting
    if vmm:  # no cap works while a larger one does not
        assert found == fitting[0]
        assert fitting == list(range(found, caps[-1] + 1, GRANULE))
        assert len(replays.points) <= 5


@pytest.mark.parametrize(("name", "ratio"), [("vgg", 1.014), ("science", 1.016), ("pipeline", 1.051)])
def test_recorded_programs_need_what_the_benchmark_says(name: str, ratio: float) -> None:
    found = fit(TRACES / f"{name}.csv.gz", cap="500MiB")
    assert found.smallest_cap / found.peak_live == pytest.approx(ratio, abs=0.001)
    assert found.peak_live < found.smallest_cap <= found.comfortable_cap < 1.5 * found.peak_live
    assert found.fits is (name != "vgg")
    assert found.exceptions == ()
    assert found.replays <= 20
    trace = Trace.read(TRACES / f"{name}.csv.gz")
    assert trace.replay(cap=found.smallest_cap, compact=True).fits
    assert not trace.replay(cap=found.smallest_cap - GRANULE, compact=True).fits


def test_the_comfortable_cap_is_where_remapping_becomes_rare() -> None:
    found = fit(TRACES / "pipeline.csv.gz")
    replays = Replays(Trace.read(TRACES / "pipeline.csv.gz"))
    comfortable, below = replays.run(found.comfortable_cap), replays.run(found.comfortable_cap * 97 // 100)
    assert comfortable.later_rebacked == 0
    assert comfortable.later_maps <= comfortable.later_allocations / 1000
    assert is_rare(comfortable, replays.uncapped())
    assert not is_rare(below, replays.uncapped())
    prices = [point.priced_ms for point in found.points]
    assert prices[0] > 5 * prices[-1]
    caps = [point.cap for point in found.points]
    assert caps == sorted(caps)
    assert {found.smallest_cap, found.comfortable_cap, LARGEST} <= set(caps)


def test_an_exception_to_larger_is_better_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Replays._replay

    def with_a_hole(replays: Replays, cap: int) -> object:
        point = whole(replays, cap)
        return type(point)(**{**point.__dict__, "fits": point.fits and not 430 * MIB < cap < 440 * MIB})

    monkeypatch.setattr(Replays, "_replay", with_a_hole)
    found = fit(TRACES / "pipeline.csv.gz")  # 436 MiB is one of the caps tried
    assert found.exceptions == (436 * MIB,)
    assert found.smallest_cap > 436 * MIB
    assert all(point.fits for point in found.points)


def test_cards_leave_room_for_memory_outside_the_arena() -> None:
    trace = Trace()
    trace._append("allocate", 0, 0, 0, 6 << 30, 0)

    def fitting(**options: str | int) -> dict[str, bool]:
        return {card.card: card.fits for card in fit(trace, **options).cards}  # type: ignore[arg-type]

    assert [fitting()[card] for card in ("gtx1650", "gtx1660ti", "rtx4060", "b200")] == [False, False, True, True]
    assert fitting(outside="30%")["rtx4060"] is False
    cards = fit(trace).cards
    assert [card.memory for card in cards] == sorted(card.memory for card in cards)
    assert fit(trace, device="8GiB").fits
    assert fit(trace, device="rtx4060").fits
    assert fit(trace, device="GTX 1660 Ti").fits is False
    with pytest.raises(UsageError, match="there is no card 'rtx4061'; did you mean rtx4060"):
        fit(trace, device="rtx4061")
    assert fit(trace, device="sim:6GiB").fits  # a size is all for the arena
    assert fit(trace, device="sim:6GiB", outside="600MiB").fits is False
    assert fit(trace, device="80GiB", cap="50%").limit == 40 << 30


def test_what_depends_on_how_much_the_context_takes_is_not_decided() -> None:
    card = find_card("t4")
    taken = context_range(card)

    def found(size: int) -> Fit:
        trace = Trace()
        trace._append("allocate", 0, 0, 0, size, 0)
        return fit(trace, device="t4")

    surely, perhaps = (found((card.memory - part) // (2 * MIB) * 2 * MIB) for part in (taken.high, taken.low))
    assert (surely.fits, perhaps.fits, found(card.memory).fits) == (True, None, False)
    assert (surely.limit, surely.limit_at_most) == (card.memory - taken.high, card.memory - taken.low)
    assert {one.card: one.fits for one in perhaps.cards}["t4"] is None


def test_a_cap_and_a_device_both_limit() -> None:
    trace = Trace()
    trace._append("allocate", 0, 0, 0, 6 << 30, 0)
    assert fit(trace, device="80GiB", cap="5GiB").fits is False


def program(pool: arena.Arena, batch: int, *, square: int = 0, items: bool = False, wobble: bool = False) -> None:
    """A training run: weights that stay, activations for each item, and temporary workspaces."""
    weights = [pool.allocate(n * MIB) for n in (3, 40, 7)]
    kept = []
    for step in range(3):
        activations = []
        for layer in range(6):
            activations.append(pool.allocate(batch * (300_000 + layer * 70_001)))
            workspace = pool.allocate(5 * MIB)
            for _ in range((batch * 7 + step) % 5 if wobble else 0):  # what the data needs
                pool.allocate(100_000).free()
            workspace.free()
            if square:
                activations.append(pool.allocate(batch * batch * square))
            activations += [pool.allocate(40_000) for _ in range(batch if items else 0)]
        gradients = [pool.allocate(weight.nbytes) for weight in weights]
        for buffer in activations[::-1] + gradients:
            buffer.free()
        kept.append(pool.allocate(1000))


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> object:
    arena.trace_lines(request.param)
    yield request.param
    arena.trace_lines(False)


with_and_without_lines = pytest.mark.parametrize("lines", [True, False], ids=["lines", "no lines"], indirect=True)


def recorded(make: MakeArena, folder: Path, batches: list[int], **how: object) -> list[Path]:
    paths = [folder / f"{batch}.arena" for batch in batches]
    for batch, path in zip(batches, paths, strict=True):
        pool = make(cap="4GiB")
        with pool.record(path):
            program(pool, batch, **how)  # type: ignore[arg-type]
    return paths


@with_and_without_lines
def test_a_larger_batch_needs_what_was_predicted(make: MakeArena, tmp_path: Path, lines: bool) -> None:
    *small, large = recorded(make, tmp_path, [8, 16, 24, 64])
    found = fit(small, batch_from=[8, 16, 24], batch_to=[64], cap="424MiB")
    assert found.scaling is not None
    assert (found.scaling.aligned, found.scaling.by_line) == (1.0, lines)
    assert max(map(abs, found.scaling.left_out.values())) < 1e-4
    truth, (prediction,) = fit(large), found.predictions
    assert (prediction.peak_live, prediction.smallest_cap) == (truth.peak_live, truth.smallest_cap)
    assert prediction.error < 3 * MIB
    assert (prediction.fits, prediction.sure) == (True, True)
    pool = make(cap="424MiB", compact=True)
    tried = largest_batch(lambda batch: program(pool, batch), 1, 500, pool=pool)
    assert found.largest is not None
    assert found.largest.batch == tried.batch
    assert (found.largest.peak_live, found.largest.at_most) == (tried.peak, tried.batch)
    assert found.largest.at_least >= tried.batch - 1


@pytest.mark.parametrize("how", [{"items": True}, {"wobble": True}], ids=str)
@with_and_without_lines
@pytest.mark.parametrize("batches", [[8, 16], [8, 16, 24]], ids=len)
def test_runs_of_different_length_are_predicted_within_the_error(
    make: MakeArena, tmp_path: Path, lines: bool, how: dict[str, bool], batches: list[int]
) -> None:
    *small, large = recorded(make, tmp_path, [*batches, 64], **how)
    found = fit(small, batch_from=batches, batch_to=64)
    assert found.scaling is not None
    truth, (prediction,) = fit(large), found.predictions
    assert abs(prediction.peak_live - truth.peak_live) <= prediction.error
    assert abs(prediction.smallest_cap - truth.smallest_cap) <= prediction.error
    if lines:
        assert found.scaling.aligned > 0.95
        assert prediction.error < 16 * MIB
    else:
        assert found.scaling.aligned < 1


@with_and_without_lines
def test_the_error_bar_shows_when_memory_does_not_grow_in_proportion(
    make: MakeArena, tmp_path: Path, lines: bool
) -> None:
    *small, large = recorded(make, tmp_path, [8, 16, 24, 64], square=4000)
    found = fit(small, batch_from=[8, 16, 24], batch_to=64, cap="424MiB")
    truth, (prediction,) = fit(large), found.predictions
    assert truth.peak_live - prediction.peak_live > 40 * MIB  # a straight line is wrong here
    assert truth.peak_live - prediction.peak_live <= prediction.error
    assert prediction.error > 0.1 * prediction.peak_live
    pool = make(cap="424MiB", compact=True)
    tried = largest_batch(lambda batch: program(pool, batch, square=4000), 1, 500, pool=pool)
    assert found.largest is not None
    assert found.largest.at_least <= tried.batch < found.largest.batch
    assert found.scaling is not None
    assert max(map(abs, found.scaling.left_out.values())) > 0.01


def test_growth_is_reported_by_line(make: MakeArena, tmp_path: Path) -> None:
    arena.trace_lines(True)
    paths = recorded(make, tmp_path, [16, 8])
    arena.trace_lines(False)
    found = fit(paths, batch_from=[16, 8])
    assert found.scaling is not None
    grows, *fixed = found.scaling.sites
    assert grows.per_item == sum(300_000 + layer * 70_001 for layer in range(6))
    assert (grows.fixed, "test_fit.py" in grows.where, "program" in grows.where) == (0, True, True)
    assert [site.per_item for site in fixed] == [0] * len(fixed)
    assert sum(site.fixed for site in fixed) == 2 * 50 * MIB + 2000
    assert found.events == len(Trace.read(paths[0]))  # the figures are those of the largest batch


def test_a_batch_size_that_changes_nothing_has_no_largest(make: MakeArena, tmp_path: Path) -> None:
    paths = []
    for batch in (4, 8):
        pool = make(cap="64MiB")
        paths.append(tmp_path / f"{batch}.arena")
        with pool.record(paths[-1]):
            pool.allocate(8 * MIB).free()
    found = fit(paths, batch_from=[4, 8], cap="32MiB")
    assert (found.largest, found.fits) == (None, True)
    found = fit(paths, batch_from=[4, 8], batch_to=1000, cap="6MiB")
    assert found.largest is not None
    assert (found.largest.batch, found.fits, found.predictions[0].fits) == (0, False, False)


def test_streams_and_other_events_are_kept(make: MakeArena, cu: Cu, tmp_path: Path) -> None:
    paths, stream = [], cu.stream()
    for batch in (4, 8):
        pool = make(cap="64MiB")
        paths.append(tmp_path / f"{batch}.arena")
        with pool.record(paths[-1]):
            buffer = pool.allocate(batch * 100_000, stream)
            with pool.scope("step"):
                buffer.record_stream(0)
            pool.trim()
            buffer.free()
            pool.trim()
    model = Model([Run(Trace.read(path), batch, "") for path, batch in zip(paths, (4, 8), strict=True)])
    events = list(model.trace(16))
    assert [event.kind for event in events] == ["allocate", "record_stream", "trim", "free", "trim"]
    assert (events[0].size, events[0].stream, events[1].stream) == (1_600_000, 1, 0)


def test_a_line_through_recorded_batches_meets_them() -> None:
    assert weights([8, 16], 16) == pytest.approx([0, 1])
    assert weights([8, 16], 24) == pytest.approx([-1, 2])
    assert sum(weights([8, 16, 24, 24], 1000)) == pytest.approx(1)


def test_allocations_without_lines_are_matched_in_order() -> None:
    def run(sizes: list[int], batch: int) -> Run:
        trace = Trace()
        for number, size in enumerate(sizes):
            trace._append("allocate", number, 0, number, size * 10_000, 0)
        return Run(trace, batch, "")

    small, large = run([1000, 5, 80, 90, 7, 8, 9], 8), run([1000, 5, 3, 3, 160, 180, 7, 8, 9], 16)
    assert align(small, large) == [0, 1, NONE, NONE, 2, 3, 4, 5, 6]
    assert peak_live(small, small.sizes)[1] == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_to": 32}, "record the program a second time"),
        ({"batch_from": 8}, "record the program a second time"),
        ({"traces": 2}, "2 traces, but 0 batch sizes"),
        ({"traces": 2, "batch_from": [8]}, "2 traces, but 1 batch sizes"),
        ({"traces": 2, "batch_from": [8, 8]}, "two different batch sizes are needed"),
        ({"traces": 2, "batch_from": [8, 0]}, "batch_from=0 is not accepted"),
        ({"traces": 2, "batch_from": [8, 16], "batch_to": [True]}, "batch_to=True is not accepted"),
        ({"traces": 2, "batch_from": [8, 16], "batch_to": "64"}, "batch_to='64' is not accepted"),
        ({"traces": 2, "batch_from": [8, 16], "batch_to": 10**9}, "more than any card has"),
        ({"traces": 0}, "no trace was given"),
        ({"cap": "lots"}, "cap='lots' is not a size"),
        ({"cap": 0}, "cap=0 leaves nothing"),
        ({"cap": "80%"}, "name the device with device="),
        ({"device": "gpu"}, "there is no card 'gpu'"),
        ({"device": 77}, r"device=77 does not exist; this machine has \d devices?"),
        ({"device": "1GiB", "outside": "2GiB"}, "leaves no memory of device='1GiB'"),
        ({"vmm": "yes"}, "vmm='yes' is not accepted"),
        ({"outside": "much"}, "outside='much' is not a size"),
    ],
)
def test_unanswerable_questions_are_refused(arguments: dict[str, object], text: str) -> None:
    traces = [Trace(), Trace()]
    for size, trace in enumerate(traces, 1):
        trace._append("allocate", 0, 0, 0, size * MIB, 0)
    count = arguments.pop("traces", 1)
    assert isinstance(count, int)
    with pytest.raises(UsageError, match=text):
        fit(traces[:count], **arguments)  # type: ignore[arg-type]


@with_and_without_lines
def test_traces_of_different_programs_are_refused(make: MakeArena, tmp_path: Path, lines: bool) -> None:
    (path,) = recorded(make, tmp_path, [16])
    pool = make(cap="1GiB")
    with pool.record(tmp_path / "other.arena"):
        kept = [pool.allocate(number) for number in range(1, 3_000_000, 10_007)]
    with pytest.raises(UsageError, match=f"only [0-4]%.*{'lines' if lines else 'ARENA_LINES=1'}"):
        fit([tmp_path / "other.arena", path], batch_from=[8, 16], batch_to=32)
    kept.clear()


def test_an_empty_trace_is_an_error() -> None:
    with pytest.raises(TraceError, match="no allocations"):
        fit(Trace())


def test_progress_counts_the_replays() -> None:
    seen: list[int] = []
    found: Fit = fit(random_trace(1), progress=lambda done, text: seen.append(done))
    assert seen == list(range(found.replays))

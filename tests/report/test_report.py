"""The report: measured from the arena, it adds up, and it says who holds what."""

from __future__ import annotations

import gc
import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

import arena
from arena import Report, UsageError, sim

from ..arena.conftest import GIB, MIB, MakeArena
from ..programs import run
from ..simulated.cu import Cu
from ..threads import run_together

ROOT = Path(__file__).parents[2]


@pytest.fixture
def traced() -> Iterator[None]:
    arena.trace_lines(True)
    yield
    arena.trace_lines(False)


@pytest.fixture
def busy(make: MakeArena, traced: None) -> Iterator[tuple[arena.Arena, list[arena.Buffer]]]:
    pool = make(cap="1GiB", reserve="64MiB")
    choose = random.Random(7)
    buffers = [pool.allocate(choose.choice([500, 70_000, 3 * MIB])) for _ in range(200)]
    choose.shuffle(buffers)
    del buffers[::2]
    yield pool, buffers
    buffers.clear()


def test_the_account_matches_the_arena_and_the_driver(busy: tuple[arena.Arena, list[arena.Buffer]]) -> None:
    pool, buffers = busy
    report, stats = pool.report(), pool.stats()
    reasons = ("requested", "rounding", "pending", "captured", "releasable", "stranded", "spare")
    assert sum(report.account[name] for name in reasons) == report.account["reserved"] == sim.used()
    assert all(report.account[name] == getattr(stats, name) for name in report.account)
    assert report.device["free"] + report.device["outside"] + stats.reserved == report.device["total"] == 8 * GIB
    assert sum(entry.count for entry in report.live_sizes) == len(buffers) == report.counts["blocks"]
    assert sum(entry.bytes for entry in report.live_sizes) == stats.live
    assert sum(entry.bytes for entry in report.free_sizes) == (
        stats.pending + stats.captured + stats.releasable + stats.stranded
    )
    assert sum(holder.bytes for holder in report.lines) == sum(use.bytes for use in report.streams) == stats.live
    (segment,) = report.segments
    assert sum(cell.count for cell in segment.cells) * report.granule == segment.size
    assert sum(cell.live for cell in segment.cells) == stats.live
    assert report.largest["now"] == stats.largest


def test_memory_in_use_outside_the_arena_is_shown(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="1GiB", headroom="1GiB")
    taken = cu.alloc(3 * GIB)
    assert pool.report().device["outside"] == 3 * GIB
    assert "outside 3,221,225,472 in use outside this arena" in " ".join(str(pool.report()).split())
    assert "headroom 1,073,741,824" in str(pool.report())
    cu.ok("cuMemFree", taken)


def test_fragmentation_is_measured_now_and_at_the_peak(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="8MiB")
    blocks = [pool.allocate(MIB) for _ in range(8)]
    full = pool.report().fragmentation["now"]
    assert (full.external, full.contiguous, full.internal) == (0, 0, 0)
    del blocks[::2]  # four pieces of 1 MiB
    now = pool.report().fragmentation["now"]
    assert now.contiguous == 0.75
    assert now.external == pytest.approx(4 / 60)  # one request can have 56 of the 60 MiB left
    peak = pool.report().fragmentation["peak"]
    assert (peak.external, peak.contiguous) == (0, 0)
    pool.set_cap("8MiB")
    assert pool.report().fragmentation["now"].external == pytest.approx(3 / 4)  # only 1 of 4 MiB is in one piece
    pool.set_cap("64MiB")
    small = pool.allocate(1)
    assert pool.report().fragmentation["now"].internal == pytest.approx(511 / (4 * MIB + 512))
    assert small.nbytes == 1


def test_an_arena_with_room_is_not_called_fragmented(make: MakeArena) -> None:
    pool = make()
    kept = pool.allocate(1000)
    report = pool.report()
    assert report.account["stranded"] > 0.99 * report.account["reserved"]  # in one handle, with a cap of 8 GiB
    for when in ("now", "peak"):
        assert report.fragmentation[when].external < 0.001
    assert "%" not in report.caption
    assert not any("trim" in note for note in report.notes)
    kept.free()


def test_a_device_has_the_name_it_was_requested_by(make: MakeArena) -> None:
    made = {0: "device 0", "0": "device 0", "sim": "sim", "sim:3GiB": "sim:3GiB", "sim:5GiB": "sim:5GiB"}
    for device, label in made.items():
        report = make(device=device).report()
        assert report.device["label"] == label
        assert str(report).startswith(f"arena {report.arena} on {label} (Simulated CUDA device), ")
        assert f"arena {report.arena}, {label}, granules of 2 MiB" in report._repr_html_()
        older = report.to_dict()
        del older["device"]["label"]
        assert Report.from_dict(older).device["label"] == f"device {report.device['number']}"


def test_a_bar_is_as_long_as_the_cap_unless_that_is_far_away(make: MakeArena) -> None:
    near, far = make(cap="128MiB"), make()
    kept = [pool.allocate(50 * MIB) for pool in (near, far)]
    (bar,) = (line for line in str(near.report()).splitlines() if line.startswith("["))
    assert bar.endswith(" ]")
    assert bar.count("█") == pytest.approx(78 * 50 / 128, abs=1)
    (bar,) = (line for line in str(far.report()).splitlines() if line.startswith("["))
    assert bar.endswith(" >")
    assert bar.count("█") > 39
    assert "of a cap of 8 GiB, which is far to the right of these bars" in far.report()._repr_html_()
    assert "which is far" not in near.report()._repr_html_()
    kept.clear()


def test_pytorch_35901_is_explained(make: MakeArena, traced: None) -> None:
    """The report names the small block that holds a large segment back, and the line that allocated it."""
    pool = make(growth="64MiB", compact=False)
    large = pool.allocate(40 * MIB)
    small = pool.allocate(4096)
    large.free()
    pin = pool.report().pins[0]
    line = small_line()
    assert (pin.address, pin.size) == (small.ptr, 4096)
    assert pin.holds_back == pool.stats().stranded
    assert line in pin.line
    assert f"4 KiB from {pin.line} holds back" in str(pool.report())


def small_line() -> str:
    return f"{Path(__file__).name}:"


def test_a_block_that_shares_its_handle_still_holds_its_granule(make: MakeArena, traced: None) -> None:
    pool = make(cap="64MiB", growth="64MiB", reserve="64MiB")
    blocks = [pool.allocate(2 * MIB) for _ in range(4)]
    blocks[1].free()
    small = pool.allocate(4096)
    assert blocks[1].ptr == small.ptr
    pin = pool.report().pins[0]
    assert (pin.address, pin.holds_back) == (small.ptr, 2 * MIB - 4096)


def test_lines_belong_to_the_program_and_are_as_deep_as_requested(make: MakeArena) -> None:
    pool = make(cap="64MiB")

    def inner() -> arena.Buffer:
        return pool.allocate(1000)

    def outer() -> arena.Buffer:
        return inner()

    untraced = outer()
    kept = [untraced]
    for depth in (1, 2):
        arena.trace_lines(True, depth=depth)
        kept.append(outer())
    arena.trace_lines(False)
    kept.append(outer())
    lines = [[line.function.split(".")[-1] for line in piece.lines] for piece in pool.snapshot().live]
    assert lines == [[], ["inner"], ["inner", "outer"], []]
    assert all(line.file == __file__ for piece in pool.snapshot().live for line in piece.lines)
    ages = [piece.age for piece in pool.snapshot().live]
    assert ages[0] is ages[3] is None
    assert all(age is not None and 0 <= age < 60 for age in ages[1:3])


def test_cupy_arrays_remember_the_line_that_made_them(make: MakeArena, traced: None) -> None:
    import cupy

    pool = make(cap="64MiB")
    with cupy.cuda.using_allocator(pool.malloc):
        kept = [cupy.empty(1000), cupy.empty(1000)]  # the first is a miss, the second a hit
    files = {line.file for piece in pool.snapshot().live for line in piece.lines}
    assert (files, len(kept)) == ({__file__}, 2)


def test_tracing_lines_during_garbage_collection_does_not_hang() -> None:
    """Finding a line may collect garbage, whose finalizers may free or allocate, in this thread or another."""
    code = """
import gc, threading
import arena
pool = arena.Arena(cap="512MiB", device="sim:1GiB")
arena.trace_lines(True, depth=8)
gc.set_threshold(5)
class Cycle:
    def __init__(self):
        self.me, self.buffer = self, pool.allocate(100)
    def __del__(self):
        self.buffer.free()
        pool.allocate(100).free()
def work():
    for _ in range(1500):
        Cycle()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.collect()
print(pool.stats().blocks)
"""
    assert run(code, timeout=60, ARENA_DRIVER="sim").stdout == "0\n"


def test_snapshots_in_many_threads_leave_the_garbage_collector_as_it_was(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run_together(*[lambda: [pool.snapshot() for _ in range(100)]] * 6)
    finally:
        sys.setswitchinterval(before)
    assert gc.isenabled()


def test_names_in_brackets_are_printed_unchanged(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("layer[conv]"), pool.scope("[/x]"):
        buffer = pool.allocate(1000)
    assert "layer[conv]/[/x]" in str(pool.report())
    assert buffer.nbytes == 1000


def test_where_moving_is_forbidden_a_report_says_what_passes_without_it(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="64MiB", reserve="64MiB", compact=False)
    blocks = [pool.allocate(2 * MIB) for _ in range(31)]
    del blocks[::2]
    report = pool.report()
    assert report.largest["now"] == pool.stats().largest < 20 * MIB
    assert not any("compact=True" in note for note in report.notes)


def test_a_reservation_counts_for_the_peak(make: MakeArena) -> None:
    report = make(cap="64MiB", reserve="32MiB").report()
    assert (report.peak["reserved"], report.peak["spare"]) == (32 * MIB, 32 * MIB)


def test_a_snapshot_of_another_arena_is_not_accepted_as_an_earlier_one(make: MakeArena) -> None:
    one, two = make(cap="64MiB"), make(cap="64MiB")
    with pytest.raises(UsageError, match="not an earlier snapshot of the same arena"):
        two.snapshot().since(one.snapshot())
    with pytest.raises(UsageError, match="None is not a snapshot"):
        one.snapshot().since(None)  # type: ignore[arg-type]


def test_lines_of_files_with_the_same_name_are_distinguished(make: MakeArena, traced: None) -> None:
    pool = make(cap="64MiB")
    kept = []
    for folder, size in (("/a", 1000), ("/b", 5000)):
        code = compile(f"kept.append(pool.allocate({size}))", f"{folder}/__init__.py", "exec")
        exec(code, {"kept": kept, "pool": pool})
    assert [(holder.name, holder.blocks) for holder in pool.report().lines] == [
        ("/b/__init__.py:1 in <module>", 1),
        ("/a/__init__.py:1 in <module>", 1),
    ]


def test_a_block_keeps_the_number_of_a_stream_that_is_gone(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB")
    stream = cu.stream()
    buffer = pool.allocate(1000, stream)
    cu.ok("cuStreamDestroy", stream)
    for _ in range(80):
        other = cu.stream()
        pool.allocate(512, other).free()
        cu.ok("cuStreamDestroy", other)
    assert [piece.stream for piece in pool.snapshot().live] == [stream]
    assert buffer.nbytes == 1000


def test_tracing_takes_only_true_and_false() -> None:
    for on in ("off", 3, None):
        with pytest.raises(UsageError, match="write True or False, and depth= for the number of lines"):
            arena.trace_lines(on)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, -1, 65, 1.5, True, "2"])
def test_an_invalid_depth_is_named(depth: object) -> None:
    with pytest.raises(UsageError, match=f"depth={depth!r} is not accepted"):
        arena.trace_lines(True, depth=depth)  # type: ignore[arg-type]


def test_live_allocations_since_an_earlier_snapshot_are_listed_by_line(
    make: MakeArena,
    traced: None,
) -> None:
    pool = make(cap="64MiB")
    before_all = [pool.allocate(1000)]
    before = pool.snapshot()
    pool.allocate(5000).free()
    leaked = [pool.allocate(600) for _ in range(3)]
    since = pool.snapshot().since(before)
    assert (since.bytes, len(since.pieces)) == (3 * 1024, 3)
    assert [holder.blocks for holder in since.lines] == [3]
    assert "3 blocks (3 KiB) allocated in between are still live" in str(since)
    assert small_line() in str(since)
    before_all.clear()
    leaked.clear()
    assert str(pool.snapshot().since(before)) == "nothing allocated in between is still live"
    with pytest.raises(UsageError, match="not an earlier snapshot of the same arena"):
        before.since(pool.snapshot())


def test_reports_and_snapshots_are_saved_and_read_back(
    busy: tuple[arena.Arena, list[arena.Buffer]], tmp_path: Path
) -> None:
    pool, _ = busy
    report, snapshot = pool.report(), pool.snapshot()
    for name in ("r.json", "r.txt", "r.html"):
        report.save(tmp_path / name)
    snapshot.save(tmp_path / "s.json")
    again = arena.load(tmp_path / "r.json")
    assert isinstance(again, Report)
    assert (again, again.blocks) == (report, report.blocks)
    assert arena.load(tmp_path / "s.json") == snapshot
    assert (tmp_path / "r.txt").read_text() == str(report)
    assert pickle.loads(pickle.dumps(report)).blocks == report.blocks
    with pytest.raises(UsageError, match=r"r\.json already exists; choose another name, or pass overwrite=True"):
        report.save(tmp_path / "r.json")
    report.save(tmp_path / "r.json", overwrite=True)
    with pytest.raises(UsageError, match=r"does not end with \.html or \.json or \.txt"):
        report.save(tmp_path / "r.pdf")


def test_the_json_matches_its_schema(busy: tuple[arena.Arena, list[arena.Buffer]]) -> None:
    schema = json.loads((Path(arena._report.__file__).parent / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(json.dumps(busy[0].report().to_dict()))
    jsonschema.validate(data, schema)
    data["account"]["requested"] = "much"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is neither a report nor a snapshot"),
        ('{"format": "arena-report", "version": 99}', "has version 99; this arena reads version 1"),
        ('{"format": "arena-report", "version": 1}', "report should have the fields made, "),
        ('{"format": "arena-snapshot", "version": 1}', "snapshot should have the fields device, "),
        ('{"format": "arena-snapshot", "version": "x"}', "has version 'x'"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=text):
        arena.load(path)


def test_the_text_fits_80_columns_whatever_the_size(make: MakeArena, traced: None) -> None:
    pool = make()
    empty = str(pool.report())
    assert "Nothing is reserved." in empty
    with pool.scope("a name that is much too long for a terminal of eighty columns, as they go" * 2):
        kept = [pool.allocate(size) for size in (1, 5 * GIB, 700 * MIB)]
    for text in (empty, str(pool.report())):
        assert max(map(len, text.splitlines())) <= 80
    assert len(kept) == 3


def test_all_open_arenas_are_reported_together(make: MakeArena, tmp_path: Path) -> None:
    pools = [make(cap="64MiB"), make(cap="32MiB")]
    reports = arena.report()
    assert sorted(report.account["cap"] for report in reports) == [32 * MIB, 64 * MIB]
    assert [path.name for path in reports.save(tmp_path / "r.json")] == ["r-0.json", "r-1.json"]
    pools[0].close()
    assert len(arena.report()) == 1
    assert arena.report().save(tmp_path / "one.json") == [tmp_path / "one.json"]
    assert "No arena is open" in str(arena.Reports())


def test_an_error_says_who_holds_the_most_in_25_lines(make: MakeArena, traced: None) -> None:
    pool = make(cap="64MiB")
    kept = [pool.allocate(5 * MIB) for _ in range(9)]
    with pytest.raises(arena.OutOfMemoryError) as caught:
        pool.allocate(40 * MIB)
    text = str(caught.value)
    assert len(text.splitlines()) <= 25
    assert f"45 MiB  in 9 blocks: {small_line()}" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    assert len(kept) == 9


def test_a_failed_request_saves_its_report_to_the_given_folder(
    make: MakeArena,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ARENA_OOM_DIR", str(tmp_path / "new" / "folder"))
    pool = make(cap="8MiB")
    with pytest.raises(arena.OutOfMemoryError, match="Full report: ") as caught:
        pool.allocate(9 * MIB)
    page = Path(str(caught.value).split("Full report: ")[1].splitlines()[0])
    assert sorted(path.suffix for path in page.parent.iterdir()) == [".html", ".json", ".json"]
    report = arena.load(page.with_suffix(".json"))
    assert isinstance(report, Report)
    assert (report.verdict, report.request) == ("cap reached", 9 * MIB)
    assert isinstance(arena.load(page.with_suffix(".snapshot.json")), arena.Snapshot)
    monkeypatch.setenv("ARENA_OOM_DIR", str(page))  # a file
    with pytest.warns(RuntimeWarning, match="no report was written"), pytest.raises(arena.OutOfMemoryError):
        pool.allocate(9 * MIB)


def test_an_arena_with_many_segments_is_drawn_in_short(make: MakeArena) -> None:
    pool = make(cap="256MiB", growth="2MiB", vmm=False)
    kept = [pool.allocate(2 * MIB) for _ in range(50)]
    text = str(pool.report())
    assert "and 46 more segments, 92 MiB" in text
    assert len(text.splitlines()) < 60
    assert len(kept) == 50


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_the_time_of_a_report_is_local_with_its_utc_offset(zone: str) -> None:
    code = """
from datetime import datetime
from arena._util.clock import now
before, made, after = datetime.now().astimezone(), datetime.fromisoformat(now()), datetime.now().astimezone()
print(before.replace(microsecond=0) <= made <= after, made.utcoffset() == after.utcoffset())
"""
    assert run(code, check=True, TZ=zone).stdout == "True True\n"

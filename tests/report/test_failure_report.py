"""A failed request: its error, its page, its files and the metrics agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import arena
from arena import OutOfMemoryError, Report, Snapshot
from arena._pool import oom
from arena._words.account import REASONS

from ..arena.conftest import MIB, MakeArena
from ..simulated.cu import Cu
from ..threads import thread_in_native_code
from .browser import Open


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARENA_OOM_DIR", str(tmp_path))
    monkeypatch.setattr(oom, "_numbers", [1])  # a process saves only so many, and other tests need some
    return tmp_path


def failed(pool: arena.Arena, size: int, folder: Path) -> tuple[OutOfMemoryError, Report, Snapshot]:
    """The error without its frames (playwright keeps the test's, and so the arena), and what was saved with it."""
    error = None
    try:
        pool.allocate(size)
    except OutOfMemoryError as raised:
        error = raised.with_traceback(None)
        error.__context__ = None
    assert error is not None
    (page,) = folder.glob("*.html")
    report, snapshot = (arena.load(page.with_suffix(ending)) for ending in (".json", ".snapshot.json"))
    assert isinstance(report, Report)
    assert isinstance(snapshot, Snapshot)
    return error, report, snapshot


def account(figures: dict[str, Any]) -> dict[str, int]:
    return {name: figures[name] for name in (*REASONS, "reserved", "compactable", "cap", "headroom")}


def freed_bytes(pool: arena.Arena) -> int:
    """Bytes free in whole handles."""
    stats = pool.stats()
    return stats.reserved - stats.live - stats.stranded


def freed_on_a_stream(make: MakeArena, cu: Cu, **settings: Any) -> tuple[arena.Arena, list[arena.Buffer]]:
    """Most of the arena was freed on a stream that is done by now but has not been queried."""
    pool, stream = make(cap="256MiB", **settings), cu.owned_stream()
    kept, freed = pool.allocate(64 * MIB), pool.allocate(128 * MIB, stream)
    cu.ok("cuMemsetD8Async", freed.ptr, 1, freed.nbytes, stream.ptr)
    freed.free()
    cu.ok("cuCtxSynchronize_v2", 0)
    assert pool.stats().pending == freed_bytes(pool) > 100 * MIB
    return pool, [kept]


def test_the_error_and_all_saved_files_have_the_same_account(make: MakeArena, cu: Cu, folder: Path) -> None:
    pool, kept = freed_on_a_stream(make, cu)
    error, report, snapshot = failed(pool, 230 * MIB, folder)
    assert (error.account["pending"], error.account["releasable"]) == (0, freed_bytes(pool))
    assert account(error.account) == account(report.account) == account(snapshot.stats)
    assert account(Report.of(snapshot).account) == account(error.account)
    assert error.largest == report.largest["now"] == snapshot.stats["largest"]
    assert f"  pending                   0  {REASONS['pending']}" in str(error)
    kept.clear()


def test_metrics_and_reports_agree_on_what_is_pending(make: MakeArena, cu: Cu) -> None:
    pool, kept = freed_on_a_stream(make, cu)
    metrics, report = pool.metrics(), pool.report()
    (reserved,) = (family for family in parse(metrics) if family.name == "arena_reserved_bytes")
    found = {sample.labels["reason"]: sample.value for sample in reserved.samples}
    assert found == {name: report.account[name] for name in REASONS}
    assert (found["pending"], found["releasable"]) == (0, freed_bytes(pool))
    kept.clear()


def test_what_another_thread_frees_after_the_verdict_appears_nowhere(
    make: MakeArena, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make(cap="64MiB")
    kept = [pool.allocate(16 * MIB) for _ in range(3)]

    def free_and_look(**_: bool) -> bool:
        while kept:
            kept.pop().free()
        return True

    monkeypatch.setattr(arena._pool.moving, "seems_alone", free_and_look)  # called after the request failed
    error, report, snapshot = failed(pool, 32 * MIB, folder)
    assert not kept
    assert error.account["requested"] == report.account["requested"] == snapshot.stats["requested"] == 48 * MIB
    assert (error.largest, report.largest["now"]) == (16 * MIB, 16 * MIB)
    assert (report.counts["blocks"], len(snapshot.live)) == (3, 3)
    assert "48 MiB  in 3 blocks of 16 MiB and more" in str(error)


@pytest.mark.parametrize(("size", "compact"), [(230, True), (300, True), (230, False), (9 << 10, True)])
def test_the_page_and_the_text_show_the_next_step_of_the_error(
    make: MakeArena, cu: Cu, folder: Path, show: Open, size: int, compact: bool
) -> None:
    pool, kept = freed_on_a_stream(make, cu, compact=compact)
    error, report, _ = failed(pool, size * MIB, folder)
    *_, last = str(error).splitlines()
    assert [f"Next: {step}" for step in report.notes] == [last]
    text = " ".join(str(report).split())
    assert text.count("Next:") == 1
    assert last in text
    assert "trim() gives back" not in text  # a request uses releasable memory, so that cannot help
    with show(report) as tab:
        assert tab.page.locator(".next").all_inner_texts() == [last]
        assert error.line in tab.page.inner_text(".verdict")
        assert "64 MiB in 1 block of 64 MiB and more" in tab.page.inner_text(".verdict")
    assert "64 MiB  in 1 block of 64 MiB and more" in str(error)
    kept.clear()


def test_a_failure_without_moving_reads_the_same_everywhere(make: MakeArena, folder: Path, show: Open) -> None:
    pool = make(cap="64MiB", growth="16MiB", reserve="64MiB")
    blocks = [pool.allocate(2 * MIB) for _ in range(32)]
    kept = blocks[::4]
    blocks.clear()
    with thread_in_native_code():
        error, report, snapshot = failed(pool, 30 * MIB, folder)
    why, last = str(error).splitlines()[-2:]
    assert why.endswith("and this request would have passed.")
    assert (report.why, f"Next: {report.notes[0]}") == (why, last)
    assert error.moving == report.moving == snapshot.moving == "other threads"
    assert not snapshot.may_move
    for by, name in (("without_moving", "largest"), ("with_moving", "largest_with_moving")):
        assert report.largest[by] == getattr(error, name)
    with show(report) as tab:
        assert why in tab.page.inner_text(".verdict")
        assert tab.page.locator(".next").all_inner_texts() == [last]
    kept.clear()


def test_the_report_of_a_budget_error_shows_the_budget_and_what_the_scope_holds(
    make: MakeArena, folder: Path, show: Open
) -> None:
    pool = make(cap="64MiB")
    kept = [pool.allocate(32 * MIB)]
    with pool.scope("load", budget="10MiB"):
        kept.append(pool.allocate(8 * MIB))
        error, report, _ = failed(pool, 4 * MIB, folder)
    assert (report.scope, report.why, report.largest["now"]) == ("load", "8 of 10 MiB used.", 2 * MIB)
    assert [(holder.name, holder.bytes) for holder in report.held] == [("8 MiB and more", 8 * MIB)]
    assert f"Next: {report.notes[0]}" == str(error).splitlines()[-1]
    with show(report) as tab:
        banner = tab.page.inner_text(".verdict")
    assert "failed: budget of scope load reached. 8 of 10 MiB used." in banner
    assert "Largest holders in scope load" in banner
    assert "32 MiB" not in banner
    assert "Largest holders in scope load" in str(report)
    kept.clear()


def test_the_requesting_line_is_known_without_tracing_lines(make: MakeArena, folder: Path) -> None:
    def ask() -> None:
        pool.allocate(9 * MIB)

    pool = make(cap="8MiB")
    with pytest.raises(OutOfMemoryError) as caught:
        ask()
    assert (
        caught.value.line == f"test_failure_report.py:{ask.__code__.co_firstlineno + 1} in {ask.__code__.co_qualname}"
    )
    (path,) = (path for path in folder.glob("*.json") if ".snapshot" not in path.name)
    assert json.loads(path.read_text())["line"] == caught.value.line


def test_a_replay_that_does_not_fit_says_the_same_in_its_error_and_its_report(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="256MiB")
    with pool.record(tmp_path / "run.arena"):
        kept = [pool.allocate(32 * MIB) for _ in range(5)]
        kept.pop(0).free()
        large = pool.allocate(96 * MIB)
    large.free()
    kept.clear()
    done = arena.Trace.read(tmp_path / "run.arena").replay(cap="176MiB")
    error = done.error
    assert error is not None
    assert account(error.account) == account(done.report.account)
    assert error.largest == done.report.largest["now"]
    assert str(error).splitlines()[-1] == f"Next: {done.report.notes[0]}"
    assert "in 4 blocks of 32 MiB and more" in str(error)


@pytest.mark.parametrize(
    ("settings", "size", "words"),
    [
        (
            {"cap": "64MiB"},
            65 * MIB,
            "65 MiB can never fit under a cap of 64 MiB, no matter what is freed: raise the cap",
        ),
        ({"cap": "64MiB"}, 64 * MIB + 1, "67,108,865 bytes can never fit under a cap of 67,108,864 bytes, no matter"),
        ({"cap": "65MiB"}, 65 * MIB, "65 MiB can never fit under a cap of 65 MiB, which is 64 MiB in whole granules"),
        ({"cap": "64MiB"}, 9 << 30, "9 GiB can never fit on this device, which has 8 GiB in total: request less"),
        ({}, 9 << 30, "9 GiB can never fit on this device, which has 8 GiB in total: request less"),
        ({"headroom": "7GiB"}, 2 << 30, "2 GiB can never fit under a headroom of 7 GiB, which leaves 1 GiB of the"),
    ],
)
def test_a_request_that_can_never_pass_names_the_limit(
    make: MakeArena, settings: dict[str, Any], size: int, words: str
) -> None:
    pool = make(**settings)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(size)
    (last,) = caught.value._advice()
    assert last.startswith(f"Next: {words}")
    assert caught.value.most < size
    assert pool.allocate(caught.value.most).nbytes == caught.value.most
    report = pool.report(verdict=caught.value.verdict, request=size)  # a report made later says the same
    assert report.notes == [last.removeprefix("Next: ")]


def test_a_failed_reservation_reads_like_any_other_failed_request(make: MakeArena) -> None:
    pool = make(cap="64MiB", compact=False)
    kept = pool.allocate(16 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.reserve("80MiB")
    assert (caught.value.moving, caught.value.most) == ("switched off", 64 * MIB)
    assert "16 MiB  in 1 block of 16 MiB and more" in str(caught.value)
    assert "80 MiB can never fit under a cap of 64 MiB" in str(caught.value)
    kept.free()

"""Which framework holds memory: in snapshots, reports, recordings and replays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import arena
from arena import _core
from arena._report import html

SIZES = {"PyTorch": 5000, "Numba": 2000, "": 700}


@pytest.fixture
def pool() -> arena.Arena:
    return arena.Arena(device="sim:1GiB")


def allocate_all(pool: arena.Arena) -> list[arena.Buffer]:
    return [pool._allocate_for(name, size) if name else pool.allocate(size) for name, size in SIZES.items()]


def rows(report: arena.Report) -> list[tuple[str, int, int]]:
    return [(holder.name, holder.bytes, holder.blocks) for holder in report.frameworks]


EXPECTED = [("PyTorch", 5120, 1), ("Numba", 2048, 1), ("no framework", 1024, 1)]


def test_a_report_lists_what_each_framework_holds(pool: arena.Arena) -> None:
    held = allocate_all(pool)
    report = pool.report()
    assert rows(report) == EXPECTED
    assert sum(bytes for _, bytes, _ in rows(report)) == report.account["live"]
    assert "live bytes by framework" in str(report)
    assert ">By framework</caption>" in html.render(report)
    for buffer in held:
        buffer.free()
    assert rows(pool.report()) == []


def test_a_report_of_one_framework_has_no_table_of_frameworks(pool: arena.Arena) -> None:
    held = pool._allocate_for("CuPy", 1000)
    report = pool.report()
    assert rows(report) == [("CuPy", 1024, 1)]
    assert "framework" not in str(report)
    assert "By framework" not in html.render(report)
    held.free()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_framework_is_known_with_and_without_lines(pool: arena.Arena, depth: int) -> None:
    arena.trace_lines(depth > 0, depth=max(depth, 1))
    try:
        held = allocate_all(pool)
    finally:
        arena.trace_lines(False)
    pieces = pool.snapshot().live
    assert [piece.framework for piece in pieces] == ["PyTorch", "Numba", ""]
    assert [bool(piece.lines) for piece in pieces] == [depth > 0] * 3
    assert [piece.age is not None for piece in pieces] == [depth > 0] * 3
    assert len({piece.lines for piece in pieces}) == 1  # they are from the same line
    del held


def test_a_cached_block_belongs_to_the_framework_that_gets_it_next(pool: arena.Arena) -> None:
    pool._allocate_for("PyTorch", 1000).free()
    hits = pool.stats().hits
    held = pool._allocate_for("Numba", 1000)
    assert pool.stats().hits == hits + 1
    assert rows(pool.report()) == [("Numba", 1024, 1)]
    held.free()


def test_saved_snapshots_and_reports_keep_frameworks(pool: arena.Arena, tmp_path: Path) -> None:
    held = allocate_all(pool)
    snapshot, report = pool.snapshot(), pool.report()
    assert [p.framework for p in arena.load(snapshot.save(tmp_path / "s.json")).live] == ["PyTorch", "Numba", ""]
    assert rows(arena.load(report.save(tmp_path / "r.json"))) == EXPECTED
    del held


def test_older_snapshots_and_reports_have_no_frameworks(pool: arena.Arena, tmp_path: Path) -> None:
    held = allocate_all(pool)
    snapshot, report = tmp_path / "s.json", tmp_path / "r.json"
    data = json.loads(pool.snapshot().save(snapshot).read_text())
    data["pieces"] = [piece[:-1] for piece in data["pieces"]]
    snapshot.write_text(json.dumps(data))
    assert {piece.framework for piece in arena.load(snapshot).live} == {""}
    data = json.loads(pool.report().save(report).read_text())
    del data["frameworks"]
    report.write_text(json.dumps(data))
    assert arena.load(report).frameworks == []
    del held


@pytest.mark.parametrize("lines", [False, True])
def test_recordings_keep_frameworks_and_replays_report_them(pool: arena.Arena, tmp_path: Path, lines: bool) -> None:
    arena.trace_lines(lines)
    try:
        with pool.record(tmp_path / "run.arena"):
            held = allocate_all(pool)
    finally:
        arena.trace_lines(False)
    trace = arena.Trace.read(tmp_path / "run.arena")
    assert [trace.frameworks.get(event.line, "") for event in trace._of_kind("allocate")] == list(SIZES)
    assert rows(trace.replay().end) == EXPECTED
    again = arena.Trace.read(trace.save(tmp_path / "again.arena"))
    assert (again.frameworks, again.lines) == (trace.frameworks, trace.lines)
    del held


def test_a_framework_that_this_arena_does_not_know_is_passed_over_in_a_replay(
    pool: arena.Arena, tmp_path: Path
) -> None:
    with pool.record(tmp_path / "run.arena"):
        pool._allocate_for("PyTorch", 1000).free()
    trace = arena.Trace.read(tmp_path / "run.arena")
    trace.frameworks = dict.fromkeys(trace.frameworks, "From the future")
    assert rows(trace.replay().report) == [("no framework", 1024, 1)]


def test_a_request_names_a_known_framework(pool: arena.Arena) -> None:
    assert "CuPy" in _core.FRAMEWORKS
    with pytest.raises(arena.UsageError, match="no framework Torch"):
        pool._allocate_for("Torch", 1000)
    with pytest.raises(TypeError):
        pool._allocate_for()  # type: ignore[call-arg]
    with pytest.raises(arena.UsageError, match="size=-1"):
        pool._allocate_for("Numba", -1)
    with pytest.raises(arena.OutOfMemoryError):
        pool._allocate_for("Numba", 1 << 70)

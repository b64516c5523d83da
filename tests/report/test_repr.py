"""How public objects show themselves: in one line when printed, as a small table in a notebook."""

from __future__ import annotations

import enum
import html.parser
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import sim
from arena._inspect.snapshot import Line

from ..arena.conftest import MIB, MakeArena
from ..notebook import run_cells
from ..programs import run

Things = dict[str, Any]


@pytest.fixture
def things(make: MakeArena, tmp_path: Path) -> Iterator[Things]:
    """One object of each public class."""
    made = of_a_program(make(cap="64MiB"), tmp_path)
    yield made
    made["Buffer"].free()
    made["kept"].free()
    made.clear()


def of_a_program(pool: arena.Arena, tmp_path: Path) -> Things:
    """The objects of a small program whose lines are traced."""
    before = pool.snapshot()
    arena.trace_lines(True)
    try:
        with pool.record(tmp_path / "run.arena") as recording, arena.Timeline(pool) as timeline:
            with pool.scope("load", budget="20MiB") as scope:
                buffer = pool.allocate(5 * MIB)
            kept = pool.allocate(3 * MIB)
            timeline.sample()
    finally:
        arena.trace_lines(False)
    trace = arena.Trace.read(recording.path)
    driver = arena.Driver.open("sim")
    return {
        "Arena": pool,
        "Buffer": buffer,
        "Comparison": arena.compare(trace, cap=["32MiB", "4MiB"]),
        "DeviceInfo": driver.devices()[0],
        "Driver": driver,
        "Fit": arena.fit(trace, cap="24MiB"),
        "GraphMemory": pool.graph(),
        "LargestBatch": arena.largest_batch(lambda batch: pool.allocate(batch * MIB), 1, 100, pool=pool),
        "Recording": recording,
        "Replayed": trace.replay(cap="32MiB"),
        "Report": pool.report(),
        "Reports": arena.report(),
        "Scope": scope,
        "Snapshot": pool.snapshot(),
        "Stats": pool.stats(),
        "Timeline": timeline,
        "Trace": trace,
        "since": pool.snapshot().since(before),
        "does not fit": trace.replay(cap="4MiB"),
        "kept": kept,
    }


class Strict(html.parser.HTMLParser):
    """A parser that checks that the tags are known and closed in the right place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_public_class_has_a_repr(things: Things) -> None:
    kinds = {
        name: value
        for name in arena.__all__
        if inspect.isclass(value := getattr(arena, name)) and not issubclass(value, Exception)
    }
    assert set(kinds) <= set(things)
    for name, thing in things.items():
        if name in kinds:
            assert type(thing) is kinds[name]
        line = repr(thing)
        assert line.startswith("<arena.")
        assert line.endswith(">")
        assert len(line) < 200
        assert "\n" not in line
        assert Strict(thing._repr_html_()).tags <= {
            "div",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "b",
        } | {
            "bdi",
            "svg",
            "path",
            "span",
            "p",
            "strong",
        }


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Arena", "<arena.Arena on device 0: 8 MiB live, 64 MiB of 64 MiB reserved>"),
        ("Comparison", "<arena.Comparison of 2 runs: A (cap 32MiB) fits, B (cap 4MiB) does not fit>"),
        (
            "Fit",
            "<arena.Fit: smallest cap 8 MiB, comfortable from 36 MiB; 8 MiB live at the peak; fits in 24 MiB>",
        ),
        ("LargestBatch", "<arena.LargestBatch: 56 passes, with 56 MiB live at its peak; 8 tried>"),
        ("Replayed", "<arena.Replayed: fits; at most 8 MiB live and 8 MiB reserved>"),
        (
            "does not fit",
            "<arena.Replayed: does not fit: event 1, a request of 5 MiB, fails (cap reached); at most 0 B live and "
            "0 B reserved>",
        ),
        ("Scope", "<arena.Scope 'load', ended: 5 MiB live, 5 MiB at the peak, budget 20 MiB>"),
        ("Timeline", "<arena.Timeline of device 0: 3 samples, at most 8 MiB live>"),
        ("Report", "<arena.Report of device 0: 8 MiB live, 64 MiB of 64 MiB reserved.>"),
        ("Reports", "<arena.Reports of 1 arena>"),
    ],
)
def test_the_line_says_what_matters(things: Things, name: str, line: str) -> None:
    assert repr(things[name]) == line


@pytest.mark.parametrize("name", ["Arena", "Scope", "Snapshot", "since", "Trace", "Replayed"])
def test_a_notebook_shows_a_table_by_line(things: Things, name: str) -> None:
    shown = things[name]._repr_html_()
    assert ">Line</th>" in shown
    assert "test_repr.py:" in shown


def test_stats_show_the_account_in_a_notebook(things: Things) -> None:
    shown = things["Stats"]._repr_html_()
    assert "live data the program requested" in shown
    assert f"{8 * MIB:,}" in shown


def test_names_chosen_by_others_are_only_ever_text(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    wild = "<script>alert(1)</script>&\u202e\n"
    trace = arena.Trace({"program": wild, wild: wild})
    trace.lines[1] = (Line(wild, 1, wild),)
    trace._allocate(0, 0, MIB, 0, 1)
    with pool.scope(wild.replace("\n", "").replace("\u202e", "")) as scope:
        kept = pool.allocate(MIB)
    shown = [trace, trace.replay(cap="8MiB"), arena.compare(trace, cap=["8MiB", "16MiB"]), scope]
    for thing in shown:
        assert "script" not in Strict(thing._repr_html_()).tags
        assert "<script" not in thing._repr_html_()
        assert "\n" not in repr(thing)
        assert "\u202e" not in repr(thing)
    kept.free()


def test_ended_objects_say_so(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    buffer = pool.allocate(1000)
    buffer.free()
    pool.close()
    assert repr(pool) == "<arena.Arena on device 0, closed>"
    assert repr(buffer).endswith(" on device 0, freed>")
    for thing in (pool, buffer):
        Strict(thing._repr_html_())


def test_the_simulated_drivers_answers_are_tables_too(make: MakeArena) -> None:
    make(cap="64MiB")
    for thing in (sim.settings(), sim.census(), sim.stalled(), sim.prices()):
        assert type(thing).__name__ in thing._repr_html_()
        assert not isinstance(thing, enum.Enum)
        assert repr(thing).startswith(f"{type(thing).__name__}(")


def test_the_largest_batch_is_still_a_tuple_that_pickles(things: Things) -> None:
    found = things["LargestBatch"]
    batch, peak, tried = found
    assert (batch, peak) == (56, 56 * MIB)
    assert pickle.loads(pickle.dumps(found)) == found == (batch, peak, tried)
    assert found._replace(batch=3).batch == 3


def test_the_code_for_reprs_is_imported_only_when_needed() -> None:
    code = "import sys, arena; pool = arena.Arena(device='sim:1GiB'); pool.stats(); print('arena._show' in sys.modules)"
    assert run(code, ARENA_DRIVER="sim").stdout == "False\n"


def test_an_arena_can_be_printed_while_the_interpreter_shuts_down() -> None:
    code = """
import arena
class Last:
    def __init__(self):
        self.pool = arena.Arena(device="sim:1GiB")
        self.show = repr
    def __del__(self):
        print(self.show(self.pool).startswith("<"))
import builtins
builtins.last = Last()
"""
    done = run(code, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_real_notebook_shows_line_and_table(tmp_path: Path) -> None:
    shown = ("pool", "kept", "pool.snapshot()", "pool.snapshot().since(before)", "pool.stats()", "pool.report()")
    outputs = run_cells(
        tmp_path,
        "import arena; arena.trace_lines(True); pool = arena.Arena(cap='64MiB', device='sim:1GiB')",
        "before = pool.snapshot()",
        "kept = pool.allocate(3 << 20)",
        *shown,
    )
    bundles = [bundle for output in outputs for bundle in output.displayed]
    pool, buffer, snapshot, since, stats, report = (bundle["text/plain"] for bundle in bundles)
    has_line = ["In [3]:1" in bundle["text/html"] for bundle in bundles]
    assert (has_line[0], has_line[2], has_line[3]) == (True, True, True)
    assert pool.startswith("<arena.Arena on device ")
    assert pool.endswith(" MiB of 64 MiB reserved>")
    assert buffer.startswith("<arena.Buffer of 3 MiB at 0x")
    assert snapshot.endswith(", 1 block>")
    assert since == "<arena.Since: 3 MiB in 1 block still live, most from In [3]:1>"
    assert stats.startswith("<arena.Stats: 3 MiB live")
    assert report.startswith("<arena.Report of device ")

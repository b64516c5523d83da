"""Whatever a name contains, renderers, errors, representations and warnings show it on one line, and safely."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import errors
from arena._export import prometheus
from arena._report import Report
from arena._util.console import Console, rendered, words
from arena._words.plain import plain

from .. import hostile
from ..arena.conftest import MakeArena
from ..hostile import FORGED, IN_A_PATH, MARKS, NAME, check_safe


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: f"{ord(mark):x}")
def test_each_mark_is_shown_as_an_escape(mark: str) -> None:
    shown = plain(f"a{mark}b")
    assert shown.isprintable()
    assert mark not in shown
    assert shown[:2] == "a\\"
    assert shown[-1] == "b"
    if mark not in "\t\n\r":
        assert shown.encode().decode("unicode_escape") == f"a{mark}b"


def test_lone_surrogates_are_shown_as_escapes() -> None:
    assert plain("a\udc9bb") == r"a\udc9bb"


@pytest.mark.parametrize(
    "text", ["train.py:88 in step", "épée", "日本　語", "русский", "עברית", "नमस्ते", "a\u00a0b", "😀", ""]
)
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert plain(text) == text


def test_safe_text_stays_the_same_when_it_is_made_safe_again() -> None:
    assert plain(plain(NAME)) == plain(NAME)


ERRORS: dict[str, Callable[[str], BaseException]] = {
    "ArenaError": errors.ArenaError,
    "UsageError": errors.UsageError,
    "TraceError": errors.TraceError,
    "DriverError": lambda text: errors.DriverError(text, call="cuInit", code=1, name="X"),
    "OutOfMemoryError": lambda text: errors.OutOfMemoryError(
        text, f"budget of scope {text} reached", 1, 1, {}, (text, text), scope=text, budget=1, line=text, most=2
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_safe_to_print_and_keep_the_text_as_it_was(kind: str) -> None:
    error = ERRORS[kind](NAME)
    check_safe(str(error))
    assert error.args[0] == NAME
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(other), other.args) == (str(error), error.args)
    assert kind == "OutOfMemoryError" or "\n" not in str(error)


def test_an_error_of_a_scope_whose_line_has_any_name(make: MakeArena) -> None:
    pool = make(cap="64MiB", device="sim:1GiB")
    code = compile("pool.allocate(1 << 30)", f"{NAME.replace(chr(0), '')}.py", "exec")
    arena.trace_lines(True)
    try:
        with pytest.raises(arena.OutOfMemoryError) as caught:
            exec(code.replace(co_name=NAME), {"pool": pool})
    finally:
        arena.trace_lines(False)
    assert "evil" in caught.value.line
    check_safe(str(caught.value), names=False)


def test_the_file_of_a_driver_in_an_error() -> None:
    with pytest.raises(arena.DriverError) as caught:
        arena._core.Driver.open(f"/nowhere/{NAME}".replace("\0", ""))
    check_safe(str(caught.value))


def hostile_report() -> Report:
    pool = arena.Arena(device="sim:1GiB", cap="64MiB")
    with pool.scope("step"):
        kept = pool.allocate(5 << 20)
    data = pool.report().to_dict()
    kept.free()
    data |= {"verdict": "cap reached", "request": 60 << 20, "line": "a.py:1 in f", "scope": "step", "why": "full"}
    data |= {"notes": ["raise the cap", "free something"], "moment": "At the end", "held": data["scopes"]}
    data["lines"] = data["frameworks"] = data["scopes"] * 2
    data["pins"] = [{"address": 1, "size": 1, "holds_back": 1, "line": "a", "scope": "b", "age": None}]
    data["device"]["remark"] = "odd"
    data["end"] = {**data, "end": None}
    return Report.from_dict(hostile.poisoned(data))


def test_a_report_as_text() -> None:
    report = hostile_report()
    check_safe(str(report))
    check_safe(repr(report))
    assert len(repr(report).split("\n")) == 1
    assert str(report).count("evil") > 15
    assert Report.from_dict(report.to_dict()).lines == report.lines  # the data is what it was
    assert report.lines[0].name.endswith(NAME)


def test_a_comparison_as_text(tmp_path: Path) -> None:
    found = arena.compare(*(hostile.trace(tmp_path / f"{IN_A_PATH}{number}.arena") for number in (1, 2)))
    check_safe(str(found))
    check_safe(repr(found))


def test_representations_and_differences(make: MakeArena, tmp_path: Path) -> None:
    trace = arena.Trace.read(hostile.trace(tmp_path / "run.arena"))
    for thing in (trace, trace.replay(cap="4GiB"), trace.replay(cap="1MiB")):
        check_safe(repr(thing), names=False)
    pool = make(device="sim:1GiB")
    before = pool.snapshot()
    kept = pool.allocate(1000)
    data = json.loads(pool.snapshot().save(tmp_path / "s.json").read_text())
    data["pieces"][0][8] = [[NAME, 1, NAME]]
    (tmp_path / "s.json").write_text(json.dumps(data))
    after = arena.load(tmp_path / "s.json")
    check_safe(str(after.since(before)))
    check_safe(repr(after.since(before)))
    kept.free()


def test_markup_and_emoji_codes_in_names_are_only_text() -> None:
    assert rendered([words("[red]:boom:[/]")], 80) == ["[red]:boom:[/]"]
    console = Console(width=80, file=None, record=True, force_terminal=False)
    with console.capture() as shown:
        console.print("[/nothing] :boom:")
    assert shown.get() == "[/nothing] :boom:\n"


def test_metrics_escape_labels_as_prometheus_demands(make: MakeArena) -> None:
    pool = make(device="sim:1GiB")
    text = pool.metrics(worker=NAME)
    rows = [row for row in text.split("\n") if "worker=" in row]
    assert rows
    assert all(row.startswith("arena_") for row in text.split("\n") if row and not row.startswith("#"))
    assert prometheus._escape('a\n"\\') == 'a\\n\\"\\\\'


def test_warnings_name_files_safely(tmp_path: Path, make: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_OOM_DIR", f"/proc/{NAME}".replace("\0", ""))
    pool = make(cap="8MiB", device="sim:1GiB")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(arena.OutOfMemoryError):
            pool.allocate(1 << 30)
    assert caught
    for one in caught:
        check_safe(str(one.message))


def test_findings_and_races_of_the_simulated_driver() -> None:
    found: Any = arena.sim.Finding(kind="dead stream", call="c", handle=1, text=NAME, number=1, thread=1)
    check_safe(str(found))
    assert FORGED in found.text

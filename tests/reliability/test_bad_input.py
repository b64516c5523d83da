"""Everything public is called with invalid arguments: wrong types, huge and negative numbers, strange texts, objects
that raise exceptions.

A new function or command fails here until it is listed in ``bad_input.py``.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import arena
from arena import Report, UsageError, sim
from arena._cli import app

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT
from . import bad_input

# Plain data, and what other functions return: programs do not create these themselves.
MADE = {"Buffer", "Comparison", "DeviceInfo", "Driver", "Fit", "GraphMemory", "LargestBatch", "Recording", "Replayed"}
MADE |= {"Report", "Reports", "Scope", "Snapshot", "Stats"}
MADE |= {f"sim.{name}" for name in ("Access", "Card", "Census", "Finding", "PriceTable", "Race", "Settings", "Stalls")}
FLAGS = {"sim.reset"}  # takes only true or false, and would close what the others are called on
SPECIAL = {"__call__", "__contains__", "__delitem__", "__getitem__", "__setitem__"}  # what else takes arguments
ERRORS = {"ArenaError", "DriverError", "OutOfMemoryError", "SimulatedDriverWarning", "TraceError", "UsageError"}


def public() -> Iterator[tuple[str, Any]]:
    """Every public function, class and method that takes arguments, by name."""
    for prefix, module in (("", arena), ("sim.", sim)):
        for name in module.__all__:
            what = getattr(module, name)
            if inspect.isclass(what) and name not in ERRORS:
                yield prefix + name, what
                inherited = {*dir(tuple), *dir(type)} - {*vars(what)}  # some of which have another meaning
                yield from ((f"{prefix}{name}.{m}", getattr(what, m)) for m in dir(what) if m not in inherited)
            elif inspect.isroutine(what):
                yield prefix + name, what


def parameters(name: str, what: Any) -> list[str]:
    if name == "Driver.open":
        return ["choice"]  # compiled, without a signature
    if name == "Driver.devices":
        return []
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(what).parameters.values()
    return [parameter.name for parameter in found if parameter.name != "self" and parameter.kind not in kinds]


def test_everything_public_is_listed_with_all_its_parameters() -> None:
    world = bad_input.World()
    listed = {name: good for calls in bad_input.GROUPS.values() for name, (_, good) in calls(world).items()}
    os.chdir(ROOT)
    assert {*MADE, *FLAGS} <= {name for name, _ in public()}
    for name, what in public():
        last = name.split(".")[-1]
        if not callable(what) or (last.startswith("_") and last not in SPECIAL) or name in MADE | FLAGS:
            continue
        taken = parameters(name, what)
        has_more = any(p.kind is p.VAR_KEYWORD for p in _signature(what))
        assert name in listed or not (taken or has_more), f"{name} is not in tests/reliability/bad_input.py"
        missing = set(taken) - set(listed.get(name, ()))
        assert not missing or name in ("Arena.malloc", "malloc"), f"{name} is not called with bad {missing}"


def _signature(what: Any) -> list[inspect.Parameter]:
    try:
        return [*inspect.signature(what).parameters.values()]
    except ValueError:
        return []


def test_no_public_class_has_settable_attributes() -> None:
    classes = [(name, what) for name, what in public() if inspect.isclass(what)]
    assert len(classes) >= 20
    for name, kind in classes:
        parts = {part: inspect.getattr_static(kind, part) for part in dir(kind)}
        assert [part for part, what in parts.items() if isinstance(what, property) and what.fset] == [], name
        assert not dataclasses.is_dataclass(kind) or kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]


def test_nothing_public_can_be_set(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    buffer, scope = pool.allocate(1000), pool.scope("scope")
    for thing in (pool, buffer, scope, pool.stats(), pool.snapshot(), pool.report(), arena.Timeline(pool)):
        for name in (name for name in dir(type(thing)) if not name.startswith("_")):
            if not callable(getattr(type(thing), name, None)):
                with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
                    setattr(thing, name, -1)


@pytest.mark.parametrize("group", bad_input.GROUPS)
def test_invalid_arguments_raise_a_clear_error_and_leak_nothing(group: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDASIM_", "ARENA_"))}
    command = [sys.executable, "-m", "tests.reliability.bad_input", group]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
        env={**clean, "ARENA_DRIVER": "sim"},
    )
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert wrong == []
    assert (done.returncode, lines[-1]) == (0, "done"), f"it ended at {lines[-1]}: {done.stderr[-2000:]}"


def test_an_enormous_size_is_named_as_it_was_requested(make: MakeArena) -> None:
    with pytest.raises(
        arena.OutOfMemoryError, match="out of memory: 1,180,591,620,717,411,303,424 bytes requested"
    ) as caught:
        make(cap="8MiB").allocate(1 << 70)
    assert (caught.value.requested, caught.value.largest) == (1 << 70, 8 * MIB)


TEXTS = [
    "",
    "x",
    "-1",
    "nan",
    "inf",
    "1e999",
    "9" * 5000,
    "\udcff",
    "\u202eé名",
    "%s%n",
    "/",
    "/nowhere/x",
    "/dev/full",
]
# What each command takes beside options.
COMMANDS = {
    "demo": [],
    "info": [],
    "run": ["{program}"],
    "replay": ["{trace}"],
    "report": ["{report}"],
    "fit": ["{trace}"],
    "measure": ["--rounds", "3", "--force"],
    "convert": ["{trace}", "{folder}/out.arena", "--force"],
    "cards": ["rtx4090"],
    "dryrun": ["{program}"],
}

CALL = """
import io, json, os, sys, contextlib
from arena._cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
    sys.argv = ["arena", "run", "--cap"]  # what is imported by now is not imported in each child
    main()
for line in sys.stdin:
    sys.argv = ["arena", *json.loads(line)]
    said = io.StringIO()
    runs = sys.argv[1] == "run"  # which changes the process that it runs the program in
    if runs and (child := os.fork()):
        os.waitpid(child, 0)
        continue
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = repr(error)
    print(json.dumps([code, said.getvalue()]), flush=True)
    if runs:
        os._exit(0)
"""


def test_every_command_is_listed() -> None:
    commands = typer.main.get_command(app).list_commands(None)  # type: ignore[attr-defined]
    assert set(commands) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_invalid_arguments_with_a_message(command: str, make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="8MiB")
    with pool.record(tmp_path / "run.arena"):
        pool.allocate(1000).free()
    report = pool.report().save(tmp_path / "r.json")
    (tmp_path / "program.py").write_text("pass")  # a dry run's output would mix with the answers
    places = {"report": str(report), "trace": str(tmp_path / "run.arena"), "folder": str(tmp_path)}
    places["program"] = str(tmp_path / "program.py")
    good = [text.format(**places) for text in COMMANDS[command]]
    parsed = typer.main.get_command(app).get_command(None, command)  # type: ignore[attr-defined]
    options = [o.opts[0] for o in parsed.params if o.param_type_name == "option" and not o.is_flag]
    needed = [a.name for a in parsed.params if a.param_type_name == "argument" and a.required]
    assert len(needed) <= len([text for text in good if not text.startswith("-")]), f"{needed} are not all given"
    lines = [[command, option, text, *good] for option in options for text in TEXTS]
    lines += [
        [command, *[text if i == at else part for i, part in enumerate(good)]]
        for at in range(len(good))
        for text in TEXTS
    ]
    environment = {**os.environ, "ARENA_DRIVER": "sim", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        input="\n".join(map(json.dumps, lines)),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env=environment,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines), f"{lines[len(answers)]} ended it: {done.stderr[-2000:]}"
    for line, (code, said) in zip(lines, answers, strict=True):
        assert code in (0, 1, 2, 3), (line, code)
        assert "Traceback" not in said, line
        if code == 1:
            assert said.startswith("arena: "), (line, said)
            assert len(said.splitlines()) == 1, (line, said)


@pytest.fixture
def saved(make: MakeArena) -> dict[str, dict[str, Any]]:
    pool = make(cap="64MiB")
    with pool.scope("scope"):
        kept = [pool.allocate(size) for size in (1000, 3 * MIB, 5000)]
    timeline = arena.Timeline(pool)
    timeline.sample()
    kept.pop(1).free()
    snapshot = pool.snapshot()
    data = {"format": "arena-snapshot", "version": 1, **dataclasses.asdict(snapshot)}
    report = pool.report(timeline=timeline).to_dict()
    return {"snapshot": json.loads(json.dumps(data)), "report": json.loads(json.dumps(report))}


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in plain data, including the containers."""
    if path:
        yield path
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(min(len(data), 2)):
            yield from leaves(data[key], (*path, key))


BAD = [None, True, -1, 1 << 62, 10**30, float("nan"), "\ud800", [], {}]


@pytest.mark.parametrize("kind", ["snapshot", "report"])
def test_a_file_with_one_wrong_value_is_refused_or_shown(saved: Any, kind: str, tmp_path: Path) -> None:
    """No value makes reading or showing a file take unbounded memory or time, or fail in another way."""
    path = tmp_path / "file.json"
    for place in leaves(saved[kind]):
        for value in BAD:
            data = copy.deepcopy(saved[kind])
            inner = data
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            path.write_text(json.dumps(data))
            try:
                found = arena.load(path)
                report = found if isinstance(found, Report) else Report.of(found)
                assert str(report)
                assert report._repr_html_()
            except UsageError:
                pass
            except Exception as error:
                raise AssertionError(f"{'.'.join(map(str, place))} = {value!r}") from error


def test_a_report_keeps_its_blocks_when_a_part_is_replaced(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    kept = pool.allocate(1000)
    report = pool.report()
    for one in (report, Report.from_dict(report.to_dict())):
        again = dataclasses.replace(one, verdict="cap reached")
        assert (again.verdict, again.blocks) == ("cap reached", report.blocks)
    assert len(report.blocks) == 2
    kept.free()

"""No command shows a terminal anything that it obeys, whatever files, names and other processes contain."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arena
from arena._cli import main
from arena._cli.group import ABOUT

from .. import hostile
from ..hostile import FORGED, IN_A_PATH, MARKS, NAME, check_safe
from .command import run_arena

Call = Callable[..., str]
TESTED = {"replay", "fit", "convert", "report", "info", "cards", "run", "dryrun", "measure", "demo"}


def test_every_command_is_tested_here() -> None:
    assert set(ABOUT) == TESTED


@pytest.fixture(params=["plain", "colours"])
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Call a command here, as on a terminal or not; return all that it prints."""
    if request.param == "colours":
        monkeypatch.setenv("FORCE_COLOR", "1")

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["arena", *map(str, arguments)])
        with pytest.raises(SystemExit):
            main()
        found = capfd.readouterr()
        return found.out + found.err

    return call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return hostile.trace(tmp_path / "run.arena")


def saved(kind: str, path: Path) -> Path:
    """A saved report or snapshot with hostile texts."""
    pool = arena.Arena(device="sim:1GiB", cap="64MiB")
    with pool.scope("step"):
        kept = pool.allocate(5 << 20)
    if kind == "failure":
        with pytest.raises(arena.OutOfMemoryError):
            pool.allocate(60 << 20)
    data = pool.report().to_dict() if kind != "snapshot" else json.loads(pool.snapshot().save(path).read_text())
    if kind == "failure":
        data |= {"verdict": "cap reached", "request": 60 << 20, "line": "a.py:1 in f", "scope": "step", "why": "full"}
        data |= {"notes": ["raise the cap", "free something"], "moment": "At the end", "held": data["scopes"]}
        data["lines"] = data["frameworks"] = data["scopes"] * 2
        data["pins"] = [{"address": 1, "size": 1, "holds_back": 1, "line": "a", "scope": "b", "age": None}]
        data["device"]["remark"] = "odd"
    if kind == "snapshot":
        data["pieces"][0][8] = [["a.py", 3, "f"]]
    del kept
    path.write_text(json.dumps(hostile.poisoned(data)))
    return path


@pytest.mark.parametrize(
    "options",
    [("--cap", "4GiB"), ("--cap", "1MiB"), ("--compare",), ("--cap", "1GiB", "--cap", "2GiB"), ("--save", "out.txt")],
)
def test_replay(call: Call, trace: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.parent)
    check_safe(call("replay", trace, *options), names="--compare" not in options and options.count("--cap") < 2)
    for written in trace.parent.glob("*.txt"):
        check_safe(written.read_text())


@pytest.mark.parametrize("options", [(), ("--device", "24GiB"), ("--cap", "1MiB")])
def test_fit(call: Call, trace: Path, options: tuple[str, ...]) -> None:
    check_safe(call("fit", trace, *options))


def test_fit_of_batches(call: Call, tmp_path: Path) -> None:
    traces = [hostile.trace(tmp_path / f"{number}.arena") for number in (1, 2)]
    for path in traces:
        data = arena.Trace.read(path)
        data._ending = {"by": "itself"}
        data.save(path, overwrite=True)
    check_safe(call("fit", *traces, "--batch-from", "8,16", "--batch-to", "32"))


@pytest.mark.parametrize("target", ["out.trace", "out.csv", "out.json", "out.arena"])
def test_convert(call: Call, trace: Path, target: str) -> None:
    check_safe(call("convert", trace, trace.with_name(target)), names=False)
    check_safe(call("replay", trace.with_name(target)), names=target == "out.arena")


@pytest.mark.parametrize("kind", ["report", "failure", "snapshot"])
def test_report(call: Call, kind: str, tmp_path: Path) -> None:
    check_safe(call("report", saved(kind, tmp_path / "saved.json")), names=True)
    check_safe(call("report", tmp_path / "saved.json", "--save", tmp_path / "out.txt"), names=False)
    check_safe((tmp_path / "out.txt").read_text())


@pytest.mark.parametrize("command", ["replay", "fit", "report"])
def test_json_keeps_every_text_in_escapes(
    call: Call, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = saved("failure", tmp_path / "saved.json") if command == "report" else hostile.trace(tmp_path / "run.arena")
    shown = call(command, source, "--json")
    check_safe(shown)
    shown = shown[: shown.rindex("\n}\n") + 3]  # before a progress bar
    assert shown.isascii()
    assert NAME in texts(shown)


def texts(shown: str) -> str:
    found: list[str] = []

    def gather(data: Any) -> None:
        if isinstance(data, str):
            found.append(data)
        for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
            gather(value)

    gather(json.loads(shown))
    return "".join(found)


@pytest.mark.parametrize(
    "words",
    [
        ("replay", IN_A_PATH),
        ("fit", IN_A_PATH),
        ("report", IN_A_PATH),
        ("convert", IN_A_PATH, "out.trace"),
        ("convert", "README.md", IN_A_PATH),
        ("cards", IN_A_PATH),
        ("run", IN_A_PATH),
        ("dryrun", IN_A_PATH),
        ("dryrun", "--card", IN_A_PATH, "README.md"),
        ("run", "--cap", IN_A_PATH, "README.md"),
        ("measure", "--device", IN_A_PATH),
        ("measure", "--device", "sim", "--save", IN_A_PATH + "/" + IN_A_PATH),
        ("demo", "--save", IN_A_PATH),
        ("replay", "--" + IN_A_PATH),
        (IN_A_PATH,),
        ("--" + IN_A_PATH,),
        ("fit", "README.md", "--batch-from", IN_A_PATH),
    ],
    ids=lambda words: words[0][:9] if isinstance(words[0], str) and words[0].isascii() else "wrong",
)
def test_a_file_name_in_an_error(call: Call, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_DRIVER", "sim")
    check_safe(call(*words))


def test_a_file_name_that_is_read_and_written(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = hostile.trace(tmp_path / f"{IN_A_PATH}.arena", name="plain")
    for words in (
        ("replay", path),
        ("replay", path, "--cap", "1MiB"),
        ("replay", path, path),
        ("replay", path, "--save", f"{IN_A_PATH}.html"),
        ("fit", path),
        ("convert", path, tmp_path / f"{IN_A_PATH}.trace"),
        ("replay", tmp_path / f"{IN_A_PATH}.trace"),
    ):
        check_safe(call(*words))
    path.write_bytes(path.read_bytes()[:-3])
    check_safe(call("replay", path))


def test_what_a_command_suggests_works_in_a_shell(call: Call, tmp_path: Path) -> None:
    import subprocess

    path = hostile.trace(tmp_path / f"it's\\{IN_A_PATH}.arena", name="-plain")
    for words in (("fit", path), ("replay", path, "--cap", "1MiB")):
        last = next(line for line in call(*words).split("\n") if line.startswith("Next: "))
        command = last[last.index("arena ") :]
        done = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, env={"LC_ALL": "C.UTF-8"}
        )
        words_again = done.stdout.decode().split("\0")
        assert str(path) in words_again or "./-plain" in words_again


def test_info_and_measure_show_the_name_of_a_device(tmp_path: Path) -> None:
    card = tmp_path / "card.toml"
    text = arena.sim.card("t4").path.read_text().replace('name = "Tesla T4"', 'name = "evil\x9b\u202e"')
    assert "evil" in text
    card.write_text(f"# {IN_A_PATH.splitlines()[0]}\n# \x1b]52;c;eA==\x07\n{text}")
    for words in (("info",), ("measure", "--rounds", "3", "--save", tmp_path / "out.prices", "--force")):
        done = run_arena(*words, CUDASIM_CARD=str(card))
        check_safe(done.stdout + done.stderr)
    for more in ((), ("--toml",)):
        done = run_arena("cards", card, *more)
        check_safe(done.stdout + done.stderr)


PROGRAM = f"""
import sys, arena
name = {NAME.replace(chr(0), "")!r}
arena.trace_lines(True)
code = compile("kept = pool.allocate(40 << 20)\\ntry:\\n  pool.allocate(1 << 30)\\nexcept MemoryError as e: error = e"
               "\\npool.allocate(1 << 30)", name + ".py", "exec")
code = code.replace(co_name=name)
pool = arena.Arena(cap="64MiB")
exec(code)
"""


@pytest.mark.parametrize("options", [(), ("--json",), ("--record", "run.arena"), ("--report", "out.txt")])
def test_run(options: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / f"{IN_A_PATH}.py"
    program.write_text(PROGRAM)
    given = tuple(tmp_path / word if "." in word else word for word in options)
    done = run_arena("run", "--lines", *given, program, ARENA_DRIVER="sim")
    # Python's own traceback quotes the names of the program's files as they are.
    ours = done.stderr[done.stderr.index("OutOfMemoryError: ") :]
    check_safe(ours)
    for written in tmp_path.glob("*.txt"):
        check_safe(written.read_text())


@pytest.mark.slow
def test_dryrun(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace('pool = arena.Arena(cap="64MiB")', 'pool = arena.Arena(cap="64MiB", device=0)'))
    done = run_arena("dryrun", "--card", "t4", "--report", tmp_path / f"{IN_A_PATH}.txt", program)
    check_safe(done.stderr[done.stderr.index("OutOfMemoryError: ") :])


def test_ordinary_names_stay_readable(call: Call, tmp_path: Path) -> None:
    path = hostile.trace(tmp_path / "déjà 日本 русский עברית.arena", name="épée_日本")
    shown = call("replay", path)
    assert "épée_日本.py:3 in épée_日本" in shown
    assert "déjà 日本 русский עברית.arena" in shown


def test_the_checks_here_can_fail() -> None:
    for mark in MARKS:
        if mark != "\n":
            with pytest.raises(AssertionError):
                check_safe(f"evil {mark}")
    with pytest.raises(AssertionError):
        check_safe(f"evil\n{FORGED}")

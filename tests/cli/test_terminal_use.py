"""Everyday use of a terminal: full disks, odd names, and pasting the suggested next command."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import arena

from ..programs import clean_environment
from .command import TRACE, run_arena

DEMO = """
import arena, cupy
pool = arena.Arena(cap="1GiB")
cupy.cuda.set_allocator(pool.malloc)
array = cupy.empty(100)
"""


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording with a name that needs quoting in a shell, and a peak that is no round number."""
    path = tmp_path / "it's a run.arena"
    with arena.Arena(device="sim:4GiB") as pool, pool.record(path):
        buffers = [pool.allocate(1 << 20) for _ in range(1406)]
        del buffers
    return path


@pytest.mark.parametrize("command", [("info",), ("replay", TRACE, "--json"), ("replay", TRACE)])
def test_output_that_cannot_be_written_is_reported_in_one_line(command: tuple[object, ...]) -> None:
    line = shlex.join([sys.executable, "-m", "arena", *map(str, command)])
    for unbuffered in ("", "PYTHONUNBUFFERED=1 "):
        done = subprocess.run(
            ["sh", "-c", f"ARENA_DRIVER=sim {unbuffered}{line} > /dev/full"],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (1, "arena: standard output: No space left on device\n")


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line.replace("arena", shlex.join([sys.executable, "-m", "arena"]), 1)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=100,
        cwd=folder,
        env={**clean_environment(), "ARENA_DRIVER": "sim", **environment},
    )


def test_characters_that_a_terminal_cannot_show_become_question_marks(tmp_path: Path) -> None:
    """Symbols of charts, in an ASCII terminal. A name that is not UTF-8 is shown as the escape that a shell reads."""
    name = "run-\udcff.arena"
    with arena.Arena(device="sim:1GiB") as pool, pool.record(tmp_path / name):
        pool.allocate(5 << 20).free()
        pool.report().save(tmp_path / "report.json")
    quoted = shlex.quote(name)
    for line, encoding in (
        ("report report.json", "ascii"),
        (f"replay {quoted}", "latin-1"),
        (f"replay {quoted}", "utf-8"),
        (f"fit {quoted}", "utf-8"),
        (f"convert {quoted} out.csv", "utf-8"),
    ):
        done = shell(f"arena {line}", tmp_path, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, ""), line
        if encoding == "utf-8":
            assert r"$'run-\xff.arena'" in done.stdout or "convert" in line
        else:
            assert "?" in done.stdout


def test_a_terminal_of_unknown_width_works(tmp_path: Path) -> None:
    assert shell("arena info", tmp_path, COLUMNS="0").stdout == shell("arena info", tmp_path, COLUMNS="80").stdout != ""


def test_without_standard_error_messages_do_not_go_to_standard_output(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('mine'); raise SystemExit('over')")
    done = shell("arena run program.py 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (1, "mine\n")
    done = shell("arena replay nowhere.arena 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_removed_working_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell("rmdir ../gone; arena run --report x.html -m this", tmp_path / "gone")
    assert (done.returncode, done.stderr) == (1, "arena: the current folder was removed; change to another one\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("report", "/nowhere"), "arena: /nowhere: No such file or directory"),
        (("report", "."), "arena: .: Is a directory"),
        (("report", "/dev/zero"), "arena: /dev/zero is a device; give the name of a file"),
        (("report", "x" * 300), "File name too long"),
        (("replay", TRACE, "--save", "x" * 300 + ".html"), "File name too long"),
        (("replay", TRACE, "--save", "/proc/report.html"), "arena: /proc/report.html: No such file or directory"),
        (("replay", TRACE, "--device", "²"), "arena: device='²' is not accepted"),
        (("convert", TRACE, "/tmp/never.json", "--device", "²"), "arena: device='²' is not accepted"),
        (("fit", TRACE, TRACE), "0 batch sizes in --batch-from; give one for each trace"),
        (("replay", "/dev/null"), "arena: /dev/null is a device; give the name of a file"),
    ],
)
def test_an_error_of_the_system_is_reported_in_one_line(arguments: tuple[object, ...], text: str) -> None:
    done = run_arena(*arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert text in done.stderr
    assert "Traceback" in run_arena("--debug", *arguments).stderr


@pytest.mark.parametrize("target", ["report.pdf", "nowhere/report.html", "there.html"])
def test_an_unwritable_report_is_refused_before_the_work(tmp_path: Path, target: str) -> None:
    (tmp_path / "there.html").write_text("mine")
    broken = tmp_path / "broken.trace"
    broken.write_text("# arena-trace 1\na,0,what,0\n")  # reading it would be an error of its own
    for traces in ((broken,), (broken, broken, "--compare")):
        done = run_arena("replay", *traces, "--save", tmp_path / target)
        assert (done.returncode, target in done.stderr, "broken" in done.stderr) == (1, True, False)
    assert (tmp_path / "there.html").read_text() == "mine"


def test_the_suggested_next_command_works(recording: Path, tmp_path: Path) -> None:
    def typed(*arguments: object) -> tuple[str, ...]:
        done = run_arena(*arguments)
        assert done.returncode == 0, done.stderr
        *_, last = done.stdout.splitlines()
        assert last.startswith("Next: arena "), last
        return tuple(str(tmp_path / word) if word == "report.html" else word for word in shlex.split(last)[2:])

    again = typed("replay", recording)
    assert again[:2] == ("replay", str(recording))
    assert "wrote" in run_arena(*again).stdout
    assert typed("fit", recording)[0] == "replay"
    report = typed("replay", recording, "--save", tmp_path / "a report.json")
    assert report == ("report", str(tmp_path / "a report.json"), "--save", str(tmp_path / "a report.html"))
    shown = run_arena(*report)
    assert shown.stdout.splitlines()[-1] == f"Next: open '{tmp_path / 'a report.html'}'"
    assert typed("report", tmp_path / "a report.json")[:2] == report[:2]
    assert typed("convert", recording, tmp_path / "other run.trace") == ("replay", str(tmp_path / "other run.trace"))
    tight = run_arena("replay", recording, "--cap", "20MiB")
    assert tight.stdout.splitlines()[-1] == f"Next: arena fit {shlex.quote(str(recording))}"


def test_the_cap_suggested_after_a_run_is_enough(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import cupy\narrays = [cupy.empty(1 << 20, 'u1') for _ in range(1406)]\n")
    done = run_arena("run", "--growth", "2MiB", "--record", tmp_path / "a run.arena", program)
    last = shlex.split(done.stderr.splitlines()[-1])
    assert last == ["Next:", "arena", "replay", str(tmp_path / "a run.arena"), "--cap", "1406MiB"]
    assert run_arena(*last[2:]).returncode == 0


def test_the_programs_own_arena_in_cupy_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DEMO)
    done = run_arena("run", "--json", tmp_path / "program.py")
    facts = json.loads(done.stderr.splitlines()[-1])
    assert (facts["frameworks"]["cupy"], facts["arenas"][0]["cap"]) == ("arena", 1 << 30)


def test_shell_completion_works_however_the_command_was_started() -> None:
    shown = run_arena("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete -o default -F _arena_completion arena\n" in shown.stdout
    words = {"COMP_WORDS": "arena replay --c", "COMP_CWORD": "2", "_ARENA_COMPLETE": "complete_bash"}
    assert run_arena(**words).stdout.split() == ["--cap", "--compact", "--compare"]
    assert "Examples:\n    arena run " in run_arena("--help").stdout

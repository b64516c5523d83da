"""Which lines of a program are named: its own, from the innermost to where it began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import arena
from arena._inspect.holders import line_text
from arena._inspect.snapshot import Line

from ..arena.conftest import MakeArena
from ..cli.command import run_arena, start_arena
from ..notebook import run_cells
from ..programs import run

PROGRAM = """
import arena
def load():
    return arena.default_arena().allocate(1 << 20)
def main():
    return load()
if __name__ == "__main__":
    kept = main()
"""


def lines_of(path: Path) -> list[str]:
    return [holder["name"] for holder in json.loads(path.read_text())["lines"]]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--lines", "tool.py:4 in load"),
        ("--lines=1", "tool.py:4 in load"),
        ("--lines=2", "tool.py:4 in load < tool.py:6 in main"),
        ("--lines=40", "tool.py:4 in load < tool.py:6 in main < tool.py:8 in <module>"),
    ],
)
def test_the_lines_option_takes_a_number_and_ends_where_the_program_began(
    tmp_path: Path, option: str, expected: str
) -> None:
    (tmp_path / "tool.py").write_text(PROGRAM)
    for name, arguments in {"script": (tmp_path / "tool.py",), "module": ("-m", "tool")}.items():
        path = tmp_path / f"{name}.json"
        done = start_arena("run", option, "--report", path, *arguments, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert lines_of(path) == [expected]


def test_a_package_that_allocates_on_import_names_no_frame_of_the_command_line(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("import arena\nkept = arena.default_arena().allocate(1 << 20)\n")
    (package / "__main__.py").write_text("")
    path = tmp_path / "out.json"
    start_arena("run", "--lines=64", "--report", path, "-m", "pack", PYTHONPATH=str(tmp_path))
    assert all("arena" not in name and "typer" not in name and "runpy" not in name for name in lines_of(path))
    assert lines_of(path)[0].startswith("__init__.py:2 in <module>")


def test_the_lines_option_does_not_swallow_the_program(tmp_path: Path) -> None:
    program = tmp_path / "2"
    program.write_text("import arena, sys; arena.Arena(); print(arena._core.traced_depth(), sys.argv[1:])")
    assert run_arena("run", "--lines", program, "--lines", "x").stdout == "1 ['--lines', 'x']\n"
    assert run_arena("run", "--cap", "1GiB", "--lines=5", program).stdout == "5 []\n"
    assert run_arena("run", program, ARENA_LINES="3").stdout == "3 []\n"
    assert run_arena("run", "--report", tmp_path / "out.txt", program, ARENA_LINES="3").stdout == "3 []\n"
    assert run_arena("run", "--lines=0", program, ARENA_LINES="3").stdout == "0 []\n"
    refused = run_arena("run", "--lines=65", program)
    assert refused.stderr == "arena: lines=65 is not accepted; write a number of lines from 1 to 64, or 0 for none\n"
    assert run_arena("run", "--lines=many", program).returncode == 2


def test_python_itself_is_not_named_below_a_module(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(f"{PROGRAM}    print(arena.report()[0].lines[0].name)\n")
    code = "import runpy, sys; sys.argv = ['tool']; runpy.run_module('tool', run_name='__main__')"
    done = run(code, ARENA_LINES="9", ARENA_DRIVER="sim", PYTHONPATH=str(tmp_path))
    assert done.stdout == "tool.py:4 in load < tool.py:6 in main < tool.py:8 in <module>\n", done.stderr


def test_executed_text_is_not_where_the_program_began(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    arena.trace_lines(True, depth=3)
    try:
        space = {"pool": pool, "__name__": "__main__"}
        exec("kept = pool.allocate(1 << 20)", space)
    finally:
        arena.trace_lines(False)
    (piece,) = pool.snapshot().live
    functions = [line.function.rpartition(".")[2] for line in piece.lines]
    assert functions[:2] == ["<module>", "test_executed_text_is_not_where_the_program_began"]
    space.clear()


def test_the_requesting_line_is_known_with_and_without_tracing(make: MakeArena) -> None:
    def asks() -> Any:
        return arena._core.current_lines()

    for depth in (0, 3):
        arena.trace_lines(depth > 0, depth=depth or 1)
        lines = asks()
        arena.trace_lines(False)
        assert len(lines) == max(1, depth)
        assert lines[0].function.endswith("asks")
        assert Path(lines[0].file) == Path(__file__)


def test_the_top_level_of_a_cell_is_shown_as_the_cell_alone() -> None:
    lines = [Line("In [12]", 4, "step"), Line("In [3]", 2, "<module>"), Line("/x/In [3", 1, "<module>")]
    assert line_text(lines) == "In [12]:4 in step < In [3]:2 < In [3:1 in <module>"


def test_notebook_cells_are_named_by_their_numbers(tmp_path: Path) -> None:
    *_, lines, error = run_cells(
        tmp_path,
        "import arena; arena.trace_lines(True, depth=9); pool = arena.Arena(cap='64MiB', device='sim:1GiB')",
        "def load():\n    return pool.allocate(1 << 20)\n",
        "size = 2 << 20\nkept = [pool.allocate(size)]",
        "kept.append(load())",
        "for line in pool.report().lines: print(line.name)",
        "try:\n    pool.allocate(1 << 30)\nexcept arena.OutOfMemoryError as error:\n    print(error)",
    )
    assert lines.text.splitlines() == ["In [3]:2", "In [2]:2 in load < In [4]:1"]
    assert "In [3]:2" in error.text
    assert "ipykernel" not in lines.text + error.text


def test_cells_in_a_terminal_are_named_by_their_numbers(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in (
    "import arena; arena.trace_lines(True, depth=5); pool = arena.Arena(device='sim:1GiB')",
    "size = 1 << 20\\n\\nkept = pool.allocate(size)",
    "print(pool.report().lines[0].name)",
    "import sys; from arena._inspect.holders import line_text; from arena._inspect.snapshot import Line",
    "here = sys._getframe()\\nprint(line_text([Line(here.f_code.co_filename, here.f_lineno, '<module>')]))",
):
    shell.run_cell(cell, store_history=True)
"""
    done = run(code, ARENA_DRIVER="sim", IPYTHONDIR=str(tmp_path), timeout=60)
    assert done.stdout == "In [2]:3\nIn [5]:1\n", done.stderr

"""``--help`` and ``--version``, which a newcomer sees first. The examples in the help work when pasted."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import arena
from arena._cli.group import ABOUT

from .. import forked
from .command import DEFAULTS, IMPORTED, run_arena

COMMANDS = list(ABOUT)

BUILDING = 300  # seconds: the first dry run on a machine compiles parts of CuPy

TRAIN = """
import cupy
weights = cupy.empty(3 << 20, dtype="u1")
for step in range(3):
    batch = cupy.empty({batch} << 20, dtype="u1")
    del batch
"""


def examples(*command: str) -> list[str]:
    """The lines below "Examples:" in a terminal with 80 columns."""
    lines = run_arena(*command, "--help", COLUMNS="80").stdout.splitlines()
    start = next(at for at, line in enumerate(lines) if line.strip() == "Examples:")
    end = next(at for at, line in enumerate(lines[start:], start) if not line.strip())
    return [line.strip() for line in lines[start + 1 : end]]


def paste(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell would in that folder, on the simulated device and without a browser."""
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: word != "arena", words))
    arguments = words[len(variables) + 1 :]
    code = f"import os; os.chdir({str(folder)!r}); import arena._cli; arena._cli.main()"
    variables = {**DEFAULTS, "BROWSER": "true", **variables}
    return forked.run(code, *arguments, imported=IMPORTED, timeout=BUILDING, **variables)


def make_files(folder: Path) -> None:
    """The files that the examples start from."""
    for batch, names in {8: ["run", "a", "b8"], 16: ["b", "b16"]}.items():
        (folder / "train.py").write_text(TRAIN.format(batch=batch))
        done = paste(f"arena run --lines --record {names[0]}.arena train.py", folder)
        assert done.returncode == 0, done.stderr
        for name in names[1:]:
            (folder / f"{name}.arena").write_bytes((folder / f"{names[0]}.arena").read_bytes())
    arena.Arena(device="sim:1GiB", cap="64MiB").snapshot().save(folder / "snapshot.json")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("examples")
    make_files(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_in_the_help_of_a_command_works_when_pasted(
    command: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    lines = examples(command)
    assert any(f"arena {command}" in line for line in lines)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for line in lines:
        for record in re.findall(r"--record (\S+)", line):
            (tmp_path / record).unlink()
        done = paste(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_the_examples_of_arena_itself_are_those_of_its_commands() -> None:
    for line in examples():
        _, command, *_ = line.split()
        assert any(example.startswith(line) for example in examples(command)), line


def test_arena_without_arguments_leads_with_run_and_demo() -> None:
    done = run_arena()
    shown = re.findall(r"^  (\w+) ", (done.stdout + done.stderr).partition("Commands:")[2], re.M)
    assert shown[:2] == ["run", "demo"]
    assert sorted(shown) == sorted(COMMANDS)
    assert done.returncode == 2
    assert run_arena("--help").stdout.strip() == (done.stdout + done.stderr).strip()


def test_version_prints_the_version() -> None:
    done = run_arena("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"arena {arena.__version__}\n", "")

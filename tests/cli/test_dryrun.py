"""``arena dryrun``: what is refused before anything runs. What it finds out is in tests/dryrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_cli import run_arena


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('it ran')")
    return path


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        (("--card", "rtx4009"), (), "there is no card 'rtx4009'; did you mean rtx4090, "),
        (("--card", "mine.toml"), (), "mine.toml cannot be read: No such file or directory"),
        (("--device", "0"), (), "--device 0 is not accepted: a dry run is always simulated"),
        (("--device", "sim:lots"), (), "device='sim:lots'"),
        (("--allocator", "theirs"), (), "--allocator theirs is not accepted; write arena or native"),
        (("--cap", "much"), (), "cap='much' is not a size"),
        (("--lines=100",), (), "lines=100 is not accepted"),
        (("--find-batch", "512"), ("{}",), "--find-batch 512 is not accepted; write the smallest and the largest"),
        (("--find-batch", "8:1"), ("{}",), "--find-batch 8:1 is not accepted"),
        (("--find-batch", "0:8"), ("{}",), "--find-batch 0:8 is not accepted"),
        (("--find-batch", "1:many"), ("{}",), "--find-batch 1:many is not accepted"),
        (("--find-batch", "1:8"), ("--batch", "8"), "--find-batch needs {} in the program's arguments"),
        (("--report", "out.pdf"), (), "'out.pdf' does not end with .html or .json or .txt"),
        (("--report", "missing/out.html"), (), "missing/out.html cannot be written: the folder missing does not exist"),
        (("--record", "out.pickle"), (), "out.pickle' does not end with .arena, "),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_program_runs(
    script: Path, options: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    done = run_arena("dryrun", *options, script, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.startswith("arena: ")
    assert len(done.stderr.splitlines()) == 1


def test_files_that_exist_are_not_overwritten(script: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("precious")
    done = run_arena("dryrun", "--report", report, script)
    assert "report.html already exists; choose another name, or pass --force" in done.stderr
    assert report.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py",), "missing.py cannot be run: the file does not exist; to run a module, write -m missing.py"),
        (
            ("python", "train.py"),
            "python is not needed: arena runs Python programs itself; write arena dryrun",
        ),
    ],
)
def test_what_is_no_program_is_refused(words: tuple[str, ...], message: str) -> None:
    done = run_arena("dryrun", *words)
    assert done.returncode == 1
    assert done.stderr.startswith(f"arena: {message}")


def test_a_missing_program_is_wrong_usage() -> None:
    assert run_arena("dryrun").returncode == 2

"""Where a recording is written: what cannot be is refused with the file's name, and nothing that was there is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arena import ArenaError, Trace, UsageError
from arena._util import files

from ..arena.conftest import MakeArena
from ..programs import run


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_to_a_file_that_does_not_exist_yet(make: MakeArena, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "real").mkdir()
    link, place = tmp_path / "run.arena", tmp_path / "real/there.arena"
    link.symlink_to("real/there.arena")
    pool = make(device="sim:1GiB")
    with pool.record(link, overwrite=overwrite):
        pool.allocate(1000).free()
    assert link.is_symlink()
    assert Trace.read(place).problem == ""
    assert os.listdir(tmp_path / "real") == ["there.arena"]


def test_a_link_that_leads_nowhere_is_named(make: MakeArena, tmp_path: Path) -> None:
    pool = make(device="sim:1GiB")
    link, loop = tmp_path / "run.arena", tmp_path / "loop.arena"
    link.symlink_to("missing/there.arena")
    loop.symlink_to("loop.arena")
    with pytest.raises(UsageError, match=f"{link} cannot be written: it is a link to {tmp_path}/missing/there.arena"):
        pool.record(link)
    with pytest.raises(UsageError, match=f"{loop} is a link that leads back to itself"):
        pool.record(loop)
    with pytest.raises(UsageError, match="leads back to itself"):
        files.write(loop, [b""])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_and_a_pipe_are_refused(make: MakeArena, tmp_path: Path, overwrite: bool) -> None:
    pool = make(device="sim:1GiB")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=f"{tmp_path} is a folder; give the name of a file in it"):
        pool.record(tmp_path, overwrite=overwrite)
    with pytest.raises(UsageError, match=f"{tmp_path}/pipe is not a regular file; give the name of one"):
        pool.record(tmp_path / "pipe", overwrite=overwrite)
    with pytest.raises(UsageError, match="/dev/full is not a regular file"):
        pool.record("/dev/full", overwrite=overwrite)


def test_a_place_that_nobody_may_write_to_is_named(make: MakeArena) -> None:
    pool = make(device="sim:1GiB")
    with pytest.raises(ArenaError, match=r"/proc/self/run\.arena cannot be written: "):
        pool.record("/proc/self/run.arena")
    with make(device="sim:1GiB").record(os.devnull + "x" if os.access("/dev", os.W_OK) else "/tmp/x.arena") as made:
        pass
    made.path.unlink()


# A limit on the size of files stands in for a full disk: writes fail, and nothing else does.
NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_recording_that_cannot_begin_leaves_what_was_there(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "run.arena"
    if overwrite:
        path.write_text("precious")
    code = f"import arena; pool = arena.Arena(); {NO_ROOM}; pool.record({str(path)!r}, overwrite={overwrite})"
    done = run(code, ARENA_DRIVER="sim")
    assert done.stderr.splitlines()[-1] == f"arena.errors.ArenaError: {path} cannot be written: File too large"
    assert os.listdir(tmp_path) == (["run.arena"] if overwrite else [])
    assert not overwrite or path.read_text() == "precious"


@pytest.mark.parametrize("command", ["run", "dryrun"])
def test_a_full_disk_is_noticed_before_the_program_runs(tmp_path: Path, command: str) -> None:
    program, path = tmp_path / "program.py", tmp_path / "run.arena"
    program.write_text("print('it ran')")
    words = [sys.executable, "-m", "arena", command, "--record", str(path), str(program)]
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "-", *words]
    done = subprocess.run(
        limited, capture_output=True, text=True, timeout=60, env={**os.environ, "ARENA_DRIVER": "sim"}
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"arena: {path}: File too large\n"
    assert os.listdir(tmp_path) == ["program.py"]


def test_a_recording_that_cannot_begin_later_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    program, path = tmp_path / "program.py", tmp_path / "here/run.arena"
    code = f"import shutil, arena; shutil.rmtree({str(path.parent)!r}); arena.Arena().allocate(1000); print('went on')"
    program.write_text(code)
    words = [sys.executable, "-m", "arena", "run", "--record", str(path), str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, "ARENA_DRIVER": "sim"})
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert f"arena: {path} cannot be written: the folder {path.parent} does not exist\n" in done.stderr

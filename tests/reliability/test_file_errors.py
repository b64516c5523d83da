"""Full disks, missing permissions, and folders or devices where a file should be: errors that name the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import arena
from arena import UsageError

from ..arena.conftest import MakeArena
from ..programs import run

START = """
import os, resource, sys, threading, time, warnings
import arena
from arena import sim
from tests.simulated.cu import Cu, MIB
cu = Cu()
cu.start()
pool = arena.Arena(cap="64MiB")
"""


# Modules first: that user may not be allowed to read where arena is installed.
BECOME_NOBODY = """
import importlib, pkgutil
for package in map(importlib.import_module, ("arena._export", "arena._inspect", "arena._report", "arena._trace")):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
os.setuid(65534)
"""


SAVE = """
def show(name, call):
    try:
        print(name, "wrote", call())
    except Exception as error:
        print(name, type(error).__name__, error)
    sys.stdout.flush()
buffer = pool.allocate(1000)
timeline = arena.Timeline(pool)
timeline.sample()
with pool.record(os.path.join(sys.argv[1], "before.arena")):
    for _ in range(2000): pool.allocate(1000).free()
trace = arena.Trace.read(os.path.join(sys.argv[1], "before.arena"))
report, snapshot = pool.report(), pool.snapshot()
str(report), report._repr_html_()  # all that is needed is imported
{before}
folder = sys.argv[2]
for name in ("r.html", "r.json", "r.txt"):
    show(name, lambda: report.save(os.path.join(folder, name)))
show("s.json", lambda: snapshot.save(os.path.join(folder, "s.json")))
show("s.pickle", lambda: snapshot.to_torch(os.path.join(folder, "s.pickle")))
show("t.json", lambda: timeline.save(os.path.join(folder, "t.json")))
for name in ("t.arena", "t.trace", "t.csv"):
    show(name, lambda: trace.save(os.path.join(folder, name)))
pool.validate()
pool.allocate(5 * MIB).free()
print("still works")
"""
NAMES = ["r.html", "r.json", "r.txt", "s.json", "s.pickle", "t.json", "t.arena", "t.trace", "t.csv"]


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """The system limits the size of files, which is as good as a full disk."""
    limit = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))"
    (tmp_path / "full").mkdir()
    code = START + SAVE.format(before=limit)
    done = run(code, str(tmp_path), str(tmp_path / "full"), ARENA_DRIVER="sim")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", "still works")
    for name, line in zip(NAMES, lines, strict=False):
        assert line.startswith(f"{name} OSError [Errno 27] File too large: "), line
        assert line.endswith(f"{name}'"), line
    assert list((tmp_path / "full").iterdir()) == []


def test_a_recording_on_a_disk_that_fills_up_ends_with_a_warning(tmp_path: Path) -> None:
    code = f"""{START}
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recording = pool.record(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for i in range(300_000): pool.allocate(1000 + i % 7 * 512).free()
    recording.stop()
print([str(w.message) for w in caught])
pool.validate()
"""
    done = run(code, str(tmp_path / "run.arena"), ARENA_DRIVER="sim")
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout + done.stderr
    trace = arena.Trace.read(tmp_path / "run.arena")
    assert trace.problem != ""


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_a_folder_without_permission_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Root may write anywhere, so the program becomes the user `nobody` first."""
    (tmp_path / "closed").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    done = run(START + SAVE.format(before=BECOME_NOBODY), str(tmp_path), str(tmp_path / "closed"), ARENA_DRIVER="sim")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", "still works")
    for name, line in zip(NAMES, lines, strict=False):
        assert line.startswith(f"{name} PermissionError [Errno 13] Permission denied: "), line
        assert line.endswith(f"{name}'"), line


@needs_root
def test_files_without_read_permission_are_errors_that_name_them(tmp_path: Path) -> None:
    for name in ("r.json", "run.arena"):
        (tmp_path / name).write_text("{}")
        (tmp_path / name).chmod(0o600)
    tmp_path.chmod(0o755)
    code = f"""{START}
import contextlib, io
import arena._cli
arguments = sys.argv
sys.argv = ["arena", "report", "nowhere.json"]
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
    arena._cli.main()  # imports everything needed, which the user `nobody` may not be allowed to read
sys.argv = arguments
os.setuid(65534)
for read in (arena.load, arena.Trace.read):
    try:
        read(sys.argv[1] + "/r.json")
    except (OSError, arena.TraceError) as error:
        print(type(error).__name__, error)
try:
    pool.record(sys.argv[1] + "/run.arena", overwrite=True)
except OSError as error:
    print(type(error).__name__, error)
sys.argv = ["arena", "report", sys.argv[1] + "/r.json"]
arena._cli.main()
"""
    done = run(code, str(tmp_path), ARENA_DRIVER="sim")
    path = tmp_path / "r.json"
    assert done.stdout.splitlines() == [
        f"PermissionError [Errno 13] Permission denied: '{path}'",
        f"TraceError {path} cannot be read: Permission denied",
        f"PermissionError [Errno 13] Permission denied: '{tmp_path / 'run.arena'}'",
    ]
    assert (done.returncode, done.stderr) == (1, f"arena: {path}: Permission denied\n")


def test_a_folder_or_a_device_in_place_of_a_file_is_reported(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="8MiB")
    for call in (pool.report().save, pool.snapshot().save):
        (tmp_path / "x.json").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=r"x\.json is a folder"):
            call(tmp_path / "x.json", overwrite=True)
    for read in (arena.load, arena.Trace.read):
        with pytest.raises(UsageError, match="/dev/zero is a device"):
            read("/dev/zero")
    with pytest.raises(arena.TraceError, match="Is a directory"):
        arena.Trace.read(tmp_path)

"""``arena run --report``: the peak of the run, its end, and reports requested by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import arena
from arena import Trace

from ..programs import clean_environment
from ..report.browser import Tab, browser
from .command import DEFAULTS, run_arena

MIB = 1 << 20
CLIMBS = """
import arena, sys
pool = arena.default_arena()
def load():
    return pool.allocate(20 << 20)
kept = pool.allocate(1 << 20)
data = load()
other = load()
del data, other
"""


def reported(tmp_path: Path, code: str, *options: object, name: str = "out.json") -> dict[str, Any]:
    (tmp_path / "program.py").write_text(code)
    done = run_arena("run", "--cap", "64MiB", "--report", tmp_path / name, *options, tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((tmp_path / name).read_text())
    return report


def test_the_report_shows_the_peak_with_its_lines_and_the_whole_run_over_time(tmp_path: Path) -> None:
    report = reported(tmp_path, CLIMBS)
    assert (report["account"]["requested"], report["end"]["account"]["requested"]) == (41 * MIB, MIB)
    assert [(line["name"], line["bytes"]) for line in report["lines"]] == [
        ("program.py:5 in load", 40 * MIB),
        ("program.py:6 in <module>", MIB),
    ]
    live = report["timeline"]["figures"]["live"]
    assert (live[report["timeline"]["peak"]], live[-1]) == (41 * MIB, MIB)
    assert report["moment"].startswith("At the peak, ")
    assert report["moment"].endswith(" into the run: 41 MiB live.")
    assert report["end"]["moment"] == "At the end of the run: 1 MiB live."
    schema = json.loads((Path(arena._report.__file__).parent / "report.schema.json").read_text())
    jsonschema.validate(report, schema)
    loaded = arena.load(tmp_path / "out.json")
    assert isinstance(loaded, arena.Report)
    assert loaded.end is not None
    assert loaded.end.account["requested"] == MIB
    assert loaded.to_dict() == report
    assert "At the end of the run: 1 MiB live." in loaded._repr_html_()


def test_a_program_that_resets_its_peaks_does_not_change_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{CLIMBS}\npool.reset_peaks()\nload()")
    done = run_arena("run", "--cap", "64MiB", "--report", tmp_path / "out.txt", tmp_path / "program.py")
    assert "at most 41 MiB live" in done.stderr
    assert "At the peak, " in (tmp_path / "out.txt").read_text()


def test_the_text_shows_the_peak_and_says_what_is_left_at_the_end(tmp_path: Path) -> None:
    reported(tmp_path, CLIMBS)
    shown = run_arena("report", tmp_path / "out.json").stdout
    assert "into the run: 41 MiB live." in shown
    assert "At the end of the run: 1 MiB live." in shown
    assert "program.py:5 in load" in shown
    assert "peak, 41 MiB live at " in shown


def test_the_page_switches_between_the_peak_and_the_end(tmp_path: Path) -> None:
    reported(tmp_path, CLIMBS)
    page = arena.load(tmp_path / "out.json").save(tmp_path / "out.html")
    with browser() as opened, Tab(opened, page, width=420) as tab:
        live = "document.querySelector('.tiles').children[1].querySelector('b').textContent"
        chosen = "document.querySelector('.moments a[aria-current]').textContent"
        when = "document.getElementById('timeline-when').textContent"
        assert tab.page.evaluate(live) == "41 MiB"
        assert tab.page.evaluate(chosen).startswith("At the peak, ")
        assert tab.page.evaluate(when).endswith(", the peak of live bytes")
        assert tab.rows("holders")[0][0] == "program.py:5 in load"
        tab.page.click("text=At the end of the run")
        tab.page.wait_for_function(f"() => {live} === '1 MiB'")
        tab.page.wait_for_selector("html[data-drawn]", state="attached")
        assert tab.page.evaluate(chosen) == "At the end of the run"
        assert tab.rows("holders")[0][0] == "program.py:6 in <module>"
        assert tab.page.evaluate("arenaPage.data.timeline.shown === arenaPage.data.timeline.at.length - 1")
        tab.page.go_back()
        tab.page.wait_for_function(f"() => {live} === '41 MiB'")
        assert {url.partition("#")[0] for url in tab.requests} == {tab.url}
        tab.requests[:] = [tab.url]


def test_an_arena_closed_before_the_end_has_a_report_of_its_peak(tmp_path: Path) -> None:
    code = "import arena\nwith arena.Arena() as pool:\n    pool.allocate(5 << 20)\ndel pool\n"
    report = reported(tmp_path, code)
    assert (report["account"]["requested"], report["end"]) == (5 * MIB, None)


def test_lines_are_traced_for_a_report_unless_turned_off(tmp_path: Path) -> None:
    assert reported(tmp_path, CLIMBS)["lines"]
    assert not reported(tmp_path, CLIMBS, "--lines=0", name="without.json")["lines"]


PROGRAM = """
import ctypes, multiprocessing, os, signal, sys, threading, time
import arena
pool = arena.default_arena()
kept = pool.allocate(3 << 20)
pool.allocate(7 << 20).free()
how = sys.argv[1]

def sleeps_in_c(library):
    print("began", flush=True)
    while True:
        library.usleep(900_000)

if how == "sleeps":
    print("began", flush=True)
    time.sleep(60)
elif how == "spins":
    print("began", flush=True)
    while True:
        pass
elif how == "allocates":
    print("began", flush=True)
    while True:
        pool.allocate(1 << 20).free()
elif how == "in C":
    sleeps_in_c(ctypes.CDLL(None))
elif how == "in C with the GIL":
    sleeps_in_c(ctypes.PyDLL(None))
elif how == "waits for a thread":
    thread = threading.Thread(target=time.sleep, args=(60,))
    thread.start()
    print("began", flush=True)
    thread.join()
elif how == "waits for the device":
    from tests.simulated.cu import Cu
    cu = Cu()
    cu.start()
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    cu.ok("cuLaunchHostFunc", cu.stream(), usleep, 60_000_000)
    print("began", flush=True)
    pool._open.synchronize()
elif how == "has a handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    print("began", flush=True)
    time.sleep(60)
elif how == "puts the handler back":
    before = signal.getsignal(signal.SIGTERM)
    def handler(number, frame):
        signal.signal(number, before)
        signal.raise_signal(number)
    signal.signal(signal.SIGTERM, handler)
    print("began", flush=True)
    time.sleep(60)
    time.sleep(60)
"""


@contextmanager
def begun(folder: Path, how: str, *options: object, code: str = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    """A running program, in its own process."""
    (folder / "program.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "-m", "arena", "run", "--cap", "64MiB", *map(str, options), folder / "program.py", how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean_environment(), **DEFAULTS, "PYTHONPATH": os.getcwd()},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            yield process
        finally:
            process.kill()


def wait_for(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    report: dict[str, Any] = json.loads(path.read_text())  # a file is complete or does not exist
    return report


@pytest.mark.parametrize(
    "how",
    ["sleeps", "spins", "allocates", "in C", "waits for a thread", "waits for the device", "puts the handler back"],
)
def test_sigterm_writes_the_report_and_ends_the_program_as_usual(tmp_path: Path, how: str) -> None:
    path, record = tmp_path / "out.json", tmp_path / "run.arena"
    with begun(tmp_path, how, "--report", path, "--record", record, "--json") as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    report, facts = json.loads(path.read_text()), json.loads(errors.splitlines()[-1])
    assert report["account"]["requested"] == 10 * MIB
    assert report["end"]["moment"].startswith("When SIGTERM arrived: ")
    assert (facts["exit"], facts["signal"], facts["problems"]) == (143, "SIGTERM", [])
    assert Trace.read(record).problem == ""


@pytest.mark.parametrize("how", ["sleeps", "spins", "allocates", "in C", "waits for a thread", "waits for the device"])
def test_sigusr1_writes_a_report_and_the_program_continues(tmp_path: Path, how: str) -> None:
    path = tmp_path / "out.json"
    with begun(tmp_path, how, "--report", path) as process:
        for _ in range(2):
            process.send_signal(signal.SIGUSR1)
            report = wait_for(path)
            assert report["account"]["requested"] == 10 * MIB
            assert report["end"]["moment"].startswith("Now: ")
            assert process.stderr is not None
            assert process.stderr.readline() == f"arena: SIGUSR1: wrote {path}\n"
            path.unlink()
        assert process.poll() is None
        process.terminate()
        process.wait(timeout=30)
    assert path.exists()


def test_sigusr1_says_why_nothing_was_written(tmp_path: Path) -> None:
    code = "import time\nprint('began', flush=True)\ntime.sleep(60)\n"
    with begun(tmp_path, "", "--report", tmp_path / "out.json", code=code) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        assert process.stderr.readline() == "arena: SIGUSR1: nothing to write: no memory was allocated yet\n"
    (tmp_path / "folder").mkdir()
    with begun(tmp_path, "sleeps", "--report", tmp_path / "folder/out.json") as process:
        (tmp_path / "folder").rmdir()
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        assert "folder/out.json was not written" in process.stderr.readline()


def test_a_second_sigterm_ends_a_program_that_never_releases_the_gil(tmp_path: Path) -> None:
    with begun(tmp_path, "in C with the GIL", "--report", tmp_path / "out.json") as process:
        process.terminate()
        time.sleep(0.2)
        process.terminate()
        assert process.wait(timeout=5) == -signal.SIGTERM


def test_the_programs_own_signal_handler_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with begun(tmp_path, "has a handler", "--report", path) as process:
        process.terminate()
        assert process.wait(timeout=30) == 5
    assert json.loads(path.read_text())["end"]["moment"].startswith("At the end of the run: ")


def test_signals_that_a_parent_ignores_stay_ignored(tmp_path: Path) -> None:
    code = "import signal; print('began', signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "arena", "run", "--report", tmp_path / "out.json", tmp_path / "program.py"],
        capture_output=True,
        text=True,
        env={**clean_environment(), **DEFAULTS},
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        check=False,
    )
    assert done.stdout == "began True\n"


def test_signals_end_forked_children_as_usual(tmp_path: Path) -> None:
    code = """
import multiprocessing, os, signal, time
context = multiprocessing.get_context("fork")
for number in (signal.SIGTERM, signal.SIGUSR1):
    child = context.Process(target=time.sleep, args=(60,))
    child.start()
    os.kill(child.pid, number)
    child.join(30)
    print(child.exitcode, flush=True)
import arena
kept = arena.default_arena().allocate(1 << 20)
"""
    (tmp_path / "program.py").write_text(code)
    path = tmp_path / "out.json"
    done = run_arena("run", "--report", path, tmp_path / "program.py")
    assert (done.stdout, done.returncode) == ("-15\n-10\n", 0)
    assert json.loads(path.read_text())["account"]["requested"] == MIB


def test_every_arena_keeps_its_file_from_signal_to_signal(tmp_path: Path) -> None:
    code = """
import arena, os, signal, time
pools = [arena.Arena(cap=f"{n}MiB") for n in (10, 20)]
kept = [pool.allocate(1 << 20) for pool in pools]
for _ in range(2):
    names = ["out.json", "out-2.json"]
    os.kill(os.getpid(), signal.SIGUSR1)
    while not all(os.path.exists(name) for name in names):
        time.sleep(0.01)
    time.sleep(0.2)
    print(sorted(name for name in os.listdir() if name.endswith(".json")))
    [os.unlink(name) for name in names]
"""
    (tmp_path / "program.py").write_text(f"import os; os.chdir({str(tmp_path)!r})\n{code}")
    done = run_arena("run", "--report", tmp_path / "out.json", tmp_path / "program.py")
    assert done.stdout == "['out-2.json', 'out.json']\n" * 2
    assert done.stderr.count("the report of the peak") == 2
    caps = [json.loads((tmp_path / name).read_text())["account"]["cap"] for name in ("out.json", "out-2.json")]
    assert caps == [10 * MIB, 20 * MIB]


def test_the_signal_thread_does_not_prevent_moving_live_data(tmp_path: Path) -> None:
    code = """
import arena
pool = arena.Arena(cap="64MiB", growth="64MiB")
held = [pool.allocate(2 << 20) for _ in range(31)]
del held[1::2]
print(pool.stats().largest_with_moving > pool.stats().largest_without_moving)
pool.allocate(pool.stats().largest_with_moving).free()
"""
    (tmp_path / "program.py").write_text(code)
    done = run_arena("run", "--report", tmp_path / "out.json", tmp_path / "program.py")
    assert (done.returncode, done.stderr.count("failed")) == (0, 0), done.stderr

"""A program under ``arena run`` that ends by ``os._exit`` or ``exec`` leaves its report and its recording."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from arena import Trace

from ..programs import run
from .command import facts_of

KEEPS = "import arena, os, sys\npool = arena.Arena()\nkept = pool.allocate(3 << 20)\n"


def test_os_exit_leaves_the_report_the_recording_and_the_summary(script: Any, tmp_path: Path) -> None:
    report, record = tmp_path / "out.json", tmp_path / "run.arena"
    done = script(KEEPS + "os._exit(3)", options=("--report", report, "--record", record))
    assert done.returncode == 3
    assert "\narena: ended by os._exit(3)\n" in done.stderr
    assert f"wrote {record}: 2 events\n" in done.stderr
    assert "at most 3 MiB live" in done.stderr
    assert Trace.read(record).problem == ""
    assert json.loads(report.read_text())["account"]["requested"] == 3 << 20
    facts = facts_of(script(KEEPS + "os._exit(300)", options=("--json",)))
    assert (facts["exit"], facts["until"], facts["signal"]) == (300 & 0xFF, "os._exit(300)", None)


def test_only_the_program_itself_reports(script: Any) -> None:
    done = script(KEEPS + "if os.fork() == 0:\n    os._exit(5)\nos.wait()\nprint('end')")
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "ended by" not in done.stderr
    assert done.stderr.count("\nNext: ") == 1


def test_exec_leaves_the_summary_first(script: Any) -> None:
    code = KEEPS + f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', 'print(7)'])"
    done = script(code)
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert f"arena: ended by exec: {sys.executable} -c 'print(7)'\n" in done.stderr
    assert "at most 3 MiB live" in done.stderr


def test_exec_of_what_cannot_run_is_the_programs_to_handle(script: Any) -> None:
    code = KEEPS + "try:\n    os.execv('/nowhere', ['x'])\nexcept OSError as error:\n    print(error.errno)"
    done = script(code)
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "ended by" not in done.stderr


def test_os_exit_from_another_thread_and_at_exit(script: Any) -> None:
    code = KEEPS + "import threading\nt = threading.Thread(target=os._exit, args=(4,))\nt.start()\nt.join()"
    done = script(code)
    assert (done.returncode, done.stderr.count("ended by os._exit(4)")) == (4, 1)
    done = script(KEEPS + "import atexit\natexit.register(os._exit, 6)")
    assert done.returncode == 6
    assert done.stderr.count("\nNext: ") == 1


@pytest.mark.parametrize("where", ["thread", "none"])
def test_a_report_that_hangs_does_not_keep_the_process(where: str) -> None:
    code = f"""
import os, threading, time
from arena._run import exits
exits.PATIENCE = 0.3
class Session:
    process, exit, is_over = os.getpid(), 0, False
    def end_early(self, how):
        time.sleep(1000)
    def go_on(self): ...
exits.watch_exits(Session())
if {where!r} == "none":
    def refuse(self):
        raise RuntimeError("can't start new thread at interpreter shutdown")
    threading.Thread.start = refuse
    Session.end_early = lambda self, how: 1 / 0
os._exit(9)
"""
    began = time.monotonic()
    assert run(code).returncode == 9
    assert time.monotonic() - began < 30

"""Recordings at the end of a program."""

from __future__ import annotations

from pathlib import Path

from arena import Trace

from ..programs import run


def test_a_recording_includes_exit_functions_registered_after_arena_was_imported(tmp_path: Path) -> None:
    code = """
import atexit
import arena
atexit.register(lambda: pool.allocate(7 << 20).free())
pool = arena.Arena(device="sim:1GiB")
"""
    run(code, check=True, ARENA_RECORD=str(tmp_path / "run.arena"))
    trace = Trace.read(tmp_path / "run.arena")
    assert trace.problem == ""
    assert [event.kind for event in trace if event.kind != "reserved"] == ["allocate", "free"]

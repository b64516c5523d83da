"""How a run ends, if not at the end of the program: ``--stop-after``, ``os._exit``, ``exec``, or never."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from arena import UsageError
from arena._dryrun.endless import Progress, Sample
from arena._dryrun.ends import Stop

from .program import MIB, WITH_ARENA, dry, facts_of

HOLDS = "import os, sys, time, arena\nheld = arena.default_arena().allocate(64 << 20)\n"


@pytest.mark.parametrize(
    ("text", "seconds", "steps"),
    [("90s", 90, None), ("5m", 300, None), ("1.5h", 5400, None), ("200steps", None, 200), ("1 step", None, 1)],
)
def test_durations_and_numbers_of_steps_are_read(text: str, seconds: float | None, steps: int | None) -> None:
    stop = Stop.parse(text)
    assert (stop.seconds, stop.steps) == (seconds, steps)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "0s", "-1s", "1.5steps", "5 minutes", "1e3s", "nan", "٣s", "9" * 400 + "s"]
)
def test_anything_else_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(UsageError, match="write a duration or a number of optimizer steps"):
        Stop.parse(text)


def test_a_program_that_goes_on_is_said_to_once_in_a_while() -> None:
    progress = Progress(patience=60)
    lines = [(at, progress.line(at, Sample(at, at * MIB, 0))) for at in range(0, 700, 5)]
    said = [(at, line) for at, line in lines if line]
    assert [at for at, _ in said] == [60, 360, 660]
    assert said[0][1] == (
        "arena: 60 s: 60 driver calls, 60 MiB in use and growing, no end in sight; Ctrl-C shows the report so far"
    )


def test_steps_say_more_than_calls_and_memory_that_does_not_grow_is_not_said_to() -> None:
    progress = Progress(patience=60)
    lines = [progress.line(at, Sample(at, 7 * MIB, at // 5)) for at in range(0, 65, 5)]
    assert lines[-1] == "arena: 60 s: 12 optimizer steps, 7 MiB in use, no end in sight; Ctrl-C shows the report so far"


def test_a_program_that_waits_is_not_said_to_go_on() -> None:
    progress = Progress(patience=60)
    assert [progress.line(at, Sample(10, MIB, 0)) for at in range(0, 200, 5)] == [None] * 40


def test_a_run_is_stopped_after_a_time_with_a_verdict_of_what_was_seen(tmp_path: Path) -> None:
    done = dry(tmp_path, f"{HOLDS}time.sleep(100)", options=("--card", "t4", "--stop-after", "1s"))
    assert done.returncode == 0
    assert "arena: fits on t4 for what was seen until --stop-after 1s: needs " in done.stderr


def test_a_number_of_steps_that_never_came_is_said(tmp_path: Path) -> None:
    done = dry(tmp_path, WITH_ARENA, 64, options=("--card", "t4", "--stop-after", "3steps"))
    assert "--stop-after 3steps did not end the program: PyTorch's optimizers took 0 steps" in done.stderr


@pytest.mark.parametrize("code", [0, 9])
def test_an_exit_at_once_leaves_its_report(tmp_path: Path, code: int) -> None:
    facts = facts_of(dry(tmp_path, f"{HOLDS}os._exit({code})", options=("--card", "t4", "--json")))
    assert (facts["exit"], facts["until"], facts["fits"]) == (code, f"os._exit({code})", None if code else True)
    assert facts["accounts"][0]["live"] == 64 * MIB


def test_a_program_that_becomes_another_is_not_said_to_be_killed(tmp_path: Path) -> None:
    code = f"{HOLDS}os.execv(sys.executable, [sys.executable, '-c', 'print(5)'])"
    done = dry(tmp_path, code, options=("--card", "t4"))
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert "is not known: the program replaced itself by another (" in done.stderr
    assert Path(sys.executable).name in done.stderr


def test_an_exec_that_fails_changes_nothing(tmp_path: Path) -> None:
    code = f"{HOLDS}\ntry:\n    os.execv('/nonexistent', ['x'])\nexcept OSError:\n    print('went on')"
    facts = dry(tmp_path, code, options=("--card", "t4", "--json"))
    assert facts.stdout == "went on\n"
    assert (facts_of(facts)["verdict"], facts_of(facts)["until"]) == ("fits", None)


def test_more_arguments_than_the_system_takes_in_one_word(tmp_path: Path) -> None:
    """The limit for one argument is 128 KiB; together they may have more."""
    words = ["x" * 100_000, "y" * 100_000]
    done = dry(tmp_path, f"{HOLDS}print(sum(map(len, sys.argv[1:])))", *words, options=("--card", "t4"))
    assert (done.returncode, done.stdout) == (0, "200000\n")

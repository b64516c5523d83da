"""The command line, as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import arena
from arena._cli.group import ABOUT

from ..installed_driver import nothing_installed
from ..programs import ROOT
from .command import TRACE, run_arena, start_arena


@pytest.mark.parametrize("arguments", [("--help",), ("info",), ("replay", "--cap", "1"), ("juggle",)])
def test_a_forked_process_prints_the_same_as_a_new_one(arguments: tuple[str, ...]) -> None:
    done = start_arena(*arguments)
    again = run_arena(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (again.returncode, again.stdout, again.stderr)


def test_an_unknown_command_is_wrong_usage() -> None:
    assert run_arena("juggle").returncode == 2


def test_the_list_of_commands_matches_the_help_of_each() -> None:
    shown = " ".join(run_arena("--help").stdout.split())
    for command, about in ABOUT.items():
        assert f"{command} {about}" in shown
        own = " ".join(run_arena(command, "--help").stdout.split())
        assert f" {about} " in own


@nothing_installed
def test_info_says_in_one_line_that_the_device_is_simulated_unless_requested() -> None:
    shown = start_arena("info", ARENA_DRIVER="")
    assert shown.stdout == run_arena("info").stdout
    assert re.fullmatch(r"arena: running on simulated memory, because no NVIDIA driver is installed .*\n", shown.stderr)


def test_a_replay_simulates_whatever_driver_is_installed(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    for environment in ({"ARENA_DRIVER": ""}, {"ARENA_DRIVER": "", "LD_LIBRARY_PATH": str(tmp_path)}):
        done = start_arena("replay", TRACE, "--cap", "2GiB", **environment)
        assert (done.returncode, done.stderr) == (0, ""), done


def test_info_shows_the_settings_and_where_they_come_from() -> None:
    shown = run_arena("info", ARENA_CAP="25%", ARENA_GROWTH="8MiB")
    assert "simulated, CUDA 13.0" in shown.stdout
    narrow = run_arena("info", ARENA_CAP="25%", ARENA_GROWTH="8MiB", COLUMNS="40")
    assert narrow.stdout == shown.stdout  # the terminal may wrap long lines, such as a path
    assert ["cap", "2", "GiB", "ARENA_CAP"] in [line.split() for line in shown.stdout.splitlines()]
    facts = json.loads(run_arena("info", "--json", CUPY_GPU_MEMORY_LIMIT="1073741824").stdout)
    (device,) = facts["devices"]
    assert facts["driver"]["simulated"]
    assert device["settings"][0] == {"name": "cap", "bytes": 1 << 30, "source": "CUPY_GPU_MEMORY_LIMIT"}
    assert device["settings"][3]["source"] == "default"


def test_replay_says_whether_a_trace_fits(tmp_path: Path) -> None:
    fits = run_arena("replay", TRACE, "--cap", "600MiB", "--save", tmp_path / "r.html")
    assert fits.returncode == 0
    assert "fits: 109,222 events under a cap of 600 MiB" in fits.stdout
    assert f"wrote {tmp_path / 'r.html'}" in fits.stdout
    assert (tmp_path / "r.html").exists()
    tight = run_arena("replay", TRACE, "--cap", "300MiB", "--json")
    facts = json.loads(tight.stdout)
    assert tight.returncode == 3
    assert (facts["fits"], facts["verdict"], facts["stats"]["cap"]) == (False, "cap reached", 300 << 20)
    plain = run_arena("replay", TRACE, "--plain", "--device", "sim:2GiB", "--json")
    assert json.loads(plain.stdout)["stats"]["rebacked"] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("replay", "/nowhere"), "arena: /nowhere cannot be read: No such file or directory"),
        (("replay", "README.md"), "arena: README.md is not a trace: it is neither"),
        (("replay", TRACE, "--cap", "lots"), "arena: cap='lots' is not a size"),
        (("replay", TRACE, "--device", "gpu"), "arena: device='gpu' is not accepted"),
        (("report", "README.md"), "arena: README.md is not JSON"),
        (("convert", TRACE, "x.pdf"), "does not end with .arena, .trace, .trace.gz, .csv or .json"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments: tuple[object, ...], text: str) -> None:
    done = run_arena(*arguments)
    assert done.returncode == 1
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" in run_arena("--debug", *arguments).stderr


def test_files_are_overwritten_only_with_force(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    assert "109,222 events" in run_arena("convert", TRACE, target).stdout
    again = run_arena("convert", TRACE, target)
    assert (again.returncode, "already exists; choose another name" in again.stderr) == (1, True)
    assert json.loads(run_arena("convert", TRACE, target, "--force", "--json").stdout)["events"] == 109_222


def test_a_saved_snapshot_becomes_a_report(tmp_path: Path) -> None:
    with arena.Arena(device="sim:1GiB", cap="64MiB") as pool, pool.allocate(1000):
        pool.snapshot().save(tmp_path / "s.json")
        pool.report().save(tmp_path / "r.json")
    for name in ("s.json", "r.json"):
        shown = run_arena("report", tmp_path / name)
        assert "of a cap of 64 MiB is reserved" in shown.stdout
        assert json.loads(run_arena("report", tmp_path / name, "--json").stdout)["account"]["requested"] == 1000
    page = run_arena("report", tmp_path / "s.json", "--save", tmp_path / "p.html")
    assert page.stdout == f"wrote {tmp_path / 'p.html'}\nNext: open {tmp_path / 'p.html'}\n"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    with arena.Arena(device="sim:1GiB") as pool:
        buffers = [pool.allocate(1000) for _ in range(3000)]
        path = pool.report().save(tmp_path / "r.json")
        buffers.clear()
    assert path.stat().st_size > 1 << 17  # more than a pipe holds
    done = subprocess.run(
        f"{sys.executable} -m arena report {path} --json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "ARENA_DRIVER": "sim"},
    )
    assert (done.stdout, done.stderr) == ('{\n "format', "")


def test_a_trace_or_a_page_given_instead_of_a_report_is_recognised(tmp_path: Path) -> None:
    done = run_arena("report", TRACE)
    instead = f"arena replay {TRACE} --save report.html makes a report from it"
    assert (done.returncode, done.stderr.startswith(f"arena: {TRACE} is a trace, not a report; {instead}")) == (1, True)
    page = tmp_path / "report.html"
    assert run_arena("replay", TRACE, "--save", page).returncode == 0
    assert run_arena("report", page).stderr == (
        f"arena: {page} is a page to open in a browser; reports are read from .json\n"
    )


def test_a_replay_accepts_the_simulated_device_without_a_size() -> None:
    facts = json.loads(run_arena("replay", TRACE, "--device", "sim", "--cap", "7G", "--json").stdout)
    assert (facts["stats"]["device_total"], facts["stats"]["cap"]) == (8 << 30, 7 << 30)
    found = run_arena("fit", TRACE, "--device", "sim", "--json")
    assert json.loads(found.stdout)["limit"] == 8 << 30

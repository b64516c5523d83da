"""``arena dryrun``: whether a program fits, what it held, which cards are large enough, and the largest batch."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arena import ArenaError, Trace, sim
from arena._dryrun import libraries
from arena._dryrun.environment import loadable

from ..cli.test_cli import run_arena
from ..programs import ROOT, clean_environment
from .program import GIB, MIB, WITH_ARENA, WITH_RUNTIME, dry, facts_of


def test_a_program_that_fits_is_told_with_its_peak_its_lines_and_the_cards_that_would_do(tmp_path: Path) -> None:
    done = dry(tmp_path, WITH_ARENA, 4096, options=("--card", "t4"))
    assert (done.returncode, done.stdout) == (0, "the program is done\n")
    card = sim.card("t4")
    lines = done.stderr.splitlines()
    assert re.fullmatch(
        r"arena: fits on t4: needs 4\.\d+ to 4\.\d+ of 14.74 GiB, "
        "117 to 385 MiB of it for the CUDA context and kernels",
        lines[0],
    )
    assert re.fullmatch(r"  arena: at most 4.06 GiB live and 4\.\d+ GiB reserved", lines[1])
    assert re.fullmatch(r"At the peak, .* into the run: 4.06 GiB live", lines[2])
    assert [" ".join(line.split()) for line in lines[3:7]] == [
        "4 GiB train.py:9 in step",
        "64 MiB train.py:8 in step",
        "4.06 GiB live",
        "117 MiB the CUDA context and kernels, an estimate",
    ]
    assert re.fullmatch(r" +4\.\d+ GiB  in use on the device, at least", lines[7])
    assert lines[8] == "cards that are large enough: gtx1660ti (5.81 GiB) and larger"
    assert sum(line.startswith("Note: ") for line in lines) == 2
    following = shlex.split(lines[-1].removeprefix("Next: "))
    assert following[:6] == ["arena", "dryrun", "--card", "t4", "--report", "report.html"]
    assert card.memory > 4160 * MIB


def test_machines_get_the_same(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, WITH_ARENA, 4096, options=("--card", "t4", "--json")))
    card = sim.card("t4")
    assert (facts["fits"], facts["exit"], facts["card"], facts["memory"]) == (True, 0, "t4", card.memory)
    (account,) = facts["accounts"]
    assert (account["who"], account["live"], account["failures"]) == ("arena", 4160 * MIB, 0)
    assert facts["peak"] == account["reserved"] + card.context
    table = facts["table"]
    assert (table["rows"][0]["line"], table["rows"][0]["bytes"]) == ("train.py:9 in step", 4 * GIB)
    assert sum(one["bytes"] for one in table["rows"]) == table["live"] == account["live"]
    assert table["live"] + sum(one["bytes"] for one in table["rest"]) == table["total"]
    assert (facts["cards"]["gtx1650"], facts["cards"]["gtx1660ti"], facts["cards"]["b200"]) == ("no", "yes", "yes")
    assert facts["failure"] is None


def test_a_program_that_does_not_fit_is_told_with_the_request_and_its_line(tmp_path: Path) -> None:
    done = dry(tmp_path, WITH_ARENA, 20 << 10, options=("--card", "t4"))
    assert done.returncode == 1
    assert "OutOfMemoryError: out of memory: " in done.stderr
    assert "arena: does not fit on t4: a request for 20 GiB failed at train.py:9 in step" in done.stderr
    assert "cards that may be large enough: l4 (21.95 GiB) and larger" in done.stderr
    following = done.stderr.splitlines()[-1].removeprefix("Next: ")
    again = run_arena(*shlex.split(following)[1:])
    assert (again.returncode, again.stdout) == (0, "the program is done\n")
    assert "arena: fits on l4" in again.stderr


@pytest.mark.parametrize("size", [1024, 20 << 10])
def test_memory_that_is_taken_through_the_runtime_is_known_from_the_driver(tmp_path: Path, size: int) -> None:
    done = dry(tmp_path, WITH_RUNTIME, size, options=("--card", "t4", "--allocator", "native", "--json"))
    facts = facts_of(done)
    context = sim.card("t4").context
    if size == 1024:
        assert (facts["fits"], facts["peak"]) == (True, context + 1088 * MIB)
    else:
        assert (facts["fits"], facts["peak"]) == (False, context + 64 * MIB)
        assert facts["failure"]["line"] == "train.py:11 in allocate"


def test_a_cap_holds_as_on_a_card(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, WITH_ARENA, 256, options=("--card", "t4", "--cap", "300MiB", "--json")))
    assert facts["fits"] is False
    assert "cap reached" in facts["failure"]["message"]


def test_a_device_needs_no_card_and_can_change_the_size_of_one(tmp_path: Path) -> None:
    alone = facts_of(dry(tmp_path, WITH_ARENA, 256, options=("--device", "sim:1GiB", "--json")))
    assert (alone["card"], alone["memory"], alone["context"], alone["fits"]) == (None, GIB, 0, True)
    both = facts_of(dry(tmp_path, WITH_ARENA, 256, options=("--card", "t4", "--device", "sim:256MiB", "--json")))
    assert (both["card"], both["memory"], both["fits"]) == ("t4", 256 * MIB, False)


def test_a_profile_of_your_own_is_simulated(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(sim.card("t4").path.read_text().replace('"15095MiB"', '"2GiB"'))
    facts = facts_of(dry(tmp_path, WITH_ARENA, 4096, options=("--card", profile, "--json")))
    assert (facts["card"], facts["memory"], facts["fits"]) == ("mine", 2 * GIB, False)


@pytest.mark.parametrize(
    ("code", "exit_code"), [("import sys; sys.exit(7)", 7), ("1 / 0", 1), ("import os; os._exit(9)", 9)]
)
def test_the_exit_code_is_the_programs_and_then_it_is_not_known_whether_it_fits(
    tmp_path: Path, code: str, exit_code: int
) -> None:
    done = dry(tmp_path, f"import arena\nheld = arena.default_arena().allocate(1 << 20)\n{code}")
    assert done.returncode == exit_code
    assert "fits on" not in done.stderr.replace("whether it fits on", "")


def test_a_program_that_is_killed_is_said_to_be(tmp_path: Path) -> None:
    done = dry(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 128 + 9
    assert "arena: the program was killed (SIGKILL), and nothing is known of its memory" in done.stderr


def test_a_program_that_is_ended_by_sigterm_reports_first(tmp_path: Path) -> None:
    program, report = tmp_path / "train.py", tmp_path / "out.html"
    program.write_text(f"{WITH_ARENA}\nsys.stdout.flush()\nimport time\ntime.sleep(60)")
    command = [sys.executable, "-m", "arena", "dryrun", "--card", "t4", "--report", str(report), str(program), "64"]
    environment = {**clean_environment(), "ARENA_DRIVER": "sim"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "the program is done\n"
        started.terminate()
        said = started.communicate(timeout=60)[1]
    assert started.returncode == 128 + signal.SIGTERM
    assert "arena: whether it fits on t4 is not known: the program ended early" in said
    assert f"wrote {report}: the report of the peak" in said


def test_libraries_are_preloaded_from_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my libraries"
    folder.mkdir()
    files = [folder / name for name in ("libcudasim.so", "libcudart.so.13")]
    for file in files:
        file.write_bytes(b"")
    links = loadable(files, tmp_path)
    assert [link.name for link in links] == [file.name for file in files]
    assert all(" " not in str(link) and link.samefile(file) for link, file in zip(links, files, strict=True))
    assert loadable(links, tmp_path) == links


def test_a_program_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = dry(tmp_path, "print('hello')")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "arena: the program used no GPU" in done.stderr


def test_settings_of_the_math_libraries_are_not_refused_by_the_driver(tmp_path: Path) -> None:
    variables = {"CUDASIM_WORKSPACE_CUDNN": "64MiB", "CUDASIM_CUDNN_VERSION": "93000"}
    assert dry(tmp_path, WITH_ARENA, 64, options=("--card", "t4"), **variables).returncode == 0


def test_a_module_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run_arena("dryrun", "-m", "there_is_no_such_module")
    assert done.returncode == 1
    assert done.stderr == "arena: -m there_is_no_such_module cannot be run: the module does not exist\n"


def test_processes_that_the_program_starts_run_dry_too_and_do_not_report(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
again = "import arena; pool = arena.default_arena(); held = pool.allocate(1 << 30); print(pool.is_simulated)"
print(subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True).stdout, end="")
if os.fork() == 0:
    sys.exit(0)
os.wait()
import arena
held = arena.default_arena().allocate(64 << 20)
"""
    done = dry(tmp_path, code, options=("--card", "t4"))
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert done.stderr.count("arena: fits on t4") == 1
    assert "arena: at most 64 MiB live" in done.stderr


def test_report_and_recording_are_written_as_everywhere_else(tmp_path: Path) -> None:
    report, recording = tmp_path / "out.html", tmp_path / "out.arena"
    options = ("--card", "t4", "--report", report, "--record", recording)
    done = dry(tmp_path, WITH_ARENA, 256, options=options)
    assert f"wrote {report}: the report of the peak" in done.stderr
    assert "<html" in report.read_text()[:200]
    trace = Trace.read(recording)
    assert sum(event.size for event in trace if event.kind == "allocate") == 320 * MIB
    assert done.stderr.splitlines()[-1] == f"Next: arena fit {recording}"


def test_the_largest_batch_is_found_by_trying(tmp_path: Path) -> None:
    done = dry(tmp_path, WITH_ARENA, "{}", options=("--device", "sim:1GiB", "--find-batch", "1:2048"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "arena: the largest batch that fits is 960; 13 were tried" in done.stderr
    assert "arena: fits on sim:1GiB: at most 1 of 1 GiB in use" in done.stderr


def test_if_all_batches_fit_or_none_does_the_answer_says_so(tmp_path: Path) -> None:
    small = dry(tmp_path, WITH_ARENA, "{}", options=("--device", "sim:1GiB", "--find-batch", "1:8"))
    assert small.returncode == 0
    assert "arena: batch 8 fits, the largest that was asked about" in small.stderr
    assert small.stderr.splitlines()[-1] == "Next: larger ones: --find-batch 8:32"
    large = dry(tmp_path, WITH_ARENA, "{}", options=("--device", "sim:1GiB", "--find-batch", "2000:3000", "--json"))
    assert large.returncode == 3
    facts = facts_of(large)
    assert facts["batch"]["largest"] is None
    assert list(facts["batch"]["tried"]) == ["2000"]


def test_a_search_ends_when_something_else_than_memory_decides(tmp_path: Path) -> None:
    code = f"{WITH_ARENA}\nassert int(sys.argv[1]) < 5, 'too many cats'"
    done = dry(tmp_path, code, "{}", options=("--device", "sim:1GiB", "--find-batch", "1:8"))
    assert done.returncode == 1
    assert "AssertionError: too many cats" in done.stderr
    message = "arena: with batch 8 the program ended with exit code 1, and not because of memory"
    assert done.stderr.splitlines()[-1] == message


def test_without_its_libraries_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    with pytest.raises(ArenaError, match=r"has no libcudart.so.12 or libcudart.so.13.*reinstall cuda-arena"):
        libraries.libraries()

"""The examples run and print what they should; the safe-point examples fail without the line they are about."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .notebook import run_cells
from .programs import ROOT, run, run_command

OUTPUT = {
    "training_loop": ["evaluated: 200 MiB in one piece", "20 steps; moving live data set 96 MiB free"],
    "service": ["10 bursts; moving live data set 162 MiB free", "a long prompt got 160 MiB in one piece"],
}


@pytest.mark.parametrize("name", OUTPUT)
def test_a_safe_point_example_runs(name: str) -> None:
    done = run((ROOT / "examples" / f"{name}.py").read_text(), check=True)
    assert (done.stdout.splitlines(), done.stderr) == (OUTPUT[name], "")


@pytest.mark.parametrize("name", OUTPUT)
def test_without_its_safe_point_an_example_is_out_of_memory(name: str) -> None:
    code, lines = re.subn(r"freed \+= pool\.safe_point\(.*\)", "pass", (ROOT / "examples" / f"{name}.py").read_text())
    assert lines == 1
    done = run(code)
    asked = re.search(r"\d+ MiB in one piece", "\n".join(OUTPUT[name]))
    assert asked
    assert f"out of memory: {asked[0].split()[0]} MiB requested, re-backing not allowed" in done.stderr
    assert "Next: call pool.safe_point(" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", OUTPUT)
def test_the_documents_name_the_safe_point_examples(name: str) -> None:
    assert f"examples/{name}.py" in (ROOT / "docs" / "streams.md").read_text()
    assert f"examples/{name}.py" in (ROOT / "README.md").read_text()


# A part of what each prints. The safe-point examples are above; "report" is in test_documents.py.
PRINTED = {
    "quickstart": ["137.5 MiB live, 192 MiB of 1 GiB reserved", "77,070,336  quickstart.py:17 in <module>"],
    "quickstart_rmm": [
        "190 MiB live",
        "out of memory: 100 MiB requested, cap reached",
        "104,857,600  quickstart_rmm.py:",
    ],
    "find_a_leak": ["step 2: 16,781,312 bytes at its peak, 4,198,400 outlived it", "4 KiB        1  find_a_leak.py:"],
    "will_it_fit": ["80 MiB is the smallest cap", "72MiB: out of memory: ", "96MiB: fits"],
    "out_of_memory": ["768 MiB asked, cap reached; 312 MiB would have passed", "a batch of 104 takes 312 MiB"],
    "budgets": ["large: refused: budget of scope large reached, 200 of 300 MiB used", "0 bytes are left behind"],
    "pressure": ["24 of 100 entries are cached, in 144 MiB", "trim() returned 234 MiB"],
    "dask_cluster": ["cap reached: On Dask worker ", "2 arenas on 1 card: 1.22 GiB live", "1,248 MiB  dask_cluster."],
    "fault_injection": ["the driver refused: device full", "nothing was left behind"],
    "simulated_device": ["CUDA_ERROR_ILLEGAL_ADDRESS", "is not ordered after"],
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_about(name: str, tmp_path: Path) -> None:
    if name == "quickstart_rmm":
        pytest.importorskip("rmm", reason="RMM needs Python 3.11")
    code = f"import runpy; runpy.run_path('examples/{name}.py', run_name='__main__')"
    done = run(code, str(tmp_path), ARENA_DRIVER="sim", check=True)
    assert [text for text in PRINTED[name] if text not in done.stdout] == []
    assert done.stderr == ""


# The same for those that run dry. Those with PyTorch are in tests/torch/test_examples.py.
PRINTED_DRY = {
    "quickstart_numba": ["20 MiB live", "16,777,216  quickstart_numba.py:", "1024 MiB asked, cap reached; 252 MiB "],
    "quickstart_cuda_core": ["64 MiB live", "1 of 2 requests took memory that was there", "192 MiB would have passed"],
}
WITH_PYTORCH = {"quickstart_torch", "two_frameworks"}


@pytest.mark.parametrize("name", PRINTED_DRY)
def test_an_example_prints_in_a_dry_run_what_it_is_about(name: str) -> None:
    command = ["-m", "arena", "dryrun", f"examples/{name}.py"]
    assert f"\narena {' '.join(command[2:])} " in (ROOT / "examples" / f"{name}.py").read_text()
    done = run_command(*command, check=True)
    assert [text for text in PRINTED_DRY[name] if text not in done.stdout] == []
    assert "arena: fits on rtx4090" in done.stderr


def test_the_program_for_arena_run_fits_the_cap_in_its_docstring(tmp_path: Path) -> None:
    text = (ROOT / "examples/train.py").read_text()
    command = re.search(r"^arena (run .+?) --report", text, re.M)
    assert command
    arguments = [*command[1].split(), "--record", str(tmp_path / "train.arena"), "examples/train.py"]
    done = run(f"import sys; from arena._cli import main; sys.argv[1:] = {arguments!r}; main()", check=True)
    assert "at most 438.6 MiB live" in done.stderr
    assert ", of a cap of 512 MiB" in done.stderr


def test_every_example_is_listed_and_tested() -> None:
    listed = re.findall(r"^\| \[`([\w/]+\.\w+)`\]", (ROOT / "examples/README.md").read_text(), re.M)
    found = (path.relative_to(ROOT / "examples") for path in (ROOT / "examples").rglob("*.*"))
    there = [str(path) for path in found if path.suffix in (".py", ".ipynb")]
    assert sorted(listed) == sorted(there)
    tested = {*OUTPUT, *PRINTED, *PRINTED_DRY, *WITH_PYTORCH, "train", "report"}
    assert set(there) == {*(f"{name}.py" for name in tested), "tour.ipynb", "dryrun/train.py", "dryrun/three_models.py"}


def in_either_mode(text: str) -> str:
    """Put what passes without moving first: which comes first depends on the kernel's threads."""
    sizes = r"(\S+ [KMG]iB) {} moving( live data)?,\s+(\S+ [KMG]iB) {} moving( live data)?"
    return re.sub(sizes.format("with", "without"), r"\3 without moving live data, \1 with moving", text)


def test_the_notebook_prints_its_stored_output(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "examples/tour.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    outputs = run_cells(tmp_path, *("".join(cell["source"]) for cell in code))
    for cell, output in zip(code, outputs, strict=True):
        stored = "".join("".join(o["text"]) for o in cell["outputs"] if o["output_type"] == "stream")
        assert in_either_mode(output.text) == in_either_mode(stored)

"""The examples of safe points run, and the line that they are about is what they run by."""

from __future__ import annotations

import re

import pytest

from .programs import ROOT, run

OUTPUT = {
    "training_loop": ["evaluated: 200 MiB in one piece", "20 steps; moving live data set 72 MiB free"],
    "service": ["10 bursts; moving live data set 162 MiB free", "a long prompt got 160 MiB in one piece"],
}


@pytest.mark.parametrize("name", OUTPUT)
def test_an_example_of_a_safe_point_runs(name: str) -> None:
    done = run((ROOT / "examples" / f"{name}.py").read_text(), check=True)
    assert (done.stdout.splitlines(), done.stderr) == (OUTPUT[name], "")


@pytest.mark.parametrize("name", OUTPUT)
def test_without_its_safe_point_an_example_is_out_of_memory(name: str) -> None:
    code, lines = re.subn(r"freed \+= pool\.safe_point\(.*\)", "pass", (ROOT / "examples" / f"{name}.py").read_text())
    assert lines == 1
    done = run(code)
    asked = re.search(r"\d+ MiB in one piece", "\n".join(OUTPUT[name]))
    assert asked
    assert f"out of memory: {asked[0].split()[0]} MiB asked, re-backing not allowed" in done.stderr
    assert "Next: call pool.safe_point(" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", OUTPUT)
def test_the_documents_name_the_examples_of_safe_points(name: str) -> None:
    assert f"examples/{name}.py" in (ROOT / "docs" / "streams.md").read_text()
    assert f"examples/{name}.py" in (ROOT / "README.md").read_text()

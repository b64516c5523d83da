"""What the documents claim: every test that they name exists, every public name is explained."""

from __future__ import annotations

import ast
import inspect
import re
import types
from pathlib import Path

import pytest

import arena
from arena import errors, sim

from .programs import run

ROOT = Path(__file__).parent.parent


def named_tests(folder: Path) -> set[str]:
    return {
        node.name
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_rule_of_the_driver_names_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (?!rule|---)(.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs/driver-rules.md").read_text(), re.M)
    assert len(rows) > 80
    named = {test for _, _, cell in rows for test in re.findall(r"`(test_\w+)`", cell)}
    assert all(re.search(r"`test_\w+`", cell) for _, _, cell in rows)
    assert named - named_tests(ROOT / "tests/simulated") == set()


def test_every_outcome_that_is_promised_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/arena.md").read_text()
    named = re.findall(r"^\| .+ \| `(test_\w+)` \|$", text, re.M)
    assert len(named) > 12
    assert set(named) - named_tests(ROOT / "tests/arena") == set()


@pytest.mark.parametrize("name", ["reliability", "hardware"])
def test_every_promise_names_tests_that_exist(name: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / f"docs/{name}.md").read_text()))
    assert named - named_tests(ROOT / "tests") == set()
    assert len(named) > 10


def test_every_test_for_a_gpu_is_in_the_tables_of_what_is_tested() -> None:
    text = (ROOT / "docs/hardware.md").read_text()
    of_the_runner = set(re.findall(r"^def (test_\w+)", (ROOT / "tests/gpu/test_run.py").read_text(), re.M))
    assert [name for name in named_tests(ROOT / "tests/gpu") - of_the_runner if f"`{name}`" not in text] == []


def test_every_test_of_virtual_memory_is_in_the_table_of_rules() -> None:
    table = (ROOT / "docs/driver-rules.md").read_text()
    path = ROOT / "tests/simulated/test_virtual_memory.py"
    names = re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    assert [name for name in names if f"`{name}`" not in table] == []


@pytest.mark.parametrize("module", [arena, sim, errors], ids=lambda module: module.__name__)
def test_every_public_name_is_explained(module: types.ModuleType) -> None:
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, str):
            continue
        assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


WITH_EXAMPLES = [path.stem for path in (ROOT / "python/arena").glob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("module", [f"arena.{name}" for name in WITH_EXAMPLES])
def test_the_examples_in_docstrings_run(module: str) -> None:
    # In a process of its own: one of them makes the simulated driver everybody's.
    code = f"import doctest, {module} as m; print(doctest.testmod(m, optionflags=doctest.IGNORE_EXCEPTION_DETAIL))"
    done = run(code, check=True)
    assert re.search(r"TestResults\(failed=0, attempted=[1-9]", done.stdout), done.stdout


@pytest.mark.parametrize("path", ["README.md", "docs/simulated-driver.md"])
def test_the_python_in_the_documents_runs(path: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        done = run(block, ARENA_DRIVER="sim")
        assert (done.returncode, done.stderr) == (0, ""), block


def test_the_error_that_the_readme_shows_is_the_one_that_is_raised() -> None:
    code = """
import arena
pool = arena.Arena(cap="4GiB", headroom="512MiB")
held = pool.allocate(3 << 30)
try:
    pool.allocate(2 << 30)
except arena.OutOfMemoryError as error:
    print(error)
"""
    shown = re.search(r"^    out of memory:.*?^    Next: .*?$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown is not None
    assert run(code, ARENA_DRIVER="sim").stdout.splitlines() == [line[4:] for line in shown[0].splitlines()]


def test_the_readme_example_of_a_planned_failure_fails_the_next_allocation() -> None:
    block = next(
        b
        for b in re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
        if "sim.fail" in b
    )
    done = run(block + "\ndevice.allocate(1 << 20, stream=device.default_stream)\n")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["arena.md", "fit.md", "reports.md", "streams.md"])
def test_the_python_in_a_document_runs_as_one_program(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.M | re.S)
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n" + "\n".join(blocks), ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_report_that_the_readme_shows_is_the_examples(tmp_path: Path) -> None:
    code = "import runpy, sys; runpy.run_path('examples/report.py', run_name='__main__')"
    done = run(code, str(tmp_path))
    shown = re.search(r"^    224 MiB of a cap.*?holds back.*?$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown is not None
    lines = [line[4:] for line in shown[0].splitlines() if line.strip() not in ("...", "")]
    assert [line for line in lines if line not in done.stdout.splitlines()] == []
    assert (tmp_path / "report.html").exists()


def test_the_demo_that_the_readme_shows_is_the_one_that_runs(tmp_path: Path) -> None:
    code = "import sys; from arena._cli import main; sys.argv[1:] = ['demo', '--save', sys.argv[1]]; main()"
    done = run(code, str(tmp_path / "page.html"))
    shown = re.search(r"^    A data pipeline.*?without moving\.$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown is not None
    lines = [line[4:] for line in shown[0].splitlines() if line]
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert len(lines) > 8
    assert [line for line in lines if line not in printed] == []


DOCUMENTS = [path.name for path in ROOT.glob("*.md")] + [f"docs/{path.name}" for path in ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    path = ROOT / name
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []

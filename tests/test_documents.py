"""What the documents claim: every test they name exists, and every public name is documented."""

from __future__ import annotations

import ast
import inspect
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import arena
from arena import _core, errors, sim
from arena._util.environment import KNOWN
from arena._words.verdicts import Verdict

from .programs import clean_environment, run

ROOT = Path(__file__).parent.parent


def named_tests(folder: Path) -> set[str]:
    return {
        node.name
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize(
    ("page", "folder", "least"), [("driver-rules", "simulated", 80), ("runtime-rules", "runtime", 35)]
)
def test_every_rule_names_a_test_that_exists(page: str, folder: str, least: int) -> None:
    rows = re.findall(r"^\| (?!rule|---)(.+?) \| (.+?) \| (.+?) \|$", (ROOT / f"docs/{page}.md").read_text(), re.M)
    assert len(rows) > least
    named = {test for _, _, cell in rows for test in re.findall(r"`(test_\w+)`", cell)}
    assert all(re.search(r"`test_\w+`", cell) for _, _, cell in rows)
    assert named - named_tests(ROOT / "tests" / folder) == set()


def test_every_documented_outcome_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/arena.md").read_text()
    named = re.findall(r"^\| .+ \| `(test_\w+)` \|$", text, re.M)
    assert len(named) > 12
    assert set(named) - named_tests(ROOT / "tests/arena") == set()


@pytest.mark.parametrize("name", ["reliability", "hardware"])
def test_every_promise_names_tests_that_exist(name: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / f"docs/{name}.md").read_text()))
    assert named - named_tests(ROOT / "tests") == set()
    assert len(named) > 10


def test_every_gpu_test_is_in_the_tables_of_hardware_tests() -> None:
    text = (ROOT / "docs/hardware.md").read_text()
    of_the_runner = set(re.findall(r"^def (test_\w+)", (ROOT / "tests/gpu/test_run.py").read_text(), re.M))
    assert [name for name in named_tests(ROOT / "tests/gpu") - of_the_runner if f"`{name}`" not in text] == []


def test_every_test_of_virtual_memory_is_in_the_table_of_rules() -> None:
    table = (ROOT / "docs/driver-rules.md").read_text()
    path = ROOT / "tests/simulated/test_virtual_memory.py"
    names = re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    assert [name for name in names if f"`{name}`" not in table] == []


@pytest.mark.parametrize("folder", ["core", "cudasim", "runtime"])
def test_every_source_file_is_in_the_reading_order_of_its_folder(folder: str) -> None:
    """A header counts for the source of the same name."""
    source = ROOT / "src" / folder
    headers = {path.stem for path in source.rglob("*.h*")}
    files = {path.name for path in source.rglob("*.h*")} | {
        path.name for path in source.rglob("*.cpp") if path.stem not in headers
    }
    named = set(re.findall(r"`(\w+\.(?:hpp|cpp|h))`", (source / "README.md").read_text()))
    assert named - {path.name for path in source.rglob("*.?pp")} <= files
    assert files - named == set()


@pytest.mark.parametrize("module", [arena, sim, errors], ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module: types.ModuleType) -> None:
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, str):
            continue
        assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "python").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


# Examples per module, counted in the source and compared with what doctest finds.
EXAMPLES = {
    module_name(path): count
    for path in sorted((ROOT / "python/arena").rglob("*.py"))
    if (count := len(re.findall(r"^\s*>>> ", path.read_text(), re.M)))
}


@pytest.mark.parametrize("module", EXAMPLES)
def test_every_example_in_a_docstring_runs(module: str) -> None:
    # In its own process, because one example enables the simulated driver for the whole process.
    code = f"""
import doctest, importlib
done = doctest.testmod(importlib.import_module({module!r}), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
print("failed", done.failed, "attempted", done.attempted)
"""
    printed = run(code, check=True).stdout
    assert printed.splitlines()[-1] == f"failed 0 attempted {EXAMPLES[module]}", printed


def test_examples_in_sub_packages_are_run_too() -> None:
    assert {name.count(".") for name in EXAMPLES} >= {0, 1, 2}


@pytest.mark.parametrize("path", ["README.md", "docs/environment.md", "docs/simulated-driver.md"])
def test_the_python_in_the_documents_runs(path: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        done = run(block, ARENA_DRIVER="sim")
        assert (done.returncode, done.stderr) == (0, ""), block


def test_the_error_in_the_guide_is_the_one_that_is_raised() -> None:
    code = """
import arena
pool = arena.Arena(cap="4GiB", headroom="512MiB")
held = pool.allocate(3 << 30)
try:
    pool.allocate(2 << 30)
except arena.OutOfMemoryError as error:
    print(error)
"""
    shown = re.search(r"^    out of memory: 2 GiB.*?^    Next: .*?$", (ROOT / "docs/arena.md").read_text(), re.M | re.S)
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


def test_the_report_in_the_guide_is_the_examples(tmp_path: Path) -> None:
    code = "import runpy, sys; runpy.run_path('examples/report.py', run_name='__main__')"
    done = run(code, str(tmp_path))
    shown = re.search(r"^    224 MiB of a cap.*?holds back.*?$", (ROOT / "docs/reports.md").read_text(), re.M | re.S)
    assert shown is not None
    lines = [line[4:] for line in shown[0].splitlines() if line.strip() not in ("...", "")]
    assert [line for line in lines if line not in done.stdout.splitlines()] == []
    assert (tmp_path / "report.html").exists()


def test_the_demo_in_the_guide_is_the_one_that_runs(tmp_path: Path) -> None:
    code = "import sys; from arena._cli import main; sys.argv[1:] = ['demo', '--save', sys.argv[1]]; main()"
    done = run(code, str(tmp_path / "page.html"))
    shown = re.search(r"^    A data pipeline.*?moving\.$", (ROOT / "docs/command-line.md").read_text(), re.M | re.S)
    assert shown is not None
    lines = [line[4:] for line in shown[0].splitlines() if line]
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert len(lines) > 8
    assert [line for line in lines if line not in printed] == []


DOCUMENTS = [
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/*/*.md")
    for path in ROOT.glob(pattern)
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_between_documents_are_valid(name: str) -> None:
    path = ROOT / name
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    targets += re.findall(r"(?:\{image\} |src=\"|srcset=\")([^\"\n]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


STILTED = re.compile(r"\b(whoever|whomever|somebody|nobody|mended|anew|will not do|for want of)\b", re.I)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith(("README", "docs/", "examples/"))])
def test_documents_are_written_in_plain_words(name: str) -> None:
    prose = re.sub(r"`[^`]*`", "", (ROOT / name).read_text())
    assert [match[0] for match in STILTED.finditer(prose)] == []


GUIDES = ["start/cupy.md", "start/find-a-leak.md", "start/will-it-fit.md"]


@pytest.mark.parametrize("name", GUIDES)
def test_the_output_shown_in_a_first_guide_is_what_the_code_prints(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / name).read_text()
    program = tmp_path / "program.py"  # a file, so that it has source lines to show
    program.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)))
    code = f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('program.py', run_name='__main__')"
    done = run(code, ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.findall(r"^```\n\n((?:    .*\n)+)", text, re.M)
    assert shown
    lines = [line[4:] for block in shown for line in block.splitlines()]
    assert [line for line in lines if line not in done.stdout.splitlines()] == []


def table(path: str, first: str) -> list[list[str]]:
    """The rows of the table whose first row has that first cell."""
    rows = re.search(rf"^\| {first}.*?(?=^[^|]|\Z)", (ROOT / path).read_text(), re.M | re.S)
    assert rows is not None
    return [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in rows[0].strip().splitlines()]


def mean(values: list[float]) -> str:
    return f"{math.prod(values) ** (1 / len(values)):.3f}"


def test_the_readme_shows_the_figures_of_the_benchmarks_and_of_the_others() -> None:
    ours = {row[0]: row[1:3] for row in table("docs/benchmarks.md", "vgg")}
    others = {
        row[0]: [row[3], row[1], min(row[5], row[6])] for row in table("benchmarks/traces/README.md", "vgg \\| 1")
    }
    *rows, last = table("README.md", "vgg: ")
    assert {row[0].split(":")[0]: row[1:] for row in rows} == {name: ours[name] + others[name] for name in others}
    assert last[1:] == [mean([float(row[n]) for row in rows]) for n in range(1, 6)]


# Read by the stand-ins for the math libraries: src/standins/common/settings.hpp.
STANDIN_VARIABLES = [
    "CUDASIM_CUDNN_VERSION",
    "CUDASIM_WORKSPACE_CUDNN_LIBRARY",
    "CUDASIM_WORKSPACE_ESTIMATES",
    "CUDASIM_WORKSPACE_LOG",
    *(f"CUDASIM_WORKSPACE_{name}" for name in ("CUBLASLT", "CUDNN", "CUFFT", "CUSOLVER", "CUSPARSE", "CUSPARSELT")),
]


def test_the_table_of_variables_matches_those_that_the_code_reads() -> None:
    listed = re.findall(r"^\| `((?:ARENA|CUDASIM)_\w+)` \|", (ROOT / "docs/environment.md").read_text(), re.M)
    asked = run("from arena import sim; sim.settings()", CUDASIM_NO_SUCH="1")
    simulated = re.search(r"the settings are ([\w, ]+)", asked.stderr)
    assert simulated, asked.stderr
    known = [f"CUDASIM_{name.upper()}" for name in simulated[1].split(", ")]
    assert sorted(listed) == sorted([*KNOWN, *known, *STANDIN_VARIABLES])


def test_the_reference_has_every_public_name() -> None:
    listed = set(re.findall(r"^\.\. auto\w+:: arena\.(\w+)", (ROOT / "docs/reference/api.md").read_text(), re.M))
    modules = {"cuda_core", "dask", "numba", "rmm", "sim", "torch"}  # each has a page of its own, or a section of one
    assert listed == set(arena.__all__) - {"__version__", "errors"} - modules
    frameworks = (ROOT / "docs/reference/frameworks.md").read_text()
    assert [name for name in modules - {"sim"} if f"arena.{name}" not in frameworks] == []


def test_the_reference_has_every_command() -> None:
    done = run("import sys; from arena._cli import main; sys.argv[1:] = ['--help']; main()")
    commands = re.findall(r"^  ([a-z]+)  ", done.stdout.split("Commands:")[1], re.M)
    assert len(commands) > 7
    assert re.findall(r"^## arena (\w+)", (ROOT / "docs/reference/commands.md").read_text(), re.M) == commands


def test_every_page_is_in_the_table_of_contents() -> None:
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", (ROOT / "docs/index.md").read_text(), re.M | re.S)
    listed = {line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")}
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in ROOT.glob("docs/**/*.md")}
    assert listed == pages - {"index"}


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="make docs installs it")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=clean_environment())
    assert (done.returncode, done.stderr) == (0, "")
    reference = (tmp_path / "reference/api.html").read_text()
    methods = [name for name in dir(arena.Arena) if not name.startswith("_")]
    assert [name for name in methods if f'id="arena.Arena.{name}"' not in reference] == []


def test_pictures_come_in_light_and_dark_and_stay_small() -> None:
    pictures = sorted((ROOT / "docs/pictures").glob("*.png"))
    names = {path.stem.rsplit("-", 1)[0] for path in pictures}
    assert names == {"report", "map", "timeline", "comparison", "cluster", "terminal"}
    assert {path.stem for path in pictures} == {f"{name}-{mode}" for name in names for mode in ("light", "dark")}
    assert [path.name for path in pictures if path.stat().st_size >= 300_000] == []


def test_python_has_every_verdict_of_the_core_and_no_module_spells_one_out() -> None:
    assert set(Verdict.__members__) == set(_core.VERDICTS)
    for path in (ROOT / "python/arena").rglob("*.py"):
        compared = {
            constant.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Compare, ast.Dict, ast.Tuple))
            for constant in ast.walk(node)
            if isinstance(constant, ast.Constant)
        }
        assert compared & set(_core.VERDICTS.values()) == set(), path

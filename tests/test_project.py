"""The project's files: the Makefile, what CI runs, the citation and the changelog."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(*arguments: str) -> str:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def help_texts() -> dict[str, str]:
    return dict(re.findall(r"^  make (\S+) +(.+)$", make("help"), re.M))


def recipes() -> dict[str, str]:
    """The lines of each target, including those of its dependencies."""
    found = re.findall(r"^([\w./%$()-]+):(?!=) ?(.*)\n((?:\t.*\n|  .*\n)*)", MAKEFILE, re.M)
    texts: dict[str, str] = {}
    for target, prerequisites, lines in found:
        texts[target] = texts.get(target, "") + f"{prerequisites.partition('##')[0]}\n{lines}"
    return texts


@needs_make
def test_make_help_explains_every_target_in_one_line() -> None:
    public = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.M)
    assert public is not None
    texts = help_texts()
    assert sorted(texts) == sorted(public[1].replace("\\\n", " ").split())
    assert [line for line in make("help").splitlines() if len(line) > 100] == []
    assert make() == make("help")


@needs_make
def test_every_make_target_in_a_document_exists() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/*/*.md")]
    text = "\n".join(path.read_text() for path in documents)
    named = set(re.findall(r"(?:^    |`)make (?:-\S+ )*([a-z][a-z-]*)(?![\w/.])", text, re.M))
    assert len(named) > 10
    parts = {f"test-part-{path.name}" for path in (ROOT / "tests").glob("*/") if any(path.glob("test_*.py"))}
    assert "\ntest-part-%:" in MAKEFILE
    assert named - set(help_texts()) - parts == set()


@needs_make
def test_targets_that_install_system_packages_say_so() -> None:
    texts = help_texts()
    assert "apt-get" not in MAKEFILE
    assert [path.name for path in (ROOT / "tools").glob("*") if "apt-get" in path.read_text()] == []

    installing = {name for name in texts if ".ci/get_" in make("-n", "-B", name)}
    assert installing >= {"test", "sanitize", "fuzz", "count", "programs"}
    assert [name for name in installing if "install" not in texts[name].lower()] == []


@needs_make
def test_make_test_and_ci_together_run_every_test() -> None:
    planned = make("-n", "test-parts")
    assert planned.count('-m "not slow"') == planned.count("-m pytest")
    files = list((ROOT / "tests").rglob("test_*.py"))
    folders = {path.relative_to(ROOT).parts[1] for path in files if path.parent != ROOT / "tests"}
    assert [folder for folder in folders if f" tests/{folder} " not in planned] == []
    assert " tests/test_*.py" in planned
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(), re.M)
    assert "checks" in (ROOT / ".ci/run").read_text()
    assert "test-slow" in recipes()["checks"].split()
    assert re.search(r"-m slow", recipes()["test-slow"])


def test_some_tests_are_slow_and_most_are_not() -> None:
    slow = [
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and any("slow" in ast.unparse(mark) for mark in node.decorator_list)
    ]
    assert 0 < len(slow) < 40


def test_every_python_version_in_the_classifiers_is_tested_and_built() -> None:
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    minimum = re.search(r'^requires-python = ">=(3\.\d+)"$', PYPROJECT, re.M)
    built = re.search(r"^\[tool\.cibuildwheel\]\nbuild = \[(.*)\]$", PYPROJECT, re.M)
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    tested = re.findall(r"^ +(?:with: \{ )?python(?:-version)?: (.*)$", workflow, re.M)
    assert minimum is not None
    assert built is not None
    assert named[0] == minimum[1]
    assert [f"{v[:1]}.{v[1:]}" for v in re.findall(r"cp(\d+)-", built[1])] == named
    assert sorted(re.findall(r"3\.\d+", " ".join(tested)), key=lambda v: int(v[2:])) == named


def test_the_citation_has_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"$', PYPROJECT, re.M)
    assert version is not None
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_linter_of_the_package_runs_before_a_commit() -> None:
    """`make lint` runs the hooks, and adds only what needs a build or NVIDIA's headers."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    tools = re.findall(r"entry: \.venv/bin/(\S+)", hooks)
    assert {"ruff", "clang-format", "mypy", "python", "check-jsonschema"} == set(tools)
    lines = [line.strip() for line in recipes()["lint"].splitlines()[1:]]
    assert lines[0] == "$(BIN)/pre-commit run --all-files"
    assert [line.split("/python ")[1] for line in lines[1:]] == [
        "-m mypy.stubtest arena._core",
        "tools/check_abi.py --self-test",
    ]


def test_the_changelog_is_sorted_by_release_and_kind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r'^version = "(.+)"$', PYPROJECT, re.M)
    assert version is not None
    releases = re.findall(r"^## (\S+)", text, re.M)
    assert releases[0] == "Unreleased"
    assert version[1] in releases
    unreleased = text.split("\n## ")[1]
    kinds = re.findall(r"^### (.+)$", unreleased, re.M)
    assert kinds == [kind for kind in ("Added", "Changed", "Fixed") if kind in kinds]
    assert "\n- " not in unreleased.partition("\n### ")[0], "each line stands below Added, Changed or Fixed"

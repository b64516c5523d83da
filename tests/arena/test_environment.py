"""Environment variables. A misspelled name gives one warning that suggests the right one."""

from __future__ import annotations

import re
import warnings

import pytest

import arena
from arena._util import environment

from ..programs import ROOT, run
from .conftest import MakeArena


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_warned", set())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ARENA_CAPP", "ARENA_CAP"),
        ("ARENA_DRIVR", "ARENA_DRIVER"),
        ("ARENA_LINE", "ARENA_LINES"),
        ("ARENA_HEAD_ROOM", "ARENA_HEADROOM"),
        ("ARENA_cap", "ARENA_CAP"),
    ],
)
def test_a_misspelled_variable_gives_a_warning_with_the_right_name(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, "1GiB")
    with pytest.warns(
        RuntimeWarning, match=f"{name} is set, but arena does not know this variable; did you mean {meant}\\?"
    ):
        make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()  # only once


def test_a_variable_unlike_any_other_gives_a_warning_with_all_names(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARENA_ZZZ", "1GiB")
    with pytest.warns(
        RuntimeWarning, match="does not know this variable; known variables: ARENA_ASSUME, ARENA_CAP, .* ARENA_VALUES"
    ):
        make()


def test_empty_variables_and_those_of_others_are_ignored(make: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_CAPP", "")
    monkeypatch.setenv("MY_ARENA_CAP", "1GiB")
    monkeypatch.setenv("ARENA", "1GiB")
    make()


def test_the_command_line_warns_in_one_line() -> None:
    done = run("import arena._cli; arena._cli.main()", "info", ARENA_DRIVER="sim", ARENA_CAPP="1GiB")
    assert done.returncode == 0
    assert done.stderr == "arena: ARENA_CAPP is set, but arena does not know this variable; did you mean ARENA_CAP?\n"


def test_every_variable_that_the_code_reads_is_known() -> None:
    # By its name, or by a constant for it.
    reads = re.compile(r"""(?:environ\.get\(|environ\[|getenv\(|^[A-Z]+ = )"(ARENA_\w+)\"""", re.MULTILINE)
    sources = [*(ROOT / "python/arena").rglob("*.py"), *(ROOT / "src").rglob("*.cpp")]
    found = {name for source in sources for name in reads.findall(source.read_text())}
    found |= {f"ARENA_{name.upper()}" for name in arena._pool.settings.SETTINGS}
    assert found == set(environment.KNOWN)
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    used = {name for source in tests for name in reads.findall(source.read_text())}
    assert used - found <= {f"ARENA_{name}" for name in environment._TEST_VARIABLES}

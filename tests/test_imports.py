"""What is imported, and when: programs that need little should not wait for the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

import arena

from .programs import clean_environment, run

# Each takes longer to import than everything that `import arena` needs.
HEAVY = {
    "asyncio",
    "cupy",
    "dataclasses",
    "importlib.metadata",
    "inspect",
    "json",
    "numpy",
    "pathlib",
    "plotly",
    "rich",
}


def imported(code: str) -> set[str]:
    """The modules that code imports, beyond those that Python starts with."""
    before = "import sys; before = set(sys.modules); "
    return set(run(f"{before}{code}\nprint(*set(sys.modules) - before)", check=True).stdout.split())


def test_importing_arena_imports_neither_reports_nor_the_version() -> None:
    brought = imported("import arena")
    ours = {name for name in brought if name.startswith("arena.")}
    words = (
        "_words",
        "_words.account",
        "_words.advice",
        "_words.format",
        "_words.moving",
        "_words.plain",
        "_words.verdicts",
    )
    small = ("_core", "_util", "_util.exit", "_util.interpreter", *words, "errors")
    assert ours == {f"arena.{name}" for name in small}
    assert not brought & HEAVY


def test_help_imports_no_command_and_nothing_that_commands_need() -> None:
    code = (
        "import sys; sys.argv = ['arena', '--help']\nimport arena._cli\ntry: arena._cli.main()\nexcept SystemExit: pass"
    )
    done = run(f"{code}\nprint('imported:', *sys.modules)", check=True)
    brought = set(done.stdout.partition("imported:")[2].split())
    assert {name for name in brought if name.startswith("arena._cli.")} == {
        "arena._cli.excepthook",
        "arena._cli.group",
    }
    assert not brought & {"arena._pool.arena", "arena._report", "arena._trace", "rich", "plotly", "numpy"}


def test_every_public_name_is_available_on_demand() -> None:
    for name in arena.__all__:
        assert getattr(arena, name) is getattr(arena, name)
        assert name in dir(arena)
    assert imported("from arena import *\nassert Arena and sim and __version__") > {"arena._pool.arena", "arena.sim"}
    assert arena.load_ipython_extension.__module__ == "arena._pool.ipython"


def test_a_name_that_does_not_exist_is_an_attribute_error_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match=r"^module 'arena' has no attribute 'Areena'$"):
        arena.Areena  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_installed_package() -> None:
    code = "import arena, importlib.metadata; print(arena.__version__ == importlib.metadata.version('cuda-arena'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment())
    assert done.stdout == "True\n", done.stderr


def test_the_compiled_arena_makes_buffers_without_any_other_import() -> None:
    program = """
import arena
driver = arena.Driver.open("sim")
core = arena._core.Arena(driver, 0, cap=64 << 20, reserve=0, headroom=0, growth=64 << 20)
buffer = core.allocate(1 << 20)
assert type(buffer).__name__ == "Buffer" and buffer.nbytes == 1 << 20
core.free(buffer)
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""Installing arena: few dependencies, and a clear message if something is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

from .programs import ROOT


def found(name: str) -> str:
    """A program that is installed beside this Python, or anywhere."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"there is no {name}")
    assert path is not None
    return path


def configure(folder: Path, *definitions: str, **environment: str) -> str:
    """CMake's error, with no more programs in the path than CMake needs itself."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("cmake", "ninja"):
        (programs / name).symlink_to(found(name))
    defined = [f"-D{definition}" for definition in (f"Python_EXECUTABLE={sys.executable}", *definitions)]
    command = [found("cmake"), "-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja", *defined]
    path = f"{programs}{environment.pop('more', '')}"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path, **environment})
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    text = configure(tmp_path, CXX="/nowhere/c++")
    assert "there is no C++ compiler that works (the environment says CXX=/nowhere/c++). Install GCC 11," in text
    assert "Debian, Ubuntu: apt install g++" in text


def test_a_compiler_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "old-c++"
    change = 'for a in "$@"; do shift; [ "$a" = -std=c++20 ] && a=-std=c++17; set -- "$@" "$a"; done'
    old.write_text(f'#!/bin/sh\n{change}\nexec {found("c++")} "$@"\n')
    old.chmod(0o755)
    text = configure(tmp_path, more=f":{os.environ['PATH']}", CXX=str(old))
    assert re.search(r"arena needs C\+\+20, and \S+/old-c\+\+ \(\w+ [0-9.]+\) does not know enough of it\.", text)


def test_without_pythons_headers_the_build_says_what_to_install(tmp_path: Path) -> None:
    text = configure(tmp_path, "Python_INCLUDE_DIR=/nowhere", more=f":{os.environ['PATH']}")
    version = "{}.{}".format(*sys.version_info)
    assert f"the headers of Python {version} (Python.h) are missing. Install them: Debian, Ubuntu: apt install" in text
    assert f"apt install python{version}-dev" in text


def test_arena_needs_two_small_packages_and_no_plotting_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(re.split("[<>=]", name)[0] for name in project["dependencies"]) == ["rich", "typer"]

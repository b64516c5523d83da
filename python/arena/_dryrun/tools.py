"""The programs that a build needs, pip and a C++ compiler, and what to do where one is missing or fails."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ArenaError

__all__ = ["cache", "cannot_build", "check_headers", "compiler", "disk_is_full", "download", "install", "run"]

_FULL = os.strerror(errno.ENOSPC)
CUPY = "CuPy"  # what is built, if nothing else is named


def cache() -> Path:
    """Where everything is kept that is built for dry runs: ``$XDG_CACHE_HOME/arena`` or ``~/.cache/arena``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return base / "arena"


def cannot_build(reason: str, next_step: str = "", what: str = CUPY) -> ArenaError:
    """The error that says so in one sentence."""
    return ArenaError(f"{what} cannot be built for dry runs: {reason}{'. Next: ' if next_step else ''}{next_step}")


def disk_is_full(what: str = CUPY) -> ArenaError:
    return cannot_build("the disk is full", "make room, or set XDG_CACHE_HOME and TMPDIR to folders with 300 MB", what)


def compiler(what: str = CUPY) -> str:
    """The command of a C++ compiler: ``CXX``, the one that built Python, or the first that is there."""
    candidates = [os.environ.get("CXX", ""), sysconfig.get_config_var("CXX") or "", "c++", "g++", "clang++"]
    for command in map(shlex.split, candidates):
        if command and shutil.which(command[0]):
            return command[0]
    raise cannot_build("there is no C++ compiler", "install one (Debian: apt install g++), or set CXX", what)


def check_headers() -> None:
    """Refuse to begin where Python's own headers are missing."""
    folder = Path(sysconfig.get_paths()["include"])
    if not (folder / "Python.h").exists():
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        raise cannot_build(f"{folder} has no Python.h", f"install Python's headers (Debian: apt install {package})")


def run(
    command: Sequence[str],
    doing: str,
    *,
    folder: Path | None = None,
    more: Mapping[str, str] | None = None,
    what: str = CUPY,
) -> str:
    """Run a program and return what it prints. Raises an error with the reason if it fails."""
    done = _run(command, doing, folder, more or {})
    if done.returncode != 0:
        raise explain(doing, done.stdout + done.stderr, what)
    return done.stdout


def _run(
    command: Sequence[str], doing: str, folder: Path | None, more: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    # Not under the simulated driver, if this process is.
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env={**variables, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise cannot_build(f"{doing}: {command[0]}: {error.strerror}") from None


def explain(doing: str, output: str, what: str = CUPY) -> ArenaError:
    """Why a program failed, from what it printed."""
    if _FULL in output:
        return disk_is_full(what)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wrong = next((line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)), lines[-1] if lines else "")
    return cannot_build(f"{doing} failed: {wrong[:300]}", what=what)


def pip() -> list[str]:
    """The command of pip: the installed one, or the one that Python has for new environments. (uv's have none.)"""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (bundled := importlib.util.find_spec("ensurepip")) is not None and bundled.origin:
        for wheel in sorted((Path(bundled.origin).parent / "_bundled").glob("pip-*.whl")):
            return [sys.executable, str(wheel / "pip")]
    raise cannot_build(f"{sys.executable} has no pip", "install it, for example with python -m ensurepip")


def _ask_pip(arguments: Sequence[str], wanted: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    # Override pip settings meant for other environments. Pip runs CuPy's setup.py for metadata: keep it off CUDA.
    more = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "CUPY_INSTALL_USE_STUB": "1"}
    done = _run([*pip(), arguments[0], *options, *arguments[1:]], "pip", None, more)
    if done.returncode != 0:
        raise explain_pip(done.stdout + done.stderr, wanted)


def explain_pip(output: str, wanted: str) -> ArenaError:
    """Why pip failed, from what it printed."""
    found = re.search(r"\(from versions: ([^)]*)\)", output)
    if found is None or _FULL in output:
        return explain(f"pip, asked for {wanted},", output)
    if found[1] not in ("", "none"):
        return cannot_build(f"the index has no {wanted} for this Python", "use a released version of CuPy")
    return cannot_build(
        f"pip finds no {wanted}, so there is no network, or the index has none",
        "run this once with access to an index (PIP_INDEX_URL), or to a folder with the packages (PIP_FIND_LINKS); "
        "the result is kept",
    )


def download(requirement: str, folder: Path) -> Path:
    """Download a source package, such as ``cupy==14.2.0``; return the file."""
    name = requirement.partition("==")[0]
    _ask_pip(["download", "--no-binary", name, "--dest", str(folder), requirement], f"source package {requirement}")
    found = sorted(folder.glob(f"{name}-*.tar.gz"))
    if not found:
        raise cannot_build(f"pip downloaded no source package {requirement}")
    return found[0]


def install(requirements: Sequence[str], folder: Path) -> None:
    """Install packages into a folder, away from everything else."""
    _ask_pip(["install", "--no-compile", "--target", str(folder), *requirements], ", ".join(requirements))

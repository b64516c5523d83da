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

from ...errors import ArenaError

__all__ = ["check_headers", "compiler", "download", "install", "run"]

_FULL = os.strerror(errno.ENOSPC)


def compiler() -> list[str]:
    """The command of a C++ compiler: ``CXX``, the one that built Python, or the first that is there."""
    candidates = [os.environ.get("CXX", ""), sysconfig.get_config_var("CXX") or "", "c++", "g++", "clang++"]
    for command in map(shlex.split, candidates):
        if command and shutil.which(command[0]):
            return [command[0]]
    raise ArenaError(
        "CuPy's modules cannot be built for dry runs: there is no C++ compiler. Next: install one (Debian: apt install g++), "
        "or set CXX"
    )


def check_headers() -> None:
    """Refuse to begin where Python's own headers are missing."""
    folder = Path(sysconfig.get_paths()["include"])
    if not (folder / "Python.h").exists():
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        raise ArenaError(
            f"CuPy's modules cannot be built for dry runs: {folder} has no Python.h. Next: install Python's headers (Debian: "
            f"apt install {package})"
        )


def run(command: Sequence[str], doing: str, *, folder: Path | None = None, more: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output. What it prints on errors is for :func:`explain`."""
    # Not under the simulated driver, if this process is.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ArenaError(f"CuPy's modules cannot be built for dry runs: {doing}: {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise ArenaError(explain(doing, done.stdout + done.stderr))
    return done.stdout


def explain(doing: str, output: str) -> str:
    """One sentence on why a program failed, and the next step."""
    begin = "CuPy's modules cannot be built for dry runs: "
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if _FULL in output:
        return f"{begin}the disk is full. Next: make room, or set XDG_CACHE_HOME and TMPDIR to folders with 300 MB"
    wrong = next((line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)), lines[-1] if lines else "")
    return f"{begin}{doing} failed: {wrong[:300]}"


def pip() -> list[str]:
    """The command of pip: the installed one, or the one that Python has for new environments, as with uv's."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (bundled := importlib.util.find_spec("ensurepip")) is not None and bundled.origin:
        for wheel in sorted((Path(bundled.origin).parent / "_bundled").glob("pip-*.whl")):
            return [sys.executable, str(wheel / "pip")]
    raise ArenaError(
        f"CuPy's modules cannot be built for dry runs: {sys.executable} has no pip to download CuPy's source with. Next: "
        "install pip, for example with python -m ensurepip"
    )


def _ask_pip(arguments: Sequence[str], wanted: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    # Not what a user set for environments of his own. The last is for CuPy's setup.py, which pip asks for the metadata.
    more = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "PIP_TARGET": "", "CUPY_INSTALL_USE_STUB": "1"}
    try:
        run([*pip(), arguments[0], *options, *arguments[1:]], "pip", more={k: v for k, v in more.items() if v})
    except ArenaError as error:
        raise ArenaError(explain_pip(str(error), wanted)) from None


def explain_pip(text: str, wanted: str) -> str:
    begin = "CuPy's modules cannot be built for dry runs: "
    if "disk is full" in text:
        return text
    if found := re.search(r"\(from versions: ([^)]*)\)", text):
        if found[1] not in ("", "none"):
            return f"{begin}the index has no {wanted} for this Python. Next: use a released version of CuPy"
        return (
            f"{begin}pip finds no {wanted}, so there is no network, or the index has none. Next: run this once with access to "
            "an index (PIP_INDEX_URL), or to a folder with the packages (PIP_FIND_LINKS); the result is kept"
        )
    return f"{begin}pip could not get {wanted}: {text.partition(' failed: ')[2] or text}"


def download(requirement: str, folder: Path) -> Path:
    """Download a source package; return the file."""
    name = re.split(r"[^\w.-]", requirement)[0]
    _ask_pip(["download", "--no-binary", name, "--dest", str(folder), requirement], f"source package {requirement}")
    found = sorted(folder.glob(f"{name}-*"))
    if not found:
        raise ArenaError(f"CuPy's modules cannot be built for dry runs: pip downloaded no {requirement}")
    return found[0]


def install(requirements: Sequence[str], folder: Path) -> None:
    """Install packages into a folder, away from everything else."""
    _ask_pip(["install", "--no-compile", "--target", str(folder), *requirements], ", ".join(requirements))

"""Builds CuPy's modules for dry runs, once, and keeps them in a cache.

The cache is ``$XDG_CACHE_HOME/arena/cupy`` (``~/.cache/arena/cupy``), with a folder for each combination of versions. A
folder is there whole or not at all: it is built under another name and renamed. One process builds at a time; others
wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..._core import __version__
from ...errors import ArenaError
from .. import tools
from ..libraries import FOLDER as LIBRARIES
from . import recipe
from .installed import Installed, find_cupy
from .progress import progress

__all__ = ["built_modules", "cache_folder", "folder_of", "module_file", "toolkit"]

_HALF_DONE = "building-"
Advance = Callable[[str], None]


def cache_folder() -> Path:
    """Where everything is kept that is built for CuPy."""
    return tools.cache() / "cupy"


def module_file(folder: Path, name: str) -> Path:
    """The file of a module in a folder of built ones."""
    return folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def toolkit(folder: Path) -> Path:
    """In a folder of built modules, what CuPy takes for a CUDA toolkit: the headers."""
    return folder / "toolkit"


def built_modules(cupy: Installed | None = None) -> Path:
    """The folder with the modules for a CuPy, the installed one if none is given. Builds them if they are not there."""
    cupy = cupy or find_cupy()
    folder = folder_of(cupy)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent):
            if not folder.is_dir():  # another process may have built it by now
                _build_into(folder, cupy)
    except OSError as error:
        raise _explain(error, folder.parent) from None
    return folder


def folder_of(cupy: Installed) -> Path:
    """Where the modules for a CuPy are, or will be."""
    abi = sysconfig.get_config_var("SOABI")
    name = f"{cupy.version}-cuda{cupy.cuda}-{abi}-arena-{__version__}-{recipe.digest()}"
    return cache_folder() / name


def _explain(error: OSError, cache: Path) -> ArenaError:
    if error.errno == errno.ENOSPC:
        return tools.disk_is_full()
    place = error.filename or cache
    return tools.cannot_build(f"{place}: {error.strerror}", "set XDG_CACHE_HOME to a folder that you may write to")


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another process that builds CuPy for dry runs", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(folder: Path, cupy: Installed) -> None:
    for left in folder.parent.glob(f"{_HALF_DONE}*"):  # of a process that was killed: nobody else builds now
        shutil.rmtree(left, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=_HALF_DONE, dir=folder.parent))
    began = time.monotonic()
    try:
        steps = 2 + 2 * len(recipe.MODULES)
        with progress(f"Building CuPy {cupy.version} for dry runs, once", steps) as advance:
            (draft / "done").mkdir()
            _build(draft, cupy, advance)
        (draft / "done").rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(f"Built CuPy {cupy.version} for dry runs in {time.monotonic() - began:.0f} s: {folder}", file=sys.stderr)


def _build(draft: Path, cupy: Installed, advance: Advance) -> None:
    runtime = LIBRARIES / f"libcudart.so.{cupy.cuda}"
    if not runtime.exists():
        raise tools.cannot_build(f"{runtime} is missing", "reinstall cuda-arena")
    compiler = tools.compiler()
    tools.check_headers()
    advance("its source")
    source = _unpack(tools.download(f"cupy=={cupy.version}", draft), draft / "source")
    advance("Cython, headers")
    packages = draft / "packages"
    tools.install([recipe.cython_requirement(source), *recipe.headers(cupy.cuda)], packages)
    includes = [folder for folder in packages.glob("nvidia/*/include") if any(folder.iterdir())]
    for folder in includes:
        shutil.copytree(folder, toolkit(draft / "done") / "include", dirs_exist_ok=True)
    options = recipe.cython_options(source, _cuda_version(includes), _cython_version(packages))

    def build(module: recipe.Module) -> None:
        generated, short = draft / f"{module.name}.cpp", module.name.rpartition(".")[2]
        advance(f"{short}.cpp")
        command = [sys.executable, "-m", "cython", *options, str(module.source), "-o", str(generated)]
        tools.run(command, f"Cython on {module.source}", folder=source, more={"PYTHONPATH": str(packages)})
        advance(f"{short}.so")
        # Ours first. Cython's file is not beside CuPy's headers, or those would come before all others.
        folders = [recipe.INCLUDE, source / module.source.parent, *includes, Path(sysconfig.get_paths()["include"])]
        flags = [*recipe.FLAGS, *recipe.macros(source), *(f"-I{folder}" for folder in folders)]
        # By its SONAME, and without a path: the process has loaded it before.
        linked = [str(runtime)] if module.links_runtime else []
        target = module_file(draft / "done", module.name)
        command = [compiler, *flags, str(generated), "-o", str(target), *linked]
        tools.run(command, f"compiling {module.name}", folder=source)

    with ThreadPoolExecutor(max_workers=min(len(recipe.MODULES), os.cpu_count() or 1)) as workers:
        list(workers.map(build, recipe.MODULES))


def _unpack(file: Path, folder: Path) -> Path:
    """Unpack what is needed of a source package, without its first folder."""
    folder.mkdir()
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                parts = Path(member.name).parts[1:]
                if member.isfile() and parts and ".." not in parts and parts[0] not in ("docs", "tests"):
                    target = folder.joinpath(*parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    if content is not None:
                        target.write_bytes(content.read())
    except tarfile.TarError as error:
        raise tools.cannot_build(f"{file.name} cannot be read: {error}", "pip cache purge") from None
    return folder


def _cuda_version(includes: list[Path]) -> int:
    for folder in includes:
        if (file := folder / "cuda.h").exists():
            found = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", file.read_text(errors="replace"), re.MULTILINE)
            if found:
                return int(found[1])
    raise tools.cannot_build("NVIDIA's packages have no cuda.h with a version")


def _cython_version(packages: Path) -> str:
    code = "import Cython; print(Cython.__version__)"
    return tools.run([sys.executable, "-c", code], "Cython", more={"PYTHONPATH": str(packages)}).strip()

"""Building CuPy's modules for dry runs: what is built, where it is kept, and what is said when it cannot be."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest

import arena
from arena._dryrun import cupy as dry_cupy
from arena._dryrun import tools
from arena._dryrun.cupy import build, finder, installed, recipe
from arena._dryrun.cupy.installed import Installed
from arena._util import imports


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arena" / "cupy"


@pytest.fixture
def cupy(tmp_path: Path) -> Installed:
    """A folder that looks like CuPy for CUDA 13."""
    folder = tmp_path / "site-packages"
    (folder / "cupy" / ".data").mkdir(parents=True)
    (folder / "cupy" / "__init__.py").touch()
    (folder / "cupy" / "_version.py").write_text("from __future__ import annotations\n__version__ = '14.9.8'\n")
    (folder / "cupy" / ".data" / "_wheel.json").write_text(json.dumps({"cuda": "13.x", "packaging": "pip"}))
    return Installed(folder, "14.9.8", 13)


def pretend(monkeypatch: pytest.MonkeyPatch, built: list[str], seconds: float = 0) -> None:
    """Build files without content."""

    def build_nothing(draft: Path, cupy: Installed, advance: object) -> None:
        time.sleep(seconds)
        built.append(cupy.version)
        for module in recipe.MODULES:
            build.module_file(draft / "done", module.name).touch()

    monkeypatch.setattr(build, "_build", build_nothing)


def test_a_cupy_is_read_without_importing_it(cupy: Installed) -> None:
    before = set(sys.modules)
    assert installed.read_cupy(cupy.folder) == cupy
    assert set(sys.modules) == before


def test_the_cupy_that_would_be_imported_is_found(cupy: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(cupy.folder))
    assert installed.find_cupy() == cupy


def test_where_there_is_no_cupy_the_next_step_is_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(
        arena.ArenaError, match=r"CuPy is not installed for .*python.*\. Next: pip install cupy-cuda13x"
    ):
        installed.find_cupy()


@pytest.mark.parametrize("content", [None, "{}", '{"cuda": "11.x"}', "nonsense"])
def test_a_cupy_that_is_no_wheel_for_a_known_cuda_is_refused(cupy: Installed, content: str | None) -> None:
    file = cupy.folder / "cupy" / ".data" / "_wheel.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(arena.ArenaError, match=r"not a wheel for CUDA 12 or 13\. Next: install one"):
        installed.read_cupy(cupy.folder)


def test_a_version_that_cannot_be_read_is_named_with_its_file(cupy: Installed) -> None:
    file = cupy.folder / "cupy" / "_version.py"
    file.write_text("version = 1\n")
    with pytest.raises(arena.ArenaError, match=r"cannot be read from .*_version.py"):
        installed.read_cupy(cupy.folder)


def test_modules_are_built_once_and_kept_by_all_versions(
    cache: Path, cupy: Installed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    built: list[str] = []
    pretend(monkeypatch, built)
    folder = build.built_modules(cupy)
    assert build.built_modules(cupy) == folder
    assert built == ["14.9.8"]
    assert folder.parent == cache
    for part in ("14.9.8", "cuda13", str(sysconfig.get_config_var("SOABI")), arena.__version__):
        assert part in folder.name
    assert sorted(file.name for file in cache.iterdir()) == sorted([folder.name, "lock"])
    assert "Building CuPy 14.9.8 for dry runs, once" in capfd.readouterr().err
    build.built_modules(Installed(cupy.folder, "14.9.9", 13))
    assert built == ["14.9.8", "14.9.9"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), arena.ArenaError("no"), OSError(errno.EIO, "broken")])
def test_an_interrupted_build_leaves_nothing(
    cache: Path, cupy: Installed, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    def fail(draft: Path, *_: object) -> None:
        (draft / "done" / "half").touch()
        raise raised

    monkeypatch.setattr(build, "_build", fail)
    expected = KeyboardInterrupt if isinstance(raised, KeyboardInterrupt) else arena.ArenaError
    with pytest.raises(expected):
        build.built_modules(cupy)
    assert [file.name for file in cache.iterdir()] == ["lock"]


def test_what_a_killed_build_left_is_removed_by_the_next(
    cache: Path, cupy: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "building-abc" / "source").mkdir(parents=True)
    pretend(monkeypatch, [])
    build.built_modules(cupy)
    assert not (cache / "building-abc").exists()


@pytest.mark.usefixtures("cache")
def test_of_two_at_once_one_builds_and_the_other_waits(
    cupy: Installed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    built: list[str] = []
    pretend(monkeypatch, built, seconds=0.3)
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(build.built_modules(cupy))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == ["14.9.8"]
    assert len(set(folders)) == 1
    assert "Waiting for another process that builds" in capfd.readouterr().err


def test_a_cache_that_cannot_be_written_to_is_named(
    cupy: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(arena.ArenaError, match=r"Not a directory\. Next: set XDG_CACHE_HOME"):
        build.built_modules(cupy)


@pytest.mark.usefixtures("cache")
def test_a_full_disk_is_said_with_the_next_step(cupy: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build, "_build", fail)
    with pytest.raises(arena.ArenaError, match=r"the disk is full\. Next: make room, or set XDG_CACHE_HOME and TMPDIR"):
        build.built_modules(cupy)


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert build.cache_folder() == Path.home() / ".cache" / "arena" / "cupy"


def test_without_a_compiler_the_next_step_is_to_install_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(arena.ArenaError, match=r"there is no C\+\+ compiler\. Next: install one"):
        tools.compiler()


def test_cxx_chooses_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").touch(mode=0o755)
    monkeypatch.setenv("CXX", f"{tmp_path}/mine")
    assert tools.compiler() == f"{tmp_path}/mine"


def test_without_pythons_headers_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(
        arena.ArenaError, match=r"has no Python\.h\. Next: install Python's headers \(Debian: apt install python3"
    ):
        tools.check_headers()


def test_without_an_index_the_next_step_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        arena.ArenaError, match=r"pip finds no source package cupy==14\.9\.8.*Next: run this once with access"
    ):
        tools.download("cupy==14.9.8", tmp_path)


def test_a_version_without_a_source_package_is_said() -> None:
    text = "ERROR: Could not find a version that satisfies the requirement cupy==14.9.8 (from versions: 14.0.0, 14.2.0)"
    said = str(tools.explain_pip(text, "source package cupy==14.9.8"))
    assert said.endswith(
        "the index has no source package cupy==14.9.8 for this Python. Next: use a released version of CuPy"
    )


def test_what_a_compiler_says_is_passed_on_in_one_line() -> None:
    with pytest.raises(arena.ArenaError, match=r"compiling x failed: a\.cpp:1: error: bad$") as raised:
        tools.run([sys.executable, "-c", "print('a.cpp:1: error: bad\\nmore'); exit(1)"], "compiling x")
    assert "\n" not in str(raised.value)


def test_programs_of_a_build_run_without_the_simulated_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    code = "import os; print('LD_PRELOAD' in os.environ)"
    assert tools.run([sys.executable, "-c", code], "looking").strip() == "False"


def test_cupys_own_directives_and_constants_are_used(tmp_path: Path) -> None:
    builder = tmp_path / "install" / "cupy_builder"
    builder.mkdir(parents=True)
    (builder / "_command.py").write_text(
        "def f(ctx):\n    compiler_directives = {'profile': ctx.profile, 'binding': False, 'embedsignature': True}\n"
    )
    (tmp_path / "pyproject.toml").write_text('requires = ["setuptools", "Cython>=3.2,<3.3"]')
    options = recipe.cython_options(tmp_path, 13000, "3.2.1")
    pairs = list(zip(options[2::2], options[3::2], strict=True))
    assert options[:2] == ["--cplus", "-3"]
    assert ("-X", "profile=False") in pairs
    assert ("-X", "embedsignature=True") in pairs
    assert ("-E", "CUPY_CUDA_VERSION=13000") in pairs
    assert recipe.cython_requirement(tmp_path) == "Cython>=3.2,<3.3"


def test_modules_are_found_in_the_cache_and_nothing_else_changes(
    cache: Path, cupy: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, [])
    for module in recipe.MODULES:  # another test may have imported CuPy
        monkeypatch.delitem(sys.modules, module.name, raising=False)
    monkeypatch.setenv("CUPY_CACHE_DIR", "/before")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.syspath_prepend(str(cupy.folder))
    before = list(sys.meta_path)
    dry_cupy.enable()
    try:
        dry_cupy.enable()  # again
        [ours] = [one for one in sys.meta_path if isinstance(one, finder.Finder)]
        assert os.environ["CUPY_CACHE_DIR"].startswith(str(cache))
        assert ours.find_spec("cupy", None) is None
        assert Path(os.environ["CUDA_PATH"]) == build.folder_of(cupy) / "toolkit"
        assert ours.find_spec("cupy.cuda.memory", [str(cupy.folder / "cupy" / "cuda")]) is None
        for name in ("cupy_backends.cuda.api.runtime", "cupy.cuda.cub"):
            spec = ours.find_spec(name, [str(cupy.folder.joinpath(*name.split(".")[:-1]))])
            assert spec is not None
            assert spec.origin == str(build.module_file(build.folder_of(cupy), name))
    finally:
        dry_cupy.disable()
        left = [one for one in sys.meta_path if one not in before]
        sys.meta_path[:] = before
    assert [one.name for one in left if isinstance(one, imports.Finder)] == ["cupy"]  # which then does nothing
    assert len(left) == 1
    assert os.environ["CUPY_CACHE_DIR"] == "/before"
    assert "CUDA_PATH" not in os.environ


@pytest.mark.usefixtures("cache")
def test_other_threads_can_import_while_modules_are_built(cupy: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[bool] = []

    def build_with_a_thread(_: Installed) -> Path:
        thread = threading.Thread(target=lambda: importlib.import_module("cupy_backends.another"), daemon=True)
        thread.start()
        thread.join(10)
        imported.append(not thread.is_alive())
        raise arena.ArenaError("cannot be built")

    package = cupy.folder / "cupy_backends" / "cuda" / "api"
    package.mkdir(parents=True)
    (cupy.folder / "cupy_backends" / "another.py").touch()
    monkeypatch.setattr(finder, "built_modules", build_with_a_thread)
    monkeypatch.syspath_prepend(str(cupy.folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy_backends"]:
        monkeypatch.delitem(sys.modules, name)  # another test may have imported CuPy
    monkeypatch.setenv("CUPY_CACHE_DIR", "/before")
    (cupy.folder / "cupy_backends" / "__init__.py").touch()
    before = set(sys.modules)
    dry_cupy.enable()
    try:
        with pytest.raises(arena.ArenaError, match="cannot be built"):
            importlib.import_module("cupy_backends.cuda.api.runtime")
    finally:
        dry_cupy.disable()
        for name in set(sys.modules) - before:
            del sys.modules[name]
    assert imported == [True]


def test_a_cupy_that_is_imported_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.api.runtime", sys)
    with pytest.raises(arena.ArenaError, match=r"is imported already.*Next: begin the dry run before you import cupy"):
        dry_cupy.enable()

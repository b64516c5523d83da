"""The parts of the Python package import downwards only, and tools/check_imports.py finds violations."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = {
    "__init__.py": "",
    "errors.py": "",
    "_util/__init__.py": "",
    "_util/sizes.py": "from ..errors import UsageError",
    "_pool/__init__.py": "",
    "_pool/arena.py": "from .._util import sizes\nfrom .oom import snapshot_of",
    "_pool/oom.py": "",
}


@pytest.fixture
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(checker: ModuleType, folder: Path, changed: dict[str, str]) -> list[str]:
    for name, text in (PACKAGE | changed).items():
        path = folder / "arena" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""What it is for."""\n{text}\n')
    return list(checker.find_problems(folder))


def test_every_import_of_the_package_goes_down_without_cycles(checker: ModuleType) -> None:
    assert checker.find_problems(ROOT / "python") == []


def test_a_correct_package_has_no_problems(checker: ModuleType, tmp_path: Path) -> None:
    assert found(checker, tmp_path, {}) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("_util/sizes.py", "from .._pool import arena", "2: _util may not import _pool.arena, which is above it"),
        ("_util/sizes.py", "from .._pool.oom import tell", "2: _util may not import _pool.oom, which is above it"),
        ("_util/sizes.py", "import arena._pool.oom", "2: _util may not import _pool.oom, which is above it"),
        ("_pool/oom.py", "from . import arena", "a cycle of imports: _pool.arena -> _pool.oom -> _pool.arena"),
        ("_pool/oom.py", "def f():\n    from . import arena", "without a reason"),
        ("_pool/oom.py", "from .._util import sizes\nsizes.unit = 1", "sizes.unit is a global of _util.sizes"),
        ("_pool/oom.py", "from .._util import sizes as s\ns.unit += 1", "s.unit is a global of _util.sizes"),
        ("_pool/oom.py", "from .. import Arena", "import the module that has it"),
        ("__init__.py", "from ._pool.arena import Arena", "`import arena` may not bring _pool.arena"),
        ("_pool/_more.py", "", "its package is private"),
        ("_other/__init__.py", "", "does not know the part '_other'"),
    ],
)
def test_a_broken_rule_is_found(checker: ModuleType, tmp_path: Path, name: str, text: str, problem: str) -> None:
    problems = found(checker, tmp_path, {name: text})
    assert problems, "nothing was found"
    assert problem in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    from . import arena  # late: it takes long",
        "def f():\n    with late_import('nothing can be shown'):\n        from . import arena",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from .arena import Arena",
        "import warnings\nwarnings.showwarning = None",
    ],
)
def test_late_imports_with_a_reason_and_those_for_types_may_go_anywhere(
    checker: ModuleType, tmp_path: Path, text: str
) -> None:
    assert found(checker, tmp_path, {"_pool/oom.py": text}) == []

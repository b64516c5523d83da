"""``arena run`` and ``arena dryrun`` give the arena to every framework that a program imports."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arena._frameworks import FRAMEWORKS, Installation, parse_keys
from arena.errors import UsageError

from ..programs import clean_environment
from .command import facts_of

MIB = 1 << 20
PARTS = {
    "cupy": "import cupy; kept.append(cupy.empty(5 << 20, dtype='u1'))",
    "numba": "from numba import cuda; kept.append(cuda.device_array(3 << 20, dtype='u1'))",
    # Without the current device: RMM would ask its CUDA runtime, which does not start on the simulated driver.
    "rmm": "import rmm; kept.append(rmm.DeviceBuffer(size=1 << 20, mr=rmm.mr.get_per_device_resource(0)))",
    "cuda_core": "from cuda.core import Device; d = Device(); d.set_current(); "
    "kept.append(d.allocate(2 << 20, stream=d.default_stream))",
}
SIZES = {"cupy": 5 * MIB, "numba": 3 * MIB, "cuda_core": 2 * MIB, "rmm": MIB}
needs_rmm = pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="there is no RMM for this Python")


def dry(folder: Path, parts: tuple[str, ...], *options: str) -> tuple[dict[str, Any], dict[str, int]]:
    """What a dry run of these parts found, and what each framework held at the peak."""
    program = folder / "program.py"
    program.write_text("\n".join(["kept = []", *(PARTS[part] for part in parts)]))
    command = [sys.executable, "-m", "arena", "dryrun", "--allocator", "arena", "--json"]
    command += ["--force", "--report", str(folder / "report.json")]
    done = subprocess.run(
        [*command, *options, str(program)], env=clean_environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stderr.splitlines()[-1])
    path = folder / "report.json"
    rows = json.loads(path.read_text())["frameworks"] if path.exists() else []
    keys = {framework.name: framework.key for framework in FRAMEWORKS}
    return facts, {keys[row["name"]]: row["bytes"] for row in rows}


@pytest.mark.parametrize(
    "order",
    [
        ("numba", "cuda_core"),
        ("cuda_core", "numba"),
        # A dry run builds CuPy's modules first, which takes minutes.
        *(
            pytest.param(order, marks=pytest.mark.slow)
            for order in itertools.permutations(("cupy", "numba", "cuda_core"))
        ),
        pytest.param(("rmm", "cuda_core"), marks=needs_rmm),
    ],
    ids="-".join,
)
def test_every_framework_uses_the_arena_in_whichever_order_it_is_imported(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    facts, held = dry(tmp_path, order)
    assert held == {key: SIZES[key] for key in order}
    found = facts["run"]["frameworks"]
    assert found == {key: "arena" if key in order else "not imported" for key in found}


def test_only_the_named_frameworks_get_the_arena(tmp_path: Path) -> None:
    facts, held = dry(tmp_path, ("numba", "cuda_core"), "--only", "numba")
    assert held == {"numba": 3 * MIB}
    assert facts["run"]["frameworks"]["cuda_core"] == "left out"
    assert facts["run"]["driver"]["used"] > facts["accounts"][0]["reserved"]  # cuda.core has memory of its own


def test_native_gives_the_arena_to_none(tmp_path: Path) -> None:
    facts, held = dry(tmp_path, ("numba",), "--allocator", "native")
    assert held == {}
    assert set(facts["run"]["frameworks"].values()) == {"left out"}


def test_unknown_frameworks_are_refused_by_name(script: Any) -> None:
    done = script("print(1)", options=("--only", "cupy,tensorflow"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "'tensorflow' is not a framework; choose from cupy, torch, numba, cuda_core, rmm" in done.stderr
    with pytest.raises(UsageError, match="',' is not a framework"):
        parse_keys(",")
    assert parse_keys(" Torch, cupy,torch") == ("torch", "cupy")


def test_a_framework_that_cannot_be_given_the_arena_is_named_with_the_reason(script: Any) -> None:
    code = "import os; os.environ['NUMBA_CUDA_MEMORY_MANAGER'] = 'mine'\nfrom numba import cuda"
    done = script(code)
    assert done.returncode == 0
    assert "arena: Numba does not use arena: NUMBA_CUDA_MEMORY_MANAGER=mine chooses another" in done.stderr
    assert facts_of(script(code, options=("--json",)))["frameworks"]["numba"] == "another"


def test_the_import_of_a_framework_never_fails_because_of_arena(script: Any, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("x = 1\n")  # nothing that arena expects
    done = script(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch; print(torch.x)")
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_a_pytorch_without_cuda_needs_no_remark(script: Any, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class version: cuda = None\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch"
    assert "PyTorch does not" not in script(code).stderr
    assert facts_of(script(code, options=("--json",)))["frameworks"]["torch"] == "without CUDA"


def test_two_functions_may_wait_for_the_same_import(script: Any) -> None:
    code = """
from arena._util.imports import after_import
for name in ("first", "second"):
    after_import("colorsys", lambda module, name=name: print(name, module.__name__))
import colorsys
after_import("colorsys", lambda module: print("at once"))
"""
    assert script(code).stdout == "first colorsys\nsecond colorsys\nat once\n"


def test_an_installation_that_left_everything_out_gives_nothing() -> None:
    installation = Installation(only=())
    installation.begin()
    assert set(installation.allocators().values()) == {"left out"}

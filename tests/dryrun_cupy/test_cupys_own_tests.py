"""CuPy's own tests of streams, events, graphs, memory, devices and the runtime, on the simulated GPU.

``cupys_tests.txt`` has how many must pass, and the tests that need not, each under the reason. All others must pass.
"""

from __future__ import annotations

import importlib.metadata
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from arena._dryrun import tools
from tests.programs import ROOT

from .dry_process import needs_cupy, run_dry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_cupy]

FOLDER = "tests/cupy_tests/cuda_tests"
FILES = ("test_stream", "test_graph", "test_memory", "test_pinned_memory", "test_device", "test_memory_hook")
FILES += ("memory_hooks_tests", "test_runtime", "test_driver", "test_profile")
RECORD = Path(__file__).with_name("cupys_tests.txt")


def read_record() -> tuple[str, int, set[str]]:
    """The version of CuPy, how many tests must pass, and the tests that need not."""
    lines = [line.strip() for line in RECORD.read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    version, passed = lines[0].removeprefix("cupy "), lines[1].removeprefix("passed ")
    return version, int(passed), set(lines[2:])


def unpacked_source(version: str) -> Path:
    """CuPy's source package, which has its tests."""
    folder = ROOT / "build" / f"cupy-{version}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        archive = tools.download(f"cupy=={version}", folder.parent)
        with tarfile.open(archive) as file:
            wanted = ("tests", "pyproject.toml")
            members = [member for member in file if member.name.partition("/")[2].startswith(wanted)]
            file.extractall(folder.parent, members, filter="data")
    return folder


def matches(test: str, known: set[str]) -> bool:
    """Whether a line of the record names this test, or how its name begins."""
    name = test.removeprefix(f"{FOLDER}/")
    return name in known or any(part.endswith("*") and name.startswith(part[:-1]) for part in known)


def test_no_fewer_pass_than_before(tmp_path: Path) -> None:
    version, least, known = read_record()
    installed = importlib.metadata.version("cupy-cuda13x")
    if installed != version:
        pytest.skip(f"the record is for CuPy {version}, and {installed} is installed")
    result = tmp_path / "outcomes.json"
    files = [f"{FOLDER}/{name}{'' if name.endswith('_tests') else '.py'}" for name in FILES]
    arguments = ("-m", "tests.dryrun_cupy.cupys_tests", str(result), *files)
    done = run_dry(*arguments, devices=2, folder=unpacked_source(version))
    assert done.returncode == 0, done.stdout + done.stderr
    ended = json.loads(result.read_text())
    required = {test: outcome for test, outcome in ended.items() if not matches(test, known)}
    broken = [test for test, outcome in required.items() if outcome != "passed"]
    assert not broken, "\n".join([*broken, done.stdout])
    print(Counter(ended.values()), f"{len(required)} must pass")
    assert len(required) >= least, "CuPy's tests changed, or more of them are excused: say why in the record"

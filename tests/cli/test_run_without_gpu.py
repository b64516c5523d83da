"""``arena run`` on a machine without a GPU or with a driver that does not work: it explains the framework's error."""

from __future__ import annotations

import re
from typing import Any

import pytest

from arena import _core
from arena._run.without_gpu import explain

from ..installed_driver import nothing_installed
from .command import facts_of


@nothing_installed
@pytest.mark.parametrize(
    "line",
    [
        "cupy.zeros(3)",
        "cupy.empty(3) + 1",
        "cupy.asarray([1, 2])",
        "cupy.empty(3).get()",
        "cupy.cuda.Device().mem_info",
    ],
)
def test_a_program_that_needs_a_gpu_gets_an_explanation_and_a_next_step(script: Any, line: str) -> None:
    done = script(f"import cupy\n{line}\n")
    assert done.returncode == 1
    assert "CUDARuntimeError: cudaErrorInsufficientDriver" in done.stderr  # the program's own error comes first
    said, last = done.stderr.splitlines()[-2:]
    assert said.startswith(
        "arena: CuPy found no GPU (cudaErrorInsufficientDriver). Without one, only memory allocation works"
    )
    assert re.fullmatch(
        r"Next: arena dryrun /.*/program\.py, which simulates a GPU; or, on a machine with a GPU, arena run --record "
        r"run\.arena /.*/program\.py; then, on any machine, arena fit run\.arena",
        last,
    )
    facts = facts_of(script(f"import cupy\n{line}\n", options=("--json",)))
    assert f"arena: {facts['without_gpu']}" == said


@nothing_installed
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from numba import cuda\ncuda.device_array(3)", "Numba"),
        ("from cuda.core import Device\nDevice().set_current()", "cuda.core"),
        ("raise RuntimeError('Found no NVIDIA driver on your system. Please check')", "PyTorch"),  # as it says it
    ],
)
def test_other_frameworks_that_find_no_gpu_are_explained_too(script: Any, code: str, name: str) -> None:
    said, last = script(code).stderr.splitlines()[-2:]
    assert said == f"arena: {name} found no GPU, and needs one even to allocate"
    assert last.startswith("Next: arena dryrun ")


@nothing_installed
def test_the_lack_of_a_gpu_is_explained_even_if_the_program_raises_something_else(script: Any) -> None:
    code = """
import cupy
try:
    cupy.cuda.Stream()
except Exception:
    raise RuntimeError("no stream")
"""
    done = script(code)
    assert "arena: CuPy found no GPU" in done.stderr.splitlines()[-2]
    assert facts_of(script("raise RuntimeError", options=("--json",)))["without_gpu"] is None


class CupyError(Exception):
    """Like CuPy's own error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaErrorSomething: {status}")
        self.status = status


CupyError.__module__ = "cupy_backends.cuda.api.runtime"


@pytest.mark.parametrize(
    ("status", "why", "what"),
    [(35, "this CuPy needs a newer CUDA", "update the driver"), (100, "has no device for CuPy", "nvidia-smi")],
)
def test_where_there_is_a_driver_the_explanation_says_what_is_wrong_with_it(
    monkeypatch: pytest.MonkeyPatch, status: int, why: str, what: str
) -> None:
    monkeypatch.setattr(_core, "is_real_driver_here", lambda: True)
    explained = explain(CupyError(status), "train.py")
    assert explained is not None
    assert why in explained.why
    assert what in explained.next
    assert explain(CupyError(500), "train.py") is None  # a symbol that a module does not have
    assert explain(CupyError(700), "train.py") is None
    assert explain(ValueError(), "train.py") is None

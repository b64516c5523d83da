"""Programs with Numba that read what its kernels should have written: noted at their lines, with their types."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ..dryrun.program import dry, facts_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed"),
]

BEGIN = """
import numpy
from numba import cuda

counts = cuda.device_array(1000, numpy.int32)
"""


def run(tmp_path: Path, code: str, *options: str) -> tuple[str, dict[str, Any]]:
    done = dry(tmp_path, BEGIN + code, options=("--card", "t4", "--json", *options))
    assert done.returncode in (0, 4), done.stderr
    return done.stdout, facts_of(done)


def test_what_was_copied_to_the_device_is_known(tmp_path: Path) -> None:
    said, facts = run(tmp_path, "print(cuda.to_device(numpy.arange(10)).copy_to_host().sum())")
    assert (said, facts["verdict"], facts["unknown"]) == ("45\n", "fits", [])


def test_reads_are_noted_with_their_lines_and_types(tmp_path: Path) -> None:
    code = """
print(counts[3])
print(counts[:2].copy_to_host())
out = numpy.ones(1000, numpy.int32)
counts.copy_to_host(out)
print(out.max())
"""
    said, facts = run(tmp_path, code)
    assert said == "0\n[0 0]\n0\n"
    assert [(one["line"], one["what"], one["dtype"]) for one in facts["unknown"]] == [
        ("train.py:7 in <module>", "counts[3]", "int32"),
        ("train.py:8 in <module>", "counts[:2].copy_to_host()", "int32"),
        ("train.py:10 in <module>", "counts.copy_to_host(out)", "int32"),
    ]
    assert facts["verdict"] == "fits"  # with ones, it asks for the same memory


def test_memory_that_depends_on_what_was_read_makes_the_verdict_unsure(tmp_path: Path) -> None:
    _, facts = run(tmp_path, "more = cuda.device_array(1_000_000 * (1 + int(counts[0])))")
    assert facts["verdict"] == "unsure"
    assert "depends on `counts[0]` at train.py:6" in facts["because"]


def test_the_user_says_what_a_line_reads(tmp_path: Path) -> None:
    said, facts = run(tmp_path, "print(counts[:2].copy_to_host())", "--assume", "train.py:6=7")
    assert (said, facts["verdict"]) == ("[7 7]\n", "fits")

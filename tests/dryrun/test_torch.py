"""The unmodified CUDA wheel of PyTorch in dry runs. Runs where that is installed: `make test-torch`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from arena import Trace, sim

from ..programs import ROOT, run
from .program import MIB, dry, facts_of

EXAMPLE = (ROOT / "examples/dryrun/train.py").read_text()
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

# Weights and two results of one multiplication: sizes are known.
SMALL = """
import sys, torch

def multiply(n):
    a = torch.zeros(n, 1 << 20, device="cuda")  # 4 MiB a row
    return a, a + 1

held = multiply(int(sys.argv[1]))
"""


@pytest.mark.parametrize("allocator", ["arena", "native"])
def test_what_a_program_holds_is_what_its_shapes_say(tmp_path: Path, allocator: str) -> None:
    options = ("--card", "t4", "--allocator", allocator, "--json")
    facts = facts_of(dry(tmp_path, SMALL, 100, options=options))
    (account,) = facts["accounts"]
    assert account["who"] == {"arena": "arena", "native": "PyTorch's allocator"}[allocator]
    assert (facts["fits"], account["live"]) == (True, 800 * MIB)
    assert facts["peak"] == account["reserved"] + sim.card("t4").context
    rows = sorted((row["line"], row["bytes"]) for row in facts["table"]["rows"])
    assert rows == [("train.py:5 in multiply", 400 * MIB), ("train.py:6 in multiply", 400 * MIB)]


@pytest.mark.parametrize("allocator", ["arena", "native"])
def test_out_of_memory_is_known_with_its_request_and_line(tmp_path: Path, allocator: str) -> None:
    done = dry(tmp_path, SMALL, 3000, options=("--card", "t4", "--allocator", allocator, "--json"))
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: " in done.stderr
    facts = facts_of(done)
    failure = facts["failure"]
    assert (facts["fits"], failure["framework"], failure["line"]) == (False, "PyTorch", "train.py:6 in multiply")
    assert abs(failure["requested"] - 12000 * MIB) < 16 * MIB  # PyTorch rounds what it says


@pytest.mark.slow
def test_a_transformer_trains_under_both_allocators_and_holds_the_same(tmp_path: Path) -> None:
    done = dry(tmp_path, EXAMPLE, "--batch", 4, options=("--card", "t4", "--compare", "--json"))
    assert done.returncode == 0, done.stderr
    native, arena = facts_of(done)["compare"]
    assert (arena["who"], native["who"]) == ("arena", "PyTorch's allocator")
    assert arena["fits"] is native["fits"] is True
    assert 0.98 < arena["live"] / native["live"] < 1.02


def test_pytorchs_own_allocator_is_recorded_too(tmp_path: Path) -> None:
    recording, report = tmp_path / "run.arena", tmp_path / "run.html"
    options = ("--card", "t4", "--allocator", "native", "--record", recording, "--report", report)
    done = dry(tmp_path, SMALL, 100, options=options)
    assert re.search(r"wrote .*run.arena: \d+ events, PyTorch's requests", done.stderr)
    replayed = Trace.read(recording).replay(device="sim:8GiB")
    assert replayed.peak_live == 800 * MIB
    assert {line.name for line in replayed.report.lines} == {"train.py:5 in multiply", "train.py:6 in multiply"}
    assert report.exists()


def test_a_test_may_use_pytorch_without_a_gpu() -> None:
    code = """
from arena import sim
with sim.dryrun(card="t4") as card:
    import torch
    assert torch.cuda.get_device_name() == "Tesla T4"
    held = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 4 << 20
    assert sim.used() > card.context
    del held
assert sim.used() == card.context
"""
    run(code, check=True)

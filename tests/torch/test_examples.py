"""The examples with PyTorch run dry, and print what they should. tests/test_examples.py runs the others."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import sim

from ..programs import ROOT, run_command
from ..test_examples import WITH_PYTORCH

PRINTED = {
    "quickstart_torch": [
        "64 words: 370 MiB at the peak of this step\n256 words: 709 MiB at the peak of this step",
        "77,709,312  quickstart_torch.py:",
        "out of memory: 4 GiB requested, cap reached",
    ],
    "two_frameworks": ["no copy: True", "PyTorch still holds the spectrum", "  12,519,936  PyTorch\n"],
}
THREE_MODELS = ROOT / "examples/dryrun/three_models.py"
MIB = 1 << 20


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_in_a_dry_run_what_it_is_about(name: str) -> None:
    done = run_command("-m", "arena", "dryrun", f"examples/{name}.py", check=True)
    assert f"\narena dryrun examples/{name}.py " in (ROOT / f"examples/{name}.py").read_text()
    assert [text for text in PRINTED[name] if text not in done.stdout] == []
    assert "arena: fits on rtx4090" in done.stderr


def test_the_output_shown_in_the_guide_is_what_the_code_prints(tmp_path: Path) -> None:
    text = (ROOT / "docs/start/pytorch.md").read_text()
    program = tmp_path / "program.py"
    program.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)))
    done = run_command("-m", "arena", "dryrun", str(program), check=True)
    shown = [line[4:] for block in re.findall(r"^```\n\n((?:    .*\n)+)", text, re.M) for line in block.splitlines()]
    assert len(shown) > 8
    assert [line for line in shown if line not in done.stdout.splitlines()] == []


def test_every_example_with_pytorch_is_tested() -> None:
    assert set(PRINTED) == WITH_PYTORCH


def test_the_training_program_fits_as_its_docstring_says() -> None:
    command = re.search(r"^arena (dryrun .+ --batch \d+)$", (ROOT / "examples/dryrun/train.py").read_text(), re.M)
    assert command
    done = run_command("-m", "arena", *command[1].split(), check=True)
    assert "arena: fits on t4: needs 7.95 to 8.21 of 14.74 GiB" in done.stderr


def test_three_models_take_turns_under_a_cap_that_only_the_arena_keeps() -> None:
    done = run_command(str(THREE_MODELS), timeout=110, check=True)
    ends = re.findall(r"^(.+?)  .+  (all answered|out of memory in request \d+)$", done.stdout, re.M)
    assert [(name, end.partition(" in ")[0]) for name, end in ends] == [
        ("arena", "all answered"),
        ("PyTorch's own allocator", "out of memory"),
        ("PyTorch's, expandable segments", "out of memory"),
    ]
    shown = (ROOT / "docs/dryrun-pytorch.md").read_text()
    assert [line for line in done.stdout.splitlines()[:4] if f"    {line}\n" not in shown] == []


def test_the_three_models_use_their_memory_without_a_race() -> None:
    example: dict[str, Any] = runpy.run_path(str(THREE_MODELS))
    pool = arena.Arena(cap=2074 * MIB)
    arena.torch.use(pool)
    with sim.temporarily(delay=10):
        example["serve"](list(example["MODELS"]))
    assert pool.stats().peak_reserved <= 2074 * MIB
    assert pool.stats().rebacked > 0  # live data was moved
    pool.validate()

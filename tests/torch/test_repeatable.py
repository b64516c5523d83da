"""Programs that set no seed: in dry runs they do the same every time."""

from __future__ import annotations

from pathlib import Path

from ..dryrun.program import dry

SHUFFLES = """
import torch
print(torch.randperm(100).tolist(), torch.rand(4, device="cuda").tolist())
"""


def test_a_program_that_sets_no_seed_shuffles_alike_in_every_run(tmp_path: Path) -> None:
    first, second = (dry(tmp_path, SHUFFLES).stdout for _ in range(2))
    assert first == second
    assert len(first) > 100


def test_a_seed_of_the_program_counts(tmp_path: Path) -> None:
    seeded = SHUFFLES.replace("import torch", "import torch; torch.manual_seed(7)")
    assert dry(tmp_path, seeded).stdout != dry(tmp_path, SHUFFLES).stdout

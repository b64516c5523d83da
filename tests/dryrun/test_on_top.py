"""What comes on top of what a program allocates: the CUDA context and kernels, from the least to the most."""

from __future__ import annotations

import json
from pathlib import Path

from arena._cards import context_range, find_card

from ..cli.test_cli import run_arena
from .program import MIB, WITH_ARENA, WITH_RUNTIME, dry, facts_of

T4 = find_card("t4")
TAKEN = context_range(T4)
BETWEEN = (T4.memory - (TAKEN.low + TAKEN.high) // 2) // MIB - 64  # fits with the least, and not with the most

# Goes on with less if it does not get all.
MODEST = WITH_RUNTIME.replace(
    "allocate(int(sys.argv[1]) << 20)",
    """
try:
    allocate(int(sys.argv[1]) << 20)
except MemoryError:
    allocate(1 << 20)
""",
)

GROWING = """
import sys
import arena

batch = int(sys.argv[1])
pool = arena.default_arena()
weights = pool.allocate(80 << 20)
for step in range(3):
    activations = pool.allocate(batch * 240_000_000)
    workspace = pool.allocate(16 << 20)
    activations.free()
    workspace.free()
"""


def test_what_a_program_needs_is_a_range_and_it_fits_if_the_most_does(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, WITH_ARENA, 1024, options=("--card", "t4", "--json")))
    (account,) = facts["accounts"]
    assert facts["verdict"] == "fits"
    assert facts["range"] == [account["reserved"] + TAKEN.low, account["reserved"] + TAKEN.high]
    assert facts["on_top"] == [0, TAKEN.span]


def test_it_is_unsure_if_only_the_least_fits(tmp_path: Path) -> None:
    done = dry(tmp_path, WITH_ARENA, BETWEEN, options=("--card", "t4"))
    assert done.returncode == 4
    assert "unsure whether it fits on t4: if the CUDA context and kernels take the most (385 MiB), " in done.stderr
    assert "perhaps t4 (14.74 GiB)" in done.stderr
    once = facts_of(dry(tmp_path, WITH_ARENA, BETWEEN, options=("--card", "t4", "--no-second-run", "--json")))
    assert (once["verdict"], once["fits"], once["cards"]["t4"]) == ("unsure", None, "maybe")


def test_a_program_that_makes_do_with_less_fits(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, MODEST, BETWEEN, options=("--card", "t4", "--json")))
    assert (facts["verdict"], facts["range"][1]) == ("fits", T4.memory)


def test_kernels_that_are_loaded_at_once_leave_less(tmp_path: Path) -> None:
    eager = context_range(T4, eager=True)
    facts = facts_of(dry(tmp_path, WITH_ARENA, 1024, options=("--card", "t4", "--json"), CUDA_MODULE_LOADING="EAGER"))
    (account,) = facts["accounts"]
    assert facts["range"] == [account["reserved"] + eager.low, account["reserved"] + eager.high]
    done = dry(tmp_path, WITH_ARENA, BETWEEN, options=("--card", "t4"), CUDA_MODULE_LOADING="EAGER")
    assert (done.returncode, "arena: does not fit on t4" in done.stderr) == (1, True)


def test_a_dry_run_and_a_recording_have_the_same_largest_batch(tmp_path: Path) -> None:
    options = ("--card", "t4", "--allocator", "arena")
    recordings = [tmp_path / f"b{batch}.arena" for batch in (8, 16, 24)]
    for batch, path in zip((8, 16, 24), recordings, strict=True):
        assert dry(tmp_path, GROWING, batch, options=(*options, "--record", path)).returncode == 0
    found = facts_of(dry(tmp_path, GROWING, "{}", options=(*options, "--find-batch", "56:66", "--json")))
    fitted = run_arena("fit", *recordings, "--batch-from", "8,16,24", "--device", "t4", "--json")
    assert found["batch"]["largest"] == json.loads(fitted.stdout)["largest"]["batch"] == 63

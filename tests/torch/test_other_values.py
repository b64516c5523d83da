"""Further runs give the program other values than the first, whatever that one computed."""

from __future__ import annotations

from pathlib import Path

from ..dryrun.program import MIB, dry, facts_of

# Equal in the first run, where both sides are computed of zeros.
EQUAL = """
import torch
x = torch.randn(1 << 17, device="cuda")
equal = (x[:4] == x[:4] * 2).all()
"""


def test_a_bool_that_is_true_of_zeros_is_false_in_the_second_run(tmp_path: Path) -> None:
    code = EQUAL + "held = torch.empty((64 if equal else 256) << 20, dtype=torch.uint8, device='cuda')"
    facts = facts_of(dry(tmp_path, code, options=("--card", "t4", "--json")))
    assert (facts["verdict"], [one["dtype"] for one in facts["unknown"]]) == ("fits", ["bool"])
    assert facts["range"][1] - facts["range"][0] >= 192 * MIB


def test_elements_of_a_copy_are_other_ones_in_the_second_run(tmp_path: Path) -> None:
    code = EQUAL + "torch.empty((64 if (x[:4] == x[:4]).cpu()[2] else 256) << 20, dtype=torch.uint8, device='cuda')"
    facts = facts_of(dry(tmp_path, code, options=("--card", "t4", "--json")))
    assert facts["range"][1] - facts["range"][0] >= 192 * MIB


def test_a_check_is_said_to_be_one(tmp_path: Path) -> None:
    code = EQUAL + "assert equal\nprint(x.sum().item())"
    facts = facts_of(dry(tmp_path, code, options=("--card", "t4", "--json")))
    assert (facts["verdict"], facts["checks"]) == ("fits", ["train.py:5 in <module>"])
    done = dry(tmp_path, code, options=("--card", "t4"))
    assert done.returncode == 0
    assert "(a check: with its other value the program ends there)" in done.stderr
    assert "arena: fits on t4" in done.stderr


def test_another_way_is_taken_if_nothing_is_found(tmp_path: Path) -> None:
    code = EQUAL + "if len((x * 2 > 0).nonzero()) == 0:\n    torch.empty(100 << 30, device='cuda')"
    facts = facts_of(dry(tmp_path, code, options=("--card", "t4", "--json")))
    assert (facts["verdict"], facts["because"]) == ("unsure", "with nonzero=none it does not fit")


def test_what_the_programs_own_number_of_elements_sizes_is_in_the_range(tmp_path: Path) -> None:
    code = EQUAL + "held = torch.empty(len((x * 2 > 0).nonzero()), 4 << 10, device='cuda')"
    facts = facts_of(dry(tmp_path, code, options=("--card", "t4", "--json")))
    assert facts["verdict"] == "fits"
    assert facts["range"][1] - facts["range"][0] >= 2048 * MIB

"""The table of the peak: what each block was for, whose it was, and that the rows add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..dryrun.program import MIB, dry, facts_of

HEAD = "import sys, torch\nfrom torch import nn\n"
TAIL = "\nif torch.cuda.memory.get_allocator_backend() != 'pluggable': print(torch.cuda.max_memory_allocated())\n"

# Line 3 and further. All sizes are multiples of 2 MiB.
LINEAR = """
model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 1024, bias=False)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(2):
    x = torch.randn(1024, 1024).cuda()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
"""


def run(folder: Path, code: str, *options: str) -> dict[str, Any]:
    """Run a program dry; what it said for machines, and what PyTorch counted."""
    done = dry(folder, HEAD + code + TAIL, options=("--card", "t4", "--json", *options))
    printed = done.stdout.split()
    return {**facts_of(done), "allocated": int(printed[-1]) if printed and printed[-1].isdigit() else None}


def check_sums(facts: dict[str, Any]) -> None:
    table = facts["table"]
    (account,) = facts["accounts"]
    assert sum(row["bytes"] for row in table["rows"]) == table["live"] == account["live"]
    assert facts["allocated"] in (None, table["live"])
    assert table["live"] + sum(one["bytes"] for one in table["rest"]) == table["total"]
    assert all(row["bytes"] > 0 for row in table["rows"])


def kinds(facts: dict[str, Any]) -> dict[str, int]:
    """MiB by kind, rounded; what is smaller is left out."""
    sums: dict[str, int] = {}
    for row in facts["table"]["rows"]:
        sums[row["kind"]] = sums.get(row["kind"], 0) + row["bytes"]
    return {kind: round(size / MIB) for kind, size in sums.items() if size > MIB // 2}


@pytest.mark.parametrize("allocator", ["native", "arena"])
@pytest.mark.parametrize("values", ["none", "control"])
def test_a_training_step_is_told_by_kind_and_the_sum_is_the_peak(tmp_path: Path, allocator: str, values: str) -> None:
    facts = run(tmp_path, LINEAR, "--allocator", allocator, "--values", values)
    check_sums(facts)
    found = kinds(facts)
    assert (found["parameters"], found["optimizer state"]) == (8, 16)
    assert found["gradients"] == 8
    assert "unknown" not in found
    assert found["inputs"] == 4


def test_every_row_has_a_line_of_the_program_and_backward_rows_that_of_their_forward(tmp_path: Path) -> None:
    facts = run(tmp_path, LINEAR)
    lines = {(row["line"], row["backward"], row["kind"]) for row in facts["table"]["rows"]}
    assert ("train.py:4 in <module>", False, "parameters") in lines
    assert ("train.py:10 in <module>", False, "optimizer state") in lines
    assert ("train.py:8 in <module>", True, "gradients") in lines
    assert all(line.startswith("train.py:") for line, _, _ in lines)


def test_modules_are_named_as_the_program_names_them(tmp_path: Path) -> None:
    facts = run(tmp_path, LINEAR)
    owners = {(row["module"], row["kind"]) for row in facts["table"]["rows"]}
    for name in ("model.0", "model.2"):
        assert {(name, "parameters"), (name, "gradients"), (name, "optimizer state")} <= owners


def test_a_handled_error_does_not_hide_the_peak(tmp_path: Path) -> None:
    code = """
held = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.zeros(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    more = torch.zeros(32 << 20, dtype=torch.uint8, device="cuda")
"""
    facts = run(tmp_path, code)
    check_sums(facts)
    rows = sorted((row["line"], row["bytes"]) for row in facts["table"]["rows"])
    assert rows == [("train.py:4 in <module>", 64 * MIB), ("train.py:8 in <module>", 32 * MIB)]


def test_an_error_that_ends_the_program_shows_what_was_live_then(tmp_path: Path) -> None:
    code = """
def grow():
    held = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    return torch.zeros(1 << 40, dtype=torch.uint8, device="cuda")

big = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
del big
grow()
"""
    table = run(tmp_path, code)["table"]
    assert table["moment"] == "Live when that request failed"
    assert [(row["line"], row["bytes"]) for row in table["rows"]] == [("train.py:5 in grow", 64 * MIB)]


def test_checkpointed_layers_keep_little_and_what_is_computed_again_is_marked_as_backward(tmp_path: Path) -> None:
    code = """
from torch.utils.checkpoint import checkpoint
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 4096, bias=False)
        self.down = nn.Linear(4096, 256, bias=False)
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
layers = nn.ModuleList(Layer() for _ in range(3)).cuda()
x = torch.randn(2048, 256, device="cuda", requires_grad=True)
y = x
for layer in layers:
    y = checkpoint(layer, y, use_reentrant=False)
y.sum().backward()
"""
    facts = run(tmp_path, code)
    check_sums(facts)
    again = [row for row in facts["table"]["rows"] if row["backward"] and row["kind"] == "activations"]
    assert {row["line"] for row in again} == {"train.py:11 in Layer.forward"}
    assert sum(row["bytes"] for row in again) >= 32 * MIB
    assert "unknown" not in kinds(facts)


def test_frozen_parameters_have_no_gradients(tmp_path: Path) -> None:
    code = LINEAR.replace("optimizer =", "model[0].requires_grad_(False)\noptimizer =").replace(
        "model.parameters()", "model[2].parameters()"
    )
    facts = run(tmp_path, code)
    check_sums(facts)
    found = kinds(facts)
    assert (found["parameters"], found["gradients"], found["optimizer state"]) == (8, 4, 8)


def test_a_program_without_modules_and_training_adds_up(tmp_path: Path) -> None:
    code = """
a = torch.zeros(1024, 1024, device="cuda")
with torch.no_grad():
    b = a @ a
    c = torch.fft.fft(b)
"""
    facts = run(tmp_path, code)
    check_sums(facts)
    assert all(row["module"] == "" for row in facts["table"]["rows"])
    assert not {"activations", "gradients", "optimizer state"} & set(kinds(facts))


def test_weights_without_modules_are_parameters(tmp_path: Path) -> None:
    code = """
w = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
for _ in range(2):
    x = torch.zeros(512, 1024, device="cuda")
    (x @ w).relu().sum().backward()
    with torch.no_grad():
        w -= w.grad
"""
    facts = run(tmp_path, code)
    check_sums(facts)
    found = kinds(facts)
    assert (found["parameters"], found["gradients"]) == (4, 4)


def test_deeper_stacks_have_the_callers(tmp_path: Path) -> None:
    code = """
def inner():
    return torch.zeros(1 << 20, device="cuda")
def outer():
    return inner()
held = outer()
"""
    facts = run(tmp_path, code, "--lines=3")
    (row,) = facts["table"]["rows"]
    assert row["line"] == "train.py:5 in inner < train.py:7 in outer < train.py:8 in <module>"


@pytest.mark.parametrize("reset", ["cuda.reset_peak_memory_stats", "accelerator.reset_peak_memory_stats"])
def test_a_program_that_resets_its_peaks_does_not_lower_those_of_the_verdict(tmp_path: Path, reset: str) -> None:
    code = f"""
held = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
del held
torch.cuda.empty_cache()
torch.{reset}()
"""
    facts = run(tmp_path, code)
    (account,) = facts["accounts"]
    assert (facts["allocated"], account["live"], account["reserved"]) == (0, 64 * MIB, 64 * MIB)
    assert facts["table"]["live"] == 64 * MIB

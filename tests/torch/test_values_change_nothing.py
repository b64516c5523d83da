"""Programs that do not depend on values ask for the same memory, byte for byte, whether or not values are computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..dryrun.program import dry, facts_of

ROOT = Path(__file__).parents[2]
HEAD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch
from tests.torch.models import Recurrent, ResNet50, train, transformer, vgg16

torch.set_default_device("cuda")
"""

PROGRAMS = {
    "transformer": "train(transformer(), lambda: torch.randn(8, 128, 256))",
    "small transformer": "train(transformer(64, 2), lambda: torch.randn(2, 16, 64))",
    "vgg16": "train(vgg16(10), lambda: torch.randn(8, 3, 64, 64))",
    "resnet50": "train(ResNet50(), lambda: torch.randn(8, 3, 64, 64))",
    "lstm": "train(Recurrent(), lambda: torch.zeros(8, 50, dtype=torch.long))",
    "half precision": """
model = transformer()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 128, 256)).float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "small operations": """
x = torch.randn(64, 64)
for _ in range(3):
    x = torch.cat([x.softmax(-1), x.sort(1).values])[:64].t().contiguous() @ x.cumsum(0)
    x = torch.where(x > 0, x, x.argmax(1, keepdim=True).float()).masked_fill(x < 1, 2).index_select(0, torch.arange(64))
    x = torch.nn.functional.dropout(x).scatter_add(0, torch.zeros(64, 64, dtype=torch.long), x).double().float()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_asks_for_the_same_memory_with_values_and_without(name: str, tmp_path: Path) -> None:
    asked = [
        facts_of(dry(tmp_path, HEAD + PROGRAMS[name], options=("--values", values, "--no-second-run", "--json")))
        for values in ("none", "control")
    ]
    first, second = (facts["run"]["requests"] for facts in asked)
    assert first == second
    assert first["torch"][0] > 20
    assert asked[0]["peak"] == asked[1]["peak"]
    assert asked[0]["accounts"] == asked[1]["accounts"]

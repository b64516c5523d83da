"""The programs that other tools are tried with: the model, a training step, and what the model is called with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "programs"))

import qwen
import vit_huge


@dataclass(frozen=True)
class Program:
    make: Callable[[], torch.nn.Module]
    train: Callable[[torch.nn.Module, str], None]
    inputs: Callable[[], dict[str, torch.Tensor]]


def qwen_inputs() -> dict[str, torch.Tensor]:
    tokens = torch.zeros(1, 128, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens}


PROGRAMS = {
    "qwen-0.8b-full-128": Program(
        make=lambda: qwen.make_model("0.8b", lora=False, checkpointing=False),
        train=lambda model, device: qwen.train(model, 128, 1, device),
        inputs=qwen_inputs,
    ),
    "qwen-0.8b-lora-128": Program(
        make=lambda: qwen.make_model("0.8b", lora=True, checkpointing=False),
        train=lambda model, device: qwen.train(model, 128, 1, device),
        inputs=qwen_inputs,
    ),
    "vit-huge-adam": Program(
        make=vit_huge.make_model,
        train=vit_huge.train,
        inputs=lambda: {"x": torch.zeros(vit_huge.BATCH, 3, 224, 224)},
    ),
}

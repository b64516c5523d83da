"""Fine-tune ViT-H/14 in bf16 autocast with Adam, four images at a time."""

from __future__ import annotations

import timm
import torch

CLASSES, BATCH, STEPS = 45, 4, 3


def make_model() -> torch.nn.Module:
    return timm.create_model("vit_huge_patch14_224.orig_in21k", num_classes=CLASSES).train()


def train(model: torch.nn.Module, device: str = "cuda") -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for _ in range(STEPS):
        images, labels = torch.zeros(BATCH, 3, 224, 224), torch.zeros(BATCH, dtype=torch.long)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    train(make_model().to("cuda"))
    print("peak", torch.cuda.max_memory_allocated())

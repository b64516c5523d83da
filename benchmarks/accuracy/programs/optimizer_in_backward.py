"""Three training steps of ViT-L/16 with Adam, one image each: the optimizer after backward, or inside of it."""

from __future__ import annotations

import sys

import torch
import torchvision

torch.backends.cudnn.enabled = False  # there is no stand-in for cuDNN 8
model = torchvision.models.vit_l_16().cuda()
optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {}


def step_and_free(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


if sys.argv[1] == "inside":
    for parameter in model.parameters():
        optimizers[parameter] = torch.optim.Adam([parameter], foreach=False)
        parameter.register_post_accumulate_grad_hook(step_and_free)
    whole = None
else:
    whole = torch.optim.Adam(model.parameters())
for _ in range(3):
    image = torch.rand(1, 3, 224, 224, device="cuda")
    model(image).sum().backward()
    if whole:
        whole.step()
        whole.zero_grad()
print("peak", torch.cuda.max_memory_allocated())

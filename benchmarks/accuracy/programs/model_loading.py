"""Bring ViT-L/16 to the card in half precision: converted there, or by Lightning Fabric before."""

from __future__ import annotations

import sys

import torch
import torchvision
from lightning import Fabric

model = torchvision.models.vit_l_16()
if sys.argv[1] == "plain":
    model = model.to("cuda").to(torch.float16)
else:
    model = Fabric(accelerator="cuda", devices=1, precision="16-true").setup(model)
print("reserved", torch.cuda.max_memory_reserved())

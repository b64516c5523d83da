"""Trains a small transformer with PyTorch: a program for `arena dryrun`, which needs no GPU.

arena dryrun --card t4 examples/dryrun/train.py --batch 32
arena dryrun --card t4 --find-batch 1:256 examples/dryrun/train.py --batch {}
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=2)
options = parser.parse_args()

layer = nn.TransformerEncoderLayer(d_model=512, nhead=8, dim_feedforward=2048, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, num_layers=12), nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

for _ in range(options.steps):
    tokens = torch.randn(options.batch, 512, 512, device="cuda")
    loss = model(tokens).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")

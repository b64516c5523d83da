"""Fine-tune ViT-L/16 on images of CIFAR-10's kind, by Lightning Fabric: the memory that PyTorch reserves."""

from __future__ import annotations

import argparse

import torch
import torchvision
from lightning import Fabric
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10


def loader(fabric: Fabric, batch: int, batches: int) -> DataLoader:
    images = torch.zeros(batch * batches, 3, 224, 224)
    labels = torch.randint(CLASSES, (batch * batches,))
    return fabric.setup_dataloaders(DataLoader(TensorDataset(images, labels), batch_size=batch))


def train(fabric, model, optimizer, scheduler, batches, every: int) -> None:
    model.train()
    for number, (images, labels) in enumerate(batches):
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits, labels) / every
        if every == 1:
            optimizer.zero_grad()
        fabric.backward(loss)
        if number % every == 0:
            optimizer.step()
            if scheduler:
                scheduler.step()
            if every > 1:
                optimizer.zero_grad()
        with torch.no_grad():
            torch.argmax(logits, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sgd", action="store_true")
    options = parser.parse_args()

    torch.backends.cudnn.enabled = False  # there is no stand-in for cuDNN 8
    fabric = Fabric(accelerator="cuda", devices=1, precision=options.precision)
    fabric.launch()
    torch.set_float32_matmul_precision("high")
    training, validation = loader(fabric, options.batch, 8), loader(fabric, options.batch, 2)
    model = torchvision.models.vit_l_16()
    model.heads.head = torch.nn.Linear(1024, CLASSES)
    if options.sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    else:
        optimizer, scheduler = torch.optim.Adam(model.parameters(), lr=5e-5), None
    model, optimizer = fabric.setup(model, optimizer)
    train(fabric, model, optimizer, scheduler, training, options.accumulate)
    model.eval()
    with torch.no_grad():
        for images, _ in validation:
            torch.argmax(model(images), 1)
    print("reserved", torch.cuda.max_memory_reserved())


main()

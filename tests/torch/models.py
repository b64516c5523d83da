"""Models as people train them, in the sizes of their papers or smaller. For the tests here and benchmarks/peers.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT", "Decoder", "Recurrent", "ResNet50", "captured_training_step", "train", "transformer", "vgg16"]


def transformer(width: int = 256, layers: int = 4, heads: int = 4) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, layers), nn.Linear(width, 1000))


def vgg16(classes: int = 1000) -> nn.Module:
    """With batch norm. The classifier of the paper has more parameters than all the rest together."""
    parts: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *parts,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, classes),
    )


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet50(nn.Sequential):
    def __init__(self, classes: int = 1000) -> None:
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        parts: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                parts.append(Bottleneck(channels, width, stride if number == 0 else 1))
                channels = 4 * width
        super().__init__(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Recurrent(nn.Module):
    def __init__(self, words: int = 1000, width: int = 128) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.words(tokens))[0])
        return logits


class Decoder(nn.Module):
    """A block of a language model, with a cache of keys and values that grows by concatenation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        new = torch.stack((k, v))
        cache = new if cache is None else torch.cat((cache, new), dim=3)
        mixed = functional.scaled_dot_product_attention(q, cache[0], cache[1], is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.after(x)))), cache


class GPT(nn.Module):
    def __init__(self, words: int = 8192, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Decoder(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, caches: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
        x, after = self.words(tokens), []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, grown = block(x, cache)
            after.append(grown)
        return self.head(x), after


def train(
    model: nn.Module, batch: Callable[[], Tensor], steps: int = 2, loss_of: Callable[[Tensor], Tensor] | None = None
) -> list[float]:
    """Train a model on the device it is on; return the losses, which are 0 in a dry run."""
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        out = model(batch())
        loss = out.square().mean() if loss_of is None else loss_of(out)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def captured_training_step() -> tuple[torch.cuda.CUDAGraph, object]:
    """A graph of a training step, and what it needs to stay alive."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.zeros(16, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph, (model, optimizer, x)

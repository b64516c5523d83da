"""Train GPT-2 (124M) as a book does that writes it from scratch: every operation of its own, or PyTorch's classes."""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, DROPOUT = 50_257, 1024, 768, 12, 12, 0.1
STEPS, EVALUATE_EVERY, GENERATED = 4, 2, 50


class PlainNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class PlainGELU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.sqrt(torch.tensor(2.0 / math.pi)) * (x + 0.044715 * torch.pow(x, 3))
        return 0.5 * x * (1 + torch.tanh(inner))


def future(length: int, device: torch.device | str) -> torch.Tensor:
    return torch.triu(torch.ones(length, length, device=device), diagonal=1)


class PlainAttention(nn.Module):
    def __init__(self, keep_mask: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.register_buffer("future", future(CONTEXT, "cpu") if keep_mask else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        key, query, value = self.key(x), self.query(x), self.value(x)
        key, value, query = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in (key, value, query))
        scores = query @ key.transpose(2, 3)
        mask = future(length, x.device) if self.future is None else self.future
        scores.masked_fill_(mask.bool()[:length, :length], -torch.inf)
        weights = self.dropout(torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1))
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))


class FlashAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.projections(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(*parts, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, classes: bool, attention: str) -> None:
        super().__init__()
        self.attention = FlashAttention() if attention == "flash" else PlainAttention(attention == "mask-kept")
        gelu = nn.GELU(approximate="tanh") if classes else PlainGELU()
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) if classes else PlainNorm() for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in zip(self.norms, (self.attention, self.feed), strict=True):
            shortcut = x
            x = norm(x)
            x = part(x)
            x = self.dropout(x)
            x = x + shortcut
        return x


class GPT(nn.Module):
    def __init__(self, classes: bool, attention: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block(classes, attention) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH) if classes else PlainNorm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.tokens(tokens)
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = embedded + places
        x = self.dropout(x)
        x = self.blocks(x)
        x = self.norm(x)
        return self.head(x)


def loss_of(model: GPT, batch: int) -> torch.Tensor:
    tokens, targets = (torch.zeros(batch, CONTEXT, dtype=torch.long).to("cuda") for _ in range(2))
    logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: GPT, batch: int) -> None:
    model.eval()
    for _ in ("training", "validation"):
        loss_of(model, batch).item()
    model.train()


@torch.no_grad()
def generate(model: GPT) -> None:
    model.eval()
    tokens = torch.zeros(1, 4, dtype=torch.long).to("cuda")
    for _ in range(GENERATED):
        logits = model(tokens)[:, -1, :]
        tokens = torch.cat((tokens, torch.argmax(logits, dim=-1, keepdim=True)), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--classes", action="store_true", help="PyTorch's LayerNorm and GELU")
    parser.add_argument("--attention", choices=["mask-kept", "mask-made", "flash"], default="mask-kept")
    options = parser.parse_args()

    model = GPT(options.classes, options.attention).to("cuda")
    if options.bf16:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, fused=options.bf16)
    model.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, options.batch)
        loss.backward()
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            evaluate(model, options.batch)
    generate(model)
    print("allocated", torch.cuda.memory_allocated())
    print("reserved", torch.cuda.memory_reserved())


main()

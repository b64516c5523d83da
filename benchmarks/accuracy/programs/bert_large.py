"""Train BERT-large for classification on sequences of 512: the memory that PyTorch reserves."""

from __future__ import annotations

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification

LENGTH, STEPS = 512, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    options = parser.parse_args()

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    model = BertForSequenceClassification(config).to("cuda")
    print("loaded", torch.cuda.memory_reserved())
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    scaler = torch.cuda.amp.GradScaler(enabled=options.fp16)
    for _ in range(STEPS):
        for _ in range(options.accumulate):
            tokens = torch.randint(100, 30_000, (options.batch, LENGTH)).to("cuda")
            labels = torch.randint(0, 2, (options.batch,)).to("cuda")
            with torch.autocast("cuda", dtype=torch.float16, enabled=options.fp16):
                loss = model(input_ids=tokens, labels=labels).loss / options.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)  # as PyTorch did then
    print("reserved", torch.cuda.max_memory_reserved())


main()

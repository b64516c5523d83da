"""One optimizer step of Qwen3.5 in bf16: full fine-tuning, or LoRA of rank 8 on all linear layers."""

from __future__ import annotations

import argparse

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

SIZES = {"0.8b": (1024, 3584), "2b": (2048, 6144)}  # hidden, intermediate
VOCABULARY = 248_320


def make_model(size: str, lora: bool, checkpointing: bool) -> torch.nn.Module:
    hidden, intermediate = SIZES[size]
    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
    )
    torch.set_default_dtype(torch.bfloat16)  # not model.to(), which would convert buffers, too
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    if lora:
        import peft  # only LoRA needs it

        settings = peft.LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM", target_modules="all-linear")
        model = peft.get_peft_model(model, settings)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora:
            model.enable_input_require_grads()
    return model.train()


def train(model: torch.nn.Module, sequence: int, micro_batches: int, device: str = "cuda") -> None:
    """One optimizer step."""
    batches = []
    for _ in range(micro_batches):
        tokens = torch.randint(100, VOCABULARY, (1, sequence))
        labels = tokens.clone()
        labels[:, : sequence // 2] = -100
        positions = torch.arange(sequence).expand(3, 1, -1).clone()
        batches.append([tensor.to(device) for tensor in (tokens, labels, positions)])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=False)
    for number, (tokens, labels, positions) in enumerate(batches, 1):
        output = model(input_ids=tokens, labels=labels, position_ids=positions, use_cache=False)
        loss = output.loss / len(batches)
        loss.backward()
        if number < len(batches):
            del output, loss
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--sequence", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()

    model = make_model(options.size, options.lora, options.checkpointing).to("cuda")
    torch.cuda.reset_peak_memory_stats()
    train(model, options.sequence, options.micro_batches)
    print("peak", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()

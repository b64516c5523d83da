"""Load Qwen3-8B in bf16, and generate two tokens after a prompt of nine."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

config = Qwen3Config(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("meta"):
    model = Qwen3ForCausalLM(config)
torch.set_default_dtype(torch.float32)
model = model.to_empty(device="cuda").eval()
print("loaded", torch.cuda.memory_allocated())
tokens = torch.randint(100, 150_000, (1, 9)).to("cuda")
torch.cuda.reset_peak_memory_stats()
with torch.no_grad():
    output = model(tokens, use_cache=True)
    token = output.logits[:, -1].argmax(-1, keepdim=True)
    model(token, past_key_values=output.past_key_values, use_cache=True)
print("peak", torch.cuda.max_memory_allocated())

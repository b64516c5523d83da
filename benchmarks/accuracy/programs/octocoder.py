"""Answer a question with OctoCoder, 15.5 billion parameters in bfloat16: load it, and generate 60 tokens."""

from __future__ import annotations

import torch
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

PROMPT, NEW = 25, 60  # tokens

config = GPTBigCodeConfig(
    vocab_size=49_152,
    n_positions=8192,
    n_embd=6144,
    n_layer=40,
    n_head=48,
    n_inner=24_576,
    multi_query=True,
    activation_function="gelu",
    eos_token_id=None,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = GPTBigCodeForCausalLM._from_config(config)
torch.set_default_dtype(torch.float32)
model.eval()
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
print("weights", torch.cuda.memory_allocated())
tokens = torch.randint(49_152, (1, PROMPT)).to("cuda")
model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False, pad_token_id=0)
print("peak", torch.cuda.max_memory_allocated())

"""Makes tests/data/tiny_llama: a random Llama as transformers 5.18 saves it, and what transformers computes with it in fp32.

usage: python tests/data/make_tiny_llama.py   (a Python with torch and transformers, as bench/peers/setup makes one)
"""

import os

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny_llama")

torch.manual_seed(5)
torch.set_num_threads(1)
config = LlamaConfig(vocab_size=80, hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
                     head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)  # fmt: skip
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    for name, weight in model.named_parameters():
        # Norms away from 1 and attention away from uniform, or a forgotten weight would not show.
        weight.copy_(1 + 0.3 * torch.randn_like(weight) if "norm" in name else 0.25 * torch.randn_like(weight))
model.save_pretrained(FOLDER)

ids = torch.randint(0, config.vocab_size, (1, 40))
with torch.no_grad():
    layers = {}
    for i, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda module, inputs, output, i=i: layers.update({i: output[0] if isinstance(output, tuple) else output}))
    out = model(ids)
expected = {"ids": ids[0].to(torch.int32), "logits": out.logits[0]}
for i, states in layers.items():
    expected[f"after_layer_{i}"] = states.reshape(-1, config.hidden_size)
save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(FOLDER, "expected.safetensors"))

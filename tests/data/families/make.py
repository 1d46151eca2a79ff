"""Makes the folders beside this script: a small random model of each family as transformers 5.18 saves it, and what transformers computes
with it in fp32.

usage: python tests/data/families/make.py [NAME...]   (a Python with torch and transformers, as bench/peers/setup makes one)

FOLDER/expected.safetensors: input_ids and doc_offsets (int32) of two documents; layer.J [n, H] = residual stream after layer J; logits [n, V].
The documents are run one by one. Weights are rounded to the dtype that they are stored in before transformers computes with them.
"""

import os
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)  # fmt: skip
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12, head_dim=16,
              full_attention_interval=4, layer_types=None,
              rope_parameters={"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0],
                               "mrope_interleaved": True})  # fmt: skip
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16)


def rope(kind, theta, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


# name: (class, config class, keys, stored dtype, size of a shard)
MODELS = {
    "llama3": (tf.LlamaForCausalLM, tf.LlamaConfig, rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32), torch.bfloat16, "1GB"),
    "llama_linear_biased": (tf.LlamaForCausalLM, tf.LlamaConfig, rope("linear", 1e4, factor=4.0)
                            | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), torch.float32, "1GB"),
    "mistral": (tf.MistralForCausalLM, tf.MistralConfig, dict(sliding_window=7), torch.float16, "20KB"),
    "qwen2": (tf.Qwen2ForCausalLM, tf.Qwen2Config, dict(use_sliding_window=True, sliding_window=9, max_window_layers=2,
              tie_word_embeddings=True), torch.bfloat16, "1GB"),
    "qwen3": (tf.Qwen3ForCausalLM, tf.Qwen3Config, rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=32) | dict(head_dim=12),
              torch.bfloat16, "1GB"),
    "qwen3_moe": (tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig, EXPERTS | dict(mlp_only_layers=[1], norm_topk_prob=True, head_dim=16),
                  torch.bfloat16, "1GB"),
    "gemma3": (tf.Gemma3ForCausalLM, tf.Gemma3TextConfig, dict(num_hidden_layers=6, tie_word_embeddings=True, head_dim=16, query_pre_attn_scalar=24, sliding_window=8,
               final_logit_softcapping=4.0, rope_parameters={
                   "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}), torch.bfloat16, "1GB"),
    "qwen3_5": (tf.Qwen3_5ForCausalLM, tf.Qwen3_5TextConfig, LINEAR, torch.bfloat16, "1GB"),
    "qwen3_5_moe": (tf.Qwen3_5MoeForCausalLM, tf.Qwen3_5MoeTextConfig, LINEAR | EXPERTS | dict(shared_expert_intermediate_size=20),
                    torch.bfloat16, "1GB"),
}  # fmt: skip
LENGTHS = [70, 26]  # beyond windows, original positions, and chunks of 64 of the delta rule
FULL_PRECISION = ("A_log", "dt_bias", "linear_attn.norm.weight")  # kept in fp32 as the published files do


def randomise(model, stored):
    """Norms away from 1 and attention away from uniform, or a forgotten weight would not show."""
    zero_centred = any(part in type(model).__name__ for part in ("Gemma3", "Qwen3_5"))
    for name, weight in model.named_parameters():
        noise = torch.randn_like(weight)
        if name.endswith("A_log"):
            weight.copy_(0.5 * noise)
        elif name.endswith("dt_bias"):
            weight.copy_(noise)
        elif "norm" in name:
            weight.copy_((0 if zero_centred and "linear_attn.norm" not in name else 1) + 0.3 * noise)
        elif "embed_tokens" in name and zero_centred and "Gemma3" in type(model).__name__:
            weight.copy_(noise / 6)  # the first layer reads them times sqrt(H)
        else:
            weight.copy_((1.0 if "conv1d" in name or weight.dim() == 1 else 0.25) * noise)
        if not name.endswith(FULL_PRECISION):
            weight.copy_(weight.to(stored).float())


def states_of(model, documents):
    """[layer] residual streams, and the logits, of all documents one after the other."""
    base = getattr(model.model, "language_model", model.model)
    layers, hooks = [[] for _ in base.layers], []
    for kept, layer in zip(layers, base.layers):
        hooks.append(layer.register_forward_hook(lambda m, i, out, kept=kept: kept.append((out[0] if isinstance(out, tuple) else out).clone())))
    logits = [model(torch.tensor([ids])).logits[0] for ids in documents]
    for hook in hooks:
        hook.remove()
    return [torch.cat([x.reshape(-1, x.shape[-1]) for x in kept]) for kept in layers], torch.cat(logits)


def save(model, folder, stored, shard):
    for name, weight in model.named_parameters():
        weight.data = weight.data if name.endswith(FULL_PRECISION) else weight.data.to(stored)
    model.save_pretrained(folder, max_shard_size=shard)
    os.path.exists(os.path.join(folder, "generation_config.json")) and os.remove(os.path.join(folder, "generation_config.json"))


def make(name):
    make_model, make_config, keys, stored, shard = MODELS[name]
    torch.manual_seed(list(MODELS).index(name) + 11)
    config = make_config(**(BASE | dict(tie_word_embeddings=False) | keys))
    model = make_model(config).eval()
    documents = [torch.randint(0, config.vocab_size, (n,)).tolist() for n in LENGTHS]
    with torch.no_grad():
        randomise(model, stored)
        layers, logits = states_of(model, documents)
    folder = os.path.join(HERE, name)
    save(model, folder, stored, shard)
    expected = {f"layer.{i}": x for i, x in enumerate(layers)} | {"logits": logits}
    expected["input_ids"] = torch.tensor(sum(documents, []), dtype=torch.int32)
    expected["doc_offsets"] = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(folder, "expected.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for model_name in sys.argv[1:] or MODELS:
        make(model_name)

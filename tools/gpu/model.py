"""A Llama with random weights of any size, and token shards for it: what a machine without a network trains on."""

import json
import os

import numpy as np

from tools.common import write_shard, write_tensors

# hidden, layers, heads, kv heads, head dim, intermediate, vocabulary
SIZES = {"tiny": (64, 6, 4, 2, 16, 128, 512), "135m": (576, 30, 9, 3, 64, 1536, 49152)}


def to_bf16(x):
    """float32 array -> bytes of bf16, cut, not rounded: the numbers are random anyway."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def write_model(folder, size):
    """Fixed random weights: the same folder every time. Embedding and head are one tensor."""
    hidden, layers, heads, kv_heads, head_dim, inner, vocab = SIZES[size]
    random = np.random.default_rng(7)
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": [hidden],
            p + "post_attention_layernorm.weight": [hidden],
            p + "self_attn.q_proj.weight": [heads * head_dim, hidden],
            p + "self_attn.k_proj.weight": [kv_heads * head_dim, hidden],
            p + "self_attn.v_proj.weight": [kv_heads * head_dim, hidden],
            p + "self_attn.o_proj.weight": [hidden, heads * head_dim],
            p + "mlp.gate_proj.weight": [inner, hidden],
            p + "mlp.up_proj.weight": [inner, hidden],
            p + "mlp.down_proj.weight": [hidden, inner],
        }
    tensors = {}
    for name, shape in sorted(shapes.items()):
        # Products of unit size keep the states of many layers in range.
        x = np.ones(shape) if len(shape) == 1 else random.standard_normal(shape, np.float32) / np.sqrt(shape[1])
        tensors[name] = ("BF16", shape, to_bf16(x))
    os.makedirs(folder, exist_ok=True)
    write_tensors(os.path.join(folder, "model.safetensors"), tensors, {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner,
        "vocab_size": vocab, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 8192, "hidden_act": "silu",
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


def write_documents(path, vocab, count, length):
    """Documents that repeat a short pattern of their own, so that there is something to learn."""
    random = np.random.default_rng(5)
    documents = [np.resize(random.integers(3, vocab, 7 + i % 5), length - i % 4).tolist() for i in range(count)]
    write_shard(path, documents, [[0] * 6 + [1] * (len(d) - 6) for d in documents])
    return path


def write_prompts(path, vocab, count, length):
    random = np.random.default_rng(3)
    write_shard(path, [random.integers(3, vocab, length + i % 3).tolist() for i in range(count)])
    return path

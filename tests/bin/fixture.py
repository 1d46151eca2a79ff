"""A tiny Llama target, shards for it, and running the program as a user would."""

import json
import os
import subprocess
import tempfile
import unittest

import numpy as np

from tools.common import write_shard, write_tensors
from tools.import_gguf import to_bf16

DFLASH = os.environ.get("DFLASH_BIN") or "build/dflash"
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 96, 32, 4, 4, 2, 8, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256, "hidden_act": "silu",
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def shapes():
    out = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = [HIDDEN]
        out[p + "self_attn.q_proj.weight"] = [HEADS * HEAD_DIM, HIDDEN]
        out[p + "self_attn.k_proj.weight"] = out[p + "self_attn.v_proj.weight"] = [KV_HEADS * HEAD_DIM, HIDDEN]
        out[p + "self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD_DIM]
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = [INTERMEDIATE, HIDDEN]
        out[p + "mlp.down_proj.weight"] = [HIDDEN, INTERMEDIATE]
    return out


def write_target(folder, config=None, tensors=None):
    """Writes a target with fixed random weights. config: keys to change (None removes); tensors: {name: shape or None} to change."""
    random = np.random.default_rng(7)
    named = {**shapes(), **(tensors or {})}
    data = {}
    for name, shape in sorted(named.items()):
        if shape is not None:
            x = np.ones(shape) if name.endswith("norm.weight") else random.standard_normal(shape) * 0.3
            data[name] = ("BF16", shape, to_bf16(x.astype(np.float32)))
    os.makedirs(folder, exist_ok=True)
    write_tensors(os.path.join(folder, "model.safetensors"), data, {"format": "pt"})
    merged = {k: v for k, v in {**CONFIG, **(config or {})}.items() if v is not None}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(merged, f)
    return folder


def write_prompts(path, count=6, length=8, vocab=VOCAB):
    random = np.random.default_rng(3)
    write_shard(path, [random.integers(3, vocab, length + i % 3).tolist() for i in range(count)])
    return path


def write_documents(path, count=12, length=24, vocab=VOCAB):
    random = np.random.default_rng(5)
    documents = [random.integers(3, vocab, length - i % 4).tolist() for i in range(count)]
    write_shard(path, documents, [[0] * 6 + [1] * (len(d) - 6) for d in documents])
    return path


RUN = """\
[run]
dir = "{folder}/run"
seed = 1
[target]
path = "{folder}/target"
dtype = "fp32"
[draft]
layers = 1
block_size = 4
taps = [0, 2]
mask_token_id = 0
init = "random"
[data]
train = ["{folder}/train.safetensors"]
row_tokens = 64
anchors = 8
epochs = 2
[optim]
name = "adamw"
lr = 1e-3
steps = 4
[layout]
targets = ["cpu:0"]
drafters = ["cpu:0"]
target_threads = 1
drafter_threads = 1
"""


class ProgramTest(unittest.TestCase):
    """Gives each test a folder with target/, prompts.safetensors, train.safetensors and run.toml."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        write_target(self.path("target"))
        write_prompts(self.path("prompts.safetensors"))
        write_documents(self.path("train.safetensors"))
        self.write("run.toml", RUN.format(folder=self.folder))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def dflash(self, *arguments, timeout=120):
        return subprocess.run([DFLASH, *arguments], capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)

    def succeeds(self, *arguments):
        result = self.dflash(*arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def refused(self, *arguments, names=()):
        """The program has to end with exit code 2 and one error that names all of `names`."""
        result = self.dflash(*arguments)
        text = result.stdout + result.stderr
        self.assertEqual(result.returncode, 2, text)
        self.assertIn("error", text)
        for name in names:
            self.assertIn(name, text)
        return text

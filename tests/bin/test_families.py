"""Targets that are not Llama from end to end: answers, training, evaluation, export and doctor on a tiny folder of the family, each
command with exit code 0 and figures that agree with each other."""

import json
import os
import unittest

import numpy as np

from tests.bin.fixture import ProgramTest, write_prompts
from tools.common import read_shard, write_tensors
from tools.import_gguf import to_bf16

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 96, 32, 4, 2, 16, 48
COMMON = {
    "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True}
QK = dict(q=HEADS * HEAD_DIM, k=KV_HEADS * HEAD_DIM)
LINEAR_KEYS, LINEAR_VALUES, KEY_DIM, VALUE_DIM = 2, 4, 8, 12


def mlp(p):
    return {p + "gate_proj.weight": [INTERMEDIATE, HIDDEN], p + "up_proj.weight": [INTERMEDIATE, HIDDEN], p + "down_proj.weight": [HIDDEN, INTERMEDIATE]}


def attention(p, gated=False):
    return {
        p + "q_proj.weight": [QK["q"] * (2 if gated else 1), HIDDEN], p + "k_proj.weight": [QK["k"], HIDDEN], p + "v_proj.weight": [QK["k"], HIDDEN],
        p + "o_proj.weight": [HIDDEN, QK["q"]], p + "q_norm.weight": [HEAD_DIM], p + "k_norm.weight": [HEAD_DIM],
    }  # fmt: skip


def linear_attention(p):
    channels, values = 2 * LINEAR_KEYS * KEY_DIM + LINEAR_VALUES * VALUE_DIM, LINEAR_VALUES * VALUE_DIM
    return {
        p + "in_proj_qkv.weight": [channels, HIDDEN], p + "in_proj_z.weight": [values, HIDDEN], p + "in_proj_a.weight": [LINEAR_VALUES, HIDDEN],
        p + "in_proj_b.weight": [LINEAR_VALUES, HIDDEN], p + "conv1d.weight": [channels, 1, 4], p + "A_log": [LINEAR_VALUES],
        p + "dt_bias": [LINEAR_VALUES], p + "norm.weight": [VALUE_DIM], p + "out_proj.weight": [HIDDEN, values],
    }  # fmt: skip


def qwen3():
    config = COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 3, "rope_theta": 1e6}
    return config, [attention("self_attn.")] * 3


def gemma3():
    config = COMMON | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 3, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": HEAD_DIM, "sliding_window": 12, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    }  # fmt: skip
    del config["hidden_act"]
    return config, [attention("self_attn.") | {"pre_feedforward_layernorm.weight": [HIDDEN], "post_feedforward_layernorm.weight": [HIDDEN]}] * 3


def qwen3_5():
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    config = COMMON | {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 4, "layer_types": kinds,
        "linear_num_key_heads": LINEAR_KEYS, "linear_num_value_heads": LINEAR_VALUES, "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM, "linear_conv_kernel_dim": 4, "rope_parameters": ROPE, "tie_word_embeddings": False,
    }  # fmt: skip
    return config, [attention("self_attn.", gated=True) if k == "full_attention" else linear_attention("linear_attn.") for k in kinds]


def write_family(folder, config, layers):
    """Random weights; norms that are read as 1 + w lie around 0, the others around 1."""
    random = np.random.default_rng(7)
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [VOCAB, HIDDEN]
    for i, layer in enumerate(layers):
        own = {"input_layernorm.weight": [HIDDEN], "post_attention_layernorm.weight": [HIDDEN], **mlp("mlp."), **layer}
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in own.items()})
    plus_one = config["model_type"] != "qwen3"
    tensors = {}
    for name, shape in sorted(shapes.items()):
        x = random.standard_normal(shape)
        if name.endswith("norm.weight"):
            x = 0.2 * x + (0 if plus_one and "linear_attn" not in name else 1)
        elif not name.endswith(("A_log", "dt_bias")):
            x *= 0.3
        x = x.astype(np.float32)
        whole = name.endswith(("A_log", "dt_bias", "linear_attn.norm.weight"))
        tensors[name] = ("F32", shape, x.tobytes()) if whole else ("BF16", shape, to_bf16(x))
    os.makedirs(folder, exist_ok=True)
    write_tensors(os.path.join(folder, "model.safetensors"), tensors, {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


TRAINING = ("--optim.steps=150", "--optim.lr=4e-3", "--optim.warmup=10", "--draft.layers=2", "--draft.taps=[0, 1]", "--data.anchors=32",
            "--data.epochs=100")  # fmt: skip


class Families(ProgramTest):
    def figures(self, drafter):
        out, cycles = self.path("eval.json"), self.path("cycles.jsonl")
        self.succeeds("eval", "--target", self.path("target"), "--drafter", drafter, "--prompts", "own=" + self.path("prompts.safetensors"),
                      "--max-new-tokens", "32", "--dtype", "fp32", "--check", "8", "--threads", "1", "--json", out, "--cycles", cycles)  # fmt: skip
        with open(out, encoding="utf-8") as f:
            figures = json.load(f)
        with open(cycles, encoding="utf-8") as f:
            return figures, [json.loads(line)["answer"] for line in f]

    def losses(self):
        with open(self.path("run", "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line)["loss"] for line in f]

    def end_to_end(self, family):
        config, layers = family()
        write_family(self.path("target"), config, layers)
        write_prompts(self.path("prompts.safetensors"), count=24)
        self.succeeds("generate", "--target", self.path("target"), "--prompts", self.path("prompts.safetensors"), "--out",
                      self.path("train.safetensors"), "--max-new-tokens", "32", "--dtype", "fp32", "--threads", "1")  # fmt: skip
        ids, mask, offsets = read_shard(self.path("train.safetensors"), prompts=False)
        generated = [ids[a:b][mask[a:b] == 1].tolist() for a, b in zip(offsets, offsets[1:])]

        self.succeeds("train", self.path("run.toml"), *TRAINING)
        losses = self.losses()
        self.assertEqual(len(losses), 150)
        self.assertLess(np.mean(losses[-10:]), 0.8 * np.mean(losses[:10]))

        figures, answers = self.figures(self.path("run"))
        self.assertEqual(answers, generated)  # the same greedy texts by another command
        check = figures["output_check"]["own"]
        self.assertEqual((check["prompts"], check["identical"], check["different"]), (8, 8, 0))
        self.assertGreater(figures["tau"]["own"], 1.1)
        self.assertLessEqual(figures["tau"]["own"], 4)

        self.succeeds("export", self.path("run"), "--out", self.path("drafter"))
        with open(self.path("drafter", "config.json"), encoding="utf-8") as f:
            exported = json.load(f)
        base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self.assertEqual((exported["rope_theta"], exported["num_target_layers"]), (base, config["num_hidden_layers"]))
        self.assertEqual((exported["model_type"], exported["hidden_act"]), ("qwen3", "silu"))
        # What only the target has: a server would apply it to the drafter.
        foreign = ("partial_rotary_factor", "mrope", "rope_scaling", "linear_", "softcap", "query_pre_attn", "local_base")
        self.assertEqual([k for k in exported if exported[k] is not None and any(f in k for f in foreign)], [])
        self.assertEqual(self.figures(self.path("drafter"))[0]["tau"], figures["tau"])

        found = json.loads(self.succeeds("doctor", self.path("target"), self.path("drafter"), "--json", "--threads", "1", "--prompts",
                                         self.path("prompts.safetensors")))  # fmt: skip
        self.assertTrue(found["healthy"])
        self.assertEqual([c for c in found["checks"] if c["level"] == "fail"], [])

    def test_qwen3_with_a_tied_head(self):
        self.end_to_end(qwen3)

    def test_gemma3_with_windows(self):
        self.end_to_end(gemma3)

    def test_the_hybrid_qwen3_5(self):
        self.end_to_end(qwen3_5)


if __name__ == "__main__":
    unittest.main()

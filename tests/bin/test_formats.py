"""Drafters of both published forms through the program: warm start, draft vocabularies, exports, and one clear error for each mistake."""

import json
import os
import shutil
import unittest

import numpy as np

from tests.bin.fixture import ProgramTest, write_documents, write_prompts, write_target
from tests.tools.fixture import DATA
from tools.common import write_tensors
from tools.safetensors_file import read_safetensors

TINY = os.path.abspath(os.path.join(DATA, "tiny_llama"))
SAVED = os.path.abspath(os.path.join(DATA, "speculators"))  # by speculators, for tiny_llama
SHAPE = [
    "--draft.layers=2", "--draft.block_size=4", "--draft.taps=[1, 2]", "--draft.mask_token_id=5", "--draft.intermediate_size=64",
    "--draft.heads=4", '--draft.layer_types=["full_attention", "sliding_attention"]', "--draft.sliding_window=9",
]  # fmt: skip


def config_of(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def weights_of(folder):
    return {n: (d, s, bytes(b)) for n, (d, s, b) in read_safetensors(os.path.join(folder, "model.safetensors")).items()}


class Formats(ProgramTest):
    def setUp(self):
        super().setUp()
        write_documents(self.path("train.safetensors"), vocab=80)
        write_prompts(self.path("prompts.safetensors"), vocab=80)

    def train(self, *more, run="run"):
        return ("train", self.path("run.toml"), f"--target.path={TINY}", f"--run.dir={self.path(run)}", *SHAPE, *more)

    def tau(self, drafter):
        prompts = "own=" + self.path("prompts.safetensors")
        self.succeeds("eval", "--target", TINY, "--drafter", drafter, "--prompts", prompts, "--max-new-tokens", "8", "--dtype", "fp32", "--check", "3",
                      "--threads", "1", "--json", self.path("eval.json"))  # fmt: skip
        with open(self.path("eval.json"), encoding="utf-8") as f:
            figures = json.load(f)
        self.assertTrue(figures["outputs_identical"])
        return figures["tau"]["own"]

    def test_a_drafter_that_speculators_saved_trains_on_and_is_exported_in_both_forms(self):
        self.succeeds(*self.train(f"--draft.init={SAVED}/full"))
        checkpoint = self.path("run", "checkpoints", "latest")
        self.succeeds("export", self.path("run"), "--out", self.path("z"))
        self.succeeds("export", self.path("run"), "--out", self.path("s"), "--form", "speculators", "--verifier", "org/tiny")
        self.assertEqual(weights_of(self.path("z")), weights_of(self.path("s")))
        self.assertEqual(weights_of(self.path("z")), weights_of(checkpoint))
        self.assertNotEqual(weights_of(self.path("z")), weights_of(os.path.join(SAVED, "full")))
        self.assertEqual(config_of(self.path("z"))["dflash_config"]["target_layer_ids"], [1, 2])
        self.assertEqual(config_of(self.path("s"))["aux_hidden_state_layer_ids"], [2, 3])
        verifier = config_of(self.path("s"))["speculators_config"]["verifier"]
        self.assertEqual(verifier, {"name_or_path": "org/tiny", "architectures": ["LlamaForCausalLM"]})
        # And back again: the same files.
        self.succeeds("export", self.path("s"), "--out", self.path("z2"))
        self.assertEqual(config_of(self.path("z2")), config_of(self.path("z")))
        self.assertEqual(weights_of(self.path("z2")), weights_of(self.path("z")))
        self.assertEqual(self.tau(self.path("s")), self.tau(self.path("z")))

    def test_a_checkpoint_names_its_target_by_itself(self):
        self.succeeds(*self.train())
        self.succeeds("export", self.path("run"), "--out", self.path("s"), "--form", "speculators")
        self.assertEqual(config_of(self.path("s"))["speculators_config"]["verifier"]["name_or_path"], TINY)
        self.succeeds("export", self.path("run"), "--out", self.path("z"))
        self.refused("export", self.path("z"), "--out", self.path("s2"), "--form", "speculators", names=["--target"])
        self.succeeds("export", self.path("z"), "--out", self.path("s2"), "--form", "speculators", "--target", TINY)
        self.assertEqual(config_of(self.path("s2")), config_of(self.path("s")))
        self.refused("export", self.path("run"), "--out", self.path("z3"), "--verifier", "x", names=["--verifier", "speculators"])
        # speculators does not store the number of target layers, which z-lab's form needs.
        self.refused("export", f"{SAVED}/full", "--out", self.path("z3"), names=["--target"])
        self.succeeds("export", f"{SAVED}/full", "--out", self.path("z3"), "--target", TINY)
        self.assertEqual(config_of(self.path("z3"))["num_target_layers"], 4)
        self.refused("export", f"{SAVED}/full", "--out", self.path("z4"), "--target", self.path("target"), names=["another target"])

    def test_the_most_frequent_tokens_are_trained_decoded_with_resumed_and_written(self):
        more = ("--draft.vocab_size=30", "--optim.steps=8", "--checkpoint.every=4", "--checkpoint.keep=3", "--optim.warmup=0")
        out = self.succeeds(*self.train(*more))
        self.assertIn("drafts 30 of 80 tokens", out)
        folder = self.path("run", "checkpoints", "step-8")
        weights, config = weights_of(folder), config_of(folder)
        self.assertEqual(config["draft_vocab_size"], 30)
        self.assertEqual((weights["d2t"][:2], weights["t2d"][:2]), (("I64", [30]), ("BOOL", [80])))
        ids = np.frombuffer(weights["d2t"][2], np.int64) + np.arange(30)
        self.assertEqual(np.flatnonzero(np.frombuffer(weights["t2d"][2], np.uint8)).tolist(), ids.tolist())
        # Supervised tokens counted by hand: the mask starts at 6 in each document.
        random, counts = np.random.default_rng(5), np.zeros(80, int)
        for i in range(12):
            np.add.at(counts, random.integers(3, 80, 24 - i % 4)[6:], 1)
        self.assertEqual(ids.tolist(), sorted(np.lexsort((np.arange(80), -counts))[:30].tolist()))
        # The head's rows are the target's.
        head = weights_of(TINY)["lm_head.weight"]
        rows = np.frombuffer(head[2], np.float32).reshape(80, 48)[ids]
        bits = np.frombuffer(weights["lm_head.weight"][2], np.uint16).astype(np.uint32) << 16
        np.testing.assert_allclose(bits.view(np.float32).reshape(30, 48), rows, rtol=2**-8)
        self.tau(self.path("run"))
        shutil.rmtree(folder)
        self.succeeds(*self.train(*more, "--resume"))
        self.assertEqual(weights_of(folder), weights)
        self.refused("export", self.path("run"), "--out", self.path("z"), names=["draft vocabulary", "--form speculators"])
        self.succeeds("export", self.path("run"), "--out", self.path("s"), "--form", "speculators")
        self.assertEqual(weights_of(self.path("s")), weights)
        # A later run starts from it and keeps its vocabulary.
        self.assertIn("drafts 30 of 80", self.succeeds(*self.train(f"--draft.init={self.path('s')}", run="later")))
        self.refused(*self.train(f"--draft.init={self.path('s')}", "--draft.vocab_size=31", run="no"), names=["draft.vocab_size", "has 30"])
        self.refused(*self.train("--draft.vocab_size=81", run="no"), names=["draft.vocab_size", "has 80"])
        self.refused(*self.train(*more, "--draft.vocab_size=31", "--resume"), names=["draft.vocab_size"])

    def test_a_reduced_drafter_of_speculators_trains_and_decodes(self):
        self.assertIn("drafts 50 of 80", self.succeeds(*self.train(f"--draft.init={SAVED}/reduced", "--loss.terms={kl = 1.0}")))
        self.assertGreaterEqual(self.tau(self.path("run")), 1)
        before, after = weights_of(os.path.join(SAVED, "reduced")), weights_of(self.path("run", "checkpoints", "latest"))
        for name in ("d2t", "t2d", "lm_head.weight"):
            self.assertEqual(before[name], after[name], name)

    def test_a_draft_vocabulary_from_files_is_trained_and_kept(self):
        stored = read_safetensors(os.path.join(SAVED, "reduced", "model.safetensors"))
        d2t, t2d = (np.frombuffer(bytes(stored[n][2]), t) for n, t in (("d2t", np.int64), ("t2d", bool)))
        os.makedirs(self.path("map"))
        np.save(self.path("map", "d2t-50.npy"), d2t)
        np.save(self.path("map", "t2d-50.npy"), t2d)
        more = ("--optim.steps=4", "--checkpoint.every=2", "--checkpoint.keep=3", "--optim.warmup=0")
        for run, path in (("a", self.path("map")), ("b", os.path.join(SAVED, "reduced"))):
            self.assertIn("drafts 50 of 80", self.succeeds(*self.train(f"--draft.vocab_map={path}", *more, run=run)))
        folder = self.path("a", "checkpoints", "step-4")
        weights = weights_of(folder)
        self.assertEqual(weights, weights_of(self.path("b", "checkpoints", "step-4")))
        for name in ("d2t", "t2d"):
            self.assertEqual(weights[name], (*stored[name][:2], bytes(stored[name][2])), name)
        mapped = f"--draft.vocab_map={self.path('map')}"
        # The same vocabulary as the drafter to start from is fine, another one is not; so for its size.
        self.succeeds(*self.train(mapped, f"--draft.init={SAVED}/reduced", "--draft.vocab_size=50", run="c"))
        self.refused(*self.train(mapped, "--draft.vocab_size=30", run="no"), names=["draft.vocab_size", "50"])
        shutil.rmtree(folder)
        self.succeeds(*self.train(mapped, *more, "--resume", run="a"))
        self.assertEqual(weights_of(folder), weights)
        # What `dflash capture` keeps for this run is enough to train it.
        config = (mapped, f"--target.path={TINY}", *SHAPE)
        self.succeeds("capture", self.path("run.toml"), "--out", self.path("states"), *config)
        self.succeeds(*self.train(mapped, *more, f"--data.hidden_states={self.path('states')}", run="d"))
        self.assertEqual(weights_of(self.path("d", "checkpoints", "step-4")), weights)
        # Other files under the same names.
        shutil.rmtree(folder)
        other = t2d.copy()
        free, taken = np.flatnonzero(~t2d)[0], np.flatnonzero(t2d)[0]
        other[free], other[taken] = True, False
        np.save(self.path("map", "t2d-50.npy"), other)
        self.refused(*self.train(mapped, run="no"), names=["d2t[", "t2d does not mark", "d2t-50.npy"])
        np.save(self.path("map", "d2t-50.npy"), np.flatnonzero(other) - np.arange(50))
        self.refused(*self.train(mapped, *more, "--resume", run="a"), names=["draft vocabulary", "draft.vocab_map"])
        self.refused(*self.train(mapped, f"--draft.init={SAVED}/reduced", run="no"), names=["draft.vocab_map", "others"])
        self.assertFalse(os.path.exists(self.path("no", "checkpoints")))

    def spoilt(self, **keys):
        folder = self.path("spoilt")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(SAVED, "full"), folder)
        config = {**config_of(folder), **keys}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump({k: v for k, v in config.items() if v is not ...}, f)
        return folder

    def test_other_checkpoints_are_one_clear_error_wherever_they_are_given(self):
        cases = [
            ({"speculators_model_type": "eagle3"}, "eagle3"),
            ({"speculators_model_type": ..., "architectures": ["LlamaForCausalLMEagle3"]}, "EAGLE"),
            ({"speculators_model_type": ..., "architectures": ["Qwen3ForCausalLM"]}, "not a drafter"),
            ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
            ({"sample_from_anchor": True}, "sample_from_anchor"),
            ({"dflash_config": {"projector_type": "domino"}}, "projector_type"),
        ]
        for keys, name in cases:
            with self.subTest(keys=keys):
                folder = self.spoilt(**keys)
                prompts = "own=" + self.path("prompts.safetensors")
                self.refused("eval", "--target", TINY, "--drafter", folder, "--prompts", prompts, names=[name, "config.json"])
        self.refused("export", folder, "--out", self.path("o"), names=[name])
        self.refused(*self.train(f"--draft.init={folder}"), names=[name])
        self.refused(*self.train(f"--draft.init={TINY}"), names=["LlamaForCausalLM", "not a drafter"])
        self.refused(*self.train(f"--draft.init={self.path('nowhere')}"), names=["nowhere"])
        self.refused(*self.train(f"--draft.init={SAVED}/full", "--draft.taps=[0, 2]"), names=["draft.taps"])
        self.assertFalse(os.path.exists(self.path("o")))

    def refused_everywhere(self, folder, names):
        prompts = "own=" + self.path("prompts.safetensors")
        self.refused("eval", "--target", TINY, "--drafter", folder, "--prompts", prompts, names=[*names, folder])
        self.refused(*self.train(f"--draft.init={folder}", run="no"), names=[*names, folder])
        self.refused("export", folder, "--out", self.path("o"), names=[*names, folder])
        self.assertFalse(os.path.exists(self.path("o")) or os.path.exists(self.path("no", "checkpoints")))

    def test_files_that_contradict_themselves_are_refused_by_every_command(self):
        self.succeeds("export", f"{SAVED}/full", "--out", self.path("z"), "--target", TINY)
        good = config_of(self.path("z"))
        for keys, names in (
            ({"dflash_config": {**good["dflash_config"], "block_size": 8}}, ["block_size is 8 in dflash_config and 4 at the top"]),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_scaling", "rotary"]),
            ({"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}, ["rope_parameters", "rotary"]),
            ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
            ({"vocab_size": 81}, ["vocab"]),
        ):
            with self.subTest(names[0]):
                self.write("z/config.json", json.dumps({**good, **keys}))
                if "vocab_size" in keys:  # a drafter for another target: nothing in its own folder contradicts it
                    prompts = "own=" + self.path("prompts.safetensors")
                    self.refused("eval", "--target", TINY, "--drafter", self.path("z"), "--prompts", prompts, names=["vocabulary is 81", "80"])
                    self.refused(*self.train(f"--draft.init={self.path('z')}", run="no"), names=["vocab"])
                else:
                    self.refused_everywhere(self.path("z"), names)

    def test_a_draft_vocabulary_out_of_range_is_refused_by_every_command(self):
        shutil.copytree(os.path.join(SAVED, "reduced"), self.path("d"))
        tensors = read_safetensors(os.path.join(SAVED, "reduced", "model.safetensors"))
        d2t = np.frombuffer(bytes(tensors["d2t"][2]), np.int64).copy()
        d2t[49] = 31  # token 80 of 80
        write_tensors(self.path("d", "model.safetensors"), {n: (t, s, bytes(b)) for n, (t, s, b) in tensors.items()} | {"d2t": d2t})
        self.refused_everywhere(self.path("d"), ["d2t[49]", "80"])

    def test_targets_that_are_none_are_refused_by_every_command(self):
        known = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM",
                 "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"]  # fmt: skip
        write_target(self.path("phi"), {"model_type": "phi", "architectures": ["PhiForCausalLM"]})
        write_documents(self.path("train.safetensors"), vocab=32)
        write_prompts(self.path("prompts.safetensors"), vocab=32)
        cases = ((self.path("phi"), ["PhiForCausalLM", *known]), (os.path.join(DATA, "cases/10-fp8-target"), ["8-bit weights", "quant_method fp8"]))
        for target, names in cases:
            with self.subTest(target):
                self.refused("generate", "--target", target, "--prompts", self.path("prompts.safetensors"), "--out", self.path("o"), names=names)
                self.refused("eval", "--target", target, "--drafter", "lookup", "--prompts", "own=" + self.path("prompts.safetensors"), names=names)
                run = (self.path("run.toml"), f"--target.path={target}", "--draft.taps=[0]")
                self.refused("train", *run, f"--run.dir={self.path('no')}", names=names)
                self.refused("capture", *run, "--out", self.path("o"), names=names)
                self.refused("doctor", target, os.path.join(SAVED, "full"), names=names)
        self.assertFalse(os.path.exists(self.path("o")) or os.path.exists(self.path("no", "checkpoints")))


if __name__ == "__main__":
    unittest.main()

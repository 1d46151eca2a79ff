"""`dflash eval` and `dflash export` as a user runs them: figures of a short run, and one clear error for each mistake."""

import json
import os
import unittest

from tests.bin.fixture import ProgramTest, write_documents, write_prompts, write_target


class EvalTest(ProgramTest):
    def trained(self):
        self.succeeds("train", self.path("run.toml"))
        return self.path("run")

    def eval(self, drafter, *more):
        out = self.path("eval.json")
        text = self.succeeds("eval", "--target", self.path("target"), "--drafter", drafter, "--prompts", "one=" + self.path("prompts.safetensors"),
                             "--max-new-tokens", "12", "--threads", "1", "--json", out, *more)  # fmt: skip
        with open(out, encoding="utf-8") as f:
            return text, json.load(f)

    def eval_refused(self, *changes, names):
        options = {"--target": self.path("target"), "--drafter": "lookup", "--prompts": "one=" + self.path("prompts.safetensors")}
        options.update(dict(zip(changes[::2], changes[1::2])))
        return self.refused("eval", *[a for pair in options.items() for a in pair], names=names)

    def test_figures_of_a_trained_drafter_and_its_export(self):
        run = self.trained()
        text, figures = self.eval(run, "--decode", "2", "--decode-dtype", "fp32", "--check", "4")
        self.assertIn("tau", text)
        for key in ("tau", "accept_len", "lookup_tau", "lookup_accept_len", "accepted_at", "prompts", "answer_tokens"):
            self.assertEqual(list(figures[key]), ["one"], key)
        self.assertGreaterEqual(figures["tau"]["one"], 1)
        self.assertLessEqual(figures["tau"]["one"], 4)
        self.assertGreater(figures["decode_tokens_per_s"]["plain"], 0)
        self.assertGreater(figures["decode_tokens_per_s"]["speculative"], 0)
        self.assertEqual(figures["decode"]["one"]["prompts"], [0, 3])
        check = figures["output_check"]["one"]
        self.assertEqual(check["prompts"], 4)
        self.assertEqual(check["different"], 0)
        self.assertEqual(figures["check_dtype"], "fp32")

        out = self.path("exported")
        self.succeeds("export", run, "--out", out, "--dtype", "fp32")
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
        with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual(config["architectures"], ["DFlashDraftModel"])
        self.assertEqual(config["dflash_config"], {"mask_token_id": 0, "target_layer_ids": [0, 2]})
        self.assertEqual(config["dtype"], "float32")
        self.succeeds("export", run, "--out", out)  # replaces it
        _, again = self.eval(out)
        self.assertEqual(again["tau"], figures["tau"])

    def test_lookup_needs_no_drafter(self):
        text, figures = self.eval("lookup")
        self.assertIn("lookup", text)
        self.assertEqual(figures["tau"], figures["lookup_tau"])
        self.assertEqual(figures["max_drafts"], 8)

    def test_the_device_is_named_and_has_to_be_there(self):
        text, figures = self.eval("lookup", "--device", "cpu")
        self.assertEqual(figures["device"], "cpu")
        self.assertIn(", cpu, ", text)
        self.eval_refused("--device", "cuda:63", names=["--device", "cuda:63 needs a GPU", "hint"])
        for device in ("gpu", "cuda", "cuda:x", "cuda:-1", "sim:0", "cpu:0", "a/cuda:0"):
            self.eval_refused("--device", device, names=["--device", f'"{device}" is not a device', "cuda:0"])

    def test_drafter_that_is_not_there(self):
        self.eval_refused("--drafter", self.path("nowhere"), names=["nowhere"])
        os.makedirs(self.path("empty"))
        self.eval_refused("--drafter", self.path("empty"), names=["empty"])
        os.makedirs(self.path("run", "checkpoints"))
        self.eval_refused("--drafter", self.path("run"), names=["checkpoint"])

    def test_drafter_of_another_target(self):
        run = self.trained()
        out = self.path("exported")
        self.succeeds("export", run, "--out", out)
        for key, value, name in (
            ("vocab_size", 97, "vocab"),
            ("num_target_layers", 5, "layers"),
            ("mask", 96, "mask_token_id"),
            ("taps", [0, 4], "target_layer_ids"),
        ):
            with self.subTest(key):
                path = os.path.join(out, "config.json")
                with open(path, encoding="utf-8") as f:
                    before = f.read()
                config = json.loads(before)
                if key == "mask":
                    config["dflash_config"]["mask_token_id"] = value
                elif key == "taps":
                    config["dflash_config"]["target_layer_ids"] = value
                else:
                    config[key] = value
                self.write(path, json.dumps(config))
                self.eval_refused("--drafter", out, names=[name])
                self.write(path, before)

    def test_damaged_drafter(self):
        run = self.trained()
        out = self.path("exported")
        self.succeeds("export", run, "--out", out)
        path = os.path.join(out, "model.safetensors")
        with open(path, "rb+") as f:
            f.truncate(os.path.getsize(path) - 8)
        self.eval_refused("--drafter", out, names=["model.safetensors"])

    def test_prompts(self):
        self.eval_refused("--prompts", self.path("prompts.safetensors"), names=["NAME=SHARD"])
        self.eval_refused("--prompts", "one=" + self.path("nowhere"), names=["nowhere"])
        write_documents(self.path("answers.safetensors"))
        self.eval_refused("--prompts", "one=" + self.path("answers.safetensors"), names=["answers.safetensors"])
        write_prompts(self.path("foreign.safetensors"), vocab=500)
        self.eval_refused("--prompts", "one=" + self.path("foreign.safetensors"), names=["foreign.safetensors"])
        write_prompts(self.path("long.safetensors"), length=300)
        self.eval_refused("--prompts", "one=" + self.path("long.safetensors"), names=["long.safetensors", "256"])

    def test_options(self):
        self.eval_refused("--dtype", "fp8", names=["fp8"])
        self.eval_refused("--max-new-tokens", "0", names=["max-new-tokens"])

    def test_target_that_is_damaged(self):
        write_target(self.path("spare"), tensors={"model.layers.0.extra.weight": [2]})
        self.eval_refused("--target", self.path("spare"), names=["model.layers.0.extra.weight"])

    def test_export_into_a_folder_of_others(self):
        run = self.trained()
        os.makedirs(self.path("mine"))
        self.write("mine/notes.txt", "keep")
        self.refused("export", run, "--out", self.path("mine"), names=["notes.txt"])
        self.assertTrue(os.path.exists(self.path("mine", "notes.txt")))
        self.refused("export", self.path("nowhere"), "--out", self.path("out"), names=["nowhere"])


if __name__ == "__main__":
    unittest.main()

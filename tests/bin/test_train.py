"""`dflash train` to `eval` and `export` on a tiny target; resume, stopping, wrong input."""

import json
import os
import shutil
import signal
import subprocess
import unittest

import numpy as np

from tests.bin.fixture import DFLASH, VOCAB, ProgramTest, write_documents, write_target
from tools.common import read_shard, write_shard, write_tensors


def tensor_bytes(path, name):
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        begin, end = json.loads(f.read(size))[name]["data_offsets"]
        f.seek(begin, os.SEEK_CUR)
        return f.read(end - begin)


class Train(ProgramTest):
    def steps(self, run="run"):
        with open(self.path(run, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def weights(self, run, step):
        with open(self.path(run, "checkpoints", f"step-{step}", "model.safetensors"), "rb") as f:
            return f.read()

    def train(self, *more, config="run.toml"):
        return ("train", self.path(config), *more)

    def test_whole_path_from_text_to_an_exported_drafter(self):
        self.succeeds(*self.train())
        with open(self.path("run", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["steps"], 4)
        out = self.succeeds(
            "eval", "--target", self.path("target"), "--drafter", self.path("run"), "--prompts", f"own={self.path('prompts.safetensors')}",
            "--max-new-tokens", "8", "--decode", "2", "--decode-dtype", "fp32", "--check", "3", "--dtype", "fp32", "--threads", "1",
            "--json", self.path("eval.json"),
        )  # fmt: skip
        self.assertIn("tau", out)
        with open(self.path("eval.json"), encoding="utf-8") as f:
            figures = json.load(f)
        self.assertGreaterEqual(figures["tau"]["own"], 1.0)
        self.assertTrue(figures["outputs_identical"])
        self.succeeds("export", self.path("run"), "--out", self.path("drafter"))
        with open(self.path("drafter", "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual(config["block_size"], 4)
        self.assertTrue(os.path.exists(self.path("drafter", "model.safetensors")))

    def test_number_of_targets_does_not_change_the_weights(self):
        self.succeeds(*self.train(f"--run.dir={self.path('one')}"))
        self.succeeds(*self.train(f"--run.dir={self.path('two')}", '--layout.targets=["cpu:0", "cpu:1"]'))
        self.assertEqual(self.weights("one", 4), self.weights("two", 4))

    def test_two_drafters_train_from_the_targets_layers(self):
        self.succeeds(*self.train("--draft.init=target", '--layout.drafters=["cpu:0", "cpu:1"]', '--layout.targets=["cpu:0", "cpu:1", "cpu:2"]'))

    def test_a_stopped_run_goes_on_with_the_same_bits(self):
        more = ("--optim.steps=400", "--checkpoint.every=400", "--metrics.every=1", "--optim.warmup=0")
        self.succeeds(*self.train(*more, f"--run.dir={self.path('whole')}"))
        command = [DFLASH, *self.train(*more)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        metrics = self.path("run", "metrics.jsonl")
        while process.poll() is None and not (os.path.exists(metrics) and os.path.getsize(metrics) > 0):
            pass
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, text)
        self.assertIn("--resume", text)
        self.succeeds(*self.train(*more, "--resume"))
        self.assertEqual(self.weights("run", 400), self.weights("whole", 400))
        fixed = lambda rows: [(r.get("step"), r.get("loss")) for r in rows]
        self.assertEqual(fixed(self.steps()), fixed(self.steps("whole")))

    def test_a_mixed_loss_with_an_average_of_weights_resumes_to_the_bit_and_exports_the_average(self):
        more = ("--loss.terms={ce=1,kl=0.5,tv=0.2}", "--loss.weighting=dpace", "--loss.cap_lambda=0.1", "--loss.prefix=0.5", "--optim.ema=0.5",
                "--optim.schedule=linear", "--optim.steps=8", "--checkpoint.every=4", "--metrics.every=1", "--optim.warmup=0")  # fmt: skip
        self.succeeds(*self.train(*more))
        whole, lines = self.weights("run", 8), self.steps()
        for name in ("loss", "ce", "kl", "tv", "cap", "cap_coverage"):
            self.assertIn(name, lines[0])
        self.assertNotIn("rkl", lines[0])
        self.assertGreater(lines[0]["kl"], 0)
        shutil.rmtree(self.path("run", "checkpoints", "step-8"))
        self.succeeds(*self.train(*more, "--resume", '--layout.targets=["cpu:0", "cpu:1"]'))
        self.assertEqual(self.weights("run", 8), whole)
        fixed = lambda rows: [{name: value for name, value in row.items() if name != "time"} for row in rows]
        self.assertEqual(fixed(self.steps()), fixed(lines))
        self.succeeds("export", self.path("run"), "--out", self.path("drafter"), "--dtype", "fp32")
        state = os.path.join(self.path("run", "checkpoints", "step-8"), "trainer_state.safetensors")
        exported = tensor_bytes(self.path("drafter", "model.safetensors"), "fc.weight")
        self.assertEqual(exported, tensor_bytes(state, "ema.fc.weight"))
        self.assertNotEqual(exported, tensor_bytes(state, "master.fc.weight"))
        self.refused(*self.train(*more, "--resume", "--optim.ema=0.9"), names=["optim.ema"])

    def test_resume_with_another_recipe_names_the_key(self):
        self.succeeds(*self.train())
        self.refused(*self.train("--resume", "--optim.lr=2e-3"), names=["optim.lr"])
        self.refused(*self.train(), names=["run.dir", "--resume"])

    def test_resume_with_changed_documents_is_refused(self):
        self.succeeds(*self.train("--optim.steps=8", "--checkpoint.every=4"))
        shard = self.path("train.safetensors")
        with open(shard, "rb") as f:
            content = bytearray(f.read())
        ids = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["input_ids"]["data_offsets"][0]
        content[8 + int.from_bytes(content[:8], "little") + ids] ^= 1  # another token, still within the vocabulary
        with open(shard, "wb") as f:
            f.write(content)
        self.refused(*self.train("--optim.steps=8", "--checkpoint.every=4", "--resume"), names=["training documents", "data.train"])

    def test_wrong_configuration_names_key_and_line(self):
        self.write("bad.toml", "[run]\ndir = 'x'\n[optim]\nlearning = 3\n")
        self.refused(*self.train(config="bad.toml"), names=["bad.toml:4", "learning"])
        self.refused(*self.train("--draft.mask_token_id=5000"), names=["mask_token_id", str(VOCAB - 1)])
        self.refused(*self.train("--draft.taps=[0, 9]"), names=["taps"])
        self.refused(*self.train("--data.row_tokens=16"), names=["train.safetensors", "16"])
        self.refused(*self.train("--run.dir=/proc/none"), names=["run.dir"])
        self.refused(*self.train("--net.listen=nonsense"), names=["net.listen"])
        self.refused(*self.train("--loss.terms={kl=1}", "--loss.weighting=dpace"), names=["loss.weighting", "ce"])

    def test_a_refused_run_leaves_no_folder_behind(self):
        deep = self.path("runs", "mine", "first")
        self.refused(*self.train(f"--run.dir={deep}", "--draft.taps=[0, 9]"), names=["taps"])
        self.refused(*self.train(f"--run.dir={deep}/", "--data.keep_hidden_states=1GB", "--draft.mask_token_id=5000"), names=["mask_token_id"])
        self.assertFalse(os.path.exists(self.path("runs")))
        # What was there before stays as it was.
        os.makedirs(self.path("runs"))
        self.refused(*self.train(f"--run.dir={self.path('runs')}", "--draft.taps=[0, 9]"), names=["taps"])
        self.assertEqual(os.listdir(self.path("runs")), [])
        self.write("runs/notes", "mine")
        self.refused(*self.train(f"--run.dir={self.path('runs')}"), names=["run.dir", "not empty"])
        self.assertEqual(os.listdir(self.path("runs")), ["notes"])
        # And the same call with what was wrong mended needs no cleaning up first.
        self.succeeds(*self.train(f"--run.dir={deep}"))
        self.assertTrue(os.path.exists(os.path.join(deep, "config.toml")))

    def test_wrong_data_is_refused_by_file(self):
        path = self.path("train.safetensors")
        write_documents(path, vocab=VOCAB + 30)
        self.refused(*self.train(), names=[path, str(VOCAB)])
        write_documents(path)
        ids, mask, offsets = read_shard(path)
        write_tensors(path, {"input_ids": ids, "loss_mask": np.zeros_like(mask), "doc_offsets": offsets})
        self.refused(*self.train(), names=["supervised"])
        write_tensors(path, {"input_ids": ids, "loss_mask": mask.astype(np.int32), "doc_offsets": offsets})
        self.refused(*self.train(), names=["loss_mask", path])
        write_shard(path, [[3, 4, 5]])
        self.refused(*self.train(), names=["loss_mask", path])
        self.assertFalse(os.path.exists(self.path("run", "checkpoints")))

    def test_a_drafter_of_another_target_is_refused(self):
        self.succeeds(*self.train())
        write_target(self.path("other"), {"vocab_size": VOCAB + 8}, {"model.embed_tokens.weight": [VOCAB + 8, 32]})
        self.refused("eval", "--target", self.path("other"), "--drafter", self.path("run"), "--prompts",
                     f"own={self.path('prompts.safetensors')}", names=["vocab"])  # fmt: skip


if __name__ == "__main__":
    unittest.main()

"""`dflash generate`: answers as token shards, repeatable, restartable; wrong input."""

import os
import signal
import subprocess
import unittest

import numpy as np

from tests.bin.fixture import DFLASH, VOCAB, ProgramTest, write_documents, write_prompts, write_target
from tools.common import read_shard, write_tensors


class Generate(ProgramTest):
    def arguments(self, out="out.safetensors", *more):
        return ("generate", "--target", self.path("target"), "--prompts", self.path("prompts.safetensors"), "--out", self.path(out),
                "--max-new-tokens", "12", "--threads", "1", "--dtype", "fp32", *more)  # fmt: skip

    def bytes(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def test_answers_follow_their_prompts_and_are_supervised(self):
        self.succeeds(*self.arguments())
        prompts, _, prompt_offsets = read_shard(self.path("prompts.safetensors"), prompts=True)
        ids, mask, offsets = read_shard(self.path("out.safetensors"), prompts=False)
        self.assertEqual(len(offsets), len(prompt_offsets))
        for d in range(len(offsets) - 1):
            prompt = prompts[prompt_offsets[d] : prompt_offsets[d + 1]]
            document, supervised = ids[offsets[d] : offsets[d + 1]], mask[offsets[d] : offsets[d + 1]]
            self.assertEqual(document[: len(prompt)].tolist(), prompt.tolist())
            self.assertEqual(supervised.tolist(), [0] * len(prompt) + [1] * (len(document) - len(prompt)))
            self.assertTrue(len(document) - len(prompt) == 12 or document[-1] == 2)

    def test_same_command_same_bytes_also_when_sampled(self):
        for more in ((), ("--temperature", "0.8", "--top-p", "0.9", "--seed", "4")):
            self.succeeds(*self.arguments("a.safetensors", *more))
            self.succeeds(*self.arguments("b.safetensors", *more))
            self.assertEqual(self.bytes("a.safetensors"), self.bytes("b.safetensors"))

    def test_a_killed_run_goes_on_by_groups_and_ends_with_the_same_bytes(self):
        write_prompts(self.path("prompts.safetensors"), count=64)
        more = ("--group", "2", "--slots", "2")
        self.succeeds(*self.arguments("whole.safetensors", *more))
        work = self.path("out.safetensors.work")
        process = subprocess.Popen([DFLASH, *self.arguments("out.safetensors", *more)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (os.path.isdir(work) and len(os.listdir(work)) > 2):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.succeeds(*self.arguments("out.safetensors", *more))
        self.assertEqual(self.bytes("out.safetensors"), self.bytes("whole.safetensors"))
        self.assertFalse(os.path.exists(work))

    def test_a_device_that_is_not_there_is_refused_before_any_work(self):
        self.succeeds(*self.arguments("out.safetensors", "--device", "cpu"))
        self.refused(*self.arguments("other.safetensors", "--device", "cuda:63"), names=["--device", "cuda:63 needs a GPU", "hint"])
        self.refused(*self.arguments("other.safetensors", "--device", "tpu:0"), names=["--device", "tpu:0", "cuda:0"])
        self.assertFalse(os.path.exists(self.path("other.safetensors.work")))

    def test_wrong_targets_are_refused_by_file_and_tensor(self):
        for name, config, tensors, words in (
            ("spare", None, {"model.layers.0.extra.weight": [3]}, "model.layers.0.extra.weight"),
            ("missing", None, {"model.layers.3.mlp.up_proj.weight": None}, "model.layers.3.mlp.up_proj.weight"),
            ("shape", None, {"model.layers.1.self_attn.q_proj.weight": [31, 32]}, "model.layers.1.self_attn.q_proj.weight"),
            ("family", {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, None, "MambaForCausalLM"),
            ("key", {"num_hidden_layers": "many"}, None, "num_hidden_layers"),
        ):
            with self.subTest(name):
                write_target(self.path("target"), config, tensors)
                self.refused(*self.arguments(), names=[words, self.path("target")])
        os.remove(self.path("target", "config.json"))
        self.refused(*self.arguments(), names=["config.json"])

    def test_wrong_prompts_are_refused_before_any_work(self):
        path = self.path("prompts.safetensors")
        write_documents(path)
        self.refused(*self.arguments(), names=["loss_mask", path])
        write_prompts(path, vocab=VOCAB + 40)
        self.refused(*self.arguments(), names=[path, str(VOCAB)])
        write_prompts(path, length=300)
        self.refused(*self.arguments(), names=["256"])
        write_tensors(path, {"input_ids": np.array([3, 4], np.int64), "doc_offsets": np.array([0, 2], np.int64)})
        self.refused(*self.arguments(), names=["input_ids", path])
        self.assertFalse(os.path.exists(self.path("out.safetensors")))


if __name__ == "__main__":
    unittest.main()

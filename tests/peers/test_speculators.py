"""Drafters go to speculators and come back (label peers): what we export loads there and computes what z-lab's package computes from
the other form; what speculators saves trains here, and what comes out loads there again. So taps are counted right both ways."""

import os
import subprocess
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import dflash.model
    import numpy as np
    import torch
    import transformers
    from safetensors.torch import load_file
    from speculators.models.dflash import DFlashDraftModel
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from speculators.models.dflash import core

from tests.bin.test_formats import SAVED, SHAPE, TINY
from tests.bin.fixture import RUN, write_documents
from tests.peers.drafters import BIN
from tests.peers.exactness import exactness_row, packages
from tests.tools.fixture import FolderTest

V, T = 80, 30


class Speculators(FolderTest):
    def setUp(self):
        super().setUp()
        torch.manual_seed(3)
        torch.set_num_threads(1)
        write_documents(self.path("train.safetensors"), vocab=V)
        self.write("run.toml", RUN.format(folder=self.folder))

    def run_program(self, *arguments):
        result = subprocess.run([BIN, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def trained(self, name, init, *more):
        """A run that starts from a drafter that speculators saved, exported in speculators' form."""
        run = self.path("run-" + name)
        self.run_program("train", self.path("run.toml"), f"--target.path={TINY}", f"--run.dir={run}", *SHAPE, f"--draft.init={init}", *more)
        self.run_program("export", run, "--out", self.path(name), "--form", "speculators")
        return run


    def check_loading(self, folder):
        stored = load_file(os.path.join(folder, "model.safetensors"))
        model = DFlashDraftModel.from_pretrained(folder, dtype=torch.float32)
        state = model.state_dict()
        for name, value in stored.items():
            self.assertTrue(torch.equal(state[name].to(value.dtype), value), name)
        # All else is the verifier's.
        self.assertLessEqual(set(state) - set(stored), {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"})
        for name, value in state.items():
            self.assertFalse(value.isnan().any() if value.is_floating_point() else False, name)
        return model

    def test_an_export_computes_there_what_zlab_computes_from_the_other_form(self):
        run = self.trained("s", os.path.join(SAVED, "full"))
        self.run_program("export", run, "--out", self.path("z"))
        spec = self.check_loading(self.path("s"))
        zlab, info = dflash.model.DFlashDraftModel.from_pretrained(self.path("z"), dtype=torch.float32, output_loading_info=True)
        self.assertEqual([list(info[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")], [[], [], []])
        spec.eval(), zlab.eval()
        self.assertEqual((spec.block_size, spec.mask_token_id, spec.config.aux_hidden_state_layer_ids), (4, 5, [2, 3]))
        target = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
        ids, anchor = torch.randint(3, V, (1, T)), 5  # a block within the window: speculators trains with a wider one than it serves
        with torch.no_grad():
            states = target(ids, output_hidden_states=True).hidden_states
            block = torch.full((1, 4), 5)
            block[0, 0] = ids[0, anchor]
            hidden = zlab(position_ids=torch.arange(anchor + 4)[None], noise_embedding=target.get_input_embeddings()(block),
                          target_hidden=dflash.model.extract_context_feature(states, [1, 2])[:, :anchor])  # fmt: skip
            spec.config.transformer_layer_config._attn_implementation, spec._create_mask_fn = "sdpa", core.create_mask
            core.select_anchors = lambda mask, n, b: (torch.tensor([anchor]), torch.tensor([True]))
            # Taps in speculators' numbering are places in this list.
            theirs, logits, _, _, _ = spec._backbone_forward(
                hidden_states=torch.cat([states[i] for i in spec.target_layer_ids], -1), input_ids=ids, loss_mask=torch.ones(1, T),
                verifier_last_hidden_states=states[-1], document_ids=torch.zeros(1, T, dtype=torch.long), max_anchors=1)  # fmt: skip
        error = ((hidden[0] - theirs[0]).abs().max() / theirs.abs().max()).item()
        print(f"hidden states of a block: speculators against z-lab, largest error {error:.1e}")
        exactness_row("an export: hidden states of a block in both packages", packages("speculators", "dflash"), error, 1e-5)
        self.assertLess(error, 1e-5)
        self.assertTrue(logits.isfinite().all())

    def test_what_speculators_converts_from_our_zlab_form_is_what_we_export(self):
        run = self.trained("s", os.path.join(SAVED, "full"))
        self.run_program("export", run, "--out", self.path("z"))
        converted = DFlashDraftModel.from_pretrained(self.path("z"), verifier=TINY, dtype=torch.float32)
        ours = DFlashDraftModel.from_pretrained(self.path("s"), dtype=torch.float32)
        for name, value in ours.state_dict().items():
            self.assertTrue(torch.equal(value, converted.state_dict()[name].to(value.dtype)), name)
        for key in ("aux_hidden_state_layer_ids", "block_size", "mask_token_id", "draft_vocab_size", "sample_from_anchor", "sliding_window_non_causal"):
            self.assertEqual(getattr(ours.config, key), getattr(converted.config, key), key)
        a, b = ours.config.transformer_layer_config, converted.config.transformer_layer_config
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types",
                    "sliding_window", "rope_parameters", "rms_norm_eps", "vocab_size"):  # fmt: skip
            self.assertEqual(getattr(a, key), getattr(b, key), key)

    def test_a_draft_vocabulary_goes_there_and_back(self):
        self.trained("s", os.path.join(SAVED, "reduced"))
        model = self.check_loading(self.path("s"))
        before = load_file(os.path.join(SAVED, "reduced", "model.safetensors"))
        self.assertTrue(torch.equal(model.d2t, before["d2t"]))
        self.assertTrue(torch.equal(model.t2d, before["t2d"]))
        head = load_file(os.path.join(TINY, "model.safetensors"))["lm_head.weight"][model.t2d]
        self.assertTrue(torch.equal(model.lm_head.weight, head.to(torch.bfloat16).float()))
        # Saved by speculators again, it trains here again.
        model.to(torch.bfloat16).save_pretrained(self.path("again"))
        self.trained("s2", self.path("again"))

    def test_a_draft_vocabulary_that_it_made_trains_here_and_loads_there(self):
        counts = {t: 1 + t * 37 % 11 for t in range(3, V)}
        d2t, t2d = build_vocab_mappings_from_distribution(counts, 40, V)
        os.makedirs(self.path("data"))
        for name, tensor in (("d2t", d2t), ("t2d", t2d)):  # as its trainer leaves them beside the data
            np.save(self.path(f"data/{name}-40.npy"), tensor.cpu().numpy())
        self.trained("s", "random", f"--draft.vocab_map={self.path('data')}")
        model = self.check_loading(self.path("s"))
        self.assertTrue(torch.equal(model.d2t, d2t))
        self.assertTrue(torch.equal(model.t2d, t2d))


if __name__ == "__main__":
    unittest.main()

"""Makes tests/data/speculators: tiny drafters for tests/data/tiny_llama as speculators 0.9 saves them, and what it computes with them.

full/ has the whole vocabulary, reduced/ a draft vocabulary. expected.safetensors: inputs, logits, losses and gradients of the reduced one
in fp32 (its labels: the best draft token of the target, so that a token outside the draft vocabulary is never a label), the labels,
and the draft vocabulary that speculators makes of token counts.

usage: python tests/data/make_speculators_drafter.py   (a Python with speculators, as bench/peers/setup makes one)
"""

import os
import shutil

import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash import core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from transformers import Qwen3Config

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "speculators")
TARGET = "tests/data/tiny_llama"  # the name that stands in the files; relative to the project's folder
V, VD, H, B, TAPS, MASK, T = 80, 50, 48, 4, [2, 3], 5, 40  # TAPS in speculators' numbering: z-lab's 1 and 2

os.chdir(os.path.join(HERE, "..", ".."))
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(11)


def drafter(draft_vocab_size):
    layers = Qwen3Config(
        vocab_size=V, hidden_size=H, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        layer_types=["full_attention", "sliding_attention"], sliding_window=9, use_sliding_window=True)  # fmt: skip
    layers._attn_implementation = "sdpa"
    return DFlashDraftModel(
        DFlashSpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=draft_vocab_size,
            block_size=B,
            aux_hidden_state_layer_ids=TAPS,
            mask_token_id=MASK,
            speculators_config=SpeculatorsConfig(
                algorithm="dflash",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=B - 1)],
                default_proposal_method="greedy",
                verifier=VerifierConfig.from_pretrained(TARGET),
            ),
        )
    )


def randomise(model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(1 + 0.2 * torch.randn(p.shape, generator=generator) if p.ndim == 1 else 0.2 * torch.randn(p.shape, generator=generator))


def save(model, name):
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    os.remove(os.path.join(folder, "config.py"))  # a copy of the package's source
    return DFlashDraftModel.from_pretrained(folder, dtype=torch.float32)


full = drafter(V)
full.load_verifier_weights()
randomise(full)
save(full, "full")

# Counts with ties and with fewer tokens than asked for: what is missing is filled with the lowest ids.
counts = {t: 1 + (t * 7919 + 13) % 11 for t in range(9, V) if t % 3 != 1}
d2t, t2d = build_vocab_mappings_from_distribution(counts, VD, V)
reduced = drafter(VD)
reduced.load_vocab_mappings(t2d, d2t)
reduced.load_verifier_weights()
randomise(reduced)
reduced = save(reduced, "reduced")
for p in (reduced.embed_tokens.weight, reduced.lm_head.weight, reduced.verifier_lm_head.weight, reduced.verifier_norm.weight):
    p.requires_grad_(False)
# bf16 is only how it is stored: computed with the target's own head, as a run does that has the target at hand.
target = load_file("tests/data/tiny_llama/model.safetensors")
with torch.no_grad():
    for head in (reduced.lm_head, reduced.verifier_lm_head):
        head.weight.copy_(target["lm_head.weight"][t2d])
    reduced.embed_tokens.weight.copy_(target["model.embed_tokens.weight"])
    reduced.verifier_norm.weight.copy_(target["model.norm.weight"])
reduced.config.transformer_layer_config._attn_implementation = "sdpa"

ids = torch.randint(0, V, (1, T), generator=generator)
hidden = 0.7 * torch.randn(1, T, len(TAPS) * H, generator=generator)
last = torch.randn(1, T, H, generator=generator)
mask = torch.ones(1, T, dtype=torch.long)
mask[:, :6] = 0
anchors = torch.tensor([6, 11, 19, 30])
core.select_anchors = lambda loss_mask, n, b: (anchors, torch.ones(len(anchors), dtype=torch.bool))
given = dict(hidden_states=hidden, input_ids=ids, loss_mask=mask, verifier_last_hidden_states=last, document_ids=torch.zeros(1, T, dtype=torch.long))
# Sliding layers are left out of the comparison: speculators trains them with another window than it serves.
reduced.sliding_window_indices, reduced.uses_sliding_window_attn, reduced.uses_full_attn = [], False, True
reduced._create_mask_fn = core.create_mask
_, logits, targets, _, positions = reduced._backbone_forward(**given, max_anchors=len(anchors))
expected = {
    "in.hidden_states": hidden[0], "in.last_hidden": last[0], "in.input_ids": ids[0].int(), "in.loss_mask": mask[0].int(), "in.anchors": anchors.int(),
    "logits": logits[0].detach(), "labels": targets[0].argmax(-1).int(), "positions": positions.int(),
    "vocab.tokens": torch.tensor(list(counts)).int(), "vocab.counts": torch.tensor(list(counts.values())).int(), "vocab.ids": (d2t + torch.arange(VD)).int(),
}  # fmt: skip
for name in ("ce", "kl_div"):
    reduced.zero_grad()
    _, loss, metrics = reduced(**given, loss_config=resolve_loss_config(name, "eager"), gamma=4.0, max_anchors=len(anchors))
    loss.backward()
    expected[f"{name}.loss"] = loss.detach().reshape(1)
    for parameter, p in reduced.named_parameters():
        if parameter in ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.k_proj.weight", "norm.weight"):
            expected[f"{name}.grad.{parameter}"] = p.grad.clone()
save_file({k: v.contiguous().clone() for k, v in expected.items()}, os.path.join(OUT, "expected.safetensors"))

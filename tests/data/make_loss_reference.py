"""Reference values of tests/model/losses.cpp: the loss terms, mixtures and D-PACE weights of speculators 0.9, in fp32.

    .deps/peers-venv/bin/python -B tests/data/make_loss_reference.py   # writes loss_reference.safetensors beside itself
"""

import os
from functools import partial

import torch
from safetensors.torch import save_file
from speculators.losses import compound_loss, dflash_loss_decay, dpace_loss_decay, eager, resolve_loss_config

torch.manual_seed(11)
torch.set_num_threads(1)
BLOCKS, BLOCK, VOCAB, GAMMA, ALPHA = 6, 4, 40, 4.0, 0.5
rows = BLOCKS * BLOCK
targets = 3 * torch.randn(1, rows, VOCAB)
start = targets + 2 * torch.randn(1, rows, VOCAB)  # so that some slots are right and overlaps differ
mask = torch.ones(BLOCKS, BLOCK)
mask[:, 0] = 0  # the anchor
mask[1, 3] = mask[3, 2] = mask[3, 3] = mask[4, 1] = 0
mask = mask.reshape(1, rows)
slots = (torch.arange(rows) % BLOCK)[None]
MIXTURES = {
    **{name: {name: 1.0} for name in ("ce", "kl_div", "rkl", "jsd", "tv", "nla", "lk_hybrid")},
    "mix": {"ce": 0.5, "kl_div": 0.25, "rkl": 0.125, "jsd": 0.75, "tv": 0.5, "nla": 0.375, "lk_hybrid": 1.0},
}
out = {"z": start[0], "u": targets[0], "mask": mask[0]}


def loss_of(name, decay):
    logits = start.clone().requires_grad_()
    config = {term: (fn, MIXTURES[name][term]) for term, (fn, _) in resolve_loss_config_of(name).items()}
    loss, _ = compound_loss(logits, targets, mask, slots, config, decay)
    loss.backward()
    return loss.detach().reshape(1), logits.grad[0]


def resolve_loss_config_of(name):
    return {term: resolve_loss_config(term, "eager")[term] for term in MIXTURES[name]}


decay = partial(dflash_loss_decay, gamma=GAMMA)
for name in MIXTURES:
    out[f"loss.{name}"], out[f"grad.{name}"] = loss_of(name, decay)
# It has no uniform weights; its decay is uniform where nothing decays.
out["loss.uniform"], out["grad.uniform"] = loss_of("mix", partial(dflash_loss_decay, gamma=1e30))
dpace = partial(dpace_loss_decay, loss_mask=mask, block_size=BLOCK, dpace_alpha=ALPHA)
out["loss.dpace"], out["grad.dpace"] = loss_of("ce", dpace)
ce = eager.ce_loss(start, targets) * mask
out["dpace.weights"] = dpace(slots, elementwise_loss=ce)[0]
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loss_reference.safetensors")
save_file({k: v.contiguous() for k, v in out.items()}, path, {"speculators": "0.9", "torch": torch.__version__})

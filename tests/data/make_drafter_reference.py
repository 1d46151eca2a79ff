"""Reference values of tests/model/drafter_peers.cpp: z-lab's module (dflash 0.1.0) on small problems that cover its settings pairwise, and
ten training steps of it with torch.optim.AdamW. Where speculators 0.9 has the same conventions, it has to agree before anything is written.

    .deps/peers-venv/bin/python -B tests/data/make_drafter_reference.py   # writes drafter_reference.safetensors beside itself
"""

import os
import sys

import torch
from safetensors.torch import save_file

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(FOLDER, "../.."))
from tests.peers import drafter_cases as d  # noqa: E402

torch.set_num_threads(1)
CASES = [
    d.make_case(1, layers=1, kinds="f", taps=1, block=4, heads=4, kv=4),
    d.make_case(2, layers=2, kinds="sf", taps=2, block=8, heads=4, kv=2, window=6, documents=(13, 11, 9), anchors=6, valid=6),
    d.make_case(3, layers=2, kinds="ss", taps=3, block=16, heads=6, kv=2, window=9, causal=False, documents=(17, 16)),
    d.make_case(4, layers=2, kinds="ff", taps=4, block=8, heads=4, kv=1, head_dim=16, causal=True, documents=(40,)),
    d.make_case(5, layers=1, kinds="s", taps=5, block=4, heads=6, kv=3, window=100, documents=(12, 21)),
    d.make_case(6, layers=3, kinds="fsf", taps=6, block=16, heads=2, kv=2, window=100, causal=False, documents=(20, 20), valid=5),
    d.make_case(7, layers=3, kinds="ssf", taps=2, block=16, heads=4, kv=1, window=3, documents=(15, 12, 8)),
    d.make_case(8, layers=2, kinds="ff", taps=3, block=16, heads=8, kv=2, documents=(9, 8, 14, 6), valid=5),
]
STEPS, BATCHES = 10, 2
OPTIM = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
CLIP = 1.0
pool = d.make_pool()
out = {"pool": pool}


def add(prefix, tensors):
    out.update({f"{prefix}.{name}": tensor.contiguous() for name, tensor in tensors.items()})


def check_speculators(case, values, expected):
    if not d.speculators_agrees(case):
        return False
    found = d.results(d.speculators_module(case, values), d.speculators_hidden, case, values)
    keep = torch.tensor([v for v in case["anchor_valid"].tolist() for _ in range(d.shape_of(case)["block"])]).bool()
    found["hidden"] = found["hidden"] * keep[:, None]
    for name, tensor in expected.items():
        assert d.error(found[name], tensor) < 2e-5, (name, d.error(found[name], tensor))
    return True


for i, case in enumerate(CASES):
    values = d.numbers(case, pool)
    found = d.results(d.zlab_module(case, values), d.zlab_hidden, case, values)
    agreed = check_speculators(case, values, found)
    print(i, {k: v for k, v in d.shape_of(case).items()}, "loss", float(found["loss"]), "speculators too" if agreed else "z-lab only")
    add(f"case.{i}", case)
    add(f"case.{i}", {"both": torch.tensor([int(agreed)], dtype=torch.int32)})
    add(f"case.{i}", found)

# Ten steps: batches differ in tokens and anchors, the shape and the start are those of the first.
batches = [d.make_case(20, layers=2, kinds="sf", taps=3, block=8, heads=4, kv=2, window=6, documents=(19, 14), anchors=6, valid=5)]
values = d.numbers(batches[0], pool)
for step in range(STEPS * BATCHES - 1):
    other = d.make_case(21 + step, layers=2, kinds="sf", taps=3, block=8, heads=4, kv=2, window=6, documents=(11 + step % 7, 15), anchors=6, valid=5)
    other["shape"] = batches[0]["shape"].clone()
    batches.append(other)
module = d.zlab_module(batches[0], values)
matrices = [p for p in module.parameters() if p.ndim > 1]
norms = [p for p in module.parameters() if p.ndim == 1]
optimizer = torch.optim.AdamW([{"params": matrices}, {"params": norms, "weight_decay": 0.0}], **OPTIM)
losses, gradient_norms = [], []
for step in range(STEPS):
    module.zero_grad()
    total, weight = 0.0, 0.0
    for case in batches[step * BATCHES : (step + 1) * BATCHES]:
        loss, w = d.loss_of(case, d.zlab_hidden(module, case, values), values["head"])
        loss.backward()
        total, weight = total + loss.item(), weight + w
    for p in module.parameters():
        p.grad.div_(weight)
    gradient_norms.append(float(torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)))
    optimizer.step()
    losses.append(total / weight)
    print("step", step, losses[-1], gradient_norms[-1])
for i, case in enumerate(batches):
    add(f"batch.{i}", case)
out["steps.loss"] = torch.tensor(losses)
out["steps.grad_norm"] = torch.tensor(gradient_norms)
for name in ("fc.weight", "norm.weight", "layers.0.self_attn.k_proj.weight", "layers.1.self_attn.q_norm.weight", "layers.1.mlp.down_proj.weight"):
    out[f"steps.after.{name}"] = dict(module.named_parameters())[name].detach().contiguous()
save_file(out, os.path.join(FOLDER, "drafter_reference.safetensors"), {"dflash": "0.1.0", "speculators": "0.9", "torch": torch.__version__})

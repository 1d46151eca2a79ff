"""Reference values of tests/model/optimizer.cpp: torch.optim.AdamW and torch.optim.Muon, five steps in fp32, speculators' own choice of
optimizers with its default settings, clip_grad_norm_, and transformers' schedules.

    .deps/peers-venv/bin/python -B tests/data/make_optimizer_reference.py tests/data/optimizer_reference.safetensors
"""
import json
import struct
import sys

import torch

torch.manual_seed(5)
torch.set_num_threads(1)
SHAPES = {"wide": (12, 40), "tall": (40, 12), "norm": (16,)}
STEPS, LR, MUON_LR, DECAY = 5, 0.01, 0.02, 0.1


def save_file(tensors, path, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in sorted(tensors.items()):
        wide = tensor.dtype == torch.float64
        raw = struct.pack(f"<{tensor.numel()}{'d' if wide else 'f'}", *tensor.flatten().tolist())
        header[name] = {"dtype": "F64" if wide else "F32", "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def torch_muon_in_fp32():
    # torch.optim.Muon iterates in bf16 whatever the weights are; the fp32 form shows that the algorithm is the
    # same one without bf16's rounding.
    import torch.optim._muon as muon

    torch.Tensor.bfloat16 = lambda self, *a, **k: self.float()
    return muon


out = {}
start = {name: torch.randn(shape) for name, shape in SHAPES.items()}
gradients = [{name: torch.randn(shape) for name, shape in SHAPES.items()} for _ in range(STEPS)]
for name, tensor in start.items():
    out[f"start.{name}"] = tensor
    for step in range(STEPS):
        out[f"grad.{step}.{name}"] = gradients[step][name]


def run(make, names):
    weights = {name: torch.nn.Parameter(start[name].clone()) for name in names}
    optimizer = make(weights)
    for step in range(STEPS):
        for name in names:
            weights[name].grad = gradients[step][name].clone()
        optimizer.step()
    return {name: w.detach().clone() for name, w in weights.items()}


def adamw(weights):
    matrices = [w for w in weights.values() if w.ndim > 1]
    norms = [w for w in weights.values() if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=LR, betas=(0.9, 0.95), eps=1e-8)


def clipped(weights, factory=adamw, clip=0.5):
    optimizer = factory(weights)
    step = optimizer.step
    norms = []

    def clip_and_step():
        norms.append(torch.nn.utils.clip_grad_norm_(list(weights.values()), clip))
        step()

    optimizer.step = clip_and_step
    clipped.norms = norms
    return optimizer


def muon(weights, adjust="match_rms_adamw"):
    return torch.optim.Muon(list(weights.values()), lr=MUON_LR, weight_decay=DECAY, momentum=0.95,
                            nesterov=True, adjust_lr_fn=adjust)


class SpeculatorsOptimizers:
    """What speculators 0.9 builds for optimizer = "muon" with its defaults: Muon on matrices, AdamW (decay on all it holds) on the rest."""

    def __init__(self, weights):
        from types import SimpleNamespace

        from speculators.train.optimizers import build_optimizers

        model = torch.nn.Module()
        for name, weight in weights.items():
            model.register_parameter(name, weight)
        config = SimpleNamespace(optimizer="muon", lr=LR, weight_decay=0.0, muon_lr=MUON_LR, muon_momentum=0.95, muon_weight_decay=DECAY,
                                 muon_ns_steps=5, muon_adjust_lr_fn="match_rms_adamw")
        self.all = build_optimizers(model, config)

    def step(self):
        for optimizer in self.all:
            optimizer.step()


for name, tensor in run(adamw, SHAPES).items():
    out[f"adamw.{name}"] = tensor
for name, tensor in run(clipped, SHAPES).items():
    out[f"clipped.{name}"] = tensor
out["clipped.norms"] = torch.stack(clipped.norms)
for name, tensor in run(muon, ["wide", "tall"]).items():
    out[f"muon_bf16.{name}"] = tensor
torch_muon_in_fp32()
for name, tensor in run(muon, ["wide", "tall"]).items():
    out[f"muon.{name}"] = tensor
for name, tensor in run(lambda w: muon(w, "original"), ["wide", "tall"]).items():
    out[f"muon_original.{name}"] = tensor
for name, tensor in run(SpeculatorsOptimizers, SHAPES).items():
    out[f"speculators.{name}"] = tensor

# transformers counts steps so that step 0 has rate 0; entry i is its factor at step i + 1 of TOTAL. Its wsd lifts the warm-up by the least
# rate as well, ours does not: compared with a least rate of 0.
TOTAL, WARM, FALL, LOW = 20, 4, 6, 0.1


def factors(scheduler):
    values = []
    for _ in range(TOTAL):
        scheduler.optimizer.step()
        scheduler.step()
        values.append(scheduler.get_last_lr()[0])
    return torch.tensor(values, dtype=torch.float64)


def one():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


import transformers as t  # noqa: E402

out["schedule.cosine"] = factors(t.get_cosine_with_min_lr_schedule_with_warmup(one(), WARM, TOTAL, min_lr_rate=LOW))
out["schedule.cosine0"] = factors(t.get_cosine_schedule_with_warmup(one(), WARM, TOTAL))
out["schedule.linear"] = factors(t.get_linear_schedule_with_warmup(one(), WARM, TOTAL))
out["schedule.constant"] = factors(t.get_constant_schedule_with_warmup(one(), WARM))
out["schedule.wsd"] = factors(t.get_wsd_schedule(one(), WARM, FALL, TOTAL))
save_file(out, sys.argv[1], {"torch": torch.__version__})

"""Reference values of tests/model/optimizer.cpp: torch.optim.AdamW and torch.optim.Muon, five steps in fp32.

    python make_optimizer_reference.py optimizer_reference.safetensors   # needs torch >= 2.9
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
        raw = struct.pack(f"<{tensor.numel()}f", *tensor.flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
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


def muon(weights):
    return torch.optim.Muon(list(weights.values()), lr=MUON_LR, weight_decay=DECAY, momentum=0.95,
                            nesterov=True, adjust_lr_fn="match_rms_adamw")


for name, tensor in run(adamw, SHAPES).items():
    out[f"adamw.{name}"] = tensor
for name, tensor in run(muon, ["wide", "tall"]).items():
    out[f"muon_bf16.{name}"] = tensor
torch_muon_in_fp32()
for name, tensor in run(muon, ["wide", "tall"]).items():
    out[f"muon.{name}"] = tensor
save_file(out, sys.argv[1], {"torch": torch.__version__})

"""Small drafter problems, and what z-lab's and speculators' own modules make of them in fp32: hidden states, loss and all gradients.

A problem is a dict of int32 tensors (config, row, anchors); its numbers (weights, taps, embedding, head) are cut from one pool of normal
numbers by a rule that tests/model/drafter_case.hpp repeats, so that files stay small."""

import math

import torch
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

POOL = 20011
TENSORS = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
           "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
GAMMA = 4.0


def make_pool():
    return torch.randn(POOL, generator=torch.Generator().manual_seed(77))


def make_case(seed, layers=2, block=4, heads=4, kv=2, head_dim=8, taps=2, kinds="ff", window=0, causal=None, documents=(24,), rows=56,
              anchors=5, valid=4, hidden=24, intermediate=20, vocab=48):  # fmt: skip
    """kinds: a letter a layer, f(ull) or s(liding). documents: lengths; the rest of the row is padding, a document of its own (speculators needs
    a block of it: it has no bound for blocks at the end of a row)."""
    g = torch.Generator().manual_seed(seed)
    offsets = [0]
    for length in documents:
        offsets.append(offsets[-1] + length)
    real = offsets[-1]
    if real < rows:
        offsets.append(rows)
    mask = torch.zeros(rows, dtype=torch.int32)
    for begin, end in zip(offsets, offsets[1:]):
        if begin < real:
            mask[begin + min(2, end - begin - 2) : end] = 1
    mask[offsets[1] - 3] = 0  # a hole: blocks with an unsupervised slot
    mask[0] = mask[1] = 1  # an anchor may stand where there is no context
    candidates = [p for b, e in zip(offsets, offsets[1:]) for p in range(b, e - 1) if mask[p] and mask[p + 1] and b < real]
    picked = sorted([0] + [candidates[i] for i in torch.randperm(len(candidates) - 1, generator=g)[: valid - 1].add(1).tolist()])
    ids = torch.randint(5, vocab, (rows,), generator=g)
    shape = [layers, hidden, intermediate, heads, kv, head_dim, vocab, block, 3, window, -1 if causal is None else int(causal), seed]
    case = {
        "shape": shape,
        "taps": list(range(1, 1 + 2 * taps, 2)),
        "sliding": [int(k == "s") for k in kinds],
        "input_ids": ids.tolist(),
        "doc_offsets": offsets,
        "loss_mask": mask.tolist(),
        "anchors": picked + [0] * (anchors - len(picked)),
        "anchor_valid": [1] * len(picked) + [0] * (anchors - len(picked)),
    }
    assert len(kinds) == layers
    return {k: torch.tensor(v, dtype=torch.int32) for k, v in case.items()}


def shape_of(case):
    names = ("layers", "hidden", "intermediate", "heads", "kv", "head_dim", "vocab", "block", "mask", "window", "causal", "seed")
    return dict(zip(names, case["shape"].tolist()))


def numbers(case, pool):
    """name -> tensor: z-lab's names, "embedding", "head", "hidden_states" [T, nT H]. Tensor i begins at (seed + 1009 i) of the pool."""
    s, nt, rows = shape_of(case), len(case["taps"]), len(case["input_ids"])
    h, q, kv, i = s["hidden"], s["heads"] * s["head_dim"], s["kv"] * s["head_dim"], s["intermediate"]
    shapes = {"fc.weight": (h, nt * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for layer in range(s["layers"]):
        sizes = ((h,), (q, h), (kv, h), (kv, h), (h, q), (s["head_dim"],), (s["head_dim"],), (h,), (i, h), (i, h), (h, i))
        shapes.update({f"layers.{layer}.{name}.weight": size for name, size in zip(TENSORS, sizes)})
    shapes.update({"embedding": (s["vocab"], h), "head": (s["vocab"], h)})
    shapes.update({f"tap.{j}": (rows, h) for j in range(nt)})
    out = {}
    for index, (name, size) in enumerate(shapes.items()):
        n = math.prod(size)
        flat = pool[(s["seed"] + 1009 * index + torch.arange(n)) % POOL]
        if len(size) == 1:
            out[name] = flat * 0.2 + 1.0
        elif name.startswith("tap."):
            out[name] = flat.reshape(size)
        else:
            out[name] = (flat * (1.5 / math.sqrt(size[1]))).reshape(size)
    out["hidden_states"] = torch.cat([out.pop(f"tap.{j}") for j in range(nt)], dim=1)
    return out


def qwen_config(case, **more):
    s = shape_of(case)
    kinds = ["sliding_attention" if x else "full_attention" for x in case["sliding"].tolist()]
    config = Qwen3Config(
        vocab_size=s["vocab"], hidden_size=s["hidden"], intermediate_size=s["intermediate"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv"], head_dim=s["head_dim"], hidden_act="silu", max_position_embeddings=256,
        rms_norm_eps=1e-6, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, tie_word_embeddings=False, layer_types=kinds,
        sliding_window=s["window"] or None, use_sliding_window=s["window"] > 0, pad_token_id=None, **more)  # fmt: skip
    config._attn_implementation = "sdpa"
    return config


def document_of(case, position):
    offsets = case["doc_offsets"].tolist()
    return next((b, e) for b, e in zip(offsets, offsets[1:]) if b <= position < e)


def slots(case):
    """(index of the row in [A B], label, weight) of every supervised slot."""
    b, mask, ids = shape_of(case)["block"], case["loss_mask"], case["input_ids"]
    for block, (anchor, valid) in enumerate(zip(case["anchors"].tolist(), case["anchor_valid"].tolist())):
        if not valid:
            continue
        end = document_of(case, anchor)[1]
        for k in range(1, b):
            if anchor + k < end and mask[anchor + k]:
                yield block * b + k, int(ids[anchor + k]), math.exp(-(k - 1) / GAMMA)


def loss_of(case, hidden, head):
    """hidden [A B, H] -> sum of weight x cross-entropy, sum of weights."""
    rows, labels, weights = zip(*slots(case))
    ce = nn.functional.cross_entropy(hidden[list(rows)] @ head.T, torch.tensor(labels), reduction="none")
    return (ce * torch.tensor(weights)).sum(), sum(weights)


def zlab_module(case, values):
    from dflash.model import DFlashDraftModel

    s = shape_of(case)
    more = {} if s["causal"] < 0 else {"is_causal": bool(s["causal"])}
    config = qwen_config(case, num_target_layers=16, block_size=s["block"],
                         dflash_config={"mask_token_id": s["mask"], "target_layer_ids": case["taps"].tolist()}, **more)  # fmt: skip
    module = DFlashDraftModel(config)
    module.load_state_dict({name: values[name] for name in module.state_dict()})
    return module


def zlab_hidden(module, case, values):
    """[A B, H]: the inference class block by block on its own context; zeros for invalid anchors."""
    s, ids = shape_of(case), case["input_ids"].long()
    b, states = s["block"], values["hidden_states"]
    parts = []
    for anchor, valid in zip(case["anchors"].tolist(), case["anchor_valid"].tolist()):
        if not valid:
            parts.append(torch.zeros(b, s["hidden"]))
            continue
        begin = document_of(case, anchor)[0]
        block = torch.full((b,), s["mask"])
        block[0] = ids[anchor]
        out = module(position_ids=torch.arange(anchor - begin + b)[None], noise_embedding=values["embedding"][block][None],
                     target_hidden=states[None, begin:anchor])  # fmt: skip
        parts.append(out[0])
    return torch.cat(parts)


def speculators_agrees(case):
    """Its full layers are never causal in the block; its window starts at anchor - W for every slot, so that windows are comparable only
    where they cut nothing (dflash.md 2.3)."""
    s, slides = shape_of(case), case["sliding"].tolist()
    full_is_causal = s["causal"] == 1 and not all(slides)
    cuts = any(slides) and s["window"] < len(case["input_ids"]) + s["block"]
    return not full_is_causal and not cuts


def speculators_module(case, values):
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

    s = shape_of(case)
    module = DFlashDraftModel(DFlashSpeculatorConfig(
        transformer_layer_config=qwen_config(case), draft_vocab_size=s["vocab"], block_size=s["block"],
        aux_hidden_state_layer_ids=[t + 1 for t in case["taps"].tolist()], mask_token_id=s["mask"],
        sliding_window_non_causal=s["causal"] == 0))  # fmt: skip
    own = {name: values[name] for name in module.state_dict() if name in values}
    own.update({"embed_tokens.weight": values["embedding"], "lm_head.weight": values["head"], "verifier_lm_head.weight": values["head"],
                "verifier_norm.weight": torch.ones(s["hidden"])})  # fmt: skip
    missing, spare = module.load_state_dict(own, strict=False)
    assert not spare and not [m for m in missing if m not in ("t2d", "d2t")], (missing, spare)
    return module


def speculators_hidden(module, case, values):
    import speculators.models.dflash.core as core

    offsets = case["doc_offsets"]
    lengths = (offsets[1:] - offsets[:-1]).tolist()
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    core.select_anchors = lambda mask, count, block: (case["anchors"].long(), case["anchor_valid"].bool())
    hidden, *_ = module._backbone_forward(
        hidden_states=values["hidden_states"][None], input_ids=case["input_ids"].long()[None], loss_mask=case["loss_mask"].long()[None],
        verifier_last_hidden_states=values["hidden_states"][None, :, : shape_of(case)["hidden"]], document_ids=documents,
        position_ids=positions, max_anchors=len(case["anchors"]))  # fmt: skip
    return hidden[0]


def results(module, hidden_of, case, values):
    """hidden [A B, H], loss, weight sum and the gradient of every drafter tensor by its name."""
    module.zero_grad()
    hidden = hidden_of(module, case, values)
    loss, weight = loss_of(case, hidden, values["head"])
    loss.backward()
    out = {"hidden": hidden.detach(), "loss": loss.detach().reshape(1), "weight_sum": torch.tensor([weight], dtype=torch.float32)}
    names = [n for n in values if n.endswith(".weight")]
    parameters = dict(module.named_parameters())
    out.update({f"grad.{n}": parameters[n].grad.detach() for n in names})
    return out


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()

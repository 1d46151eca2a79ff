"""Training steps of one published trainer on the rows of make_work.py. Prints one line of JSON.
usage: peer_step.py specforge|speculators|automodel [--threads N]"""
import argparse
import time

from common import *

quiet()
import torch

WARM = 2  # steps that are not counted


def frozen_parts(dtype):
    """Embedding and head of the target, tied as they are there."""
    from safetensors.torch import load_file
    weight = load_file(MODEL / "model.safetensors")["model.embed_tokens.weight"].to(dtype)
    embedding = torch.nn.Embedding(VOCAB, HIDDEN, _weight=weight)
    head = torch.nn.Linear(HIDDEN, VOCAB, bias=False, device="meta")
    head.weight = embedding.weight
    return embedding.requires_grad_(False), head.requires_grad_(False)


def lengths(row):
    return row["doc_offsets"].diff().long()


def positions(row):
    return torch.cat([torch.arange(int(n)) for n in lengths(row)])


def specforge(rows):
    """bf16 weights, updated without fp32 masters; knows no packing; no chunks in the loss: its fastest setting."""
    draft, wrapper = import_specforge()
    drafter = draft(drafter_config(LAYERS, BLOCK, "sdpa")).to(torch.bfloat16)
    embedding, head = frozen_parts(torch.bfloat16)
    model = wrapper(drafter, head, embedding, MASK, block_size=BLOCK, attention_backend="sdpa", num_anchors=ANCHORS,
                    loss_decay_gamma=GAMMA, objective_chunk_blocks=0).train()
    inputs = [(r["input_ids"][None].long(), flat_taps(r), r["loss_mask"][None].float()) for r in rows]
    return drafter, lambda i: model(*inputs[i])[0]


def automodel(rows):
    """bf16 weights, packed rows."""
    draft, wrapper = import_automodel()
    drafter = draft(drafter_config(LAYERS, BLOCK, "sdpa")).to(torch.bfloat16)
    embedding, head = frozen_parts(torch.bfloat16)
    model = wrapper(drafter, head, embedding, MASK, block_size=BLOCK, attention_backend="sdpa", num_anchors=ANCHORS,
                    loss_decay_gamma=GAMMA).train()
    inputs = []
    for r in rows:
        ends = r["doc_offsets"][1:].long()
        remaining = torch.repeat_interleave(ends, lengths(r)) - 1 - torch.arange(ROW_TOKENS)
        inputs.append(dict(input_ids=r["input_ids"][None].long(), hidden_states=flat_taps(r), loss_mask=r["loss_mask"][None].float(),
                           position_ids=positions(r)[None], seq_lens=lengths(r)[None], doc_remaining=remaining[None]))
    return drafter, lambda i: model(**inputs[i]).loss


def speculators(rows):
    """fp32 weights under bf16 autocast; labels from the target's logits, which it computes too."""
    from speculators.models.dflash import DFlashDraftModel
    from speculators.train.cli import create_transformer_layer_config
    config = create_transformer_layer_config(str(MODEL), LAYERS, "qwen3", None, ROW_TOKENS, list(range(LAYERS)))
    model = DFlashDraftModel.from_training_args(
        verifier_config=config, verifier_name_or_path=str(MODEL), draft_vocab_size=VOCAB, block_size=BLOCK,
        target_layer_ids=[t + 1 for t in TAPS], mask_token_id=MASK, draft_attn_impl="sdpa").train()
    options, _ = model.get_trainer_kwargs(loss_fn="ce", loss_implementation="eager", dflash_decay_gamma=GAMMA, max_anchors=ANCHORS,
                                          per_position_loss_weight="fixed-exp-decay")
    inputs = [dict(hidden_states=flat_taps(r), input_ids=r["input_ids"][None].long(), loss_mask=r["loss_mask"][None].long(),
                   verifier_last_hidden_states=r["last_hidden"][None], position_ids=positions(r)[None],
                   document_ids=torch.repeat_interleave(torch.arange(len(lengths(r))), lengths(r))[None]) for r in rows]

    def loss(i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**inputs[i], **options)[1]
    return model, loss


def flat_taps(row):
    return row["taps"].permute(1, 0, 2).reshape(1, ROW_TOKENS, len(TAPS) * HIDDEN).contiguous()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["specforge", "speculators", "automodel"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=None, help="use only so many: to see that it works")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = load_work()[:args.rows]
    model, loss_of = globals()[args.peer](rows)
    count = len(rows)
    del rows
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=6e-4, weight_decay=0.01)
    peak = Peak()
    times, losses = dict(forward=[], backward=[], update=[], step=[]), []
    for i in range(count):
        start = time.perf_counter()
        loss = loss_of(i)
        forward = time.perf_counter()
        optimizer.zero_grad()
        loss.backward()
        backward = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        end = time.perf_counter()
        losses.append(loss.item())
        for name, seconds in zip(times, (forward - start, backward - forward, end - backward, end - start)):
            times[name].append(seconds)
    warm = min(WARM, count - 1)
    print(json.dumps(dict(name=args.peer, step_s=median(times["step"][warm:]), peak_bytes=peak.bytes(),
                          stages={name: round(median(t[warm:]), 4) for name, t in times.items()},
                          parameters=sum(p.numel() for p in weights), first_loss=losses[0], last_loss=losses[-1])))


main()

"""Makes the work that both sides do, in DFLASH_PEERS_WORK (default build/peers):
rows.safetensors     packed rows of 2,048 tokens of chats (HumanEval prompts and their solutions) with the hidden states that transformers computes
                     in bf16: I.input_ids int32 [T], I.loss_mask uint8 [T], I.doc_offsets int32 [docs + 1], I.anchors int32 [64], I.taps bf16
                     [5, T, 576], I.last_hidden bf16 [T, 576]
drafter/             a fresh drafter of configuration A in z-lab's form
prompts.safetensors  a prompt shard of 32 HumanEval prompts
"""
from common import *

quiet()
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROWS = 12


def documents(tokenizer):
    for task in human_eval():
        prompt = prompt_ids(tokenizer, task["prompt"])
        answer = tokenizer(task["prompt"] + task["canonical_solution"] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        yield prompt + answer, [0] * len(prompt) + [1] * len(answer)


def packed(tokenizer):
    """Rows filled to the last token: the last document of a row is cut."""
    rows, ids, mask, offsets = [], [], [], [0]
    for doc_ids, doc_mask in documents(tokenizer):
        room = ROW_TOKENS - len(ids)
        ids += doc_ids[:room]
        mask += doc_mask[:room]
        offsets.append(len(ids))
        if len(ids) == ROW_TOKENS:
            rows.append((ids, mask, offsets))
            ids, mask, offsets = [], [], [0]
        if len(rows) == ROWS:
            return rows
    raise SystemExit("error: not enough text for the rows")


@torch.inference_mode()
def capture(model, ids, offsets):
    taps = torch.empty(len(TAPS), ROW_TOKENS, HIDDEN, dtype=torch.bfloat16)
    last = torch.empty(ROW_TOKENS, HIDDEN, dtype=torch.bfloat16)
    raw = {}
    hook = model.model.layers[-1].register_forward_hook(
        lambda module, args, out: raw.__setitem__("last", out[0] if isinstance(out, tuple) else out))
    for begin, end in zip(offsets, offsets[1:]):
        out = model.model(ids[None, begin:end], output_hidden_states=True, use_cache=False)
        for j, layer in enumerate(TAPS):
            taps[j, begin:end] = out.hidden_states[layer + 1][0]
        last[begin:end] = raw["last"].reshape(end - begin, HIDDEN)
    hook.remove()
    return taps, last


def anchors(mask, offsets, generator):
    """64 positions whose token and next token are supervised and in one document."""
    mask = torch.tensor(mask, dtype=torch.bool)
    valid = mask.clone()
    valid[:-1] &= mask[1:]
    valid[torch.tensor(offsets[1:]) - 1] = False
    candidates = valid.nonzero()[:, 0]
    return candidates[torch.randperm(len(candidates), generator=generator)[:ANCHORS]].sort().values.int()


def main():
    torch.set_num_threads(1)  # whatever else runs on the machine
    torch.manual_seed(0)
    WORK.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    generator = torch.Generator().manual_seed(0)
    flat = {}
    for i, (ids, mask, offsets) in enumerate(packed(tokenizer)):
        tensor = torch.tensor(ids)
        taps, last = capture(model, tensor, offsets)
        flat |= {f"{i}.input_ids": tensor.int(), f"{i}.loss_mask": torch.tensor(mask, dtype=torch.uint8),
                 f"{i}.doc_offsets": torch.tensor(offsets, dtype=torch.int32), f"{i}.anchors": anchors(mask, offsets, generator),
                 f"{i}.taps": taps, f"{i}.last_hidden": last}
    save_file(flat, WORK / "rows.safetensors")

    draft, _ = import_specforge()
    drafter = draft(drafter_config(LAYERS, BLOCK, "sdpa")).to(torch.bfloat16)
    (WORK / "drafter").mkdir(exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(weights, WORK / "drafter/model.safetensors", {"format": "pt"})
    config = drafter_config(LAYERS, BLOCK, "sdpa").to_dict() | {"architectures": ["DFlashDraftModel"], "dtype": "bfloat16"}
    (WORK / "drafter/config.json").write_text(json.dumps(config, indent=1))

    prompts = [prompt_ids(tokenizer, task["prompt"]) for task in human_eval()[:32]]
    offsets = torch.tensor([0] + [len(p) for p in prompts]).cumsum(0)
    save_file({"input_ids": torch.tensor(sum(prompts, []), dtype=torch.int32), "doc_offsets": offsets}, WORK / "prompts.safetensors")
    print(f"{ROWS} rows, {len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens in {WORK}")


main()

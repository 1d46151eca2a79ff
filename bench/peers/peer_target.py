"""transformers with the target: capture of hidden states, batched generation, decoding of one prompt. Prints one line of JSON.
usage: peer_target.py capture|generate|decode [--threads N]"""
import argparse
import time

from common import *

quiet()
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

NEW_TOKENS = 128


def timed(function, runs):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return median(times), result


def capture(model, ids):
    """The decoder alone, no head, as one runs it for hidden states."""
    seconds = {}
    for name, shape in (("8x256", (8, 256)), ("1x2048", (1, 2048))):
        rows = ids.reshape(shape)
        run = lambda: model.model(rows, output_hidden_states=True, use_cache=False).hidden_states
        run()
        seconds[name], _ = timed(run, 3)
    return dict(seconds=seconds, tokens_per_s={name: ids.numel() / s for name, s in seconds.items()})


def generate(model, prompts):
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), 2)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt):] = torch.tensor(prompt)
        mask[row, longest - len(prompt):] = 1
    options = dict(input_ids=ids, attention_mask=mask, do_sample=False, pad_token_id=2)
    model.generate(**options, max_new_tokens=2, min_new_tokens=2)
    seconds, out = timed(lambda: model.generate(**options, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS), 1)
    made = out.shape[0] * (out.shape[1] - longest)
    return dict(seconds=seconds, new_tokens=made, tokens_per_s=made / seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["capture", "generate", "decode"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        if args.what == "capture":
            result = capture(model, load_file(WORK / "rows.safetensors")["0.input_ids"].long())
        else:
            shard = load_file(WORK / "prompts.safetensors")
            offsets, ids = shard["doc_offsets"].tolist(), shard["input_ids"].tolist()
            prompts = [ids[a:b] for a, b in zip(offsets, offsets[1:])]
            result = generate(model, prompts if args.what == "generate" else prompts[:1])
    print(json.dumps(dict(name="transformers", **result)))


main()

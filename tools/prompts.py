"""Prompt shards for `dflash generate` and `dflash eval`."""

import hashlib
import json
import re

from tools.chat_records import normalise, read_records
from tools.chat_template import ChatModel, Drop
from tools.common import UserError, parser, run, say, write_atomically, write_shard
from tools.prompt_sources import AVOID, HELD_OUT, SOURCES, TRAINING

HELP = f"""\
Renders prompts with a model's chat template, generation prompt included, into a prompt shard: safetensors with input_ids int32 and
doc_offsets int64. The ids of the prompts stand in the file's metadata, key prompt_ids.

sources for training: {", ".join(TRAINING)}   
                      (codeio-stub: the same tasks as heads of Python functions; general, arithmetic: templates of this project)
held-out sources:     {", ".join(HELD_OUT)}   (each prompt as shipped, MT-Bench: first turns)
own prompts:          --jsonl FILE, lines with "prompt", or "messages"/"conversations" (up to the last user turn)

Prompts that share a sequence of 8 words with a held-out set named by --avoid are removed and counted (words: runs of letters, digits
and _, in lower case). Duplicates are removed. With --seed the order is shuffled, the same on every machine; without, it is that of the
sources. --limit takes the first prompts of that order."""

EPILOG = """\
examples:
  python -m tools.prompts --source codeio,perlfaq --avoid humaneval,gsm8k,mtbench --max-prompt-tokens 320 --seed 1 \\
      --model .deps/models/SmolLM2-135M-Instruct --out train-prompts.safetensors
  python -m tools.prompts --source humaneval --model .deps/models/SmolLM2-135M-Instruct --out humaneval.safetensors"""

NGRAM = 8


def ngrams(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}


def names(text, known):
    out = [n for n in text.split(",") if n]
    for n in out:
        if n not in known:
            raise UserError(f"unknown prompt source {n}", hint="known: " + ", ".join(known))
    return out


def own_prompts(path):
    """[(id, messages)] of a JSON-lines file."""
    out = []
    for number, record in read_records(path):
        where = f"{path}:{number}"
        if isinstance(record, dict) and isinstance(record.get("prompt"), str):
            out.append((str(record.get("id", number)), [{"role": "user", "content": record["prompt"]}]))
            continue
        if not isinstance(record, dict) or not (record.get("messages") or record.get("conversations")):
            raise UserError("record without prompt, messages or conversations", where)
        key = "messages" if record.get("messages") else "conversations"
        turns = record[key]
        try:
            # normalise wants an assistant turn; here the last user turn is what counts
            messages = normalise({key: turns + [{"role": "assistant", "content": "-"}]} if isinstance(turns, list) else record)[0][:-1]
        except Drop as e:
            raise UserError(str(e), where) from None
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        if not users:
            raise UserError("no user turn", where)
        out.append((str(record.get("id", number)), messages[: users[-1] + 1]))
    return out


def select(prompts, avoid, seed):
    """(prompts in order, counts of what was removed)."""
    removed, seen, kept = {"duplicates": 0, "overlap": 0}, set(), []
    for name, messages in prompts:
        text = "\n".join(m["content"] or "" for m in messages)
        if text in seen:
            removed["duplicates"] += 1
            continue
        seen.add(text)
        if avoid and not avoid.isdisjoint(ngrams(text)):
            removed["overlap"] += 1
            continue
        kept.append((name, messages, text))
    if seed is not None:
        kept.sort(key=lambda p: hashlib.sha256(f"{seed}\0{p[0]}\0{p[2]}".encode("utf-8", "surrogatepass")).digest())
    return kept, removed


def main():
    p = parser("prompts", HELP, EPILOG)
    p.add_argument("--source", default="", metavar="A,B", help="sources, see above")
    p.add_argument("--jsonl", action="append", default=[], metavar="FILE", help="own prompts; may be repeated")
    p.add_argument("--model", required=True, help="Hugging Face folder with tokenizer and chat template")
    p.add_argument("--out", required=True, help="prompt shard to write")
    p.add_argument("--avoid", default="", metavar="A,B", help="held-out sets that no prompt may share 8 words with")
    p.add_argument("--max-prompt-tokens", type=int, metavar="N", help="leave out longer prompts, counted (tokens with the template)")
    p.add_argument("--limit", type=int, metavar="N", help="at most so many prompts")
    p.add_argument("--seed", type=int, metavar="S", help="shuffle; without it the order is that of the sources")
    p.add_argument("--packages", default=".deps/packages", help="where bin/setup unpacked the prompt packages (default: %(default)s)")
    p.add_argument("--template", metavar="FILE", help="chat template to use instead of the model's")
    p.add_argument("--report", metavar="FILE", help="write the counts as JSON")
    a = p.parse_args()
    sources = names(a.source, SOURCES)
    if not sources and not a.jsonl:
        raise UserError("no prompts asked for", hint="--source codeio,perlfaq or --jsonl FILE")
    model = ChatModel(a.model, a.template)
    prompts = [(i, [{"role": "user", "content": t}]) for s in sources for i, t in SOURCES[s](a.packages)]
    for path in a.jsonl:
        prompts += own_prompts(path)
    avoid = set()
    for name in names(a.avoid, AVOID):
        for _, text in AVOID[name](a.packages):
            avoid |= ngrams(text)
    kept, removed = select(prompts, avoid, a.seed)
    removed["too_long"] = removed["refused"] = 0
    documents, ids = [], []
    for name, messages, _ in kept:
        if a.limit is not None and len(documents) >= a.limit:
            break
        try:
            tokens = model.prompt_ids(messages)
        except Drop as e:
            removed["refused"] += 1
            say(f"  refused {name}: {e}")
            continue
        if a.max_prompt_tokens and len(tokens) > a.max_prompt_tokens:
            removed["too_long"] += 1
            continue
        documents.append(tokens)
        ids.append(name)
    say(f"{len(prompts)} prompts of {a.source or ', '.join(a.jsonl)}; removed: {removed['duplicates']} duplicates, {removed['overlap']} that share "
        f"{NGRAM} words with {a.avoid or 'nothing'}, {removed['too_long']} too long, {removed['refused']} refused by the template")
    if not documents:
        raise UserError("no prompt is left", hint="see the counts above")
    write_shard(a.out, documents, None, {"tool": "prompts", "sources": a.source, "prompt_ids": ids})
    tokens = sum(map(len, documents))
    say(f"{a.out}: {len(documents)} prompts, {tokens} tokens, longest {max(map(len, documents))}")
    if a.report:
        write_atomically(a.report, json.dumps({"read": len(prompts), **removed, "prompts": len(documents), "tokens": tokens}, indent=1))


if __name__ == "__main__":
    run(main)

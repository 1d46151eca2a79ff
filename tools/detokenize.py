"""Shards -> text."""

import json
import os
import sys

from tokenizers import Tokenizer

from tools.common import UserError, parser, read_shard, run

HELP = """\
Turns a token shard or prompt shard back into JSON lines on standard output: {"document", "text"} for prompts; for token shards
{"document", "prompt", "reply"} where each document is one prompt and one supervised reply, else {"document", "text", "supervised"}.
Special tokens are shown."""

EPILOG = """\
examples:
  python -m tools.detokenize runs/quickstart/train.safetensors --model .deps/models/SmolLM2-135M-Instruct --documents 0,1,2
  python -m tools.detokenize x.safetensors --model M --text --documents 0      (plain text instead of JSON)"""


def runs_of(mask):
    """[(begin, end)] of the ones."""
    out, begin = [], None
    for i, value in enumerate([*mask, 0]):
        if value and begin is None:
            begin = i
        elif not value and begin is not None:
            out.append((begin, i))
            begin = None
    return out


def main():
    p = parser("detokenize", HELP, EPILOG)
    p.add_argument("shard")
    p.add_argument("--model", required=True, help="Hugging Face folder with tokenizer.json")
    p.add_argument("--documents", metavar="A,B", help="only these (default: all)")
    p.add_argument("--text", action="store_true", help="plain text, a line of dashes between documents")
    p.add_argument("--skip-special", action="store_true", help="leave special tokens out")
    a = p.parse_args()
    path = os.path.join(a.model, "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as e:
        raise UserError(f"no tokenizer: {e}", path) from None
    ids, mask, offsets = read_shard(a.shard)
    if len(ids) and (ids.min() < 0 or ids.max() >= tokenizer.get_vocab_size()):
        raise UserError(f"token id {ids.max() if ids.min() >= 0 else ids.min()} is outside the vocabulary", a.shard, "made with another model?")
    count = len(offsets) - 1
    try:
        wanted = [int(d) for d in a.documents.split(",")] if a.documents else range(count)
    except ValueError:
        raise UserError(f"--documents {a.documents}: numbers separated by commas") from None
    decode = lambda x: tokenizer.decode(x, skip_special_tokens=a.skip_special)
    for d in wanted:
        if not 0 <= d < count:
            raise UserError(f"there is no document {d}", a.shard, f"it has {count}")
        begin, end = int(offsets[d]), int(offsets[d + 1])
        document = ids[begin:end].tolist()
        if a.text:
            sys.stdout.write(decode(document) + "\n" + "-" * 80 + "\n")
            continue
        line = {"document": d}
        spans = runs_of(mask[begin:end].tolist()) if mask is not None else []
        if len(spans) == 1 and spans[0][1] == len(document):
            line.update(prompt=decode(document[: spans[0][0]]), reply=decode(document[spans[0][0] :]))
        else:
            line["text"] = decode(document)
            if mask is not None:
                line["supervised"] = [decode(document[b:e]) for b, e in spans]
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run(main)

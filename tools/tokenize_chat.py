"""Chat files -> token shards, with a loss mask on what the assistant says."""

import collections
import datetime
import hashlib
import json

from tools.chat_records import normalise, read_records
from tools.chat_template import ChatModel, Drop
from tools.common import Progress, UserError, parser, run, say, write_atomically, write_shard

HELP = """\
Turns chats into token shards for `dflash train`: safetensors with input_ids int32, loss_mask uint8, doc_offsets int64.

Input: JSON lines (or one JSON array) with "messages" [{"role", "content"}] or ShareGPT "conversations" [{"from", "value"}]; both
spellings may be mixed. Roles: user (human), assistant (gpt, chatgpt, bing, bard, model, function_call), system (developer), tool
(observation, function_response, function), in any case of letters. Text is never trimmed except by the template itself.

Which way it goes where a field has no single right answer:
  - starts with the assistant       kept as given if the template marks replies with {% generation %}, else dropped
  - reply of one token or none      no anchor fits on it: the document is dropped, counted as "no anchor fits"
  - messages and conversations      messages is used, noted
  - "system" beside the messages    not used, noted
  - role names in capitals          taken as their lower-case form
  - end mark quoted in a reply      one supervised span that runs past the quoted mark to the real one
  - the drafter's mask id in a text kept, counted (--mask-token-id)
  - tool call arguments as text     decoded, blank text as {}; text that is not JSON drops the record
  - null content beside tool calls  empty text where the template would print the word None
  - documents over --max-tokens     cut at the end, counted
  - template changes earlier turns  one sample for each reply, as it was rendered when it was due; else one for the conversation
A record that the template refuses is dropped with the template's own words."""

EPILOG = """\
examples:
  python -m tools.tokenize_chat chats.jsonl --model .deps/models/SmolLM2-135M-Instruct --max-tokens 2048 --out train.safetensors
  python -m tools.tokenize_chat a.jsonl b.jsonl --model M --max-tokens 4096 --out train.safetensors --shard-tokens 50000000
exit codes: 0 written, 2 wrong input or nothing left"""


def has_anchor(mask):
    return any(a and b for a, b in zip(mask, mask[1:]))


class Counts:
    def __init__(self):
        self.records = self.conversations = self.samples = self.cut = self.split = self.mask_token = 0
        self.dropped, self.notes, self.examples = collections.Counter(), collections.Counter(), {}

    def drop(self, reason, where):
        self.dropped[reason] += 1
        self.examples.setdefault(reason, []).append(where) if self.dropped[reason] <= 3 else None

    def report(self):
        return {
            "records": self.records,
            "conversations": self.conversations,
            "samples": self.samples,
            "cut": self.cut,
            "split_at_reply": self.split,
            "mask_token_in_text": self.mask_token,
            "dropped": dict(self.dropped.most_common()),
            "dropped_examples": self.examples,
            "notes": dict(self.notes),
        }

    def show(self):
        say(f"{self.records} records: {self.samples} samples of {self.conversations} conversations, {sum(self.dropped.values())} drops")
        for reason, n in self.dropped.most_common():
            say(f"  dropped {n}: {reason} (e.g. {', '.join(self.examples[reason])})")
        for note, n in self.notes.most_common():
            say(f"  note, {n}: {note}")
        if self.cut:
            say(f"  cut {self.cut}: longer than --max-tokens")
        if self.split:
            say(f"  split {self.split}: a token would have reached over the edge of a reply; split there, as generation does")
        if self.mask_token:
            say(f"  mask token in the text: {self.mask_token} times; kept")


def make_samples(model, record, counts, where, max_tokens, mask_token_id=None):
    """Yields (ids, mask, text, spans) of one record, and counts everything else."""
    counts.records += 1
    try:
        messages, tools, notes = normalise(record)
        counts.notes.update(notes)
        samples = model.samples(messages, tools)
    except Drop as e:
        counts.drop(str(e), where)
        return
    kept = False
    for text, spans in samples:
        try:
            ids, mask, split = model.encode(text, spans)
        except Drop as e:
            counts.drop(str(e), where)
            continue
        was_cut = max_tokens and len(ids) > max_tokens
        if was_cut:
            ids, mask = ids[:max_tokens], mask[:max_tokens]
        if not has_anchor(mask):
            counts.drop("no reply within --max-tokens" if was_cut else "no anchor fits: fewer than two supervised tokens in a row", where)
            continue
        counts.cut += bool(was_cut)
        counts.split += split
        counts.mask_token += ids.count(mask_token_id) if mask_token_id is not None else 0
        counts.samples += 1
        kept = True
        yield ids, mask, text, spans
    counts.conversations += kept


def main():
    p = parser("tokenize_chat", HELP, EPILOG)
    p.add_argument("chats", nargs="+", help="chat files")
    p.add_argument("--model", required=True, help="Hugging Face folder with tokenizer and chat template")
    p.add_argument("--out", required=True, help="shard to write; with --shard-tokens NAME-00000.safetensors and so on")
    p.add_argument("--max-tokens", type=int, required=True, metavar="T", help="longest document; at most data.row_tokens of the training")
    p.add_argument("--shard-tokens", type=int, metavar="N", help="begin a new file after so many tokens")
    p.add_argument("--mask-token-id", type=int, metavar="ID", help="count this id in the text (draft.mask_token_id)")
    p.add_argument("--template", metavar="FILE", help="chat template to use instead of the model's")
    p.add_argument("--date", metavar="YYYY-MM-DD", help="what strftime_now of the template sees (default: now)")
    p.add_argument("--limit", type=int, metavar="N", help="stop after so many samples")
    p.add_argument("--report", metavar="FILE", help="write the counts as JSON")
    p.add_argument("--texts", metavar="FILE", help="write text and supervised parts of each sample as JSON lines, to look at")
    p.add_argument("--allow-truncated", action="store_true", help="accept a JSON array that breaks off, keep its whole records")
    a = p.parse_args()
    if a.max_tokens < 2:
        raise UserError("--max-tokens has to be at least 2")
    try:
        date = datetime.datetime.fromisoformat(a.date) if a.date else None
    except ValueError:
        raise UserError(f"--date {a.date} is no date", hint="YYYY-MM-DD") from None
    model = ChatModel(a.model, a.template, date)
    counts, progress = Counts(), Progress("records", "?")
    documents, masks, texts, tokens, files = [], [], [], 0, 0
    metadata = {"tool": "tokenize_chat", "template_sha256": hashlib.sha256(model.template_text.encode()).hexdigest(), "max_tokens": a.max_tokens}

    def flush(last):
        nonlocal documents, masks, tokens, files
        name = a.out
        if a.shard_tokens:
            stem = a.out[: -len(".safetensors")] if a.out.endswith(".safetensors") else a.out
            name = f"{stem}-{files:05d}.safetensors"
        if documents or (last and not files):
            write_shard(name, documents, masks, metadata)
            say(f"{name}: {len(documents)} documents, {sum(map(len, documents))} tokens, {sum(map(sum, masks))} supervised")
            files += 1
        documents, masks, tokens = [], [], 0

    def all_samples():
        for path in a.chats:
            for number, record in read_records(path, a.allow_truncated):
                progress.at(counts.records)
                label = record.get("id") if isinstance(record, dict) else None
                yield from make_samples(model, record, counts, str(label or f"{path}:{number}"), a.max_tokens, a.mask_token_id)

    for ids, mask, text, spans in all_samples():
        documents.append(ids)
        masks.append(mask)
        tokens += len(ids)
        if a.texts:
            texts.append(json.dumps({"text": text, "supervised": [text[b:e] for b, e in spans]}, ensure_ascii=False))
        if a.limit and counts.samples >= a.limit:
            break
        if a.shard_tokens and tokens >= a.shard_tokens:
            flush(False)
    counts.show()
    if a.report:
        write_atomically(a.report, json.dumps(counts.report(), indent=1, ensure_ascii=False))
    if not counts.samples:
        raise UserError("nothing is left: no record has a reply to learn from", ", ".join(a.chats), "the reasons stand above")
    flush(True)
    if a.texts:
        write_atomically(a.texts, "".join(t + "\n" for t in texts))


if __name__ == "__main__":
    run(main)

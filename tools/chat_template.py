"""Renders chats with a model's own template, the way transformers' apply_chat_template does, and finds the replies in the text.

The text decides: spans of replies are character ranges of the rendered text, taken from what the template did and never from a
search for markers, so that markers quoted or forged inside a turn change nothing.
"""

import datetime
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from tools.common import UserError

# Stands for a reply's text to see what the template puts around it. Private-use characters: no template treats them specially.
SENTINEL = "\ue000reply\ue001"


class Drop(Exception):
    """This record or reply is left out; the text is the reason, which is counted."""


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: notes the character range that it renders."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller):
        text = caller()
        sink = self.environment.generation_sink
        if sink is not None:
            begin = sum(map(len, sink["pieces"]))
            sink["spans"].append((begin, begin + len(text), str(text)))
        return text


def _environment(now):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    env.generation_sink = None

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        # jinja2's own filter escapes for HTML
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: now.strftime(fmt)
    return env


def _read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        raise UserError(f"{os.path.basename(path)} is missing", path, "--model names a Hugging Face folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise UserError(f"not JSON: {e}", path) from None


class ChatModel:
    """Tokenizer and chat template of a Hugging Face folder."""

    def __init__(self, folder, template_file=None, date=None):
        tokenizer = _read_json(os.path.join(folder, "tokenizer.json"))
        if not isinstance(tokenizer, dict):
            raise UserError("not a tokenizer", os.path.join(folder, "tokenizer.json"))
        self.byte_level = "ByteLevel" in json.dumps(tokenizer.get("pre_tokenizer"))
        # Never add specials (the template has them: a second begin mark would shift every position) and never trim offsets.
        tokenizer.update(post_processor=None, truncation=None, padding=None)
        try:
            self.tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
        except Exception as e:
            raise UserError(f"not a tokenizer: {e}", os.path.join(folder, "tokenizer.json")) from None
        config = _read_json(os.path.join(folder, "tokenizer_config.json"))
        self.special = {}
        for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
            value = config.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                self.special[key] = value
        self.end_marks = self._find_end_marks(folder)
        source, self.template_text = self._find_template(folder, config, template_file)
        self.environment = _environment(date or datetime.datetime.now())
        try:
            self.template = self.environment.from_string(self.template_text)
        except jinja2.exceptions.TemplateError as e:
            raise UserError(f"the chat template cannot be read: {e}", source) from None
        tags = [t for _, _, t in self.environment.lex(self.template_text)]
        self.marks_replies = "endgeneration" in tags

    def _find_template(self, folder, config, template_file):
        for path in (template_file, os.path.join(folder, "chat_template.jinja")):
            if path and (template_file or os.path.exists(path)):
                with open(path, encoding="utf-8") as f:
                    return path, f.read()
        template, path = config.get("chat_template"), os.path.join(folder, "tokenizer_config.json")
        if isinstance(template, list):
            template = next((t.get("template") for t in template if t.get("name") == "default"), None)
        if not isinstance(template, str):
            raise UserError("the model has no chat template", path, "give one with --template FILE")
        return path, template

    def _find_end_marks(self, folder):
        marks = [self.special["eos_token"]] if "eos_token" in self.special else []
        for name in ("generation_config.json", "config.json"):
            path = os.path.join(folder, name)
            config = _read_json(path) if os.path.exists(path) else {}
            wrapped = config.get("text_config")  # of a model with images
            for part in (config, wrapped if isinstance(wrapped, dict) else {}):
                ids = part.get("eos_token_id")
                for i in ids if isinstance(ids, list) else [ids]:
                    text = self.tokenizer.id_to_token(i) if isinstance(i, int) else None
                    if text and text not in marks:
                        marks.append(text)
        return marks

    def render(self, messages, add_generation_prompt=False, tools=None):
        """(text, [(begin, end)] of the generation tags). A template's own error becomes Drop with its words."""
        sink = {"pieces": [], "spans": []}
        self.environment.generation_sink = sink
        try:
            for piece in self.template.generate(
                messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **self.special
            ):
                sink["pieces"].append(piece)
        except (jinja2.exceptions.TemplateError, jinja2.exceptions.SecurityError) as e:
            raise Drop(str(e)) from None
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError, OverflowError) as e:
            raise Drop(f"template fails: {e}") from None
        finally:
            self.environment.generation_sink = None
        text = "".join(sink["pieces"])
        for begin, end, part in sink["spans"]:
            if text[begin:end] != part:
                raise Drop("the template marks replies inside a macro or a filter: their place is unknown")
        return text, [(b, e) for b, e, _ in sink["spans"]]

    def _mark_at(self, text, position):
        return next((m for m in self.end_marks if text.startswith(m, position)), "")

    def _reply_span(self, messages, i, tools):
        """(text up to reply i, (begin, end) of that reply in it) for templates without generation tags."""
        if i == 0:
            raise Drop("starts with the assistant")
        prompt, _ = self.render(messages[:i], True, tools)
        text, _ = self.render(messages[: i + 1], False, tools)
        if not text.startswith(prompt):
            raise Drop("the template does not render a reply after its own prompt")
        begin, end = len(prompt), len(text)
        content = messages[i].get("content")
        if content is not None and not messages[i].get("tool_calls"):
            probe, _ = self.render(messages[:i] + [{**messages[i], "content": SENTINEL}], False, tools)
            at = probe.rfind(SENTINEL)
            if at < 0 or not probe.startswith(prompt):
                raise Drop("the template does not show the reply's text")
            tail = probe[at + len(SENTINEL) :]
            if not text.endswith(tail):
                raise Drop("the template ends a reply in different ways")
            if prompt == self.render(messages[:i], False, tools)[0]:  # no generation prompt: the reply's header is not the model's
                begin = at
            stops = [p + len(m) for m in self.end_marks if (p := tail.find(m)) >= 0]
            end = len(text) - len(tail) + (min(stops) if stops else 0)
        else:
            stops = [p + len(m) for m in self.end_marks if (p := text.rfind(m, begin)) >= 0]
            end = max(stops, default=end)
        if not begin <= end or text[: len(prompt)] != prompt:
            raise Drop("the reply's place in the text is unclear")
        return text, (begin, end)

    def _marked_spans(self, messages, tools):
        text, spans = self.render(messages, False, tools)
        return text, [(b, e + len(self._mark_at(text, e))) for b, e in spans]

    def _without_none(self, messages, tools):
        """The messages, with "" for a content that is null if the template would print the word None (or fail on it)."""
        if all(m.get("content") is not None for m in messages):
            return messages
        empty = [{**m, "content": ""} if m.get("content") is None else m for m in messages]
        try:
            text = self.render(messages, False, tools)[0]
        except Drop:
            return empty
        return empty if text.count("None") > self.render(empty, False, tools)[0].count("None") else messages

    def samples(self, messages, tools=None):
        """[(text, [(begin, end)])]: one sample for the conversation if each reply, rendered as when it was due, is a prefix of the
        whole; else one for each reply, as it was then, with only that reply supervised."""
        messages = self._without_none(messages, tools)
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        if self.marks_replies:
            whole, spans = self._marked_spans(messages, tools)
            if len(spans) < len(replies):
                raise Drop(f"the template marks {len(spans)} of {len(replies)} replies")
            parts = [self._marked_spans(messages[: i + 1], tools) for i in replies if i + 1 < len(messages)]
            if replies[-1] + 1 == len(messages):
                parts.append((whole, spans))
            if all(whole.startswith(text) for text, _ in parts):
                return [(whole, spans)]
            return [(text, spans[-1:]) for text, spans in parts]
        whole, _ = self.render(messages, False, tools)
        parts = [self._reply_span(messages, i, tools) for i in replies]
        if all(whole.startswith(text) for text, _ in parts):
            return [(whole, [span for _, span in parts])]
        return [(text, [span]) for text, span in parts]

    def encode(self, text, spans=()):
        """(ids, mask, split): mask 1 on the tokens inside spans. Marks inside the text become special tokens, as in transformers. A
        token that would reach over the edge of a span is avoided by splitting the text there, as it is at generation time."""
        try:
            encoded = self.tokenizer.encode(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            raise Drop("text is no valid Unicode") from None
        if not any(b < edge < e for b, e in encoded.offsets for span in spans for edge in span):
            mask = [int(any(s <= b and e <= t and b < e for s, t in spans)) for b, e in encoded.offsets] if spans else [0] * len(encoded.ids)
            return encoded.ids, mask, False
        if not self.byte_level:
            raise Drop("a token reaches over the edge of a reply")
        ids, mask, at = [], [], 0
        for begin, end in spans:
            for stop, value in ((begin, 0), (end, 1)):
                part = self.tokenizer.encode(text[at:stop], add_special_tokens=False).ids
                ids += part
                mask += [value] * len(part)
                at = stop
        part = self.tokenizer.encode(text[at:], add_special_tokens=False).ids
        return ids + part, mask + [0] * len(part), True

    def prompt_ids(self, messages, tools=None):
        """Ids of a chat that waits for a reply: template and generation prompt rendered, nothing added."""
        return self.encode(self.render(self._without_none(messages, tools), True, tools)[0])[0]

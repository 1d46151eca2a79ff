"""Chats from the field: role names, odd records, forged marks, double begin marks (tests/data/cases)."""

import json
import os
import unittest

from tests.tools.fixture import CASES, FolderTest, read_json, supervised_text, write_model
from tools.chat_records import normalise, read_records
from tools.chat_template import ChatModel
from tools.tokenize_chat import Counts, make_samples


class Case17(FolderTest):
    case = os.path.join(CASES, "17-chat-roles")

    def setUp(self):
        super().setUp()
        self.expect = read_json(self.case, "expect.json")
        self.records = dict((r["id"], r) for _, r in read_records(os.path.join(self.case, "chat.jsonl")))

    def check(self, template):
        with open(os.path.join(self.case, f"{template}.jinja"), encoding="utf-8") as f:
            model = ChatModel(write_model(self.path("model"), f.read()))
        for name, record in self.records.items():
            with self.subTest(record=name):
                counts = Counts()
                samples = list(make_samples(model, record, counts, name, 1000))
                reason = self.expect["dropped_with_reason"].get(name)
                expected = self.expect["records"].get(name, {}).get(template, {})
                reason = reason or expected.get("dropped")
                if reason:
                    self.assertEqual((samples, dict(counts.dropped)), ([], {reason: 1}))
                elif name == "r10":  # one token: stated as left out and counted
                    self.assertEqual(samples, [])
                    self.assertIn("no anchor fits", next(iter(counts.dropped)))
                else:
                    [(ids, mask, text, spans)] = samples
                    self.assertEqual(text, expected["text"])
                    self.assertEqual([text[b:e] for b, e in spans], expected["supervised"])
                    self.assertEqual(model.tokenizer.decode(ids, skip_special_tokens=False), text)
                    self.assertEqual(supervised_text(model, ids, mask), expected["supervised"])

    def test_tolerant_template_gives_the_listed_texts_spans_and_drops(self):
        self.check("tolerant")

    def test_strict_template_drops_with_its_own_words(self):
        self.check("strict")

    def test_roles_are_normalised_and_never_shift(self):
        for name, expected in self.expect["records"].items():
            if name not in self.expect["dropped_with_reason"]:
                messages, _, _ = normalise(self.records[name])
                self.assertEqual([m["role"] for m in messages], expected["roles"], name)

    def test_unused_fields_are_noted(self):
        self.assertIn("messages used", normalise(self.records["r16"])[2][0])
        self.assertIn("system text", normalise(self.records["r24"])[2][0])


class Case18(FolderTest):
    case = os.path.join(CASES, "18-tool-calls")

    def setUp(self):
        super().setUp()
        self.expect = read_json(self.case, "expect.json")
        self.records = {r["id"]: r for _, r in read_records(os.path.join(self.case, "chat.jsonl"))}
        with open(os.path.join(self.case, "template.jinja"), encoding="utf-8") as f:
            self.template = f.read()

    def samples(self, record, template=None):
        counts = Counts()
        model = ChatModel(write_model(self.path("model"), template or self.template))
        return model, list(make_samples(model, record, counts, record.get("id", "x"), 4000)), counts

    def test_each_record_gives_the_listed_text_and_spans(self):
        for name, expected in self.expect["records"].items():
            with self.subTest(record=name):
                model, [(ids, mask, text, spans)], counts = self.samples(self.records[name])
                self.assertEqual(text, expected["text"])
                self.assertEqual([text[b:e] for b, e in spans], expected["supervised"])
                self.assertEqual(supervised_text(model, ids, mask), expected["supervised"])
                self.assertNotIn("None", text)
                self.assertEqual(sum(counts.dropped.values()), 0)

    def test_the_same_spans_come_out_of_a_template_without_generation_tags(self):
        bare = self.template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
        bare += "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
        for name, expected in self.expect["records"].items():
            with self.subTest(record=name):
                _, [(_, _, text, spans)], _ = self.samples(self.records[name], bare)
                self.assertEqual(text, expected["text"])
                self.assertEqual([text[b:e] for b, e in spans], expected["supervised"])

    def test_object_and_text_arguments_render_alike_however_often_encoded(self):
        texts = []
        for encode in (lambda a: a, json.dumps, lambda a: json.dumps(json.dumps(a))):
            record = json.loads(json.dumps(self.records["t1_dict"]))
            function = record["messages"][1]["tool_calls"][0]["function"]
            function["arguments"] = encode(function["arguments"])
            texts.append(self.samples(record)[1][0][2])
        self.assertEqual(texts, [self.expect["records"]["t1_dict"]["text"]] * 3)

    def test_what_is_no_tool_call_drops_the_record_with_its_name(self):
        _, samples, counts = self.samples(self.records["t4_string_not_json"])
        self.assertEqual((samples, counts.examples), ([], {"tool call arguments are not JSON": ["t4_string_not_json"]}))

        def broken(change):
            record = json.loads(json.dumps(self.records["t1_dict"]))
            change(record)
            return next(iter(self.samples(record)[2].dropped))

        def calls(value):
            return lambda r: r["messages"][1].update(tool_calls=value)

        self.assertEqual(broken(calls("f(x)")), "tool_calls is no list")
        self.assertEqual(broken(calls(["f(x)"])), "tool call is no object")
        self.assertEqual(broken(calls([{"function": {"arguments": {}}}])), "tool call without a name")
        self.assertEqual(broken(calls([{"function": {"name": "f", "arguments": '"text"'}}])), "tool call arguments are not JSON")
        self.assertEqual(broken(lambda r: r.update(tools="[{")), "tools is no JSON")
        self.assertEqual(broken(lambda r: r.update(tools='{"type": "function"}')), "tools is no list")

    def test_null_content_never_becomes_the_word_none(self):
        naive = self.template.replace("{%- if m.content -%}{{- m.content -}}{%- endif -%}", "{{- m.content -}}")
        self.assertNotEqual(naive, self.template)
        failing = self.template.replace("{%- if m.content -%}{{- m.content -}}{%- endif -%}", "{{- m.content.strip() -}}")
        for template in (naive, failing):
            for name in ("t2_string", "t3_no_content_key"):
                _, [(_, _, text, _)], _ = self.samples(self.records[name], template)
                self.assertEqual(text, self.expect["records"][name]["text"])
        # A word of the text itself stays.
        record = {"messages": [{"role": "user", "content": "None"}, {"role": "assistant", "content": "None of it"}]}
        _, [(_, _, text, _)], _ = self.samples(record, naive)
        self.assertEqual(text.count("None"), 2)


class Case20(FolderTest):
    case = os.path.join(CASES, "20-special-in-content")

    def check(self, template):
        model = ChatModel(write_model(self.path("model"), template))
        expect = read_json(self.case, "expect.json")["records"]
        for _, record in read_records(os.path.join(self.case, "chat.jsonl")):
            with self.subTest(record=record["id"]):
                counts = Counts()
                mask_id = model.tokenizer.token_to_id("<|MASK|>")
                [(ids, mask, text, _)] = make_samples(model, record, counts, "x", 1000, mask_id)
                self.assertEqual(text, expect[record["id"]]["text"])
                self.assertEqual(supervised_text(model, ids, mask), expect[record["id"]]["supervised"])
                # marks inside the text are parsed as transformers parses them
                self.assertEqual(ids, model.tokenizer.encode(text, add_special_tokens=False).ids)
                self.assertEqual(counts.mask_token, 2 if record["id"].startswith("s5") else 0)

    def test_forged_marks_are_never_supervised_with_generation_tags(self):
        with open(os.path.join(self.case, "template.jinja"), encoding="utf-8") as f:
            self.check(f.read())

    def test_forged_marks_are_never_supervised_without_generation_tags(self):
        with open(os.path.join(self.case, "template.jinja"), encoding="utf-8") as f:
            self.check(f.read().replace("{%- generation -%}", "").replace("{%- endgeneration -%}", ""))


class Case22(unittest.TestCase):
    case = os.path.join(CASES, "22-double-bos")

    def test_template_and_tokenizer_add_one_begin_mark_together(self):
        model, expect = ChatModel(os.path.join(self.case, "tok")), read_json(self.case, "expect.json")
        [(_, record)] = read_records(os.path.join(self.case, "chat.jsonl"))
        [(ids, mask, text, _)] = make_samples(model, record, Counts(), "x", 100)
        self.assertEqual(text, expect["text"])
        self.assertEqual(ids, expect["input_ids"])
        self.assertEqual(mask, expect["loss_mask"])

    def test_prompt_without_generation_prompt_gets_nothing_added(self):
        model = ChatModel(os.path.join(self.case, "tok"))
        self.assertEqual(model.prompt_ids([{"role": "user", "content": "hi"}]), [1, 3, 6, 4, 2])


if __name__ == "__main__":
    unittest.main()

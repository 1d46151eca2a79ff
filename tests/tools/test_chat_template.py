"""Templates: earlier turns that change, missing generation tags and prompts, marks outside the tags, filters."""

import datetime
import unittest

from tests.tools.fixture import CHATML, FolderTest, supervised_text, write_model
from tools.chat_template import ChatModel, Drop

CHAT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "<think>x</think>b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "<think>y</think>d"},
]
# Drops the reasoning of every reply but the last turn's.
FORGETFUL = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}"
    "{% set c = m.content if loop.last else m.content.split('</think>')[-1] %}"
    "{{ c ~ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Templates(FolderTest):
    def model(self, template, **keys):
        return ChatModel(write_model(self.path("model"), template, **keys), date=datetime.datetime(2024, 5, 6))

    def supervised(self, model, messages):
        return [[text[b:e] for b, e in spans] for text, spans in model.samples(messages)]

    def test_stable_template_gives_one_sample_with_all_replies(self):
        self.assertEqual(self.supervised(self.model(CHATML), CHAT), [["<think>x</think>b<|im_end|>", "<think>y</think>d<|im_end|>"]])

    def test_template_that_changes_earlier_turns_gives_one_sample_a_reply(self):
        for tags in (False, True):
            template = FORGETFUL
            if tags:
                template = template.replace(
                    "{{ c ~ '<|im_end|>\\n' }}",
                    "{% if m.role == 'assistant' %}{% generation %}{{ c ~ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
                    "{% else %}{{ c ~ '<|im_end|>\\n' }}{% endif %}",
                )
            model = self.model(template)
            with self.subTest(tags=tags):
                self.assertEqual(self.supervised(model, CHAT), [["<think>x</think>b<|im_end|>"], ["<think>y</think>d<|im_end|>"]])
                second = model.samples(CHAT)[1][0]
                self.assertIn("assistant\nb<|im_end|>", second)  # the first reply as it stood when the second was due
                self.assertNotIn("<think>x", second)

    def test_template_without_generation_prompt_does_not_supervise_the_header(self):
        template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '</s>' }}{% endfor %}"
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "assistant: yo"}]
        self.assertEqual(self.supervised(self.model(template, eos="</s>"), messages), [["assistant: yo</s>"]])

    def test_end_mark_after_the_generation_tag_is_supervised(self):
        template = "{% for m in messages %}{{ m.role ~ '\\n' }}{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>\\n' }}{% endfor %}"
        model = self.model(template)
        text, spans = model._marked_spans([{"role": "assistant", "content": "yo"}], None)
        self.assertEqual([text[b:e] for b, e in spans], ["yo<|im_end|>"])

    def test_reply_with_other_text_than_its_prompt_is_dropped(self):
        template = CHATML.replace("'<|im_start|>assistant\\n' }}{% endif %}", "'<|im_start|>assistant\\n<think>' }}{% endif %}")
        with self.assertRaisesRegex(Drop, "after its own prompt"):
            self.model(template).samples(CHAT[:1] + [{"role": "assistant", "content": "b"}])

    def test_generation_tag_inside_a_macro_is_dropped_not_guessed(self):
        template = (
            "{% macro say(m) %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
            "{% for m in messages %}{{ 'x' ~ say(m) }}{% endfor %}"
        )
        with self.assertRaisesRegex(Drop, "macro"):
            self.model(template).samples(CHAT[:2])

    def test_token_over_the_edge_of_a_reply_is_split_as_at_generation(self):
        model = self.model(CHATML, merges=[("Ċ", "Ċ")])
        [(text, spans)] = model.samples([{"role": "user", "content": "u"}, {"role": "assistant", "content": "\n\nA"}])
        ids, mask, split = model.encode(text, spans)
        self.assertTrue(split)
        self.assertEqual(supervised_text(model, ids, mask), ["\n\nA<|im_end|>"])
        self.assertEqual(model.tokenizer.decode(ids, skip_special_tokens=False), text)
        prompt = model.prompt_ids([{"role": "user", "content": "u"}])
        self.assertEqual(ids[: len(prompt)], prompt)

    def test_prompt_is_a_prefix_of_the_trained_document(self):
        model = self.model(CHATML)
        [(text, spans)] = model.samples(CHAT[:2])
        ids, mask, _ = model.encode(text, spans)
        prompt = model.prompt_ids(CHAT[:1])
        self.assertEqual((ids[: len(prompt)], mask.index(1)), (prompt, len(prompt)))

    def test_tojson_keeps_order_and_marks_and_dates_are_fixed_by_the_caller(self):
        template = "{{ {'b': '<é', 'a': 1} | tojson }} {{ strftime_now('%Y-%m-%d') }}{{ raise_exception('no') if messages|length > 1 }}"
        model = self.model(template)
        self.assertEqual(model.render([{}])[0], '{"b": "<é", "a": 1} 2024-05-06')
        with self.assertRaisesRegex(Drop, "^no$"):
            model.render([{}, {}])

    def test_template_cannot_reach_python_or_change_its_input(self):
        for template in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"):
            with self.assertRaises(Drop):
                self.model(template).render([{"role": "user", "content": "x"}])


if __name__ == "__main__":
    unittest.main()

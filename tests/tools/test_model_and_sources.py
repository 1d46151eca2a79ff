"""The imported model and the prompt packages, as bin/setup lays them down."""

import os
import unittest

import numpy as np
from tokenizers import Tokenizer

from tests.tools.fixture import DEPS, SMOL, FolderTest, read_json
from tools.common import read_shard
from tools.import_gguf import to_bf16, undo_rotary_pairs
from tools.prompt_sources import SOURCES

PACKAGES = os.path.join(DEPS, "packages")


class ImportGguf(FolderTest):
    def test_bf16_rounds_to_nearest_even_and_refuses_non_finite_values(self):
        x = np.array([1.0, 1.00390625, 1.01171875, -1.005, 3.3895314e38], np.float32)
        bits = np.frombuffer(to_bf16(x), np.uint16)
        self.assertEqual([hex(b) for b in bits], ["0x3f80", "0x3f80", "0x3f82", "0xbf81", "0x7f7f"])
        with self.assertRaises(ValueError):
            to_bf16(np.array([np.nan], np.float32))

    def test_rotary_pairs_become_halves(self):
        # two heads of 4 rows; GGUF order: pair 0 (first, second), pair 1 (first, second)
        stored = np.array([[0], [2], [1], [3], [10], [12], [11], [13]], np.float32)
        self.assertEqual(undo_rotary_pairs(stored, 2)[:, 0].tolist(), [0, 1, 2, 3, 10, 11, 12, 13])

    def test_damaged_file_is_refused(self):
        path = self.write("x.gguf", "GGUFnope")
        self.assertIn("not a GGUF file", self.refused("import_gguf", path, self.path("out")))

    def test_config_holds_the_numbers_that_were_meant(self):
        config = read_json(SMOL, "config.json")
        expected = {
            "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
            "intermediate_size": 1536, "vocab_size": 49152, "rope_theta": 100000.0, "rms_norm_eps": 1e-05,
            "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
        self.assertEqual({k: config[k] for k in expected}, expected)

    def test_digits_are_split_one_by_one_and_words_are_not(self):
        tokenizer = Tokenizer.from_file(os.path.join(SMOL, "tokenizer.json"))
        self.assertEqual(tokenizer.encode("12345").tokens, list("12345"))
        self.assertEqual(tokenizer.encode(" the").tokens, ["Ġthe"])
        text = "<|im_start|>user\nx = 12; é漢🙂\t\n\n<|im_end|>"
        self.assertEqual(tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False), text)
        self.assertEqual(tokenizer.encode("<|im_start|><|im_end|>").ids, [1, 2])


class PromptSources(FolderTest):
    def test_sources_have_the_known_sizes(self):
        sizes = {name: len(source(PACKAGES)) for name, source in SOURCES.items()}
        expected = {"codeio": 3241, "perlfaq": 306, "humaneval": 164, "gsm8k": 100, "mtbench": 80}
        self.assertEqual({k: sizes[k] for k in expected}, expected)

    def test_pod_codes_are_gone(self):
        self.assertFalse([t for _, t in SOURCES["perlfaq"](PACKAGES) if any(c in t for c in ("C<", "L<", "I<", "E<", "F<"))])

    def test_held_out_prompts_stay_as_shipped(self):
        name, text = SOURCES["humaneval"](PACKAGES)[0]
        self.assertEqual(name, "HumanEval/0")
        self.assertTrue(text.startswith("from typing import List\n\n\ndef has_close_elements(") and text.endswith('"""\n'))

    def test_prompts_close_to_the_held_out_sets_are_removed_and_counted(self):
        out = self.path("p.safetensors")
        result = self.tool("prompts", "--source", "codeio", "--packages", PACKAGES, "--avoid", "humaneval,gsm8k,mtbench",
                           "--model", SMOL, "--out", out, "--seed", "1", "--report", self.path("r.json"))  # fmt: skip
        self.assertEqual(result.returncode, 0, result.stderr)
        report = read_json(self.path("r.json"))
        self.assertEqual((report["read"], report["overlap"]), (3241, 23))
        self.assertEqual(len(read_shard(out)[2]) - 1, report["prompts"])


if __name__ == "__main__":
    unittest.main()

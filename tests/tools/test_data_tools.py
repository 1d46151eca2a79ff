"""The command lines: shards, cuts, refusals, round trips."""

import json
import os
import unittest

import numpy as np

from tests.tools.fixture import FolderTest, read_json, write_model
from tools.common import read_shard, write_shard, write_tensors


def chat(user, reply, **more):
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": reply}], **more}


class TokenizeChat(FolderTest):
    def setUp(self):
        super().setUp()
        self.model = write_model(self.path("model"))
        self.out = self.path("out.safetensors")

    def make(self, records, *more, size="100"):
        path = self.chats("chats.jsonl", records)
        return self.tool("tokenize_chat", path, "--model", self.model, "--max-tokens", size, "--out", self.out, *more)

    def test_long_documents_are_cut_and_counted(self):
        result = self.make([chat("u", "x" * 500), chat("u", "ok")], "--report", self.path("r.json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        ids, mask, offsets = read_shard(self.out, prompts=False)
        self.assertEqual(np.diff(offsets).max(), 100)
        self.assertEqual(len(offsets), 3)
        self.assertEqual(read_json(self.path("r.json"))["cut"], 1)

    def test_document_whose_reply_lies_beyond_the_cut_is_dropped_by_name(self):
        result = self.make([chat("u" * 200, "x"), chat("u", "ok")])
        self.assertIn("dropped 1: no reply within --max-tokens", result.stderr)

    def test_shards_are_split_at_document_ends(self):
        result = self.make([chat("u", f"answer {i}") for i in range(10)], "--shard-tokens", "100")
        self.assertEqual(result.returncode, 0, result.stderr)
        names = sorted(n for n in os.listdir(self.folder) if n.startswith("out-"))
        self.assertGreater(len(names), 1)
        self.assertEqual(sum(len(read_shard(self.path(n))[2]) - 1 for n in names), 10)

    def test_one_json_array_reads_like_lines_and_a_broken_one_needs_a_flag(self):
        whole = json.dumps([chat("u", "one"), chat("u", "two")])
        path = self.write("array.json", whole[:-20])
        arguments = (path, "--model", self.model, "--max-tokens", "100", "--out", self.out)
        self.assertIn("record 2", self.refused("tokenize_chat", *arguments))
        self.assertEqual(self.tool("tokenize_chat", *arguments, "--allow-truncated").returncode, 0)
        self.assertEqual(len(read_shard(self.out)[2]), 2)

    def test_wrong_input_is_refused_with_its_place(self):
        good = self.chats("good.jsonl", [chat("u", "a b")])
        base = ("--model", self.model, "--max-tokens", "100", "--out", self.out)
        bad = self.write("bad.jsonl", json.dumps(chat("u", "a")) + "\n{oops\n")
        self.assertIn("bad.jsonl:2", self.refused("tokenize_chat", bad, *base))
        self.assertIn("nothing is left", self.refused("tokenize_chat", self.chats("e.jsonl", [{"messages": []}]), *base))
        self.assertIn("No such file", self.refused("tokenize_chat", self.path("none.jsonl"), *base))
        self.assertIn("tokenizer.json", self.refused("tokenize_chat", good, "--model", self.folder, "--max-tokens", "9", "--out", self.out))
        self.assertIn("at least 2", self.refused("tokenize_chat", good, "--model", self.model, "--max-tokens", "1", "--out", self.out))
        self.assertFalse(os.path.exists(self.out))

    def test_line_separators_inside_strings_do_not_end_a_record(self):
        path = self.write("u.jsonl", json.dumps(chat("a\u2028b\x85c", "reply"), ensure_ascii=False) + "\n")
        self.assertEqual(self.tool("tokenize_chat", path, "--model", self.model, "--max-tokens", "100", "--out", self.out).returncode, 0)

    def test_lone_surrogates_are_dropped_by_name(self):
        result = self.make([chat("\ud800", "reply"), chat("u", "reply")])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no valid Unicode", result.stderr)

    def test_ids_become_the_text_again(self):
        self.make([chat("ask é", "say 漢")])
        result = self.tool("detokenize", self.out, "--model", self.model)
        line = json.loads(result.stdout)
        self.assertEqual(line["text"], "<|im_start|>user\nask é<|im_end|>\n<|im_start|>assistant\nsay 漢<|im_end|>\n")
        self.assertEqual(line["supervised"], ["say 漢<|im_end|>"])


class Prompts(FolderTest):
    def setUp(self):
        super().setUp()
        self.model = write_model(self.path("model"))
        self.out = self.path("p.safetensors")

    def test_own_prompts_are_rendered_with_the_generation_prompt(self):
        path = self.chats("p.jsonl", [{"prompt": "one"}, chat("two", "not used"), {"prompt": "one"}])
        result = self.tool("prompts", "--jsonl", path, "--model", self.model, "--out", self.out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 duplicates", result.stderr)
        text = self.tool("detokenize", self.out, "--model", self.model).stdout
        self.assertEqual(
            [json.loads(line)["text"] for line in text.splitlines()],
            [f"<|im_start|>user\n{t}<|im_end|>\n<|im_start|>assistant\n" for t in ("one", "two")],
        )

    def test_order_depends_on_the_seed_only(self):
        path = self.chats("p.jsonl", [{"prompt": f"prompt {i}"} for i in range(20)])
        orders = []
        for seed in ("1", "1", "2"):
            self.tool("prompts", "--jsonl", path, "--model", self.model, "--out", self.out, "--seed", seed)
            orders.append(read_shard(self.out)[0].tolist())
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], orders[2])

    def test_long_prompts_are_left_out_and_counted(self):
        path = self.chats("p.jsonl", [{"prompt": "x" * 300}, {"prompt": "short"}])
        result = self.tool("prompts", "--jsonl", path, "--model", self.model, "--out", self.out, "--max-prompt-tokens", "100")
        self.assertIn("1 too long", result.stderr)
        self.assertEqual(len(read_shard(self.out, prompts=True)[2]), 2)

    def test_wrong_input_is_refused(self):
        base = ("--model", self.model, "--out", self.out)
        self.assertIn("known: codeio", self.refused("prompts", "--source", "nope", *base))
        self.assertIn("no prompts asked for", self.refused("prompts", *base))
        self.assertIn("p.jsonl:1", self.refused("prompts", "--jsonl", self.chats("p.jsonl", [{"x": 1}]), *base))
        self.assertIn("bin/setup", self.refused("prompts", "--source", "codeio", "--packages", self.folder, *base))


class Shards(FolderTest):
    def test_damaged_shards_are_refused_by_name(self):
        path = self.path("s.safetensors")
        ids, offsets = np.array([1, 2], np.int32), np.array([0, 2], np.int64)
        for tensors, words in (
            ({"input_ids": ids.astype(np.int64), "doc_offsets": offsets}, "int32"),
            ({"input_ids": ids, "doc_offsets": offsets[:1]}, "doc_offsets"),
            ({"input_ids": ids}, "without tensor doc_offsets"),
            ({"input_ids": ids, "doc_offsets": offsets, "loss_mask": np.array([0, 2], np.uint8)}, "0 or 1"),
            ({"input_ids": ids, "doc_offsets": offsets, "extra": ids}, "extra"),
        ):
            write_tensors(path, tensors)
            self.assertIn(words, self.refused("detokenize", path, "--model", write_model(self.path("model"))))
        write_shard(path, [[1, 2, 5000]])
        self.assertIn("5000", self.refused("detokenize", path, "--model", self.path("model")))
        self.write("s.safetensors", "garbage")
        self.assertIn("not a safetensors file", self.refused("detokenize", path, "--model", self.path("model")))


if __name__ == "__main__":
    unittest.main()

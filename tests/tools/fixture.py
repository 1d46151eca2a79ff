"""A byte-level tokenizer without merges (or with given ones), chat folders in temporary directories, running the tools."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from tokenizers.pre_tokenizers import ByteLevel

DATA = os.environ.get("DFLASH_TEST_DATA") or os.path.join(os.path.dirname(__file__), "..", "data")
CASES = os.path.join(DATA, "cases")
DEPS = os.environ.get("DFLASH_DEPS") or os.path.join(os.path.dirname(__file__), "..", "..", ".deps")
SMOL = os.path.join(DEPS, "models", "SmolLM2-135M-Instruct")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<t>", "</t>", "<|MASK|>"]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_model(folder, template=CHATML, merges=(), eos="<|im_end|>"):
    """A model folder with tokenizer and template only."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = SPECIAL + alphabet + ["".join(m) for m in merges]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for i, t in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [list(m) for m in merges]},
    }
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"bos_token": "<s>", "eos_token": eos, "chat_template": template}, f)
    return folder


def read_json(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as f:
        return json.load(f)


class FolderTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def chats(self, name, records):
        return self.write(name, "".join(json.dumps(r) + "\n" for r in records))

    def tool(self, module, *arguments):
        return subprocess.run([sys.executable, "-B", "-m", f"tools.{module}", *arguments], capture_output=True, text=True, check=False)

    def refused(self, module, *arguments):
        """Runs a tool that has to end with exit code 2; returns its message."""
        result = self.tool(module, *arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertTrue(result.stderr.splitlines()[-1].startswith(("error: ", "hint: ")) or "error: " in result.stderr, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stderr


def supervised_text(model, ids, mask):
    """Decoded runs of ones."""
    from tools.detokenize import runs_of

    return [model.tokenizer.decode(ids[b:e], skip_special_tokens=False) for b, e in runs_of(mask)]

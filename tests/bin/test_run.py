"""A training run as its user meets it: the folder, signals, `inspect`, damaged checkpoints, little data."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from tests.bin.fixture import DFLASH, ProgramTest, write_documents

LONG = ("--optim.steps=20000", "--optim.warmup=0", "--checkpoint.every=0")


class Run(ProgramTest):
    def train(self, *more):
        return ("train", self.path("run.toml"), *more)

    def start(self, *more):
        process = subprocess.Popen([DFLASH, *self.train(*more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.wait_for_steps(process)
        return process

    def wait_for_steps(self, process):
        metrics = self.path("run", "metrics.jsonl")
        deadline = time.monotonic() + 60
        while not (os.path.exists(metrics) and os.path.getsize(metrics) > 0):
            self.assertIsNone(process.poll(), "the run ended early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def ends(self, process, code):
        text, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, text)
        return text

    def summary(self):
        with open(self.path("run", "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def test_inspect_shows_the_mailboxes_of_a_running_training(self):
        process = self.start(*LONG)
        out = self.succeeds("inspect", self.path("run"))
        for actor in ("coordinator", "loader", "dispatcher", "target_forward 0", "postprocess 0", "drafter_train 0", "metrics", "inspector"):
            self.assertIn(actor, out)
        with open(self.path("run", "address"), encoding="utf-8") as f:
            self.assertIn("drafter_train 0", self.succeeds("inspect", f.read().strip()))
        self.refused(*self.train("--resume"), names=["another process"])
        process.send_signal(signal.SIGTERM)
        self.assertIn("--resume", self.ends(process, 0))
        self.refused("inspect", self.path("run"), names=[self.path("run")])
        self.assertEqual(self.summary()["status"], "stopped")
        self.assertEqual(self.summary()["this_process"]["refused_messages"], 0)

    def test_inspect_of_nobody_ends_soon(self):
        with socket.socket() as silent:  # listens, never answers
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            begin = time.monotonic()
            self.refused("inspect", f"127.0.0.1:{silent.getsockname()[1]}", names=["no training and no node answers"])
            self.assertLess(time.monotonic() - begin, 15)
        self.refused("inspect", "nonsense", names=["nonsense"])

    def test_a_port_in_use_is_refused_before_training(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(*self.train(f"--net.listen=127.0.0.1:{port}"), names=["net.listen", str(port)])
        self.succeeds(*self.train())  # the folder was left as it was

    def test_a_second_signal_ends_at_once_and_leaves_nothing_half_written(self):
        process = self.start(*LONG)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 1))  # 0: it was done before the second arrived
        checkpoints = self.path("run", "checkpoints")
        for name in os.listdir(checkpoints) if os.path.exists(checkpoints) else []:
            if name.startswith("step-") and not name.endswith(".tmp"):
                self.assertTrue(os.path.exists(os.path.join(checkpoints, name, "checksums")))

    def test_kill_and_resume_give_the_bits_of_an_undisturbed_run(self):
        more = ("--optim.steps=300", "--optim.warmup=0", "--checkpoint.every=20")
        process = self.start(*more)
        while not os.path.exists(self.path("run", "checkpoints", "latest")):
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=60)
        self.succeeds(*self.train(*more, "--resume"))
        self.succeeds(*self.train(*more, f"--run.dir={self.path('whole')}"))
        for name in ("model.safetensors", "trainer_state.safetensors"):
            with open(self.path("run", "checkpoints", "step-300", name), "rb") as a, open(
                self.path("whole", "checkpoints", "step-300", name), "rb"
            ) as b:
                self.assertEqual(a.read(), b.read(), name)

    def test_damaged_checkpoints_are_named_and_never_replaced_by_a_fresh_start(self):
        more = ("--optim.steps=6", "--optim.warmup=0", "--checkpoint.every=2")
        self.succeeds(*self.train(*more))
        checkpoints = self.path("run", "checkpoints")
        last = os.path.join(checkpoints, "step-6")
        with open(os.path.join(last, "trainer_state.safetensors"), "r+b") as f:
            f.seek(-1, os.SEEK_END)
            byte = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([byte[0] ^ 1]))
        result = self.dflash(*self.train(*more, "--resume"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("step-6", result.stderr)
        self.assertTrue(os.path.exists(os.path.join(checkpoints, "step-6", "checksums")))
        for name in os.listdir(checkpoints):
            if name.startswith("step-") and os.path.isdir(os.path.join(checkpoints, name)):
                shutil.rmtree(os.path.join(checkpoints, name))
                os.mkdir(os.path.join(checkpoints, name))
        result = self.dflash(*self.train(*more, "--resume"))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("step-6", result.stderr)
        self.assertIn("step-4", result.stderr)

    def test_little_data_trains_the_stated_number_of_steps(self):
        """10, 3 and 1 rows: the last partial group of an epoch is a step of its own."""
        write_documents(self.path("train.safetensors"), count=10, length=60)
        for documents, more, steps in (
            (10, ("--optim.accumulation=4", "--data.epochs=1"), 3),
            (10, ("--optim.accumulation=4", "--data.epochs=2"), 6),
            (3, ("--optim.accumulation=4", "--data.epochs=1"), 1),
            (3, ("--optim.accumulation=4", "--data.epochs=1", '--layout.drafters=["cpu:0", "cpu:1"]'), 1),
            (1, ("--data.epochs=50",), 50),
            (1, ("--data.epochs=1", "--optim.steps=7"), 7),
        ):
            with self.subTest(documents=documents, more=more):
                write_documents(self.path("train.safetensors"), count=documents, length=60)
                shutil.rmtree(self.path("run"), ignore_errors=True)
                self.succeeds(*self.train("--optim.steps=0", "--optim.warmup=0", *more))
                self.assertEqual(self.summary()["steps"], steps)

    def test_a_budget_below_the_floor_names_the_smallest(self):
        text = self.refused(*self.train("--layout.max_in_flight=1000"), names=["layout.max_in_flight"])
        self.assertIn("smallest", text)


if __name__ == "__main__":
    unittest.main()

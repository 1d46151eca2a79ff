"""Training runs that are ended at random moments and resumed, compared with a run that nothing disturbed."""

import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

from tests.bin.fixture import DFLASH, write_documents, write_prompts


def lines(run):
    """Lines of metrics.jsonl without times: those of steps, then those of evaluations."""
    steps, evaluations = [], []
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            row.pop("time", None)
            (evaluations if row.get("kind") == "eval" else steps).append(row)
    return steps, evaluations


def last_checkpoint(run):
    return os.path.realpath(os.path.join(run, "checkpoints", "latest"))


def content(path):
    with open(path, "rb") as f:
        return f.read()


class KilledRuns:
    """For a test case with run.toml in its folder. Options are given to each start of the program."""

    CONFIG = (
        "--optim.steps=60", "--optim.warmup=0", "--metrics.every=1", "--data.noise=0.05", "--checkpoint.every=4", "--checkpoint.keep_every=20",
        '--layout.drafters=["cpu:0", "cpu:1"]', "--eval.every=9", "--eval.max_new_tokens=8",
    )  # fmt: skip

    def config(self, *more):
        """Options of a run with everything on: noise, saves, evaluations."""
        write_documents(self.path("held_out.safetensors"), count=4, length=22)
        write_prompts(self.path("prompts.safetensors"), count=5)
        return (*self.CONFIG, f'--data.held_out=["{self.path("held_out.safetensors")}"]',
                f'--eval.prompts=["{self.path("prompts.safetensors")}"]', *more)  # fmt: skip

    def command(self, run, options, resume):
        return [DFLASH, "train", self.path("run.toml"), f"--run.dir={run}", *options, *(["--resume"] if resume else [])]

    def undisturbed(self, name, options, timeout=300):
        """The run that the others are compared with, and how long it took."""
        run, began = self.path(name), time.monotonic()
        result = subprocess.run(self.command(run, options, False), capture_output=True, text=True, timeout=timeout, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return run, time.monotonic() - began

    def wait(self, process, moment, run, in_save):
        """Until the moment, or until a save is under way after it; False if the process ended first."""
        until = time.monotonic() + moment
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        deadline = time.monotonic() + 20
        while in_save and process.poll() is None and time.monotonic() < deadline:
            if glob.glob(os.path.join(run, "checkpoints", "step-*.tmp")):
                break
            time.sleep(0.0005)
        return process.poll() is None

    def with_deaths(self, name, options, seed, seconds, deaths, how=signal.SIGKILL, timeout=300):
        """Ends the run up to `deaths` times, at least once, at random moments, half of them while a save is under way; then lets it
        finish. Returns its folder, how often it was ended, and how often a checkpoint was left half written."""
        draw, run, ended, cut = random.Random(seed), self.path(name), 0, 0
        while ended < deaths:
            with open(os.path.join(self.folder, "log"), "a", encoding="utf-8") as log:
                process = subprocess.Popen(self.command(run, options, ended > 0), stdout=log, stderr=log)
            if not self.wait(process, draw.uniform(0.05, 1.0) * seconds, run, draw.random() < 0.5):
                self.assertEqual(process.returncode, 0, self.log())
                if ended > 0:
                    break
                seconds *= 0.7  # the machine is faster than it was
                shutil.rmtree(run)
                continue
            process.send_signal(how)
            process.wait(timeout=timeout)
            if how == signal.SIGTERM:  # a program that is just being loaded knows no order yet
                self.assertIn(process.returncode, (0, -signal.SIGTERM), self.log())
            ended += 1
            cut += len(glob.glob(os.path.join(run, "checkpoints", "step-*.tmp")))
        result = subprocess.run(self.command(run, options, True), capture_output=True, text=True, timeout=timeout, check=False)
        self.assertEqual(result.returncode, 0, f"seed {seed}\n{self.log()}{result.stdout}{result.stderr}")
        return run, ended, cut

    def log(self):
        return content(os.path.join(self.folder, "log")).decode(errors="replace")[-4000:]

    def same(self, run, whole, what):
        """Weights, optimizer state, lines of steps and of evaluations, the best checkpoint."""
        a, b = last_checkpoint(run), last_checkpoint(whole)
        self.assertEqual(os.path.basename(a), os.path.basename(b), what)
        for file in ("trainer_state.safetensors", "model.safetensors", "state.json"):
            self.assertEqual(content(os.path.join(a, file)), content(os.path.join(b, file)), f"{what}: {file}")
        for mine, theirs in zip(lines(run), lines(whole)):
            self.assertEqual(mine, theirs, what)
        best = os.path.join("checkpoints", "best")
        if os.path.exists(os.path.join(whole, best)):
            self.assertEqual(os.readlink(os.path.join(run, best)), os.readlink(os.path.join(whole, best)), what)


class RehearsedRuns:
    """For a test case that is a KilledRuns too."""

    def rehearsed(self, name, whole, options, faults, timeout=300):
        """A run whose actors die as DFLASH_FAULTS says: the same bits. Returns how many deaths and how many of drafters."""
        run = self.path(name)
        result = subprocess.run(self.command(run, options, False), env={**os.environ, "DFLASH_FAULTS": faults},
                                capture_output=True, text=True, timeout=timeout, check=False)  # fmt: skip
        self.assertEqual(result.returncode, 0, f"{faults}\n{result.stdout}{result.stderr}")
        died = re.findall(r"error (\w+)(?: \d+)? died: fault at", result.stderr)
        self.assertGreater(len(died), 0, f"{faults}\n{result.stderr}")
        self.same(run, whole, faults)
        return len(died), died.count("drafter_train")

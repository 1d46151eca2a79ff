"""`dflash node` processes beside runs, for tests: started, found, ended, with a deadline for everything."""

import json
import os
import re
import signal
import subprocess
import threading
import time

from tests.bin.fixture import DFLASH, ProgramTest

DEADLINE = 60  # seconds for anything that a test waits for


class Process:
    """A program whose lines are kept; ended with the test."""

    def __init__(self, command, environment=None, prefix=(), cwd=None):
        self.lines, self.changed, self.arrived = [], threading.Condition(), []
        self.process = subprocess.Popen(
            [*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
            env={**os.environ, **(environment or {})}, cwd=cwd,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.arrived.append(time.monotonic())
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait_line(self, pattern, after=0, timeout=DEADLINE):
        """(match, index of the line, when it came) of the first line that fits; fails when the time is over or the program has ended."""
        deadline = time.monotonic() + timeout
        with self.changed:
            at = after
            while True:
                for i in range(at, len(self.lines)):
                    found = re.search(pattern, self.lines[i])
                    if found:
                        return found, i, self.arrived[i]
                at = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.reader.is_alive()):
                    raise AssertionError(f"no line like {pattern!r}:\n{self.text()}")
                self.changed.wait(min(left, 0.2))

    def has(self, pattern):
        return any(re.search(pattern, line) for line in list(self.lines))

    def text(self):
        return "\n".join(self.lines[-80:])

    def send(self, number):
        self.process.send_signal(number)

    def finish(self, timeout=DEADLINE):
        code = self.process.wait(timeout)
        self.reader.join(timeout)
        return code

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


class NodesTest(ProgramTest):
    """A run of a few seconds, long enough for faults in the middle of it."""

    LONG = ("--optim.steps=400", "--optim.warmup=0", "--data.noise=0.05", "--checkpoint.every=50", "--metrics.every=1", "--optim.ema=0.9")

    def start(self, *command, environment=None, prefix=(), cwd=None):
        process = Process([os.path.abspath(DFLASH), *command], environment, prefix, cwd)
        self.addCleanup(process.end)
        return process

    def node(self, name, *more, listen="127.0.0.1:0", **named):
        """A node and its address."""
        cache = () if "--cache" in more else ("--cache", self.path("cache"))
        node = self.start("node", "--listen", listen, "--name", name, *cache, *more, **named)
        node.address = node.wait_line(r"^node \S+ lends .* at (\S+)$")[0][1]
        return node

    def train(self, run, *more, **named):
        return self.start("train", self.path("run.toml"), f"--run.dir={self.path(run)}", "--net.wait=20", *more, **named)

    @staticmethod
    def nodes(**addresses):
        return "--layout.nodes={" + ", ".join(f'{name} = "{address}"' for name, address in addresses.items()) + "}"

    def done(self, process, code=0, timeout=120):
        self.assertEqual(process.finish(timeout), code, process.text())
        return process

    def steps(self, run):
        with open(self.path(run, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def wait_step(self, run, step, timeout=DEADLINE):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                with open(self.path(run, "metrics.jsonl"), encoding="utf-8") as f:
                    if f.read().count("\n") >= step:
                        return
            except FileNotFoundError:
                pass
            time.sleep(0.01)
        raise AssertionError(f"{run} does not get to step {step}")

    def same(self, run, whole):
        """Weights, optimizer state and lines of steps are the same bits."""
        step = os.path.basename(os.path.realpath(self.path(whole, "checkpoints", "latest")))
        for file in ("model.safetensors", "trainer_state.safetensors"):
            content = []
            for each in (run, whole):
                with open(self.path(each, "checkpoints", step, file), "rb") as f:
                    content.append(f.read())
            self.assertEqual(content[0], content[1], f"{run} and {whole}: {file}")
        self.assertEqual(self.lines(run), self.lines(whole))

    def lines(self, run):
        """Lines of steps without what the clock decides."""
        rows = self.steps(run)
        for row in rows:
            row.pop("time", None)
        return rows

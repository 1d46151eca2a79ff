"""The stages of bin/quickstart: prompts -> answers of the target -> training -> evaluation -> export -> summary.

Each stage leaves runs/quickstart/stages/NAME.json with the hash of what it was made from (its arguments, the configuration that it
reads, the stages before it; not the programs). A stage whose hash is still the same is not done again.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time

from tools.common import UserError, parser, run, write_atomically

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = ".deps/models/SmolLM2-135M-Instruct"
DFLASH = "build/dflash"
PYTHON = ".deps/venv/bin/python"
CONFIG = "config/presets/quickstart.toml"
THREADS = ("--threads", "2")  # fixed: the number of threads is part of what the figures depend on
SETS = ("humaneval", "gsm8k", "mt_bench")
SOURCE_OF = {"humaneval": "humaneval", "gsm8k": "gsm8k", "mt_bench": "mtbench"}


class Size:
    """How much of everything. Fixed numbers, never the clock: each figure but the times is the same in every run."""

    def __init__(self, smoke):
        self.folder = "runs/quickstart-smoke" if smoke else "runs/quickstart"
        self.prompts = 48 if smoke else 1536
        self.sources = "codeio,codeio-stub,perlfaq,general,arithmetic"
        self.group = 24 if smoke else 192  # an even number of groups: two threads end together
        self.new_tokens = 48 if smoke else 128
        self.train = ["--optim.steps=10", "--checkpoint.every=5"] if smoke else []
        self.eval = ["--max-new-tokens", "32", "--first", "4", "--decode", "1", "--check", "2"] if smoke else [
            "--max-new-tokens", "128", "--decode", "4", "--check", "12"]  # fmt: skip
        self.lookup = ["--max-new-tokens", "32", "--first", "1", "--decode", "1"] if smoke else [
            "--max-new-tokens", "128", "--first", "4", "--decode", "2"]  # fmt: skip


class Stopped(Exception):
    pass


class Runner:
    """Runs the commands of a stage; the first Ctrl-C or SIGTERM lets the command end in order."""

    def __init__(self):
        self.child, self.stopped, self.unsent = None, False, None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)

    def _stop(self, number, frame):
        del frame
        self.stopped = True
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)  # it has a session of its own: the terminal does not reach it a second time
        else:
            self.unsent = number  # a command that is just being started gets it below

    def __call__(self, *command):
        if self.stopped:
            raise Stopped
        print("$ " + " ".join(command), flush=True)
        self.child = subprocess.Popen(command, start_new_session=True)
        if self.unsent is not None:
            self.child.send_signal(self.unsent)
        status = self.child.wait()
        if self.stopped:
            raise Stopped
        if status != 0:
            raise UserError(f"the command ended with {status}", " ".join(command), "mend what it says, then start bin/quickstart again: it goes on here")


class Quickstart:
    def __init__(self, size, again_from=None):
        self.size = size
        self.folder = size.folder
        self.stages = os.path.join(self.folder, "stages")
        self.run = Runner()
        self.again_from = again_from
        self.done, self.previous = [], ""
        os.makedirs(self.stages, exist_ok=True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def stage(self, name, commands, outputs, reads=(), keep_partial=False, scratch=()):
        """Runs the commands unless the stage is done. Outputs and scratch are deleted first if they were made from other inputs."""
        marker = os.path.join(self.stages, name + ".json")
        texts = []
        for path in reads:
            with open(path, encoding="utf-8") as f:
                texts.append(f.read())
        inputs = hashlib.sha256(json.dumps([commands, texts, self.previous]).encode()).hexdigest()
        self.previous = inputs
        state = {}
        if os.path.exists(marker):
            with open(marker, encoding="utf-8") as f:
                state = json.load(f)
        if name == self.again_from or self.again_from in self.done:
            state = {}
        self.done.append(name)
        whole = all(os.path.exists(o) for o in outputs)
        if state.get("inputs") == inputs and state.get("done") and whole:
            print(f"== {name}: done before ({state['seconds']:.0f} s)", flush=True)
            return state["seconds"]
        if state.get("inputs") != inputs or not keep_partial:
            for output in (*outputs, *scratch):
                shutil.rmtree(output, ignore_errors=True) if os.path.isdir(output) else os.path.exists(output) and os.remove(output)
            if state.get("inputs") != inputs:
                state = {"inputs": inputs, "seconds": 0.0}
        state["done"] = False
        write_atomically(marker, json.dumps(state))
        print(f"== {name}", flush=True)
        start, before = time.monotonic(), state["seconds"]
        try:
            for command in commands:
                self.run(*command)
            state["done"] = True
        finally:
            state["seconds"] = before + time.monotonic() - start
            write_atomically(marker, json.dumps(state))
        print(f"== {name}: done in {state['seconds']:.0f} s", flush=True)
        return state["seconds"]

    def tool(self, name, *arguments):
        return [PYTHON, "-B", "-m", f"tools.{name}", *arguments]

    def main(self):
        size, seconds = self.size, {}
        prompts = {name: self.path("text", name + ".safetensors") for name in SETS}
        train_prompts, text = self.path("text", "prompts.safetensors"), self.path("text", "train.safetensors")
        commands = [
            self.tool("prompts", "--source", size.sources, "--avoid", ",".join(SOURCE_OF.values()), "--max-prompt-tokens", "320", "--seed", "1",
                      "--limit", str(size.prompts), "--model", MODEL, "--out", train_prompts)
        ] + [self.tool("prompts", "--source", SOURCE_OF[s], "--model", MODEL, "--out", prompts[s]) for s in SETS]  # fmt: skip
        seconds["prompts"] = self.stage("prompts", commands, [train_prompts, *prompts.values()])

        command = [DFLASH, "generate", "--target", MODEL, "--prompts", train_prompts, "--out", text, "--max-new-tokens", str(size.new_tokens), "--slots", "96", "--group", str(size.group)]
        seconds["generate"] = self.stage("generate", [command], [text], keep_partial=True, scratch=[text + ".work"])

        train_folder, drafter = self.path("train"), self.path("drafter")
        command = [DFLASH, "train", CONFIG, f"--run.dir={train_folder}", f"--data.train={text}", "--resume", *size.train]
        seconds["train"] = self.stage("train", [command], [train_folder], reads=[CONFIG], keep_partial=True)

        held_out = [a for s in SETS for a in ("--prompts", f"{s}={prompts[s]}")]
        figures, lookup = self.path("eval.json"), self.path("lookup.json")
        command = [DFLASH, "eval", "--target", MODEL, "--drafter", train_folder, *held_out, *size.eval, *THREADS, "--json", figures]
        seconds["eval"] = self.stage("eval", [command], [figures])
        command = [DFLASH, "eval", "--target", MODEL, "--drafter", "lookup", *held_out, *size.lookup, *THREADS, "--json", lookup]
        seconds["lookup"] = self.stage("lookup", [command], [lookup])

        seconds["export"] = self.stage("export", [[DFLASH, "export", train_folder, "--out", drafter]], [drafter])
        self.summarise(figures, lookup, drafter, seconds)

    def summarise(self, figures, lookup, drafter, seconds):
        with open(figures, encoding="utf-8") as f:
            measured = json.load(f)
        with open(lookup, encoding="utf-8") as f:
            free = json.load(f)
        summary = {
            "tau": measured["tau"],
            "accept_len": measured["accept_len"],
            "lookup_tau": measured["lookup_tau"],
            "lookup_accept_len": measured["lookup_accept_len"],
            "prompts": measured["prompts"],
            "decode_tokens_per_s": measured["decode_tokens_per_s"],
            "decode_speedup": measured["decode_speedup"],
            "decode_speedup_by_set": {s: measured["decode"][s]["speedup"] for s in SETS},
            "lookup_decode_speedup": {s: free["decode"][s]["speedup"] for s in SETS},
            "decode_dtype": measured["decode_dtype"],
            "outputs_identical": measured["outputs_identical"],
            "output_check": measured["output_check"],
            "seconds": {k: round(v, 1) for k, v in seconds.items()},
        }
        write_atomically(self.path("summary.json"), json.dumps(summary, indent=2) + "\n")
        checked = [measured["output_check"][s] for s in SETS]
        total, same, ties = (sum(c[k] for c in checked) for k in ("prompts", "identical", "ties"))
        lines = [
            "",
            f"{'held-out prompts':<18} {'prompts':>7} {'tau':>6} {'accept_len':>10} {'lookup tau':>10} {'speed-up':>8} {'lookup speed-up':>15}",
        ]
        for s in SETS:
            lines.append(
                f"{s:<18} {summary['prompts'][s]:>7} {summary['tau'][s]:>6.2f} {summary['accept_len'][s]:>10.2f} {summary['lookup_tau'][s]:>10.2f} "
                f"{summary['decode_speedup_by_set'][s]:>8.2f} {summary['lookup_decode_speedup'][s]:>15.2f}"
            )
        speed = summary["decode_tokens_per_s"]
        lines += [
            "",
            f"tau: tokens that one pass of the target commits; 1.00 = no gain. Greedy, at most {measured['max_new_tokens']} new tokens.",
            f"Decoding {SETS[0]} in {summary['decode_dtype']}: {speed['plain']:.1f} tokens/s plain, {speed['speculative']:.1f} speculative "
            f"({summary['decode_speedup']:.2f} times).",
            f"Texts of both in {measured['check_dtype']}: {same} of {total} the same, {ties} differ by a tie"
            + (": as it has to be." if summary["outputs_identical"] else "; that is TOO MANY or a real difference."),
            f"Time: {sum(seconds.values()) / 60:.1f} minutes (" + ", ".join(f"{k} {v:.0f} s" for k, v in seconds.items()) + ").",
            f"The drafter, in z-lab's form: {drafter}. All figures: {self.path('summary.json')}.",
        ]
        print("\n".join(lines), flush=True)


def main():
    p = parser("quickstart", __doc__, "bin/quickstart sets up and builds first; see bin/quickstart --help")
    p.add_argument("--smoke", action="store_true", help="the same path with little data")
    p.add_argument("--from", dest="again_from", metavar="STAGE", help="do this stage and those after it again")
    a = p.parse_args()
    stages = ("prompts", "generate", "train", "eval", "lookup", "export")
    if a.again_from and a.again_from not in stages:
        raise UserError(f"there is no stage {a.again_from}", hint="stages: " + ", ".join(stages))
    os.chdir(ROOT)
    try:
        Quickstart(Size(a.smoke), a.again_from).main()
    except Stopped:
        print("stopped; bin/quickstart goes on where it was", flush=True)
        return 130
    return 0


if __name__ == "__main__":
    run(main)

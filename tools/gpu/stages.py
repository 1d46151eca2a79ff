"""Runs stages one after another: each with a time limit of its own within one for all of them, none stopped by another's failure; and writes the report.

Standard library only: it runs on machines where nothing can be installed.
"""

import dataclasses
import json
import os
import signal
import subprocess
import time

NO_DEVICE = "skipped: no device"
TAIL = 40  # lines of a log in the report


@dataclasses.dataclass
class Stage:
    name: str
    command: object  # list of words; or a function(folder) -> (status, reason, figures), which keeps its own times
    limit: float  # seconds
    needs: tuple = ()  # stages that must be "ok"
    gpu: bool = False  # skipped where there is none
    tool: str = ""  # a program that must be there, else skipped
    figures: object = None  # function(log text, folder) -> dict, for the report; its errors fail the stage
    environment: dict = dataclasses.field(default_factory=dict)
    cwd: str = ""


class Runner:
    """Results are kept in FOLDER/results.json after each stage, so that calls one after another make one report."""

    def __init__(self, folder, device, budget, find=None, clock=time.monotonic):
        self.folder, self.device, self.clock = os.path.abspath(folder), device, clock
        self.end = clock() + budget
        self.find = find or find_program
        os.makedirs(os.path.join(self.folder, "logs"), exist_ok=True)
        self.results = read_json(self.path("results.json"), {})

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def run(self, stages):
        """True if none failed."""
        good = True
        for stage in stages:
            result = self.one(stage)
            self.results[stage.name] = result
            write(self.path("results.json"), json.dumps(self.results, indent=1))
            print(f"{stage.name}: {result['status']}" + (f" ({result['reason']})" if result["reason"] else "") + f", {result['seconds']:.1f} s", flush=True)
            good = good and result["status"] in ("ok", "skipped")
        return good

    def one(self, stage):
        lacking = [n for n in stage.needs if self.results.get(n, {}).get("status") != "ok"]
        left = self.end - self.clock()
        if stage.gpu and not self.device:
            return outcome("skipped", NO_DEVICE)
        if lacking:
            return outcome("skipped", "needs " + ", ".join(lacking))
        if stage.tool and not self.find(stage.tool):
            return outcome("skipped", f"{stage.tool} is not installed")
        if left < 2:
            return outcome("not run", "no time left")
        start = self.clock()
        try:
            if callable(stage.command):
                status, reason, figures = stage.command(self.folder)
                log = ""
            else:
                status, reason, log = self.program(stage, min(stage.limit, left))
                figures = stage.figures(log, self.folder) if stage.figures and status == "ok" else {}
        except Exception as e:  # a stage must not stop the others, whatever it does
            status, reason, figures, log = "failed", f"{type(e).__name__}: {e}", {}, ""
        return {**outcome(status, reason), "seconds": round(self.clock() - start, 2), "figures": figures, "tail": log.splitlines()[-TAIL:] if status != "ok" else []}

    def program(self, stage, limit):
        """Runs it in a session of its own, which is ended as a whole at the limit. Output goes to a file: what was said before the end is kept."""
        path = self.path("logs", stage.name + ".log")
        with open(path, "wb") as log:
            log.write(("$ " + " ".join(stage.command) + "\n").encode())
            log.flush()
            child = subprocess.Popen(
                stage.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=stage.cwd or None,
                env={**os.environ, **stage.environment},
            )
            try:
                code = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            except BaseException:
                end(child)
                raise
            if code is None:
                end(child)
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        if code is None:
            return "timed out", f"more than {limit:.0f} s", text
        if code != 0:
            return "failed", f"exit code {code}", text
        if NO_DEVICE in text:
            return "skipped", NO_DEVICE, text
        return "ok", "", text


def outcome(status, reason=""):
    return {"status": status, "reason": reason, "seconds": 0.0, "figures": {}, "tail": []}


def end(child):
    """Its whole session: a build leaves compilers behind otherwise."""
    for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    try:
        os.killpg(child.pid, signal.SIGKILL)  # children that outlived the first
    except ProcessLookupError:
        pass


def find_program(name):
    """Its path: on the PATH, or in the CUDA toolkit."""
    for folder in (*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/cuda/bin"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def read_json(path, otherwise):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (FileNotFoundError, json.JSONDecodeError):
        return otherwise


def write(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def report(results, facts):
    """Markdown: a table of the stages, the figures of each, the ends of the logs of those that did not go well."""
    lines = ["# GPU report", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    counts = {}
    for r in results.values():
        counts[r["status"]] = counts.get(r["status"], 0) + 1
    lines += ["", "Stages: " + (", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "none"), ""]
    lines += ["| stage | status | seconds | why |", "|---|---|---|---|"]
    lines += [f"| {name} | {r['status']} | {r['seconds']:.1f} | {r['reason']} |" for name, r in results.items()]
    for name, r in results.items():
        if r["figures"]:
            lines += ["", f"## {name}", "", "| figure | value |", "|---|---|"]
            lines += [f"| {key} | {shown(value)} |" for key, value in flat(r["figures"])]
        if r["tail"]:
            lines += ["", f"## {name}: end of its log", "", "```", *r["tail"], "```"]
    return "\n".join(lines) + "\n"


def flat(figures, prefix=""):
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}: ")
        else:
            yield prefix + key, value


def shown(value):
    return f"{value:.5g}" if isinstance(value, float) else str(value)

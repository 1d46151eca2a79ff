"""docs/exactness.md from what the exact tests measured.

    DFLASH_EXACTNESS=build/exactness.jsonl build/tests/test_model '[exact]'
    tests/peers/run                                    # writes build/exactness_peers.jsonl
    .deps/venv/bin/python -m tools.exactness build/exactness.jsonl build/exactness_peers.jsonl > docs/exactness.md
"""

import json
import sys

from tools.common import UserError, parser, run

HEAD = """# Exactness

What was compared with the packages that people use, the largest error found, and what the test allows. Errors are max|a - b| / max|b| over each tensor, in fp32, unless the row says otherwise. Made by the tests themselves
(`tools/exactness.py` says how).

Where a bound is looser than 1e-5, the reason: gradients are sums of many products in another order (5e-5); Muon's iteration multiplies rounding (2e-5);
transformers' own fp32 lies up to 3.1e-5 from an fp64 run of the same hybrid models (ours up to 2.5e-5; neither is always the nearer one), so two fp32 results may differ by 3e-5.

"""
STORED = """## Stored reference values
`ctest -L exact`, in every test run: values that scripts beside `tests/data` dumped from the packages.

"""
LIVE = """
## Packages that run live
`tests/peers/run`, by hand: the packages themselves, on problems made on the spot. The stored values above are made again, too.
A trained drafter in z-lab's decoder and in llama.cpp: figures in `docs/performance.md`.

"""
TABLE = """| compared | with | largest error | allowed |
| --- | --- | --- | --- |
"""


def number(x):
    """1.5e-07, or 0 where nothing differs."""
    return f"{x:.1e}" if x else "0"


def rows_of(path):
    """Per (what, against) the largest error of all lines, in order of first appearance."""
    rows = {}
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
    except OSError as problem:
        raise UserError(problem.strerror, path, "run the tests with DFLASH_EXACTNESS naming that file first") from problem
    for line_number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            key, found = (row["what"], row["against"], float(row["tolerance"])), float(row["largest"])
        except (ValueError, KeyError, TypeError) as problem:
            raise UserError("not a line of the exact tests", f"{path}:{line_number}", "remove the file and run the tests again") from problem
        rows[key] = max(rows.get(key, 0.0), found)
    if not rows:
        raise UserError("no comparison", path, "run the tests with DFLASH_EXACTNESS naming that file first")
    return rows


def table(rows):
    lines = (f"| {what} | {against} | {number(largest)} | {number(allowed)} |\n" for (what, against, allowed), largest in rows.items())
    return TABLE + "".join(lines)


def main():
    args = parser("exactness", *__doc__.split("\n\n", 1))
    args.add_argument("stored", help="JSON lines that the exact tests appended to")
    args.add_argument("live", help="the same of tests/peers/run")
    given = args.parse_args()
    sys.stdout.write(HEAD + STORED + table(rows_of(given.stored)) + LIVE + table(rows_of(given.live)))


if __name__ == "__main__":
    run(main)

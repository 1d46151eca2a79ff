"""docs/exactness.md from what the exact tests measured.

    DFLASH_EXACTNESS=build/exactness.jsonl build/tests/test_model '[exact]'
    .deps/venv/bin/python -m tools.exactness build/exactness.jsonl > docs/exactness.md
"""

import json
import sys

from tools.common import UserError, parser, run

HEAD = """# Exactness

What was compared with the packages that people use, the largest error found, and what the test allows. Errors are max|a - b| / max|b| over each tensor, in fp32. Made by the tests themselves
(`ctest -L exact`; `tools/exactness.py` says how), from reference values that scripts beside `tests/data` dumped from those packages. `tests/peers/run` compares with the packages live; it is slow and run by hand.

Where a bound is looser than 1e-5, the reason: gradients are sums of many products in another order (5e-5); the two forms of the gated delta rule in transformers itself differ by 1.6e-5 to 3.1e-5 on these models (3e-5); Muon's iteration multiplies
rounding (2e-5).

| compared | with | largest error | allowed |
| --- | --- | --- | --- |
"""


def rows_of(path):
    """Per (what, against) the largest error of all lines, in order of first appearance."""
    rows = {}
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
    except OSError as problem:
        raise UserError(problem.strerror, path, "run the tests with DFLASH_EXACTNESS naming that file first") from problem
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            key, found = (row["what"], row["against"], float(row["tolerance"])), float(row["largest"])
        except (ValueError, KeyError, TypeError) as problem:
            raise UserError("not a line of the exact tests", f"{path}:{number}", "remove the file and run the tests again") from problem
        rows[key] = max(rows.get(key, 0.0), found)
    if not rows:
        raise UserError("no comparison", path, "run the tests with DFLASH_EXACTNESS naming that file first")
    return rows


def main():
    args = parser("exactness", *__doc__.split("\n\n", 1))
    args.add_argument("file", help="JSON lines that the exact tests appended to")
    given = args.parse_args()
    rows = rows_of(given.file)
    sys.stdout.write(HEAD)
    for (what, against, tolerance), largest in rows.items():
        sys.stdout.write(f"| {what} | {against} | {largest:.1e} | {tolerance:.0e} |\n")


if __name__ == "__main__":
    run(main)

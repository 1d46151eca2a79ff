"""Lines of the table of exactness from comparisons with packages that run live (docs/exactness.md)."""

import json
import os
from importlib.metadata import version


def packages(*names):
    """"transformers 5.18.0, torch 2.13.0", as installed."""
    return ", ".join(f"{name} {version(name)}" for name in names)


def exactness_row(what, against, largest, tolerance):
    """Appends a line to the file that DFLASH_EXACTNESS names, as tests/model/exactness.hpp does; nothing without it."""
    path = os.environ.get("DFLASH_EXACTNESS")
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps({"what": what, "against": against, "largest": largest, "tolerance": tolerance}) + "\n")

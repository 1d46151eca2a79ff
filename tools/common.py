"""What all data tools share: errors of the user, atomic output, safetensors shards, progress lines.

Every tool ends with exit code 0 (done) or 2 (the input was wrong: one message says what, where and how to mend it).
"""

import argparse
import json
import os
import sys
import time

import numpy as np


class UserError(Exception):
    """The user's mistake: what is wrong, where (file, line or key), and how to mend it."""

    def __init__(self, what, where=None, hint=None):
        super().__init__(what + (f" ({where})" if where else ""))
        self.hint = hint


def parser(module, text, epilog):
    """An argument parser whose help keeps the line breaks of `text` and `epilog`."""
    return argparse.ArgumentParser(
        prog=f"python -m tools.{module}",
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(main):
    """Calls main() and turns its outcome into an exit code."""
    try:
        sys.exit(main() or 0)
    except UserError as e:
        sys.stderr.write(f"error: {e}\n" + (f"hint: {e.hint}\n" if e.hint else ""))
        sys.exit(2)
    except OSError as e:
        sys.stderr.write(f"error: {e.strerror} ({e.filename})\n")
        sys.exit(2)


def say(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Progress:
    """One line every two seconds at most."""

    def __init__(self, what, total):
        self.what, self.total, self.last = what, total, time.monotonic()

    def at(self, done):
        now = time.monotonic()
        if now - self.last >= 2:
            self.last = now
            say(f"{self.what}: {done} of {self.total}")


def write_atomically(path, data):
    """Writes bytes or text under a temporary name, then renames: nobody sees half a file."""
    path = str(path)
    temporary = path + ".tmp"
    with open(temporary, "wb" if isinstance(data, bytes) else "w") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


_dtypes = {np.dtype("int32"): "I32", np.dtype("int64"): "I64", np.dtype("uint8"): "U8"}


def write_tensors(path, tensors, metadata=None):
    """Writes {name: array or (dtype, shape, bytes)} as a safetensors file, atomically. dtype is the format's name, e.g. BF16."""
    header, parts, begin = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, value in tensors.items():
        if not isinstance(value, tuple):
            value = (_dtypes[value.dtype], list(value.shape), np.ascontiguousarray(value).tobytes())
        dtype, shape, data = value
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(data)]}
        parts.append(data)
        begin += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts aligned
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = str(path) + ".tmp"
    with open(temporary, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.writelines(parts)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def read_shard(path, prompts=None):
    """Reads and checks a token or prompt shard: (ids int32, mask uint8 or None, offsets int64).

    prompts: True = must have no loss mask, False = must have one, None = either.
    """
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except OSError:
        raise
    except Exception as e:
        raise UserError(f"not a safetensors file: {e}", path) from None
    mask = tensors.get("loss_mask")
    wanted = {"input_ids": np.int32, "doc_offsets": np.int64}
    if prompts is False or (prompts is None and mask is not None):
        wanted["loss_mask"] = np.uint8
    for name, dtype in wanted.items():
        if name not in tensors:
            raise UserError(f"shard without tensor {name}", path, "shards are made by tools.prompts and tools.tokenize_chat")
        if tensors[name].dtype != dtype or tensors[name].ndim != 1:
            raise UserError(f"{name} has to be one-dimensional {np.dtype(dtype).name}", path)
    spare = sorted(set(tensors) - set(wanted))
    if spare:
        raise UserError(f"unexpected tensor {spare[0]}", path)
    ids, offsets = tensors["input_ids"], tensors["doc_offsets"]
    if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
        raise UserError("doc_offsets has to rise from 0 to the number of tokens", path)
    if mask is not None and (len(mask) != len(ids) or (mask > 1).any()):
        raise UserError("loss_mask has to hold one 0 or 1 for each token", path)
    return ids, mask, offsets


def write_shard(path, documents, masks=None, metadata=None):
    """Writes documents (lists of ids) and, for token shards, their masks. Metadata values become text."""
    lengths = np.fromiter((len(d) for d in documents), np.int64, len(documents))
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    flat = lambda parts, dtype: np.concatenate([np.asarray(p, dtype) for p in parts]) if parts else np.zeros(0, dtype)
    tensors = {"input_ids": flat(documents, np.int32), "doc_offsets": offsets}
    if masks is not None:
        tensors["loss_mask"] = flat(masks, np.uint8)
    write_tensors(path, tensors, {k: v if isinstance(v, str) else json.dumps(v) for k, v in (metadata or {}).items()})

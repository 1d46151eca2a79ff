"""Reads the tensors of a model folder as bytes, whatever their type (numpy knows no bf16), with the format's own checks."""

import json
import os

import numpy as np

from tools.common import UserError

WIDTH = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1, "BOOL": 1, "F64": 8}


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}; the bytes are views of a map of the file."""
    try:
        data = np.memmap(path, np.uint8, "r")
    except ValueError:
        raise UserError("the file is empty", path) from None
    length = int.from_bytes(bytes(data[:8]), "little")
    try:
        if not 2 <= length <= min(len(data) - 8, 100_000_000):
            raise ValueError("header length")
        header = json.loads(bytes(data[8 : 8 + length]))
        header.pop("__metadata__", None)
        tensors = {}
        for name, t in header.items():
            begin, end = t["data_offsets"]
            shape = [int(n) for n in t["shape"]]
            if not 0 <= begin <= end <= len(data) - 8 - length or end - begin != WIDTH[t["dtype"]] * int(np.prod(shape, dtype=object)):
                raise ValueError(f"tensor {name}")
            tensors[name] = (t["dtype"], shape, data[8 + length + begin : 8 + length + end])
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserError(f"not a safetensors file: {e}", path) from None
    return tensors


def read_folder(folder):
    """The tensors of model.safetensors, or of the files that an index lists."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_safetensors(os.path.join(folder, "model.safetensors"))
    with open(index, encoding="utf-8") as f:
        places = json.load(f)["weight_map"]
    files = {name: read_safetensors(os.path.join(folder, os.path.basename(name))) for name in set(places.values())}
    try:
        return {name: files[place][name] for name, place in places.items()}
    except KeyError as e:
        raise UserError(f"the index names tensor {e} in a file that does not hold it", index) from None


def to_float32(dtype, shape, data):
    """A floating tensor as a float32 array."""
    raw = np.ascontiguousarray(data)
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if dtype in ("F32", "F16"):
        return raw.view("<f4" if dtype == "F32" else "<f2").astype(np.float32).reshape(shape)
    raise UserError(f"{dtype} is no type of a drafter's weights")

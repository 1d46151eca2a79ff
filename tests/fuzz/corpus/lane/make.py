"""Makes the inputs beside it: the first byte chooses the decoder (tests/fuzz/lane_calls.cpp)."""

import json
import os

ONE = 4607182418800017408  # the bits of 1.0


def write(name, decoder, body, shapes=None, values=()):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".call"), "wb") as f:
        given = b"" if shapes is None else shapes + bytes([0, len(values), *values])
        f.write(bytes([decoder]) + given + json.dumps(body).encode())


def tensors(*kinds):
    """(type, length) of each: types from 128 on are matrices of two columns."""
    return bytes(byte for kind, length in kinds for byte in (kind, length))


INT, BYTE, LONG, FLOAT, STATES = 5, 1, 2, 3, 129
GREETING = {"dflash": "0.1.0", "protocol": 1, "agreement": "01234567", "cpu": "ATen AVX2", "name": "a", "lanes": ["cpu:0", "cpu:1"]}
SUMS = {
    "weight_sum": ONE, "loss": ONE, "terms": [ONE] * 7, "cap_weight": 0, "supervised": 3, "hits": 2, "blocks": 1, "lead_sum": 1, "top4": 2, "top8": 2,
    "cut_blocks": 0, "full_blocks": 1, "hits_at": [0, 1, 1], "supervised_at": [0, 1, 2], "finite": True,
}  # fmt: skip
write("greeting", 0, GREETING)
write("lend", 1, {"borrower": GREETING, "lane": "cpu:0", "purpose": "target"})
write("lent", 2, {"refused": "", "port": 7001, "token": "0123"})
write("capture", 3, {"k": 7}, tensors((INT, 4), (INT, 2)), (4, 5, 6, 7, 0, 4))
BATCH = {"k": 7, "epoch": 0, "row": 1, "real_docs": 1, "has_last": True, "measured": True}
LISTS = ((INT, 4), (INT, 2), (BYTE, 4), (INT, 2), (BYTE, 2), (INT, 2), (LONG, 1))
write("accumulate", 4, BATCH, tensors(*LISTS, (STATES, 4), (STATES, 4)), (4, 5, 6, 7, 0, 4, 0, 1, 1, 0, 1, 0, 1, 0, 1, 2, 9))
write("sums", 5, SUMS)
write("update", 6, {"weight_sum": ONE, "step": 3, "skip": False, "own": True})
write("range", 6, {"begin": 4, "count": 996})
write("report", 7, {"grad_norm": ONE, "lr": ONE, "update_norm": ONE, "skipped": False})
write("state", 8, {"names": ["master.fc", "moment.fc"], "updates": 4}, tensors((FLOAT, 4), (FLOAT, 4)))

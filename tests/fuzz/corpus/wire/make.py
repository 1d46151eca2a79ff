#!/usr/bin/env python3
"""Writes the corpus of tests/fuzz/wire_frame.cpp: *.frame beside this file. Checksums are left 0: the target seals frames itself."""

import struct
from pathlib import Path

HELLO, WELCOME, REFUSAL, REQUEST, ANSWER, CHUNK, HEARTBEAT = 1, 2, 3, 4, 5, 7, 8
BOOL, BYTE, LONG, BF16, FLOAT = 1, 2, 6, 8, 9
MODES = {"header": 0, "hello": 1, "announcement": 2, "small": 3, "stream": 4}


def frame(kind, call=1, payload=b"", index=0, version=1):
    return struct.pack("<IHBBQIIII", 0x72774644, version, kind, 0, call, len(payload), index, 0, 0) + payload


def announcement(method, body, *tensors):
    out = struct.pack("<III", len(tensors), len(method), len(body))
    for dtype, sizes in tensors:
        out += struct.pack(f"<BB{len(sizes)}q", dtype, len(sizes), *sizes)
    return out + method + body


hello = struct.pack("<I", 4000) + b"token"
small = announcement(b"train", b'{"k": 3}', (BF16, [3, 5]), (LONG, []), (FLOAT, [0, 7]))
call = frame(REQUEST, payload=small) + frame(CHUNK, payload=bytes(30)) + frame(CHUNK, payload=bytes(8), index=1)
inputs = {
    "header_hello": (0, frame(HELLO, 0, hello)[:32]),
    "header_chunk": (0, frame(CHUNK, payload=bytes(5))[:32]),
    "header_version": (0, frame(HELLO, 0, version=2)[:32]),
    "hello": (1, hello),
    "announcement": (2, small),
    "announcement_empty": (2, announcement(b"", b"")),
    "announcement_rank8": (2, announcement(b"m", b"", (FLOAT, [1, 2, 3, 1, 1, 1, 1, 2]))),
    "announcement_overflow": (2, announcement(b"", b"", (FLOAT, [0, 1 << 62, 1 << 62]))),
    "small": (3, announcement(b"m", b"{}", (BYTE, [1 << 20]))),
    "stream_call": (4, frame(HELLO, 0, hello) + call),
    "stream_answer": (4, frame(WELCOME, 0) + frame(HEARTBEAT) + frame(ANSWER, payload=announcement(b"", b"{}", (BOOL, [4]))) + frame(CHUNK, payload=b"\0\1\0\1")),
    "stream_passed_over": (4, frame(REQUEST, payload=announcement(b"no", b"", (BYTE, [9]))) + frame(CHUNK, payload=bytes(9)) + call),
    "stream_refusal": (4, frame(REFUSAL, 0, b"no")),
    "stream_refusal_for_chunk": (4, frame(REQUEST, payload=small) + frame(REFUSAL, 0)),
    "stream_two_chunks": (4, frame(REQUEST, payload=announcement(b"", b"", (BYTE, [9]))) + frame(CHUNK, payload=bytes(4)) + frame(CHUNK, payload=bytes(5), index=1)),
    "sent": (5, bytes([0, 3, 1, 0, 130, 5, 195, 2]) + b"methodbodies"),
}
for name, (mode, content) in inputs.items():
    Path(__file__).with_name(name + ".frame").write_bytes(bytes([mode]) + content)

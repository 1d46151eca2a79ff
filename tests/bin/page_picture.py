"""Makes docs/observing-page.png: the page of a run of a tiny target, in headless Chromium.

From the root of the repository, after a build: .deps/venv/bin/python -B -m tests.bin.page_picture
"""

import json
import os
import signal
import struct
import subprocess
import tempfile
import time
import urllib.request
import zlib

import numpy as np

from tests.bin.fixture import DFLASH, RUN, write_documents, write_target

CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
MORE = (
    "--run.dir=runs/my", "--optim.steps=3000", "--data.epochs=4000", "--checkpoint.every=0", "--metrics.every=1",
    "--layout.targets=[cpu:0,cpu:1,cpu:2]", "--layout.drafters=[cpu:0,cpu:1]",
)  # fmt: skip
AT_STEP = 300


def status(address):
    with urllib.request.urlopen(f"http://{address}/status.json", timeout=10) as answer:
        return json.load(answer)


def chunks(png):
    at = 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def pixels_of(png):
    """[height, width, 3] of an 8-bit RGB image that is not interlaced, as Chromium writes them."""
    parts = list(chunks(png))
    width, height, depth, kind = struct.unpack(">IIBB", parts[0][1][:10])
    assert (depth, kind) == (8, 2), "not an 8-bit RGB image"
    raw = zlib.decompress(b"".join(data for name, data in parts if name == b"IDAT"))
    stride, above, rows = 3 * width, bytes(3 * width), []
    for y in range(height):
        line = raw[y * (stride + 1) : (y + 1) * (stride + 1)]
        kind, out = line[0], bytearray(line[1:])
        for i in range(stride):
            left, up, corner = (out[i - 3], above[i], above[i - 3]) if i >= 3 else (0, above[i], 0)
            if kind == 4:
                p = left + up - corner
                near = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
            else:
                near = (0, left, up, (left + up) // 2)[kind]
            out[i] = (out[i] + near) & 255
        above = bytes(out)
        rows.append(above)
    return np.frombuffer(b"".join(rows), np.uint8).reshape(height, width, 3)


def with_palette(png, colours=64):
    """The same picture in its most frequent colours: a quarter of the bytes."""
    pixels = pixels_of(png)
    flat, which, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = flat[np.argsort(-counts)[:colours]]
    nearest = np.square(flat[:, None].astype(np.int32) - palette[None].astype(np.int32)).sum(-1).argmin(-1).astype(np.uint8)
    index = nearest[which.reshape(-1)].reshape(pixels.shape[:2])
    raw = b"".join(b"\0" + row.tobytes() for row in index)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3, 0, 0, 0)
    out = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")):
        out += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return out


def main():
    out = os.path.abspath(os.path.join("docs", "observing-page.png"))
    with tempfile.TemporaryDirectory() as folder:
        write_target(os.path.join(folder, "target"))
        write_documents(os.path.join(folder, "train.safetensors"), count=40, length=60)
        with open(os.path.join(folder, "run.toml"), "w", encoding="utf-8") as f:
            f.write(RUN.format(folder=folder))
        process = subprocess.Popen([os.path.abspath(DFLASH), "train", "run.toml", *MORE], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            path = os.path.join(folder, "runs", "my", "metrics_address")
            while not os.path.exists(path):
                time.sleep(0.1)
            with open(path, encoding="utf-8") as f:
                address = f.read().strip()
            while status(address)["step"] < AT_STEP:
                time.sleep(0.1)
            subprocess.run(
                [*CHROMIUM, f"--user-data-dir={folder}/chromium", "--window-size=1280,1170", "--virtual-time-budget=3000", f"--screenshot={out}", f"http://{address}/"],
                check=True, timeout=120, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    with open(out, "rb") as f:
        small = with_palette(f.read())
    with open(out, "wb") as f:
        f.write(small)
    print(f"{out}: {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()

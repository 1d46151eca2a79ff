"""Makes docs/observing-page.png: the page of a run of a tiny target, in headless Chromium.

From the root of the repository, after a build: .deps/venv/bin/python -B -m tests.bin.page_picture
"""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request

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
                [*CHROMIUM, f"--user-data-dir={folder}/chromium", "--window-size=1280,1150", "--virtual-time-budget=3000", f"--screenshot={out}", f"http://{address}/"],
                check=True, timeout=120, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    print(f"{out}: {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()

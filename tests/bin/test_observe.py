"""What a user sees of a run: page, /metrics, event files, `inspect`, trace, while it trains and after it."""

import http.client
import importlib.util
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from tests.bin.fixture import DFLASH, ProgramTest

LONG = ("--optim.steps=20000", "--optim.warmup=0", "--checkpoint.every=0", "--metrics.every=1")
PERFETTO = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
ACTORS = ("coordinator", "loader", "dispatcher", "target_forward 0", "postprocess 0", "drafter_train 0", "metrics", "inspector")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """Payloads of a TFRecord file, checksums checked: independent of both our writer and the package."""
    with open(path, "rb") as f:
        data = f.read()
    out = []
    while data:
        (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        payload, (tail,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        assert crc == masked(data[:8]) and tail == masked(payload), "checksum"
        out.append(payload)
        data = data[16 + length :]
    return out


class Observed(ProgramTest):
    def start(self, *more):
        command = [DFLASH, "train", self.path("run.toml"), *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.until(lambda: os.path.exists(self.path("run", "metrics.jsonl")) and self.lines(), process)
        return process

    def until(self, true, process):
        deadline = time.monotonic() + 60
        while not true():
            self.assertIsNone(process.poll(), "the run ended early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def stop(self, process):
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, text)
        return text

    def lines(self):
        with open(self.path("run", "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def get(self, path, headers=None):
        with open(self.path("run", "metrics_address"), encoding="utf-8") as f:
            address = f.read().strip()
        self.address = address
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def event_files(self):
        folder = self.path("run", "tensorboard")
        return [os.path.join(folder, f) for f in sorted(os.listdir(folder))]


def screen(data):
    """Lines that a terminal shows after these bytes: carriage return, line feed, erase to the end of the line; colours are left out."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[^\x1b]", data):
        if part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        elif part.startswith("\x1b"):
            if part.endswith("K"):
                lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1].ljust(column)[:column] + part + lines[-1][column + 1 :]
            column += 1
    return lines


class Console(Observed):
    def test_on_a_terminal_log_lines_and_the_progress_line_do_not_mix(self):
        ours, theirs = pty.openpty()
        command = [DFLASH, "train", self.path("run.toml"), "--optim.steps=120", "--checkpoint.every=3", "--metrics.every=1", "--log.level=debug"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm"})
        os.close(theirs)
        data = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            data += part
        os.close(ours)
        self.assertEqual(process.wait(timeout=60), 0, data)
        lines = [line for line in screen(data.decode()) if line]
        messages = [line for line in lines if re.fullmatch(r"\d\d:\d\d:\d\d (debug|info|warning|error) [^\r\x1b]*", line)]
        progress = [line for line in lines if re.fullmatch(r"step \d+/120  loss [^:]*", line)]
        self.assertEqual(sorted(lines), sorted(messages + progress))
        self.assertTrue(lines[-1].startswith("step 120/120"), lines)
        self.assertEqual(len(progress), 1, lines)

    def test_inspect_watch_redraws_in_place(self):
        process = self.start(*LONG)
        ours, theirs = pty.openpty()
        watch = subprocess.Popen([DFLASH, "inspect", self.path("run"), "--watch", "--every", "0.1"], stdout=theirs, env={**os.environ, "TERM": "xterm"})
        self.addCleanup(lambda: watch.poll() is None and watch.kill())
        os.close(theirs)
        data = b""
        while data.count(b"\x1b[H\x1b[J") < 4:
            data += os.read(ours, 65536)
        self.stop(process)
        watch.kill()
        watch.wait(timeout=60)
        os.close(ours)
        looks = data.decode(errors="replace").split("\x1b[H\x1b[J")[1:3]
        for look in looks:
            lines = look.splitlines()
            self.assertIn(self.path("run"), lines[0])
            self.assertRegex(look, r"drafter_train 0 ")
            self.assertLess(len(lines), 24, look)


class Page(Observed):
    def test_page_status_and_metrics_while_it_trains(self):
        process = self.start(*LONG)
        status, page = self.get("/")
        self.assertEqual(status, 200)
        self.assertIn("<svg id=\"pipeline\"", page)
        self.until(lambda: json.loads(self.get("/status.json")[1])["step"] > 3, process)
        view = json.loads(self.get("/status.json")[1])
        self.assertEqual(view["run"], self.path("run"))
        self.assertEqual([a["actor"] for a in view["actors"] if a["actor"] in ACTORS], [a for a in (x["actor"] for x in view["actors"]) if a in ACTORS])
        for actor in ACTORS:
            self.assertIn(actor, [a["actor"] for a in view["actors"]])
        self.assertIn("bottleneck", view)
        self.assertGreater(view["latest"]["loss"], 0)
        self.assertGreater(len(view["curve"]["accept_len"]), 0)
        metrics = self.get("/metrics")[1]
        series = {}
        for line in metrics.splitlines():
            if line.startswith("#"):
                self.assertRegex(line, r"^# (HELP|TYPE) [a-z_0-9]+ ")
                continue
            match = re.fullmatch(r'([a-z_0-9]+)(\{[^}]*\})? (\S+)', line)
            self.assertIsNotNone(match, line)
            series[match[1] + (match[2] or "")] = float(match[3])
        self.assertGreater(series["dflash_steps_total"], 0)
        self.assertIn('caf_actor_mailbox_size{name="drafter_train",index="0"}', series)
        self.assertEqual(series["caf_system_rejected_messages_total"], 0)
        self.assertGreater(series["dflash_loss"], 0)
        self.assertEqual(self.get("/status.json", {"Host": "evil.example"})[0], 403)
        self.stop(process)
        self.assertFalse(os.path.exists(self.path("run", "metrics_address")))
        with self.assertRaises(OSError):
            http.client.HTTPConnection(self.address, timeout=5).request("GET", "/")

    def test_an_address_that_others_reach_is_refused_or_said_loudly(self):
        self.refused("train", self.path("run.toml"), "--metrics.listen=0.0.0.0:0", names=["metrics.listen", "metrics.insecure"])
        text = self.stop(self.start(*LONG, "--metrics.listen=0.0.0.0:0", "--metrics.insecure=true"))
        self.assertIn("INSECURE", text)

    def test_a_port_in_use_is_refused_before_anything_is_loaded(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused("train", self.path("run.toml"), f"--metrics.listen=127.0.0.1:{port}", names=["metrics.listen", str(port)])
        self.assertFalse(os.path.exists(self.path("run", "config.toml")))

    def test_without_an_address_nothing_listens(self):
        self.succeeds("train", self.path("run.toml"), "--metrics.listen=", "--metrics.tensorboard=false")
        self.assertFalse(os.path.exists(self.path("run", "tensorboard")))

    @unittest.skipUnless(shutil.which("chromium"), "SKIPPED: no chromium on this machine; `apt-get install chromium` lets this test see the page")
    def test_the_page_draws_in_a_browser(self):
        process = self.start(*LONG)
        self.until(lambda: json.loads(self.get("/status.json")[1])["step"] > 3, process)
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self.path('chromium')}", "--virtual-time-budget=4000"]
        dom = subprocess.run([*command, "--dump-dom", f"http://{self.address}/"], capture_output=True, text=True, timeout=120, check=True).stdout
        self.stop(process)
        self.assertIn('<span id="connection" class="bad"></span>', dom)
        self.assertIn(self.path("run"), dom)
        for actor in ACTORS:
            self.assertIn(f"<td>{actor}</td>", dom)
        self.assertRegex(dom, r'<polyline points="[0-9]')
        self.assertGreater(dom.count("<rect"), 40)
        self.assertRegex(dom, r'id="slowest">[a-z_]+ (holds|is)|id="slowest">nobody')


class Inspect(Observed):
    def test_inspect_as_json_by_name_and_sorted(self):
        process = self.start(*LONG)
        view = json.loads(self.succeeds("inspect", self.path("run"), "--json"))
        self.assertEqual(view["total_steps"], 20000)
        self.assertIn(":", view["node"])
        by_name = {a["actor"]: a for a in view["actors"]}
        for actor in ACTORS:
            self.assertIn(actor, by_name)
        drafter = by_name["drafter_train 0"]
        self.assertGreater(drafter["limit_bytes"], 0)
        self.assertGreater(drafter["service_p99_ns"], 0)
        self.assertGreaterEqual(drafter["service_p99_ns"], drafter["service_p50_ns"])
        self.assertGreaterEqual(drafter["credits"], 0)
        only = json.loads(self.succeeds("inspect", self.path("run"), "--json", "--actor", "target_forward"))
        self.assertEqual([a["actor"] for a in only["actors"]], ["target_forward 0"])
        rows = json.loads(self.succeeds("inspect", self.path("run"), "--json", "--sort", "service"))["actors"]
        figures = [a["service_p99_ns"] for a in rows]
        self.assertEqual(figures, sorted(figures, reverse=True))
        self.refused("inspect", self.path("run"), "--actor", "nobody", names=["nobody"])
        self.stop(process)

    def test_dump_has_what_a_bug_report_needs(self):
        process = self.start(*LONG)
        text = self.succeeds("inspect", self.path("run"), "--dump")
        self.stop(process)
        for part in ("time spent:", "drafter_train 0:  ", "[optim]", "dflash 0.", "last warnings:", "dispatcher:", "next to hand out", "drafter 0:"):
            self.assertIn(part, text)

    def test_watch_goes_on_until_the_run_ends(self):
        process = self.start(*LONG)
        watch = subprocess.Popen([DFLASH, "inspect", self.path("run"), "--watch", "--every", "0.1", "--json"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: watch.poll() is None and watch.kill())
        looks = [json.loads(watch.stdout.readline()) for _ in range(3)]
        self.assertGreater(looks[2]["uptime_ns"], looks[0]["uptime_ns"])
        self.stop(process)
        watch.communicate(timeout=60)
        self.assertEqual(watch.returncode, 0)

    def test_settings_of_caf_are_passed_through_or_refused(self):
        profile = self.path("profile")
        self.succeeds("train", self.path("run.toml"), "--caf.scheduler.enable-profiling=true", f"--caf.scheduler.profiling-output-file={profile}")
        with open(profile, encoding="utf-8") as f:
            self.assertRegex(f.read(), r"clock +type +id(.|\n)*worker")
        self.refused("train", self.path("run.toml"), f"--run.dir={self.path('other')}", "--caf.no.such=1", names=["no.such"])
        self.refused("train", self.path("run.toml"), f"--run.dir={self.path('third')}", "--caf.scheduler.max-threads=many", names=["max-threads"])


class Files(Observed):
    def test_event_files_have_what_metrics_jsonl_has(self):
        self.succeeds("train", self.path("run.toml"), "--metrics.every=1")
        (path,) = self.event_files()
        payloads = records(path)
        self.assertEqual(len(payloads), 1 + len(self.lines()))
        self.assertIn(b"brain.Event:2", payloads[0])
        self.assertIn(b"train/loss", payloads[1])

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "SKIPPED: no tensorboard; bin/setup installs it (pins/venv.txt)")
    def test_tensorboard_reads_the_event_files(self):
        self.succeeds("train", self.path("run.toml"), "--metrics.every=1", "--optim.steps=12", "--checkpoint.every=6")
        read = (
            "import json, sys\n"
            "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
            "a = EventAccumulator(sys.argv[1]); a.Reload()\n"
            "print(json.dumps({t: [(e.step, e.value) for e in a.Scalars(t)] for t in a.Tags()['scalars']}))\n"
        )
        def scalars():
            out = subprocess.run([sys.executable, "-B", "-c", read, self.path("run", "tensorboard")], capture_output=True, text=True, check=True)
            return json.loads(out.stdout)
        seen = scalars()
        self.assertEqual([step for step, _ in seen["train/loss"]], [line["step"] for line in self.lines()])
        for (_, value), line in zip(seen["train/loss"], self.lines()):
            self.assertAlmostEqual(value, line["loss"], delta=1e-6 * abs(line["loss"]))
        for tag in ("train/accept_len", "acc_at/1", "time/tokens_per_s", "time/waits/drafters/batch", "train/grad_norm"):
            self.assertEqual(len(seen[tag]), 12, tag)
        # Back to step 6, and on from there: what older files have behind it is void.
        shutil.rmtree(self.path("run", "checkpoints", "step-12"))
        os.remove(self.path("run", "checkpoints", "latest"))
        self.succeeds("train", self.path("run.toml"), "--metrics.every=1", "--optim.steps=12", "--checkpoint.every=6", "--resume")
        self.assertEqual(len(self.event_files()), 2)
        self.assertEqual([step for step, _ in scalars()["train/loss"]], list(range(1, 13)))

    def test_trace_of_some_steps(self):
        self.succeeds("train", self.path("run.toml"), "--profile.trace=steps 2..3")
        with open(self.path("run", "trace.json"), encoding="utf-8") as f:
            events = json.load(f)["traceEvents"]
        self.assertEqual(sorted(e["id"] for e in events if e["ph"] == "s"), [1, 2])
        self.assertEqual(sorted(e["id"] for e in events if e["ph"] == "f"), [1, 2])
        names = {e["name"] for e in events}
        for name in ("target forward", "attention, layers 0-7", "train batch", "head.product", "update", "waiting for the commit"):
            self.assertIn(name, names)
        if PERFETTO is None:
            print("SKIPPED: no trace_processor_shell on this machine; the trace was checked by our own queries alone")
        else:
            self.opens_in_perfetto(self.path("run", "trace.json"), len([e for e in events if e["ph"] == "X"]))
        for wrong in ("2..1", "0..3", "steps", "a..b"):
            self.refused("train", self.path("run.toml"), f"--run.dir={self.path('other')}", f"--profile.trace={wrong}", names=["profile.trace"])

    def opens_in_perfetto(self, trace, slices):
        query = self.write("slices.sql", "select (select count(*) from slice), (select count(*) from flow) > 0, (select ifnull(sum(value), 0) from stats where severity = 'error');")
        out = subprocess.run([PERFETTO, "-q", query, trace], capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertEqual(out.strip().splitlines()[-1].replace('"', ""), f"{slices},1,0", out)


if __name__ == "__main__":
    unittest.main()

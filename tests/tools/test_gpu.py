"""The stages for machines with a GPU: limits, failures, what is skipped, the report; the bundle's size and what is in it."""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

from tools.common import UserError
from tools.gpu import bundle, model, run
from tools.gpu.stages import NO_DEVICE, Runner, Stage, report


def lives(process):
    """Whether it has not ended; nobody may have fetched its exit code yet."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Folder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def path(self, *parts):
        return os.path.join(self.folder, *parts)


class Stages(Folder):
    def run_all(self, *stages, device=False, budget=60, find=lambda name: None):
        runner = Runner(self.folder, device, budget, find)
        with contextlib.redirect_stdout(io.StringIO()):
            good = runner.run(stages)
        return good, runner.results

    def test_a_stage_that_fails_does_not_stop_the_others(self):
        good, results = self.run_all(
            Stage("one", ["sh", "-c", "echo broken here; exit 3"], 10),
            Stage("two", ["true"], 10),
            Stage("three", ["true"], 10, needs=("one",)),
            Stage("four", ["/nonexistent/program"], 10),
            Stage("five", lambda folder: 1 / 0, 10),
        )
        self.assertFalse(good)
        self.assertEqual([r["status"] for r in results.values()], ["failed", "ok", "skipped", "failed", "failed"])
        self.assertEqual(results["one"]["reason"], "exit code 3")
        self.assertIn("broken here", results["one"]["tail"])
        self.assertEqual(results["three"]["reason"], "needs one")
        self.assertIn("ZeroDivisionError", results["five"]["reason"])

    def test_a_stage_ends_at_its_limit_with_its_children_and_what_it_said_is_kept(self):
        start = time.monotonic()
        good, results = self.run_all(Stage("long", ["sh", "-c", "echo begun; sleep 60 & echo $! > " + self.path("child") + "; wait"], 0.5))
        self.assertLess(time.monotonic() - start, 20)
        self.assertFalse(good)
        self.assertEqual(results["long"]["status"], "timed out")
        self.assertIn("begun", results["long"]["tail"])
        with open(self.path("child"), encoding="utf-8") as f:
            child = f.read().strip()
        deadline = time.monotonic() + 10
        while lives(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(lives(child))

    def test_what_is_left_of_the_whole_time_is_the_limit_too(self):
        now = [0.0]
        runner = Runner(self.folder, False, 10, clock=lambda: now[0])
        with mock.patch.object(runner, "program", side_effect=lambda stage, limit: now.__setitem__(0, now[0] + 9) or ("ok", "", str(limit))) as program:
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertFalse(runner.run([Stage("one", ["true"], 300), Stage("two", ["true"], 300)]))
        self.assertEqual(program.call_args.args[1], 10)
        self.assertEqual(runner.results["two"]["status"], "not run")

    def test_what_is_not_there_is_skipped_with_its_reason(self):
        good, results = self.run_all(Stage("gpu", ["false"], 10, gpu=True), Stage("tool", ["false"], 10, tool="nsys"), Stage("says so", ["echo", NO_DEVICE], 10))
        self.assertTrue(good)
        self.assertEqual([r["status"] for r in results.values()], ["skipped"] * 3)
        self.assertEqual([r["reason"] for r in results.values()], [NO_DEVICE, "nsys is not installed", NO_DEVICE])

    def test_calls_one_after_another_make_one_report_with_figures(self):
        self.run_all(Stage("build", ["true"], 10))
        figures = Stage("bench", ["echo", "slow", '\n{"step_s": 0.25, "stages": {"head": 0.125}}'], 10, needs=("build",), figures=run.bench_figures)
        good, results = self.run_all(figures, Stage("bad", ["sh", "-c", "echo no | tee; false"], 10))
        self.assertFalse(good)
        text = report(results, {"GPU": "none"})
        for part in ("GPU: none", "1 failed, 2 ok", "| build | ok |", "| step_s | 0.25 |", "| stages: head | 0.125 |", "bad: end of its log"):
            self.assertIn(part, text)

    def test_a_benchmark_without_figures_has_failed(self):
        good, results = self.run_all(Stage("bench", ["echo", "nothing"], 10, figures=run.bench_figures))
        self.assertFalse(good)
        self.assertIn("no figures", results["bench"]["reason"])


class Comparison(unittest.TestCase):
    def test_losses_within_the_bound_and_beyond_it(self):
        self.assertEqual(run.compare([4.0, 2.0], [4.0, 2.001], 1e-3)["steps"], 2)
        for other in ([4.0, 2.01], [4.0], [4.0, math.nan], []):
            with self.assertRaises(ValueError):
                run.compare([4.0, 2.0], other, 1e-3)
        with self.assertRaises(ValueError):
            run.compare([], [], 1)

    def test_the_architecture_is_that_of_the_first_gpu(self):
        self.assertEqual(run.architecture({"GPU": "NVIDIA A100-SXM4-80GB, 81920 MiB, 580.1, 8.0, 1410 MHz; NVIDIA H200, 1 MiB, 580.1, 9.0, 1980 MHz"}), "80-real")
        self.assertEqual(run.architecture({"GPU": "none"}), "90-real")


class Programs(Folder):
    """The stages' own runs and the benchmark, on the CPU in the GPU's place."""

    def test_the_runs_that_are_compared_train_and_agree_with_themselves(self):
        dflash = os.environ.get("DFLASH_BIN") or "build/dflash"
        stages = {s.name: s for s in run.train_stages(self.folder, "cpu:0")}
        with mock.patch.dict(model.SIZES, {"135m": model.SIZES["tiny"]}):  # it is not trained here
            self.assertEqual(stages["prepare training"].command(None)[0], "ok")
        for name in ("gpu-bf16", "again"):
            path = stages["train " + name].command[2]
            subprocess.run([dflash, "train", path, "--optim.steps=3"], check=True, capture_output=True, timeout=120)
        result = stages["the same bits twice"].command(None)[2]
        self.assertEqual((result["steps"], result["furthest apart"]), (3, 0))
        self.assertEqual(stages["train again"].figures("", None)["status"], "completed")

    def test_the_benchmark_prints_its_figures_on_the_cpu(self):
        program = os.path.join(os.path.dirname(os.environ.get("DFLASH_BIN") or "build/dflash"), "bench", "bench_device_step")
        if not os.path.exists(program):
            self.skipTest("built without the benchmarks")
        text = subprocess.run([program, "--steps", "1", "--warm", "0", "--peak-flops", "1e12"], check=True, capture_output=True, text=True, timeout=60).stdout
        figures = run.bench_figures(text, None)
        self.assertAlmostEqual(figures["tokens_per_s"], figures["tokens"] / figures["step_s"], delta=1e-6 * figures["tokens_per_s"])
        self.assertAlmostEqual(figures["mfu"], figures["tflops_per_s"], delta=1e-6)
        self.assertGreater(figures["mfu"], 0)
        self.assertIsNone(figures["device_peak_bytes"])
        model.write_model(self.path("model"), "tiny")
        text = subprocess.run([program, "target", "--model", self.path("model"), "--tokens", "128", "--steps", "1"], check=True, capture_output=True, text=True, timeout=60).stdout
        self.assertGreater(run.bench_figures(text, None)["tokens_per_s"], 0)
        for wrong in (["--size", "9000b"], ["target"], ["--anchors", "128"]):
            self.assertEqual(subprocess.run([program, *wrong], check=False, capture_output=True, timeout=60).returncode, 2, wrong)


class Bundle(Folder):
    def test_a_bundle_above_the_limit_is_refused(self):
        with open(self.path("big"), "wb") as f:
            f.truncate(bundle.LIMIT + 1)
        with self.assertRaisesRegex(UserError, "more than 60"):
            bundle.check_size(self.path("big"))
        self.assertEqual(bundle.check_size(self.path("big"), bundle.LIMIT + 1), bundle.LIMIT + 1)

    def test_what_lies_in_it(self):
        if subprocess.run(["git", "-C", bundle.ROOT, "rev-parse", "HEAD"], check=False, capture_output=True).returncode != 0:
            self.skipTest("this tree is in no git repository")
        out = self.path("b.tar.xz")
        size = bundle.make(out, packages=["libcaf-dev", "libcaf-core0.17"], effort=0)
        self.assertEqual(size, os.path.getsize(out))
        self.assertEqual(os.listdir(self.folder), ["b.tar.xz"])
        with tarfile.open(out) as archive:
            names = archive.getnames()
            facts = json.load(archive.extractfile("dflash-gpu/manifest.json"))
            self.assertEqual(archive.getmember("dflash-gpu/run").mode, 0o755)
            self.assertTrue(archive.getmember("dflash-gpu/deps/usr/lib/x86_64-linux-gnu/libcaf_core.so").issym())
        for name in ("source/CMakeLists.txt", "deps/usr/include/caf/all.hpp", "deps/usr/lib/x86_64-linux-gnu/libcaf_core.so.0.17.6"):
            self.assertIn("dflash-gpu/" + name, names)
        self.assertTrue(facts["packages"]["libcaf-dev"].startswith("0.17.6"))
        self.assertEqual(len(facts["commit"]), 40)

    def test_a_package_that_is_not_installed_is_named(self):
        with self.assertRaisesRegex(UserError, "no-such-package"):
            bundle.make(self.path("b.tar.xz"), packages=["no-such-package"])
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_command_names_its_parts_and_refuses_others(self):
        for command, code in ((["--help"], 0), (["nonsense"], 2)):
            result = subprocess.run([sys.executable, "-B", "-m", "tools.gpu.run", *command], check=False, capture_output=True, text=True, cwd=bundle.ROOT)
            self.assertEqual(result.returncode, code)
            self.assertIn("sanitize", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()

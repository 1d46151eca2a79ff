"""Kill and resume, failing disks, evaluation inside training: what the pipeline promises, on a tiny model."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

from tests.bin.fixture import DFLASH, ProgramTest, write_documents
from tests.guarantees.kills import KilledRuns, content, last_checkpoint, lines


class Saves(KilledRuns, ProgramTest):
    def summary(self, run="run"):
        with open(self.path(run, "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def train(self, *more):
        return ("train", self.path("run.toml"), "--optim.warmup=0", *more)

    def test_killed_and_stopped_runs_end_with_the_bits_of_an_undisturbed_one(self):
        options = self.config()
        whole, seconds = self.undisturbed("whole", options)
        steps, evaluations = lines(whole)
        self.assertEqual(len(steps), 60)
        self.assertEqual([e["step"] for e in evaluations], [9, 18, 27, 36, 45, 54, 60])
        for seed in range(3):
            run, ended, cut = self.with_deaths(f"killed-{seed}", options, seed, seconds, 4)
            print(f"seed {seed}: killed {ended} times, {cut} saves cut off")
            self.same(run, whole, f"seed {seed}")
        run, ended, _ = self.with_deaths("stopped", options, 7, seconds, 3, how=signal.SIGTERM)
        self.assertGreater(ended, 0)
        self.same(run, whole, "stopped")

    def test_evaluation_changes_no_bit_of_training_and_measures_what_eval_does(self):
        options = self.config()
        whole, _ = self.undisturbed("whole", options)
        plain, _ = self.undisturbed("plain", [o for o in options if "eval" not in o and "held_out" not in o])
        self.assertEqual(lines(plain), (lines(whole)[0], []))
        name = "trainer_state.safetensors"
        self.assertEqual(content(os.path.join(last_checkpoint(plain), name)), content(os.path.join(last_checkpoint(whole), name)))

        best = max(lines(whole)[1], key=lambda e: (e["tau"], -e["step"]))
        self.assertEqual(os.readlink(self.path("whole", "checkpoints", "best")), f"step-{best['step']}")
        self.assertEqual(self.summary("whole")["best"]["step"], best["step"])
        link = self.path("whole", "checkpoints", "best")
        self.succeeds("eval", "--target", self.path("target"), "--drafter", link, "--prompts", f"own={self.path('prompts.safetensors')}",
                      "--max-new-tokens", "8", "--dtype", "fp32", "--threads", "1", "--json", self.path("eval.json"))  # fmt: skip
        with open(self.path("eval.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["tau"]["own"], best["tau"])
        self.succeeds("export", link, "--out", self.path("drafter"))
        self.assertTrue(os.path.exists(self.path("drafter", "model.safetensors")))

    def test_patience_ends_the_run_at_the_same_step_after_kills_too(self):
        # At this rate nothing gets better: the first evaluation is the best one.
        options = self.config("--optim.lr=1e-12", "--eval.every=5", "--eval.patience=2", "--optim.steps=200")
        whole, seconds = self.undisturbed("whole", options)
        self.assertEqual([e["step"] for e in lines(whole)[1]], [5, 10, 15, 20])
        self.assertEqual(self.summary("whole")["status"], "completed")
        self.assertTrue(self.summary("whole")["stopped_early"])
        self.assertIn("step 5", self.summary("whole")["reason"])
        run, _, _ = self.with_deaths("killed", options, 11, seconds, 3)
        self.same(run, whole, "patience")
        again = self.dflash(*self.train(*options, f"--run.dir={whole}", "--resume"))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("stopped early at step 20", again.stdout)
        self.succeeds(*self.train(*options, f"--run.dir={whole}", "--resume", "--eval.patience=3"))
        self.assertEqual([e["step"] for e in lines(whole)[1]], [5, 10, 15, 20, 25])

    def test_a_missing_last_evaluation_is_made_on_resume(self):
        options = self.config()
        whole, _ = self.undisturbed("whole", options)
        before = lines(whole)
        path = self.path("whole", "evaluations.json")
        with open(path, encoding="utf-8") as f:
            stored = json.load(f)
        stored["evaluations"].pop()
        with open(path, "w", encoding="utf-8") as f:
            json.dump(stored, f)
        with open(self.path("whole", "metrics.jsonl"), encoding="utf-8") as f:
            kept = [line for line in f if not ('"kind"' in line and '"step":60' in line)]
        with open(self.path("whole", "metrics.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(kept)
        self.assertNotEqual(lines(whole), before)
        self.succeeds(*self.train(*options, f"--run.dir={whole}", "--resume"))
        self.assertEqual(lines(whole), before)
        self.assertIn("done already", self.succeeds(*self.train(*options, f"--run.dir={whole}", "--resume")))

    def test_a_full_disk_leaves_training_alone_until_the_last_save(self):
        """Files above a size are refused (RLIMIT_FSIZE), as by a full disk: state and weights are larger, metrics are not."""
        options = ("--optim.steps=40", "--checkpoint.every=10")
        self.succeeds(*self.train(*options, f"--run.dir={self.path('whole')}"))
        self.succeeds(*self.train(*options))
        self.assertEqual(self.summary()["this_process"]["saves"]["failed"], 0)
        shutil.rmtree(self.path("run", "checkpoints", "step-40"))
        for name in ("step-30",):
            self.assertTrue(os.path.exists(self.path("run", "checkpoints", name)))
        before = {n: content(self.path("run", "checkpoints", "step-30", n)) for n in os.listdir(self.path("run", "checkpoints", "step-30"))}

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write() fails with EFBIG instead
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))

        result = subprocess.run([DFLASH, *self.train(*options, "--checkpoint.every=2", "--resume")], capture_output=True, text=True,
                                timeout=120, check=False, preexec_fn=limit)  # fmt: skip
        text = result.stdout + result.stderr
        self.assertEqual(result.returncode, 1, text)
        self.assertIn("checkpoint at step 32 failed, older ones stand", text)
        self.assertIn("the last checkpoint could not be saved", text)
        self.assertEqual(self.summary()["status"], "failed")
        self.assertEqual(self.summary()["steps"], 40)
        self.assertEqual(self.summary()["this_process"]["saves"]["failed"], 5)
        self.assertEqual(len(lines(self.path("run"))[0]), 40)
        for name, bytes_before in before.items():
            self.assertEqual(content(self.path("run", "checkpoints", "step-30", name)), bytes_before, name)
        self.assertEqual([n for n in os.listdir(self.path("run", "checkpoints")) if n.endswith(".tmp")], [])
        self.succeeds(*self.train(*options, "--resume"))
        self.same(self.path("run"), self.path("whole"), "after a full disk")

    def start(self, *more):
        process = subprocess.Popen([DFLASH, *self.train(*more)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def wait_for(self, process, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertIsNone(process.poll(), "the run ended early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)

    def test_a_run_folder_that_vanishes_is_loud_and_training_goes_on(self):
        process = self.start("--optim.steps=3000", "--checkpoint.every=100")
        latest = self.path("run", "checkpoints", "latest")
        self.wait_for(process, lambda: os.path.exists(latest))
        shutil.move(self.path("run"), self.path("elsewhere"))  # at once; removing it would race with the writer
        text, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, text)
        self.assertIn("has vanished", text)
        self.assertEqual(os.path.basename(last_checkpoint(self.path("run"))), "step-3000")
        self.assertEqual(self.summary()["steps"], 3000)

    def test_a_file_in_the_place_of_the_folder_fails_saves_and_harms_none(self):
        process = self.start("--optim.steps=3000", "--checkpoint.every=100")
        latest = self.path("run", "checkpoints", "latest")
        self.wait_for(process, lambda: os.path.exists(latest))
        os.rename(self.path("run", "checkpoints"), self.path("kept"))
        with open(self.path("run", "checkpoints"), "w", encoding="utf-8"):
            pass
        text, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, text)
        self.assertIn("older ones stand", text)
        self.assertGreater(self.summary()["this_process"]["saves"]["failed"], 1)
        self.assertEqual(self.summary()["steps"], 3000)
        os.remove(self.path("run", "checkpoints"))
        os.rename(self.path("kept"), self.path("run", "checkpoints"))
        self.assertIn("checkpoint", self.succeeds(*self.train("--optim.steps=3000", "--checkpoint.every=100", "--resume")))

    def test_foreign_checkpoints_are_refused_by_name_and_the_own_newest_is_used(self):
        options = ("--optim.steps=20", "--checkpoint.every=5")
        self.succeeds(*self.train(*options, f"--run.dir={self.path('whole')}"))
        self.succeeds(*self.train(*options))
        shutil.rmtree(self.path("run", "checkpoints", "step-20"))
        # Of another recipe.
        self.succeeds(*self.train(*options, "--optim.lr=2e-3", f"--run.dir={self.path('other')}"))
        shutil.copytree(self.path("other", "checkpoints", "step-20"), self.path("run", "checkpoints", "step-20"))
        result = self.dflash(*self.train(*options, "--resume"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("step-20 is not used: another run's: optim.lr", result.stderr)
        self.same(self.path("run"), self.path("whole"), "foreign recipe")
        # Of other text.
        write_documents(self.path("other.safetensors"), count=12, length=23)
        more = (f'--data.train=["{self.path("other.safetensors")}"]', f"--run.dir={self.path('text')}")
        self.succeeds(*self.train(*options, *more))
        shutil.rmtree(self.path("run", "checkpoints", "step-20"))
        folder = self.path("run", "checkpoints", "step-20")
        shutil.copytree(self.path("text", "checkpoints", "step-20"), folder)
        shutil.copy(self.path("whole", "checkpoints", "step-20", "config.toml"), folder)
        checksums = content(os.path.join(folder, "checksums")).decode().splitlines()
        own = content(self.path("whole", "checkpoints", "step-20", "checksums")).decode().splitlines()
        fixed = [o if o.endswith("config.toml") else c for c, o in zip(checksums, own)]
        with open(os.path.join(folder, "checksums"), "w", encoding="utf-8") as f:
            f.write("\n".join(fixed) + "\n")
        result = self.dflash(*self.train(*options, "--resume"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("step-20 is not used: another run's: its training documents", result.stderr)
        self.same(self.path("run"), self.path("whole"), "foreign text")

    def test_evaluation_without_data_or_on_training_data_is_refused_by_key(self):
        self.refused(*self.train("--eval.every=5"), names=["eval.every", "eval.prompts", "data.held_out"])
        self.refused(*self.train("--eval.patience=5"), names=["eval.patience", "eval.every"])
        train = self.path("train.safetensors")
        self.refused(*self.train(f'--data.held_out=["{train}"]', "--eval.every=5"), names=["data.held_out", train])
        self.refused(*self.train(f'--eval.prompts=["{train}"]', "--eval.every=5"), names=[train])


if __name__ == "__main__":
    unittest.main()

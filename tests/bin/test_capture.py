"""`dflash capture` and training from what it wrote: the bits of the online run, and one clear error for each mismatch."""

import json
import os
import shutil
import signal
import subprocess
import unittest

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.bin.fixture import DFLASH, ProgramTest, write_documents, write_target
from tools.common import write_shard

EPOCHS = ("--optim.steps=0", "--data.epochs=3", "--optim.warmup=0", "--checkpoint.export_dtype=fp32", "--data.noise=0.01")


class Capture(ProgramTest):
    def capture(self, *more, out="states"):
        return self.succeeds("capture", self.path("run.toml"), "--out", self.path(out), *more)

    def train(self, run, *more):
        self.succeeds("train", self.path("run.toml"), f"--run.dir={self.path(run)}", *EPOCHS, *more)
        latest = self.path(run, "checkpoints", "latest")
        with open(os.path.join(latest, "trainer_state.safetensors"), "rb") as f:
            return f.read()

    def offline(self, out="states"):
        return f"--data.hidden_states={self.path(out)}"

    def refused_training(self, *more, names, out="states"):
        run = self.path("refused")
        text = self.refused("train", self.path("run.toml"), f"--run.dir={run}", self.offline(out), *more, names=names)
        self.assertFalse(os.path.exists(os.path.join(run, "checkpoints")))
        shutil.rmtree(run, ignore_errors=True)
        return text

    def test_both_forms_give_the_weights_of_the_online_run_for_several_epochs(self):
        two = '--layout.drafters=["cpu:0", "cpu:1"]'
        for loss in ((), ("--loss.terms={ ce = 0.5, kl = 0.5 }",)):
            shutil.rmtree(self.path("states"), ignore_errors=True)
            shutil.rmtree(self.path("samples"), ignore_errors=True)
            self.capture(*loss)
            self.capture("--form", "speculators", *loss, out="samples")
            for drafters in ((), (two,)):
                name = f"{len(loss)}{len(drafters)}"
                online = self.train("online" + name, *loss, *drafters)
                self.assertEqual(online, self.train("rows" + name, self.offline(), *loss, *drafters))
                self.assertEqual(online, self.train("samples" + name, self.offline("samples"), *loss, *drafters))

    def test_offline_needs_no_targets_and_says_so(self):
        self.capture()
        text = self.succeeds("train", self.path("run.toml"), self.offline(), "--optim.steps=2", '--layout.targets=["cuda:7"]')
        self.assertIn("no targets", text)
        with open(self.path("run", "summary.json"), encoding="utf-8") as f:
            here = json.load(f)["this_process"]
        self.assertEqual(here["captured_batches"], 0)
        self.assertGreater(here["kept_batches"], 0)
        self.assertEqual(here["refused_messages"], 0)

    def test_a_stopped_offline_run_goes_on_with_the_same_bits(self):
        self.capture()
        whole = self.train("whole", self.offline())
        parted = ("--checkpoint.every=2", self.offline())
        self.train("again", *parted)
        checkpoints = self.path("again", "checkpoints")
        newest = os.path.basename(os.path.realpath(os.path.join(checkpoints, "latest")))
        shutil.rmtree(os.path.join(checkpoints, newest))
        self.assertEqual(whole, self.train("again", "--resume", *parted))

    def test_capture_is_restartable_and_finished_ones_are_left_alone(self):
        self.capture(out="whole")
        with open(self.path("whole", "hidden_states.bin"), "rb") as f:
            whole = f.read()
        self.assertEqual(sorted(os.listdir(self.path("whole"))), ["capture.json", "hidden_states.bin"])
        self.assertIn("were there already", self.capture(out="whole"))
        # as a crash leaves it: an entry whose record was never written
        part = self.path("states", "hidden_states.bin.part")
        shutil.copytree(self.path("whole"), self.path("states"))
        os.rename(self.path("states", "hidden_states.bin"), part)
        self.change_manifest("states", complete=False)
        with open(part, "rb+") as f:
            f.seek(8192 + 100)
            f.write(bytes(64))
        self.refused_training(names=["not complete"])
        result = self.dflash("capture", self.path("run.toml"), "--out", self.path("states"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("row 0 is damaged: made again", result.stderr)
        self.assertIn("were there already", result.stdout)
        with open(self.path("states", "hidden_states.bin"), "rb") as f:
            self.assertEqual(f.read(), whole)

    def test_samples_are_restartable(self):
        self.capture("--form", "speculators", out="whole")
        shutil.copytree(self.path("whole"), self.path("states"))
        for name in ("capture.json", "hidden_states/hs_3.safetensors"):
            os.remove(self.path("states", name))
        self.refused("capture", self.path("run.toml"), "--out", self.path("states"), names=["not empty"])
        shutil.copy(self.path("whole", "capture.json"), self.path("states"))
        self.change_manifest("states", complete=False)
        with open(self.path("states", "hidden_states", "hs_5.safetensors"), "r+b") as f:
            f.truncate(100)
        self.assertIn("were there already", self.capture("--form", "speculators"))
        for i in range(12):
            name = f"hidden_states/hs_{i}.safetensors"
            with open(self.path("whole", name), "rb") as a, open(self.path("states", name), "rb") as b:
                self.assertEqual(a.read(), b.read(), name)

    def test_a_signal_stops_in_order(self):
        write_documents(self.path("train.safetensors"), count=6000)
        command = [DFLASH, "capture", self.path("run.toml"), "--out", self.path("states"), "--data.row_tokens=32"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        part = self.path("states", "hidden_states.bin.part")
        while process.poll() is None and not (os.path.exists(part) and os.path.getsize(part) > 300_000):
            pass
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, text)
        self.assertIn("the same command goes on", text)
        self.assertIn("were there already", self.capture("--data.row_tokens=32"))

    def change_manifest(self, out, **changes):
        path = self.path(out, "capture.json")
        with open(path, encoding="utf-8") as f:
            manifest = json.load(f)
        manifest.update(changes)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(manifest, f)

    def test_mismatches_are_refused_before_work(self):
        self.capture()
        self.capture("--form", "speculators", out="samples")
        self.refused_training(names=["data.hidden_states", "nowhere"], out="nowhere")
        os.makedirs(self.path("empty"))
        self.refused_training(names=["capture.json", "empty"], out="empty")
        self.refused_training("--data.keep_hidden_states=1 GB", names=["data.keep_hidden_states"])
        for out in ("states", "samples"):
            with self.subTest(out):
                self.refused_training("--draft.taps=[0, 3]", names=["taps are 0 2", "0 3"], out=out)
                self.refused_training("--target.dtype=bf16", names=["type is fp32", "bf16"], out=out)
        self.refused_training("--loss.terms={ kl = 1.0 }", names=["last hidden state"])
        self.refused_training("--data.row_tokens=128", names=["64", "128"])
        write_target(self.path("target"), {"rope_theta": 5000.0})
        self.refused_training(names=["another target"])
        self.refused_training(names=["another target"], out="samples")
        write_target(self.path("target"))
        write_documents(self.path("train.safetensors"), count=13)
        self.refused_training(names=["other documents"])

    def test_damage_is_refused_before_work(self):
        self.capture()
        path = self.path("states", "hidden_states.bin")
        with open(path, "rb") as f:
            good = f.read()
        damages = {
            "damaged: 1": lambda b: b[:40000] + bytes([b[40000] ^ 1]) + b[40001:],
            "cut short": lambda b: b[:-100],
            "head": lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:],
            "missing or its entry": lambda b: b[:4100] + bytes([b[4100] ^ 1]) + b[4101:],
        }
        for why, damage in damages.items():
            with self.subTest(why):
                with open(path, "wb") as f:
                    f.write(damage(good))
                name = "damaged" if why.startswith("damaged") else why
                self.refused_training(names=[name, "hidden_states.bin"])
        os.remove(path)
        self.refused_training(names=["hidden_states.bin"])
        self.change_manifest("states", taps="x")
        self.refused_training(names=["capture.json", "taps"])

    def test_damaged_samples_are_refused_before_work(self):
        self.capture("--form", "speculators")
        path = self.path("states", "hidden_states", "hs_4.safetensors")
        tensors = load_file(path)
        ids, states = tensors["token_ids"], tensors["hidden_states"]
        other = np.array(ids)
        other[2] ^= 1
        for changed, name in (
            ({"hidden_states": states, "token_ids": other}, "token 2"),
            ({"hidden_states": states[:, :2], "token_ids": ids}, "shape"),
            ({"hidden_states": states.astype(np.float16), "token_ids": ids}, "F16"),
            ({"hidden_states": states}, "token_ids"),
        ):
            with self.subTest(name):
                save_file({k: np.ascontiguousarray(v) for k, v in changed.items()}, path)
                self.refused_training(names=[path, name])
        os.remove(path)
        self.refused_training(names=["hs_4", "missing"])

    def test_samples_without_a_manifest_are_taken_with_a_warning(self):
        self.capture("--form", "speculators")
        online = self.train("online")
        os.remove(self.path("states", "capture.json"))
        os.rename(self.path("states", "hidden_states"), self.path("bare"))
        text = self.dflash("train", self.path("run.toml"), f"--run.dir={self.path('bare-run')}", *EPOCHS, self.offline("bare"))
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("cannot be checked", text.stderr)
        latest = self.path("bare-run", "checkpoints", "latest", "trainer_state.safetensors")
        with open(latest, "rb") as f:
            self.assertEqual(f.read(), online)

    def test_what_another_kind_of_device_has_begun_is_left_alone(self):
        self.capture()
        path = self.path("states", "capture.json")
        with open(path, encoding="utf-8") as f:
            manifest = json.load(f)
        self.assertEqual(manifest["device"], "cpu")
        self.write("states/capture.json", json.dumps(manifest | {"device": "cuda"}))
        self.refused("capture", self.path("run.toml"), "--out", self.path("states"), names=["made on cuda, wanted is cpu"])
        del manifest["device"]  # as older programs wrote it
        self.write("states/capture.json", json.dumps(manifest))
        self.assertIn("were there already", self.capture())

    def test_wrong_use_of_capture(self):
        self.capture()
        command = ("capture", self.path("run.toml"), "--out", self.path("states"))
        self.refused(*command, "--form", "other", names=["form"])
        self.refused(*command, "--form", "speculators", names=["form is rows"])
        self.refused(*command, "--draft.taps=[1]", names=["taps", "choose another --out"])
        self.refused(*command, "--layout.target_threads=2", names=["threads"])
        # A GPU that no host has, with or without CUDA in the program.
        self.refused(*command, '--layout.targets=["cuda:63"]', names=["layout.targets", "lane cuda:63 needs a GPU", "hint"])
        os.makedirs(self.path("mine"))
        self.write("mine/notes.txt", "keep")
        self.refused("capture", self.path("run.toml"), "--out", self.path("mine"), names=["not empty", "mine"])
        self.refused("capture", self.path("run.toml"), "--out", "/proc/none", names=["/proc/none"])
        write_shard(self.path("train.safetensors"), [[3, 4, 5]])
        self.refused("capture", self.path("run.toml"), "--out", self.path("new"), names=["loss_mask"])


if __name__ == "__main__":
    unittest.main()

"""Stages of the quickstart: done once, done again when their inputs change, continued after an interruption."""

import os
import signal
import threading
import types
import unittest

from tests.tools.fixture import FolderTest
from tools.common import UserError
from tools.quickstart import SETS, Quickstart, Stopped


class Stages(FolderTest):
    def setUp(self):
        super().setUp()
        handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self.addCleanup(lambda: [signal.signal(n, h) for n, h in handlers.items()])
        self.out = self.path("out")

    def quickstart(self, again_from=None):
        return Quickstart(types.SimpleNamespace(folder=self.folder), again_from)

    def append(self, letter):
        return [["sh", "-c", f"printf {letter} >> {self.out}"]]

    def text(self):
        with open(self.out, encoding="utf-8") as f:
            return f.read()

    def test_a_finished_stage_is_not_done_again(self):
        for _ in range(2):
            self.quickstart().stage("a", self.append("x"), [self.out])
        self.assertEqual(self.text(), "x")

    def test_other_arguments_redo_the_stage_and_those_after_it_from_scratch(self):
        second = self.path("second")
        command = [["sh", "-c", f"printf y >> {second}"]]
        for letter in ("x", "z"):
            q = self.quickstart()
            q.stage("a", self.append(letter), [self.out])
            q.stage("b", command, [second], keep_partial=True)
        self.assertEqual(self.text(), "z")
        self.assertEqual(os.path.getsize(second), 1)

    def test_a_changed_configuration_redoes_its_stage(self):
        for text in ("one", "two", "two"):
            config = self.write("config.toml", text)
            self.quickstart().stage("a", [["sh", "-c", f"cat {config} >> {self.out}"]], [self.out], reads=[config])
        self.assertEqual(self.text(), "two")

    def test_a_lost_output_is_made_again(self):
        for _ in range(2):
            self.quickstart().stage("a", self.append("x"), [self.out])
            os.remove(self.out)
        self.quickstart().stage("a", self.append("x"), [self.out])
        self.assertEqual(self.text(), "x")

    def test_a_failed_stage_goes_on_with_what_it_has_if_it_can(self):
        command = [["sh", "-c", f"printf x >> {self.out}; test $(wc -c < {self.out}) -ge 2"]]
        with self.assertRaisesRegex(UserError, "ended with 1"):
            self.quickstart().stage("a", command, [self.out], keep_partial=True)
        self.quickstart().stage("a", command, [self.out], keep_partial=True)
        self.assertEqual(self.text(), "xx")

    def test_from_does_a_stage_and_those_after_it_again(self):
        second = self.path("second")
        for again in (None, "b"):
            q = self.quickstart(again)
            q.stage("a", self.append("x"), [self.out])
            q.stage("b", [["sh", "-c", f"date +%N > {second}; printf x >> {self.path('count')}"]], [second])
            q.stage("c", [["sh", "-c", f"printf c >> {self.path('count')}"]], [self.path("count")], keep_partial=True)
        self.assertEqual(self.text(), "x")

    def test_the_first_signal_lets_the_command_end_in_order_and_the_stage_stays_open(self):
        script = f"trap 'echo saved > {self.out}; exit 0' TERM; echo ready > {self.path('ready')}; while :; do sleep 0.02; done"
        q = self.quickstart()

        def stop_when_ready():
            while not os.path.exists(self.path("ready")):
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=stop_when_ready).start()
        with self.assertRaises(Stopped):
            q.stage("a", [["bash", "-c", script]], [self.out])
        self.assertEqual(self.text(), "saved\n")
        self.quickstart().stage("a", [["bash", "-c", script.replace("while", f"printf done > {self.out}; exit 0; while")]], [self.out])
        self.assertEqual(self.text(), "done")

    def test_summary_has_the_promised_keys(self):
        import json

        per_set = lambda value: {s: value for s in SETS}
        decode = {"speedup": 1.2}
        check = {"prompts": 3, "identical": 3, "ties": 0, "different": 0}
        figures = {
            "tau": per_set(1.5), "accept_len": per_set(2.0), "lookup_tau": per_set(1.1), "lookup_accept_len": per_set(1.2),
            "prompts": per_set(6), "decode_tokens_per_s": {"plain": 10.0, "speculative": 12.0}, "decode_speedup": 1.2,
            "decode": per_set(decode), "decode_dtype": "bf16", "outputs_identical": True, "output_check": per_set(check),
            "max_new_tokens": 128, "check_dtype": "fp32",
        }  # fmt: skip
        for name in ("eval.json", "lookup.json"):
            self.write(name, json.dumps(figures))
        self.quickstart().summarise(self.path("eval.json"), self.path("lookup.json"), "drafter", {"train": 12.34})
        with open(self.path("summary.json"), encoding="utf-8") as f:
            summary = json.load(f)
        for key in ("tau", "accept_len", "lookup_tau"):
            self.assertEqual(sorted(summary[key]), sorted(SETS))
        self.assertEqual(summary["decode_tokens_per_s"], {"plain": 10.0, "speculative": 12.0})
        self.assertEqual((summary["decode_speedup"], summary["outputs_identical"], summary["seconds"]), (1.2, True, {"train": 12.3}))


if __name__ == "__main__":
    unittest.main()

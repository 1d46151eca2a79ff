"""Lanes that other processes lend: the same bits as in one process, whatever happens to a node or to the run."""

import json
import os
import signal
import time
import unittest

from tests.bin.fixture import write_target
from tests.distributed.nodes import NodesTest

TWO = '--layout.drafters=["cpu:0", "cpu:1"]'


class EqualBits(NodesTest):
    def test_targets_on_two_nodes(self):
        self.done(self.train("whole"))
        a, b = self.node("a"), self.node("b")
        run = self.done(self.train("run", self.nodes(a=a.address, b=b.address), "--layout.targets=a/cpu:0,cpu:0,b/cpu:0"))
        self.same("run", "whole")
        self.assertTrue(run.has("of other hosts: a/cpu:0 b/cpu:0"))
        a.wait_line("target cpu:0 is free again")
        # The node stays for the next run.
        self.done(self.train("again", self.nodes(a=a.address), "--layout.targets=a/cpu:0"))
        self.same("again", "whole")

    def test_drafters_on_nodes(self):
        options = (TWO, "--optim.accumulation=2", "--optim.ema=0.9", "--checkpoint.every=2")
        self.done(self.train("whole", *options))
        a = self.node("a", "--lanes", "cpu:0,cpu:1")
        for number, drafters in enumerate(("cpu:0,a/cpu:0", "a/cpu:0,cpu:0", "a/cpu:0,a/cpu:1")):
            name = f"run{number}"
            self.done(self.train(name, *options, self.nodes(a=a.address), f"--layout.drafters={drafters}", "--layout.targets=a/cpu:0"))
            self.same(name, "whole")

    def test_one_drafter_on_a_node_and_a_resume_elsewhere(self):
        self.done(self.train("whole", "--optim.steps=8", "--checkpoint.every=4"))
        a = self.node("a")
        away = (self.nodes(a=a.address), "--layout.drafters=a/cpu:0", "--optim.steps=8", "--checkpoint.every=4")
        self.done(self.train("run", *away))
        self.same("run", "whole")
        # From a checkpoint in the middle, once here and once there.
        for name, where in (("here", ("--optim.steps=8", "--checkpoint.every=4")), ("there", away)):
            os.makedirs(self.path(name, "checkpoints"))
            for step in ("step-4",):
                os.rename(self.path("run", "checkpoints", step), self.path(name, "checkpoints", step))
            os.symlink("step-4", self.path(name, "checkpoints", "latest"))
            self.done(self.train(name, "--resume", *where))
            with open(self.path(name, "checkpoints", "step-8", "model.safetensors"), "rb") as f, open(
                self.path("whole", "checkpoints", "step-8", "model.safetensors"), "rb"
            ) as g:
                self.assertEqual(f.read(), g.read())
            os.rename(self.path(name, "checkpoints", "step-4"), self.path("run", "checkpoints", "step-4"))

    def test_a_node_that_joins_by_itself(self):
        self.done(self.train("whole"))
        run = self.train("run", "--layout.targets=late/cpu:0", "--layout.drafters=late/cpu:0")
        door = run.wait_line(r"nodes may join at (\S+)$")[0][1]
        node = self.node("late", "--join", door)
        self.done(run)
        self.same("run", "whole")
        node.wait_line("target cpu:0 is free again")

    def test_the_model_is_sent_to_a_node_that_has_no_copy(self):
        self.done(self.train("whole"))
        os.makedirs(self.path("elsewhere"))
        # Of a path that is relative the node, started in another folder, finds nothing.
        blind = self.node("blind", "--cache", self.path("copies"), cwd=self.path("elsewhere"))
        away = (self.nodes(blind=blind.address), "--layout.targets=blind/cpu:0", "--target.path=target")
        run = self.done(self.train("run", *away, cwd=self.folder))
        self.assertTrue(run.has("the model is sent"))
        self.same("run", "whole")
        copies = os.listdir(self.path("copies"))
        self.assertEqual(len(copies), 1, copies)
        # Once only; a copy that is damaged is replaced.
        run = self.done(self.train("again", *away, cwd=self.folder))
        self.assertFalse(run.has("the model is sent"))
        with open(self.path("copies", copies[0], "model.safetensors"), "r+b") as f:
            f.seek(-1, os.SEEK_END)
            f.write(b"\x40")
        run = self.done(self.train("third", *away, cwd=self.folder))
        self.assertTrue(run.has("the model is sent"))
        self.same("third", "whole")
        self.assertEqual(os.listdir(self.path("copies")), copies)

    def test_a_run_is_seen_with_its_lanes_on_nodes(self):
        a = self.node("a")
        run = self.train("run", *self.LONG, "--optim.steps=20000", self.nodes(a=a.address), "--layout.targets=a/cpu:0")
        self.wait_step("run", 3)
        report = json.loads(self.succeeds("inspect", self.path("run"), "--json"))
        where = {row["actor"]: row.get("where") for row in report["actors"]}
        self.assertEqual(where["target_forward 0"], "a/cpu:0, answers")
        self.assertIsNone(where["drafter_train 0"])
        node = json.loads(self.succeeds("inspect", a.address, "--json"))
        lane = next(row for row in node["actors"] if row["actor"] == "target cpu:0")
        self.assertIn("run of ", lane["where"])
        self.assertIn("lent to", self.succeeds("inspect", a.address, "--dump"))
        run.send(signal.SIGINT)
        self.done(run)


class Faults(NodesTest):
    def lost(self, run, began, what):
        """The loss is logged within 5 seconds."""
        _, _, at = run.wait_line(what)
        print(f"{what}: noticed after {at - began:.2f} s", flush=True)
        self.assertLess(at - began, 5.0, run.text())

    def test_a_targets_node_is_killed_and_comes_back(self):
        self.done(self.train("whole", *self.LONG))
        a, b = self.node("a"), self.node("b")
        run = self.train("run", *self.LONG, self.nodes(a=a.address, b=b.address), "--layout.targets=a/cpu:0,b/cpu:0")
        self.wait_step("run", 20)
        began = time.monotonic()
        for number, node in enumerate((a, b)):  # without targets the run does not end before one is back
            node.send(signal.SIGKILL)
            self.lost(run, began, rf"target_forward {number} died: ./cpu:0")
            node.end()
        self.node("a", listen=a.address)
        run.wait_line("a/cpu:0 answers again")
        self.done(run)
        self.same("run", "whole")

    def test_a_targets_node_is_stopped_and_goes_on(self):
        self.done(self.train("whole", *self.LONG))
        a = self.node("a")
        run = self.train("run", *self.LONG, self.nodes(a=a.address), "--layout.targets=a/cpu:0")
        self.wait_step("run", 20)
        a.send(signal.SIGSTOP)
        self.lost(run, time.monotonic(), r"target_forward 0 died: a/cpu:0")
        a.send(signal.SIGCONT)
        a.wait_line("is free again")  # the old lane learns that it is out
        self.done(run)
        self.same("run", "whole")

    def test_a_drafters_node_is_killed_in_the_middle_of_a_step(self):
        options = (*self.LONG, TWO, "--optim.accumulation=4", "--optim.steps=150")
        self.done(self.train("whole", *options))
        a = self.node("a")
        run = self.train("run", *options, self.nodes(a=a.address), "--layout.drafters=cpu:0,a/cpu:0")
        self.wait_step("run", 20)
        a.send(signal.SIGKILL)
        self.lost(run, time.monotonic(), r"drafter_train 1 died: a/cpu:0")
        a.end()
        self.node("a", listen=a.address)
        self.done(run)
        self.same("run", "whole")

    def test_the_only_drafters_node_is_killed(self):
        self.done(self.train("whole", *self.LONG))
        a = self.node("a")
        run = self.train("run", *self.LONG, self.nodes(a=a.address), "--layout.drafters=a/cpu:0")
        self.wait_step("run", 70)
        a.send(signal.SIGKILL)
        self.lost(run, time.monotonic(), r"drafter_train 0 died: a/cpu:0")
        a.end()
        self.node("a", listen=a.address)
        run.wait_line(r"the run goes on from step (50|100|150|200)")
        self.done(run)
        self.same("run", "whole")

    def test_the_run_is_killed_and_resumed(self):
        self.done(self.train("whole", *self.LONG))
        a = self.node("a")
        options = (*self.LONG, self.nodes(a=a.address), "--layout.targets=a/cpu:0", "--layout.drafters=a/cpu:0")
        run = self.train("run", *options)
        self.wait_step("run", 60)
        began = time.monotonic()
        run.send(signal.SIGKILL)
        for what in ("target", "drafter"):
            _, _, at = a.wait_line(f"{what} cpu:0 is free again")
            self.assertLess(at - began, 5.0)
        self.done(self.train("run", *options, "--resume"))
        self.same("run", "whole")

    def test_a_stopped_run_loses_its_lanes(self):
        a = self.node("a")
        run = self.train("run", *self.LONG, "--optim.steps=20000", self.nodes(a=a.address), "--layout.targets=a/cpu:0")
        self.wait_step("run", 5)
        began = time.monotonic()
        run.send(signal.SIGSTOP)
        _, _, at = a.wait_line("target cpu:0 is free again")
        self.assertLess(at - began, 6.0)
        run.send(signal.SIGCONT)
        run.wait_line("a/cpu:0 answers again")
        run.send(signal.SIGINT)
        self.done(run)

    def test_a_node_that_never_comes_back_is_retired(self):
        self.done(self.train("whole", *self.LONG))
        a = self.node("a")
        run = self.train("run", *self.LONG, "--net.patience=1", self.nodes(a=a.address), "--layout.targets=a/cpu:0,cpu:0")
        self.wait_step("run", 20)
        a.send(signal.SIGKILL)
        self.done(run)
        self.same("run", "whole")


class Refusals(NodesTest):
    def test_wrong_layouts_name_key_and_node(self):
        a = self.node("a")
        train = ("train", self.path("run.toml"), "--net.wait=0")
        nodes = self.nodes(a=a.address)
        self.refused(*train, nodes, "--layout.targets=a/cpu:7", names=["layout.targets", "a/cpu:7", "lends no lane cpu:7"])
        self.refused(*train, nodes, "--layout.targets=b/cpu:0", names=["node b", "layout.nodes", "--join"])
        self.refused(*train, nodes, "--layout.targets=a/gpu:0", names=["layout.targets", "a/gpu:0"])
        self.refused(*train, nodes, "--layout.targets=-/cpu:0", names=["layout.targets"])
        self.refused(*train, self.nodes(a="127.0.0.1:1"), "--layout.targets=a/cpu:0", names=["node a", "127.0.0.1:1"])
        self.refused(*train, self.nodes(a="127.0.0.1:0"), "--layout.targets=a/cpu:0", names=["layout.nodes.a", "port 0"])
        self.refused(*train, self.nodes(a="nonsense"), "--layout.targets=a/cpu:0", names=["layout.nodes.a", "nonsense"])
        self.refused(*train, self.nodes(a="198.51.100.1:7"), "--layout.targets=a/cpu:0", names=["layout.nodes.a", "TLS", "insecure"])
        self.refused(*train, "--net.listen=0.0.0.0:0", names=["net.listen", "insecure"])
        self.refused(*train, "--net.timeout=0.5", "--net.heartbeat=0.5", names=["net.timeout"])
        # Nothing was written: the folder can be used.
        self.done(self.train("run", nodes, "--layout.targets=a/cpu:0"))

    def test_wrong_options_of_a_node(self):
        a = self.node("a")
        self.refused("node", "--listen", a.address, names=["--listen", a.address])
        self.refused("node", "--listen", "0.0.0.0:0", names=["--listen", "insecure"])
        self.refused("node", "--listen", "127.0.0.1:0", "--join", "198.51.100.1:7", names=["--join", "insecure"])
        for address in ("nonsense", "127.0.0.1:70000", "[::1", ":7000"):
            self.refused("node", "--listen", address, names=["--listen", address])
        self.refused("node", "--lanes", "gpu:0", names=["gpu:0"])
        self.refused("node", "--lanes", "cpu:0,cpu:0", names=["twice"])
        self.refused("node", "--name", "a/b", names=["--name"])
        self.refused("node", "--tls", self.path("none"), names=["--tls"])

    def test_another_model_at_the_nodes_path_is_named(self):
        write_target(self.path("other"), {"max_position_embeddings": 512})
        a = self.node("a", "--model", self.path("other"))
        self.refused("train", self.path("run.toml"), self.nodes(a=a.address), "--layout.targets=a/cpu:0", names=["--model", "content hash"])


if __name__ == "__main__":
    unittest.main()

"""Hosts as network namespaces: links that are cut, slow, lossy; strangers; certificates. The same bits as in one process."""

import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest

from tests.distributed.nodes import DEADLINE, NodesTest
from tests.distributed.spaces import SpacesTest

CASES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "cases")
INSECURE = "--net.insecure=true"
TWO = '--layout.drafters=["cpu:0", "cpu:1"]'


class Links(SpacesTest):
    def cut(self, device, run, what, node):
        """Cuts the link, waits for both sides to notice, and mends it."""
        began = time.monotonic()
        self.hub.ip("link", "set", device, "down")
        _, _, at = run.wait_line(what)
        self.assertLess(at - began, 5.0, run.text())
        _, _, freed = node.wait_line("is free again")
        self.assertLess(freed - began, 6.0, node.text())
        print(f"cut, {what}: noticed by the run after {at - began:.2f} s, by the node after {freed - began:.2f} s", flush=True)
        self.hub.ip("link", "set", device, "up")

    def test_a_link_to_a_target_is_cut_and_mended(self):
        self.done(self.train("whole", *self.LONG))
        space = self.space()
        _, address, device = self.link(space)
        node = self.far_node("a", address, space)
        self.assertTrue(node.has("INSECURE"))
        run = self.far_train("run", *self.LONG, INSECURE, self.nodes(a=node.address), "--layout.targets=cpu:0,a/cpu:0")
        self.wait_step("run", 20)
        self.cut(device, run, r"target_forward 1 died: a/cpu:0", node)
        self.done(run)
        self.same("run", "whole")

    def test_a_link_to_a_drafter_is_cut_and_mended(self):
        options = (*self.LONG, TWO, "--optim.steps=200")
        self.done(self.train("whole", *options))
        space = self.space()
        _, address, device = self.link(space)
        node = self.far_node("a", address, space)
        run = self.far_train("run", *options, INSECURE, self.nodes(a=node.address), "--layout.drafters=cpu:0,a/cpu:0")
        self.wait_step("run", 20)
        self.cut(device, run, r"drafter_train 1 died: a/cpu:0", node)
        run.wait_line("a/cpu:0 answers again")
        self.done(run)
        self.same("run", "whole")

    def test_a_slow_and_lossy_link(self):
        options = (TWO, "--optim.steps=20", "--optim.warmup=0")
        self.done(self.train("whole", *options))
        space = self.space()
        _, address = self.slow(space, delay=20, loss=0.01, mbit=50)
        node = self.far_node("a", address, space)
        run = self.far_train(
            "run", *options, INSECURE, self.nodes(a=node.address), "--layout.targets=a/cpu:0", "--layout.drafters=cpu:0,a/cpu:0"
        )
        self.done(run)
        self.assertFalse(run.has("died"), run.text())  # slow is not lost
        self.same("run", "whole")

    def test_without_ipv6(self):
        self.done(self.train("whole"))
        space = self.space()
        off = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
        for each in (space, self.hub) if os.path.exists(off) else ():  # else there is none to begin with
            subprocess.run([*each.within, "sh", "-c", f"echo 1 > {off}"], check=True)
        _, address, _ = self.link(space)
        node = self.far_node("a", address, space)
        self.done(self.far_train("run", INSECURE, self.nodes(a=node.address), "--layout.targets=a/cpu:0"))
        self.same("run", "whole")


def certificates(test, ca, **hosts):
    """A new authority and a folder of certificates for each name: CA/of/NAME."""
    test.succeeds("cert", "--ca", test.path(ca))
    for name, host in hosts.items():
        test.succeeds("cert", "--ca", test.path(ca), "--name", name, "--host", host, "--out", test.path(ca, "of", name))


class Certificates(SpacesTest):
    def test_runs_with_certificates_and_nobody_else(self):
        self.done(self.train("whole", TWO))
        space = self.space()
        near, address, _ = self.link(space)
        certificates(self, "ca", train=near, a=address)
        certificates(self, "other", train=near)
        node = self.far_node("a", address, space, "--tls", self.path("ca", "of", "a"))
        self.assertFalse(node.has("INSECURE"))
        away = (TWO, self.nodes(a=node.address), "--layout.targets=a/cpu:0", "--layout.drafters=cpu:0,a/cpu:0")
        for stranger in (INSECURE, f"--net.tls={self.path('other', 'of', 'train')}"):
            run = self.done(self.far_train("stranger", *away, stranger, "--net.wait=0"), code=2)
            self.assertTrue(run.has(r"node a"), run.text())
        run = self.far_train("run", *away, f"--net.tls={self.path('ca', 'of', 'train')}")
        self.done(run)
        self.same("run", "whole")
        self.assertFalse(run.has("INSECURE"))


class Strangers(NodesTest):
    """Case 32: garbage, silence and crowds at the ports of a node and of a run."""

    def pester(self, text):
        """Garbage of all kinds, and a hundred who say nothing."""
        folder = os.path.join(CASES, "32-ports-and-garbage")
        host, port = text.rsplit(":", 1)
        for name in sorted(os.listdir(folder)):
            if name.endswith(".bin"):
                with open(os.path.join(folder, name), "rb") as f, socket.create_connection((host, int(port)), 5) as s:
                    s.sendall(f.read())
        silent = [socket.create_connection((host, int(port)), 5) for _ in range(100)]
        for s in silent:
            self.addCleanup(s.close)
        return silent

    def undisturbed_while(self, pestered, node, folder=None):
        """The run goes on with the same bits, with all of its lanes, and answers."""
        net, tls = ((f"--net.tls={folder}",), ("--tls", folder)) if folder else ((), ())
        options = (*self.LONG, "--optim.steps=200000")
        whole = self.train("whole", *options)
        away = (self.nodes(a=node.address), "--layout.targets=a/cpu:0", *net)
        run = self.train("run", *options, *away)
        self.wait_step("run", 5)
        silent = [self.pester(text) for text in pestered()]
        self.succeeds("inspect", self.path("run"), *tls)
        with open(self.path("run", "metrics.jsonl"), encoding="utf-8") as f:
            seen = f.read().count("\n")
        self.wait_step("run", seen + 50)
        self.succeeds("inspect", node.address, *tls)
        for each, name in ((run, "run"), (whole, "whole")):
            self.wait_step(name, seen + 50)
            each.send(signal.SIGINT)
            self.done(each)
        self.assertFalse(run.has("died"), run.text())
        both = [self.lines(name) for name in ("run", "whole")]
        common = min(len(lines) for lines in both)
        self.assertGreaterEqual(common, seen + 50)
        self.assertEqual(both[0][:common], both[1][:common])
        return silent

    def address_of_the_run(self):
        with open(self.path("run", "address"), encoding="ascii") as f:
            return f.read().strip()

    def test_garbage_at_the_ports_changes_nothing(self):
        node = self.node("a")
        self.undisturbed_while(lambda: (node.address, self.address_of_the_run()), node)

    def test_garbage_at_ports_with_certificates_changes_nothing(self):
        """CAF's module shares one thread and one queue of errors between all connections with TLS."""
        certificates(self, "ca", all="127.0.0.1")
        folder = self.path("ca", "of", "all")
        node = self.node("a", "--tls", folder)
        silent, _ = self.undisturbed_while(lambda: (node.address, self.address_of_the_run()), node, folder)
        for s in silent:  # of the node, which is still there: a handshake that does not end is ended
            s.settimeout(DEADLINE)
            self.assertEqual(s.recv(1), b"")


@unittest.skipUnless(os.geteuid() == 0, "skipped: namespaces need root")
class HostNames(NodesTest):
    """Case 31: what a host's own name stands for."""

    def hosts(self, name):
        """Prefix of a command that sees this /etc/hosts, and has the host name node-a."""
        script = f"mount --bind {os.path.join(CASES, '31-hostname', name)} /etc/hosts && hostname node-a && exec \"$@\""
        prefix = ("unshare", "-mu", "sh", "-c", script, "sh")
        made = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
        if made.returncode != 0:  # a chroot, or a container without the rights
            self.skipTest(f"skipped: no such namespace here: {made.stderr.strip()}")
        return prefix

    def test_a_name_that_means_this_host_only(self):
        node = self.node("a", "--insecure", listen="node-a:0", prefix=self.hosts("hosts_debian"))
        self.assertTrue(node.address.startswith("127.0.1.1:"))
        self.assertTrue(node.has("other hosts? cannot reach|runs on others cannot reach"), node.text())

    def test_localhost_is_version_6_first(self):
        off = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"
        if not os.path.exists(off) or pathlib.Path(off).read_text(encoding="ascii").strip() != "0":
            self.skipTest("skipped: this machine has no IPv6")
        self.done(self.train("whole"))
        node = self.node("a")
        port = node.address.rsplit(":", 1)[1]
        run = self.train("run", self.nodes(a=f"localhost:{port}"), "--layout.targets=a/cpu:0", prefix=self.hosts("hosts_v6_first"))
        self.done(run)
        self.same("run", "whole")
        six = self.node("b", listen="localhost:0", prefix=self.hosts("hosts_v6_first"))
        self.assertTrue(six.address.startswith("[::1]:"), six.address)
        self.done(self.train("six", self.nodes(b=six.address), "--layout.targets=b/cpu:0"))
        self.same("six", "whole")

    def test_a_host_that_does_not_know_its_own_name(self):
        self.done(self.train("whole"))
        node = self.node("a", prefix=self.hosts("hosts_unknown_self"))
        self.done(self.train("run", self.nodes(a=node.address), "--layout.targets=a/cpu:0", prefix=self.hosts("hosts_unknown_self")))
        self.same("run", "whole")

    def test_the_second_address_of_a_name_is_tried(self):
        self.done(self.train("whole"))
        node = self.node("a", listen="127.0.0.2:0")
        port = node.address.rsplit(":", 1)[1]
        away = (self.nodes(a=f"node-a:{port}"), "--layout.targets=a/cpu:0")
        self.done(self.train("run", *away, prefix=self.hosts("hosts_two_addresses")))
        self.same("run", "whole")
        node.send(signal.SIGTERM)
        self.assertEqual(node.finish(), 0, node.text())
        run = self.done(self.train("none", *away, "--net.wait=0", prefix=self.hosts("hosts_two_addresses")), code=2)
        self.assertTrue(run.has(r"127\.0\.0\.2") and run.has(r"127\.0\.0\.3"), run.text())


class Processors(NodesTest):
    def test_another_kind_of_processor_is_named(self):
        """Case 34, with what an environment can take away of this one."""
        oldest = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
        node = self.node("a", environment=oldest)
        run = self.done(self.train("run", self.nodes(a=node.address), "--layout.targets=a/cpu:0"))
        self.assertTrue(run.has("node a has another kind of processor"), run.text())
        alike = self.done(self.train("alike", self.nodes(a=node.address), "--layout.targets=a/cpu:0", environment=oldest))
        self.assertFalse(alike.has("another kind of processor"))


if __name__ == "__main__":
    unittest.main()

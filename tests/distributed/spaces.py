"""Network namespaces as hosts: one for the run, one for each node, a link between. Needs root."""

import os
import subprocess
import sys

from tests.distributed.nodes import NodesTest


class Space:
    """A network namespace, for as long as a process of its own lives: nothing is mounted, nothing stays behind."""

    def __init__(self):
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo made; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.made = self.holder.stdout.readline() == "made\n"
        self.pid = str(self.holder.pid)
        # Prefix of a command that runs there.
        self.within = ("nsenter", f"--net=/proc/{self.pid}/ns/net")

    def ip(self, *words):
        subprocess.run([*self.within, "ip", *words], check=True, stdin=subprocess.DEVNULL)

    def end(self):
        _, problem = self.holder.communicate()
        return problem.strip()


class SpacesTest(NodesTest):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("skipped: network namespaces need root")
        self.links = 0
        self.hub = self.space()

    def space(self):
        """Skips the test where the kernel gives none (a container without the rights), with its reason."""
        space = Space()
        self.addCleanup(space.end)
        if not space.made:
            self.skipTest(f"skipped: no network namespace here: {space.end()}")
        space.ip("link", "set", "lo", "up")
        return space

    def link(self, space):
        """A link from the hub to it: (the hub's address, the other address, the hub's end)."""
        self.links += 1
        near, far = f"hub{self.links}", f"far{self.links}"
        command = [*self.hub.within, "ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space.pid]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest(f"skipped: no links between namespaces here: {made.stderr.strip()}")
        ends = (f"10.91.{self.links}.1", f"10.91.{self.links}.2")
        for where, device, address in ((self.hub, near, ends[0]), (space, far, ends[1])):
            where.ip("addr", "add", f"{address}/24", "dev", device)
            where.ip("link", "set", device, "up")
        return (*ends, near)

    def slow(self, space, **how):
        """A slow link by packets carried in user space: (the hub's address, the other address)."""
        if not os.path.exists("/dev/net/tun"):
            self.skipTest("skipped: no /dev/net/tun here")
        self.links += 1
        ends = (f"10.92.{self.links}.1", f"10.92.{self.links}.2")
        options = [f"--{name}={value}" for name, value in how.items()]
        carrier = subprocess.Popen(
            [sys.executable, "-B", os.path.join(os.path.dirname(__file__), "slow_link.py"), self.hub.pid, ends[0], space.pid, ends[1], *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(self.stop_carrier, carrier)
        self.assertEqual(carrier.stdout.readline(), "ready\n")
        return ends

    @staticmethod
    def stop_carrier(carrier):
        carrier.stdin.close()
        carrier.wait(10)
        carrier.stdout.close()

    def far_node(self, name, address, space, *more, **named):
        more = more or ("--insecure",)
        return self.node(name, *more, listen=f"{address}:0", prefix=space.within, **named)

    def far_train(self, run, *more, **named):
        return self.train(run, *more, prefix=self.hub.within, **named)

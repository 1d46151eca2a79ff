"""Names of hosts as people's machines resolve them: /etc/hosts of a mount namespace, a network without IPv6. Runs hidden cases of test_messages."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

TESTS = Path(os.environ["DFLASH_BIN"]).parent / "tests" / "test_messages"
HOSTS = Path(os.environ["DFLASH_TEST_DATA"]) / "cases" / "31-hostname"


@unittest.skipUnless(os.geteuid() == 0, "skipped: namespaces need root")
class Names(unittest.TestCase):
    def passes(self, unshare, prepare, case):
        """Skipped where the namespace cannot be made so (a container or chroot without the rights): said with the reason."""

        def run(program, *arguments):
            command = ["unshare", *unshare, "sh", "-c", f'set -e; {prepare}; exec "$0" "$@"', program, *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        made = run("true")
        if made.returncode != 0:
            self.skipTest(f"skipped: no such namespace here: {made.stderr.strip()}")
        done = run(TESTS, case, "--warn", "NoTests")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def with_hosts(self, file, case):
        self.passes(["-m"], f"mount --bind '{HOSTS / file}' /etc/hosts", case)

    def test_two_addresses(self):
        self.with_hosts("hosts_two_addresses", "[.names-two]")

    def test_v6_first(self):
        off = Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
        if not off.exists() or off.read_text().strip() != "0":
            self.skipTest("skipped: this machine has no IPv6")
        self.with_hosts("hosts_v6_first", "[.names-v6-first]")

    def test_debian_host_name(self):
        self.with_hosts("hosts_debian", "[.names-debian]")

    def test_no_ipv6(self):
        # SIOCSIFFLAGS with IFF_UP | IFF_LOOPBACK | IFF_RUNNING, as `ip link set lo up` does.
        up = 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x49))'
        off = f"{sys.executable} -c '{up}'; for c in all default lo; do echo 1 > /proc/sys/net/ipv6/conf/$c/disable_ipv6; done"
        self.passes(["-n"], off, "[.names-no-v6]")


if __name__ == "__main__":
    unittest.main()

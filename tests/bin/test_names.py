"""Names of hosts as people's machines resolve them: /etc/hosts of a mount namespace, a network without IPv6. Runs hidden cases of test_messages."""

import os
import subprocess
import unittest
from pathlib import Path

TESTS = Path(os.environ["DFLASH_BIN"]).parent / "tests" / "test_messages"
HOSTS = Path(os.environ["DFLASH_TEST_DATA"]) / "cases" / "31-hostname"


@unittest.skipUnless(os.geteuid() == 0, "skipped: namespaces need root")
class Names(unittest.TestCase):
    def passes(self, unshare, prepare, case):
        script = f'set -e; {prepare}; exec "$0" "$1" --warn NoTests'
        done = subprocess.run(["unshare", *unshare, "sh", "-c", script, TESTS, case], capture_output=True, text=True, timeout=60)
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
        off = "ip link set lo up; for c in all default lo; do echo 1 > /proc/sys/net/ipv6/conf/$c/disable_ipv6; done"
        self.passes(["-m", "-n"], off, "[.names-no-v6]")


if __name__ == "__main__":
    unittest.main()

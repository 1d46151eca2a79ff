"""`dflash cert`: a private CA and certificates of nodes, checked by openssl."""

import os
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path

DFLASH = os.environ["DFLASH_BIN"]


def cert(*arguments):
    return subprocess.run([DFLASH, "cert", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def openssl(*arguments):
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60)


class Cert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.ca, self.node = self.folder / "ca", self.folder / "nodeB"
        self.good(cert("--ca", self.ca))

    def good(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, done, *texts):
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        for text in ("error: ", *texts):
            self.assertIn(text, done.stderr)

    def make_node(self, *more):
        return cert("--ca", self.ca, "--name", "nodeB", "--host", "10.0.0.2", "--host", "node-b.example", "--host", "::1", "--out", self.node, *more)

    def test_openssl_takes_the_certificates(self):
        self.good(self.make_node())
        for purpose in ("sslserver", "sslclient"):
            verified = openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", self.ca / "ca.pem", self.node / "node.pem")
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        self.assertEqual((self.node / "ca.pem").read_bytes(), (self.ca / "ca.pem").read_bytes())
        text = openssl("x509", "-in", self.node / "node.pem", "-noout", "-text").stdout
        for part in ("CN = nodeB", "IP Address:10.0.0.2", "DNS:node-b.example", "IP Address:0:0:0:0:0:0:0:1", "NIST CURVE: P-256", "CA:FALSE",
                     "TLS Web Server Authentication, TLS Web Client Authentication"):
            self.assertIn(part, text)
        for host, good in (("node-b.example", True), ("nodeB", False)):
            said = openssl("verify", "-verify_hostname", host, "-CAfile", self.ca / "ca.pem", self.node / "node.pem")
            self.assertEqual(said.returncode == 0, good, said.stdout + said.stderr)

    def test_keys_are_of_their_owner_alone(self):
        self.good(self.make_node())
        for key in (self.ca / "ca.key", self.node / "node.key"):
            self.assertEqual(stat.S_IMODE(key.stat().st_mode), 0o600)
        self.assertFalse(list(self.folder.rglob("*.tmp")))

    def test_nothing_is_replaced_unasked(self):
        self.good(self.make_node())
        before = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        self.refused(cert("--ca", self.ca), "there is a CA already", "--force")
        self.refused(self.make_node(), "there is a certificate already", "--force")
        self.assertEqual(before, {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()})
        self.good(self.make_node("--force"))
        self.good(cert("--ca", self.ca, "--force"))
        self.assertNotEqual(before[self.ca / "ca.key"], (self.ca / "ca.key").read_bytes())
        foreign = openssl("verify", "-CAfile", self.ca / "ca.pem", self.node / "node.pem")
        self.assertNotEqual(foreign.returncode, 0)

    def test_wrong_input_says_how_to_mend_it(self):
        self.refused(cert("--ca", self.ca, "--name", "nodeB"), "--host", "--out")
        self.refused(cert("--ca", self.folder / "none", "--name", "n", "--host", "h", "--out", self.node), "there is no CA", "make one first")
        self.refused(cert("--ca", self.ca, "--name", "n", "--host", "10.0.0.2:7000", "--out", self.node), "is no host", "without port")
        self.refused(cert("--ca", self.ca, "--name", "a/b", "--host", "h", "--out", self.node), "no name for a node")
        self.refused(cert("--ca", self.ca, "--name", "n", "--host", "h", "--out", self.node, "--days", "0"))
        self.refused(cert(), "--ca")
        self.assertFalse(self.node.exists())
        (self.ca / "ca.key").write_text("garbage")
        self.refused(self.make_node(), "this is no CA")
        self.refused(cert("--ca", "/proc/none"), "cannot make the folder")

    def test_a_certificate_does_not_outlive_the_ca(self):
        self.good(self.make_node("--days", "3650"))
        ends = {f: openssl("x509", "-in", f, "-noout", "-enddate").stdout for f in (self.ca / "ca.pem", self.node / "node.pem")}
        self.assertEqual(len(set(ends.values())), 1, ends)


if __name__ == "__main__":
    unittest.main()

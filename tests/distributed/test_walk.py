"""The walk through several hosts as the documents have it, and the files for batch systems, services and containers."""

import os
import re
import shutil
import subprocess
import unittest

from tests.bin.fixture import DFLASH, ProgramTest
from tests.bin.test_docs import ROOT, section


class Walk(ProgramTest):
    def run_script(self, script):
        with open(self.path("run.toml"), encoding="utf-8") as f:
            self.write("my.toml", f.read())
        for folder in ("bin", "build"):
            os.makedirs(self.path(folder), exist_ok=True)
            if not os.path.lexists(self.path(folder, "dflash")):
                os.symlink(os.path.abspath(DFLASH), self.path(folder, "dflash"))
        environment = {**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"]}
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_two_nodes_on_one_machine(self):
        script = section("nodes.md", "Two nodes on one machine")
        self.assertEqual(script.count("\n"), 3)
        self.assertIn("of other hosts: a/cpu:0 b/cpu:0", self.run_script(script))

    def test_the_same_in_the_readme(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
            block = next(b for b in re.findall(r"^```sh\n(.*?)^```$", f.read(), re.M | re.S) if "dflash node" in b)
        self.assertIn("of other hosts: a/cpu:0 b/cpu:0", self.run_script(block))

    def test_certificates_for_two_machines(self):
        self.run_script(section("nodes.md", "Two machines"))
        for name in ("train", "nodeB"):
            self.assertTrue(os.path.exists(self.path(name, "node.pem")))


class Deploy(unittest.TestCase):
    FOLDER = os.path.join(ROOT, "docs", "deploy")

    def read(self, name):
        with open(os.path.join(self.FOLDER, name), encoding="utf-8") as f:
            return f.read()

    def test_the_slurm_script_starts_nodes_and_the_run(self):
        """With commands that write down what they are given in the place of Slurm's and the program."""
        script = os.path.join(self.FOLDER, "dflash.sbatch")
        subprocess.run(["bash", "-n", script], check=True)
        holder = ProgramTest("setUp")
        holder.setUp()
        self.addCleanup(holder.doCleanups)
        stand_ins = {
            "scontrol": "printf '%s\\n' h0 h1 h2",
            "srun": 'echo "srun $*" >>log; sleep 20',
            "dflash": 'echo "dflash $*" >>log; sleep 0.2',
        }
        for name, body in stand_ins.items():
            path = holder.write(name, f"#!/bin/bash\n{body}\n")
            os.chmod(path, 0o755)
        environment = {**os.environ, "PATH": holder.folder + os.pathsep + os.environ["PATH"], "SLURM_JOB_NODELIST": "h[0-2]"}
        subprocess.run(["bash", script, "my.toml", "--optim.lr=1"], cwd=holder.folder, env=environment, timeout=15, check=True)
        with open(holder.path("log"), encoding="utf-8") as f:
            log = f.read()
        self.assertRegex(log, r"(?m)^srun --nodes=2 --exclude=h0 bash -c exec 'dflash' node .*--join 'h0:7100' --insecure$")
        self.assertRegex(log, r"(?m)^dflash train my.toml --net.listen=h0:7100 .*--optim.lr=1 --layout.targets=h1/cpu:0,h2/cpu:0$")

    def test_the_options_that_the_files_use_exist(self):
        texts = [self.read(name) for name in ("dflash.sbatch", "dflash-node@.service", "Containerfile")]
        known = subprocess.run([DFLASH, "node", "--help"], capture_output=True, text=True, check=True).stdout
        for text in texts:
            for option in re.findall(r"(?<=[ (])--(?:listen|lanes|name|join|model|cache|tls|insecure)\b", text):
                self.assertIn(option, known)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd here")
    def test_the_unit_is_one(self):
        result = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", os.path.join(self.FOLDER, "dflash-node@.service")],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        # Whether the program is installed here is not the unit's fault.
        problems = [line for line in result.stderr.splitlines() if "dflash-node@" in line and "/usr/local/bin/dflash" not in line]
        self.assertEqual(problems, [])


if __name__ == "__main__":
    unittest.main()

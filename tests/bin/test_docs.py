"""Commands of the documents run as they stand there."""

import os
import re
import shutil
import subprocess
import unittest

from tests.bin.fixture import DFLASH, ProgramTest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def section(document, title):
    """The commands of one section of a document, in one script."""
    with open(os.path.join(ROOT, "docs", document), encoding="utf-8") as f:
        text = f.read()
    part = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## )", text, re.M | re.S)[1]
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", part, re.M | re.S))


class Walk(ProgramTest):
    def test_find_the_bottleneck_in_two_minutes(self):
        script = section("observing.md", "Find the bottleneck in two minutes")
        self.assertGreater(script.count("dflash"), 5)
        with open(self.path("run.toml"), encoding="utf-8") as f:
            config = f.read()
        # Long enough to be looked at; stopped by the walk itself.
        self.write("my.toml", config.replace("steps = 4", "steps = 20000\nwarmup = 0"))
        os.makedirs(self.path("bin"))
        os.symlink(os.path.abspath(DFLASH), self.path("bin", "dflash"))
        environment = {**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"]}
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        out = result.stdout + result.stderr
        self.assertEqual(result.returncode, 0, out)
        self.assertRegex(result.stdout, r"(?m)^(\w+ holds the others up|nobody is busy all the time)")
        self.assertIn("where time went", result.stdout)
        self.assertIn("stopped", result.stdout)
        for name in ("trace.json", "report.html", "summary.json"):
            self.assertTrue(os.path.exists(self.path("runs", "my", name)), name)


class Reports(ProgramTest):
    def test_one_run_and_two_side_by_side(self):
        self.succeeds("train", self.path("run.toml"), "--profile.interval=2")
        self.succeeds("train", self.path("run.toml"), f"--run.dir={self.path('other')}", "--optim.lr=3e-3")
        shutil.copy(self.write("figures.json", '{"tau": {"own <set>": 1.25}, "decode_speedup": 0.9}'), self.path("other", "eval.json"))
        text = self.succeeds("report", self.path("run"), "--text")
        for part in ("completed", "4 of 4", "where time went", "drafter_train 0", "computing", "optim.lr", "0.001"):
            self.assertIn(part, text)
        both = self.succeeds("report", self.path("run"), self.path("other"), "--text")
        self.assertIn("configuration, what differs", both)
        self.assertRegex(both, r"optim\.lr +0\.001 +0\.003")
        self.assertNotIn("data.anchors", both)
        self.assertRegex(both, r"tau own <set> +- +1\.25")
        path = self.path("both.html")
        self.assertIn(path, self.succeeds("report", self.path("run"), self.path("other"), "--out", path))
        with open(path, encoding="utf-8") as f:
            html = f.read()
        self.assertEqual(html.count("<polyline"), 2 * html.count("<figure"))
        self.assertGreaterEqual(html.count("<figure"), 6)
        self.assertIn("own &lt;set&gt;", html)
        for outside in ("<script", "src=", "href=", "url(", "://"):
            self.assertNotIn(outside, html)

    def test_a_folder_that_is_no_run_and_damaged_files_are_refused(self):
        self.refused("report", self.path("target"), names=["config.toml"])
        self.succeeds("train", self.path("run.toml"))
        self.write("run/summary.json", '{"status":')
        self.refused("report", self.path("run"), names=["summary.json"])
        os.remove(self.path("run", "summary.json"))
        self.assertIn("no summary", self.succeeds("report", self.path("run"), "--text"))


if __name__ == "__main__":
    unittest.main()

"""The scripts: refusals, and a setup that finds everything there."""

import os
import subprocess
import time
import unittest


def script(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)


class Scripts(unittest.TestCase):
    def test_help_teaches_and_unknown_options_are_refused(self):
        for name in ("bin/setup", "bin/test", "bin/quickstart"):
            with self.subTest(script=name):
                self.assertIn("usage: " + name, script(name, "--help").stdout)
                result = script(name, "--nonsense")
                self.assertEqual(result.returncode, 2)
                self.assertIn("--nonsense", result.stderr)

    def test_second_setup_is_quick_and_needs_no_network(self):
        start = time.monotonic()
        # an unusable proxy: any download would fail
        result = script("bin/setup", https_proxy="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9", PIP_RETRIES="0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("LibTorch 2.11", result.stdout)
        self.assertLess(time.monotonic() - start, 10)

    def test_a_folder_without_libtorch_is_refused(self):
        result = script("bin/setup", "--no-model", TORCH_WHEEL_DIR="/nonexistent")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nonexistent", result.stderr)


if __name__ == "__main__":
    unittest.main()

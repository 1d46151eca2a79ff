"""The reference values that lie in tests/data are what the installed packages compute today (label peers): each script runs again in a
folder of its own, and gives the stored files. So what `ctest -L exact` compares with them holds of the packages themselves."""

import glob
import os
import shutil
import subprocess
import sys
import unittest

try:
    import dflash.model  # noqa: F401
    import speculators  # noqa: F401
    import torch
    from safetensors.torch import load_file
except ImportError:
    raise unittest.SkipTest("bench/peers/setup makes the venv that this needs") from None

from tests.peers.exactness import exactness_row, packages
from tests.tools.fixture import DATA, FolderTest

DATA = os.path.abspath(DATA)
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
# The same program on another processor: its products are summed in another order.
SAME = 2e-6
# script: (arguments, what the row says, packages behind it)
SCRIPTS = {
    "make_tiny_llama.py": ((), "a Llama", ("transformers",)),
    "families/make.py": ((), "targets of all families", ("transformers",)),
    "make_drafter_reference.py": ((), "drafters and ten training steps", ("dflash", "speculators", "torch")),
    "make_loss_reference.py": ((), "losses and D-PACE", ("speculators",)),
    "make_optimizer_reference.py": (("optimizer_reference.safetensors",), "optimizers and schedules", ("torch", "speculators", "transformers")),
    "make_speculators_drafter.py": ((), "saved drafters and draft vocabularies", ("speculators",)),
}


class References(FolderTest):
    def setUp(self):
        super().setUp()
        self.data = self.path("tests/data")
        os.makedirs(os.path.join(self.data, "families"))

    def again(self, script, arguments):
        """{name of the file: its tensors} of all that the script writes."""
        shutil.copy(os.path.join(DATA, script), os.path.join(self.data, script))
        if script == "make_speculators_drafter.py":
            shutil.copytree(os.path.join(DATA, "tiny_llama"), os.path.join(self.data, "tiny_llama"))
        before = set(glob.glob(self.data + "/**/*.safetensors", recursive=True))
        result = subprocess.run([sys.executable, "-B", os.path.join(self.data, script), *arguments], capture_output=True, text=True, check=False,
                                cwd=self.data, env={**os.environ, "PYTHONPATH": ROOT})  # fmt: skip
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        made = sorted(set(glob.glob(self.data + "/**/*.safetensors", recursive=True)) - before)
        return {os.path.relpath(path, self.data): load_file(path) for path in made}

    def test_each_script_gives_the_stored_values_again(self):
        for script, (arguments, what, behind) in SCRIPTS.items():
            with self.subTest(script):
                made, worst = self.again(script, arguments), 0.0
                self.assertTrue(made)
                for name, tensors in made.items():
                    stored = load_file(os.path.join(DATA, name))
                    self.assertEqual(sorted(tensors), sorted(stored), name)
                    for key, tensor in tensors.items():
                        self.assertEqual((tensor.dtype, tensor.shape), (stored[key].dtype, stored[key].shape), f"{name}, {key}")
                        if not tensor.is_floating_point():
                            self.assertTrue(torch.equal(tensor, stored[key]), f"{name}, {key}")
                        elif tensor.numel():
                            found, wanted = tensor.double(), stored[key].double()
                            error = ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)).item()
                            self.assertLess(error, SAME, f"{name}, {key}")
                            worst = max(worst, error)
                print(f"{script}: {len(made)} files again, largest difference {worst:.1e}")
                exactness_row(f"stored reference values: {what}", packages(*behind), worst, SAME)
                shutil.rmtree(os.path.join(self.data, "tiny_llama"), ignore_errors=True)


if __name__ == "__main__":
    unittest.main()

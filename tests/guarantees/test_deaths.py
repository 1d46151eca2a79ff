"""Actors of the real program die at seeded places: the bits of an undisturbed run."""

import os
import subprocess
import unittest

from tests.bin.fixture import ProgramTest
from tests.guarantees.kills import KilledRuns, RehearsedRuns


class Deaths(RehearsedRuns, KilledRuns, ProgramTest):
    def test_runs_whose_actors_die_end_with_the_bits_of_an_undisturbed_one(self):
        options = self.config("--optim.steps=40", '--layout.targets=["cpu:0", "cpu:1"]', "--optim.accumulation=2")
        whole, _ = self.undisturbed("whole", options)
        for seed in (1, 2):
            self.rehearsed(f"deaths-{seed}", whole, options, f"seed={seed} share=0.01 most=2")

    def test_a_rehearsal_that_cannot_be_read_is_refused(self):
        for text, why in (
            ("", "no seed"),
            ("seed=x", "seed=x is no number"),
            ("seed=1 share=2", "share is not from 0 to 1"),
            ("seed=1 actors=pilot", "there is no actor pilot"),
            ("seed=1 often", "often is not known"),
        ):
            with self.subTest(text):
                result = subprocess.run(self.command(self.path("refused"), (), False), env={**os.environ, "DFLASH_FAULTS": text},
                                        capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("DFLASH_FAULTS", result.stderr)
                self.assertIn(why, result.stderr)
                self.assertFalse(os.path.exists(self.path("refused")))


if __name__ == "__main__":
    unittest.main()

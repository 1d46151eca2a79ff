"""Ten runs on SmolLM2-135M-Instruct whose actors die at seeded places: the bits of an undisturbed run."""

import unittest

from tests.guarantees.kills import RehearsedRuns
from tests.soak.smollm2 import SEED, SmolLM2Runs


class Deaths(RehearsedRuns, SmolLM2Runs):
    def test_ten_runs_with_deaths(self):
        whole, seconds = self.undisturbed("whole", (), timeout=900)
        all_deaths = drafters = 0
        for seed in range(10 * SEED, 10 * SEED + 10):
            died, of_drafters = self.rehearsed(f"deaths-{seed}", whole, (), f"seed={seed} share=0.02 most=2", timeout=900)
            all_deaths, drafters = all_deaths + died, drafters + of_drafters
        print(f"undisturbed {seconds:.1f} s; 10 runs, {all_deaths} deaths, {drafters} of them drafters: the same bits")
        self.assertGreater(drafters, 0)


if __name__ == "__main__":
    unittest.main()

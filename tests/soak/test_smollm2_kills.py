"""Ten kills of a training on SmolLM2-135M-Instruct, small rows, with evaluation: the bits of an undisturbed run."""

import unittest

from tests.soak.smollm2 import SEED, SmolLM2Runs


class Kills(SmolLM2Runs):
    def test_ten_deaths(self):
        whole, seconds = self.undisturbed("whole", (), timeout=900)
        runs = ended = cut = 0
        while ended < 10:
            run, times, left = self.with_deaths(f"killed-{runs}", (), 100 * SEED + runs, seconds / 2, 10 - ended, timeout=900)
            self.same(run, whole, f"seed {SEED}, run {runs}")
            runs, ended, cut = runs + 1, ended + times, cut + left
        print(f"undisturbed {seconds:.1f} s; {runs} runs, killed {ended} times, {cut} saves cut off: the same bits")


if __name__ == "__main__":
    unittest.main()

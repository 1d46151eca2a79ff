"""Many runs that are ended at random moments and resumed. DFLASH_SOAK_SEED and DFLASH_SOAK_RUNS change what is printed first."""

import os
import signal
import unittest

from tests.bin.fixture import ProgramTest
from tests.guarantees.kills import KilledRuns

SEED = int(os.environ.get("DFLASH_SOAK_SEED") or 1)
RUNS = int(os.environ.get("DFLASH_SOAK_RUNS") or 50)


class Kills(KilledRuns, ProgramTest):
    def many(self, how, runs, deaths):
        print(f"DFLASH_SOAK_SEED={SEED}, {runs} runs, {how.name}")
        options = self.config("--eval.patience=50")
        whole, seconds = self.undisturbed("whole", options)
        ended = cut = 0
        for i in range(runs):
            lanes = ", ".join(f'"cpu:{t}"' for t in range(1 + i % 3))
            more = (*options, f"--layout.targets=[{lanes}]")
            run, times, left = self.with_deaths(f"{how.name}-{i}", more, 1000 * SEED + i, seconds, deaths, how=how)
            self.same(run, whole, f"run {i}")
            ended += times
            cut += left
        print(f"{runs} runs, ended {ended} times, {cut} saves cut off: the same bits")
        self.assertGreaterEqual(ended, runs)
        return cut

    def test_killed(self):
        self.assertGreater(self.many(signal.SIGKILL, RUNS, 4), 0)

    def test_stopped(self):
        self.many(signal.SIGTERM, max(1, RUNS // 5), 3)


if __name__ == "__main__":
    unittest.main()

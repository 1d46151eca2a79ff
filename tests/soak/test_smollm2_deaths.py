"""Ten runs on SmolLM2-135M-Instruct whose actors die at seeded places: the bits of an undisturbed run."""

import os
import unittest

from tests.bin.fixture import ProgramTest, write_documents, write_prompts
from tests.guarantees.kills import KilledRuns, RehearsedRuns
from tests.soak.test_smollm2_kills import CONFIG, SEED, TARGET


@unittest.skipUnless(os.path.isdir(TARGET), "bin/setup brings the model")
class SmolLM2(RehearsedRuns, KilledRuns, ProgramTest):
    def test_ten_runs_with_deaths(self):
        write_documents(self.path("train.safetensors"), count=12, length=90, vocab=49000)
        write_documents(self.path("held_out.safetensors"), count=3, length=80, vocab=49000)
        write_prompts(self.path("prompts.safetensors"), count=4, length=20, vocab=49000)
        self.write("run.toml", CONFIG.format(folder=self.folder, target=os.path.abspath(TARGET)))
        print(f"DFLASH_SOAK_SEED={SEED}")
        whole, seconds = self.undisturbed("whole", (), timeout=900)
        all_deaths = drafters = 0
        for seed in range(10 * SEED, 10 * SEED + 10):
            died, of_drafters = self.rehearsed(f"deaths-{seed}", whole, (), f"seed={seed} share=0.02 most=3", timeout=900)
            all_deaths, drafters = all_deaths + died, drafters + of_drafters
        print(f"undisturbed {seconds:.1f} s; 10 runs, {all_deaths} deaths, {drafters} of them drafters: the same bits")
        self.assertGreater(drafters, 0)


if __name__ == "__main__":
    unittest.main()

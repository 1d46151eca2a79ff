"""The command line of `dflash` and `dflash config`: exit codes, messages, what is printed.

DFLASH_BIN names the program.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

DFLASH = os.environ["DFLASH_BIN"]
PRESETS = pathlib.Path(__file__).resolve().parents[2] / "config" / "presets"


def dflash(*arguments):
    return subprocess.run([DFLASH, *arguments], capture_output=True, text=True, timeout=60)


class ConfigTest(unittest.TestCase):
    def refused(self, *arguments):
        """The error and hint lines of a call that must exit with 2 and print nothing else."""
        result = dflash(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = result.stderr.splitlines()
        self.assertTrue(lines[0].startswith("error: "), result.stderr)
        self.assertLessEqual(len(lines), 2, result.stderr)
        if len(lines) == 2:
            self.assertTrue(lines[1].startswith("hint: "), result.stderr)
        return result.stderr

    def file(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "run.toml"
        path.write_text(text)
        return str(path)

    def test_help_teaches(self):
        for arguments in ([], ["--help"]):
            result = dflash(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertIn("Exit codes", result.stdout)
            for name in ("train", "generate", "eval", "export", "inspect", "config"):
                self.assertRegex(result.stdout, rf"(?m)^  {name} ")

    def test_every_command_has_help(self):
        for name in ("train", "generate", "eval", "export", "inspect", "config"):
            result = dflash(name, "--help")
            self.assertEqual(result.returncode, 0, name)
            self.assertIn("--log.level", result.stdout, name)

    def test_version_names_what_it_was_built_from(self):
        result = dflash("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"dflash \d+\.\d+\.\d+\ngit commit \S+\nLibTorch \d.*\nCAF \d")

    def test_preset_is_printed_and_the_print_is_a_fixed_point(self):
        first = dflash("config", str(PRESETS / "quickstart.toml"))
        self.assertEqual(first.returncode, 0, first.stderr)
        second = dflash("config", self.file(first.stdout))
        self.assertEqual(second.stdout, first.stdout)

    def test_overrides_may_stand_before_and_after_the_file(self):
        preset = str(PRESETS / "quickstart.toml")
        result = dflash(
            "config", "--draft.layers=3", preset, "--loss.terms={ce=1,kl=0.5}",
            "--layout.targets=[cpu:0]", "--data.keep_hidden_states=1 GiB", "--run.dir=a b")
        self.assertEqual(result.returncode, 0, result.stderr)
        for line in ("layers = 3", "terms = { ce = 1.0, kl = 0.5 }", 'targets = ["cpu:0"]',
                     'keep_hidden_states = "1 GiB"', 'dir = "a b"'):
            self.assertIn("\n" + line + "\n", result.stdout)

    def test_defaults_without_a_file(self):
        result = dflash("config")
        self.assertEqual(result.returncode, 0)
        self.assertIn("\nblock_size = 16\n", result.stdout)

    def test_reference(self):
        result = dflash("config", "--reference")
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout.startswith("# Configuration\n"))

    def test_log_level_before_and_after_the_command(self):
        for arguments in (["--log.level=debug", "config"], ["config", "--log.level=debug"],
                          ["config", "--log.level", "debug"]):
            self.assertIn('\nlevel = "debug"\n', dflash(*arguments).stdout, arguments)
        self.assertIn("--log.level", self.refused("config", "--log.level=loud"))

    def test_unknown_key_in_a_file(self):
        path = self.file("[draft]\nlayrs = 2\n")
        self.assertEqual(
            self.refused("config", path),
            f"error: unknown key draft.layrs ({path}:2:1)\nhint: did you mean draft.layers?\n")

    def test_wrong_type_in_a_file(self):
        path = self.file('[draft]\nlayers = "two"\n')
        message = self.refused("config", path)
        self.assertIn("draft.layers must be a whole number", message)
        self.assertIn(f"{path}:2:", message)

    def test_not_toml(self):
        path = self.file("[draft\nlayers = 2\n")
        self.assertIn(f"({path}:1:", self.refused("config", path))

    def test_missing_file_and_folder(self):
        self.assertIn("does not exist (no/such.toml)", self.refused("config", "no/such.toml"))
        self.assertIn("is a folder", self.refused("config", "/tmp"))

    def test_incomplete_configuration(self):
        self.assertIn("is not set (run.dir)", self.refused("config", self.file("")))

    def test_sections_that_disagree(self):
        preset = str(PRESETS / "quickstart.toml")
        self.assertIn("(data.row_tokens)", self.refused("config", preset, "--data.row_tokens=3"))
        message = self.refused("config", preset, "--optim.steps=10", "--optim.warmup=11")
        self.assertIn("warm-up of 11 steps does not fit into a run of 10", message)

    def test_overrides_of_another_form(self):
        self.assertIn("has no value", self.refused("config", "--draft.layers", "3"))
        self.assertIn("unknown argument", self.refused("config", "--nonsense"))
        self.assertIn("unknown argument", self.refused("config", "-x"))
        self.assertIn("did you mean draft.layers?", self.refused("config", "--draft.layer=3"))
        self.assertIn("whole number", self.refused("config", "--draft.layers=three"))

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([DFLASH, "config"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "error: cannot write to the standard output\n")

    def test_unknown_command_and_option(self):
        self.assertIn("nope", self.refused("nope"))
        self.assertIn("--nope", self.refused("--nope"))


if __name__ == "__main__":
    unittest.main()

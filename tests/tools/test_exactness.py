"""docs/exactness.md is made of what the exact tests measured."""

import io
import json
import unittest
from contextlib import redirect_stdout
from unittest import mock

from tests.tools.fixture import FolderTest
from tools import exactness
from tools.common import UserError


class Exactness(FolderTest):
    def lines(self, *rows, name="rows"):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        return self.path(name)

    def test_the_largest_error_of_each_comparison(self):
        path = self.lines(
            {"what": "a", "against": "x 1", "largest": 1e-7, "tolerance": 1e-5},
            {"what": "b", "against": "x 1", "largest": 3e-9, "tolerance": 1e-6},
            {"what": "a", "against": "x 1", "largest": 2.3e-6, "tolerance": 1e-5},
        )
        live = self.lines({"what": "c", "against": "y 2", "largest": 0, "tolerance": 0.05}, name="live")
        text = io.StringIO()
        with redirect_stdout(text), mock.patch("sys.argv", ["exactness", path, live]):
            exactness.main()
        stored, found = text.getvalue().split(exactness.LIVE)
        self.assertEqual(stored, exactness.HEAD + exactness.STORED + exactness.TABLE + "| a | x 1 | 2.3e-06 | 1.0e-05 |\n| b | x 1 | 3.0e-09 | 1.0e-06 |\n")
        self.assertEqual(found, exactness.TABLE + "| c | y 2 | 0 | 5.0e-02 |\n")

    def test_files_that_are_not_of_the_tests_are_refused(self):
        with self.assertRaisesRegex(UserError, "rows:2"):
            exactness.rows_of(self.lines({"what": "a", "against": "x", "largest": 1, "tolerance": 1}, {"what": "b"}))
        with self.assertRaisesRegex(UserError, "no comparison"):
            exactness.rows_of(self.lines())
        with self.assertRaisesRegex(UserError, "missing"):
            exactness.rows_of(self.path("missing"))


if __name__ == "__main__":
    unittest.main()

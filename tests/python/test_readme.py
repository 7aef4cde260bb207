"""The README's Python: what needs no GPU runs here, the rest in gpu/test_readme.py."""

import contextlib
import io
import os
import re
import unittest

from support import REPOSITORY, PythonTest, nvrtc_missing


def blocks():
    return re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / "README.md").read_text(encoding="utf-8"),
                      re.MULTILINE | re.DOTALL)


class Readme(PythonTest):
    def test_there_are_two_blocks(self):
        self.assertEqual(len(blocks()), 2)
        self.assertNotIn("torch", blocks()[0])

    @unittest.skipIf(nvrtc_missing(), "no NVRTC")
    def test_planning_and_prewarming(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(REPOSITORY)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(blocks()[0], "README.md", "exec"), {})
        kernels, summary = printed.getvalue().splitlines()
        self.assertIn("attention", kernels)
        self.assertIn("'failed': 0", summary)


if __name__ == "__main__":
    unittest.main()

"""The Python of the pages in docs/ that needs no GPU. The README's is in test_torch_readme.py and gpu/test_readme.py."""

import contextlib
import io
import os
import re
import unittest

from support import REPOSITORY, PythonTest, nvrtc_missing


class Pages(PythonTest):
    def printed_by_first_block_of(self, page):
        text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
        program = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL).group(1)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(REPOSITORY)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, page, "exec"), {})
        return printed.getvalue().splitlines()

    def test_reading_a_plan(self):
        kernels, reasons = self.printed_by_first_block_of("reading-a-plan.md")
        self.assertIn("attention", kernels)
        self.assertIn("registers", reasons)

    @unittest.skipIf(nvrtc_missing(), "no NVRTC")
    def test_shipping_kernels(self):
        self.assertIn("'failed': 0", *self.printed_by_first_block_of("shipping-kernels.md"))


if __name__ == "__main__":
    unittest.main()

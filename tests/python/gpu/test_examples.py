"""The example in Python that needs a GPU."""

import contextlib
import io
import pathlib
import runpy
import unittest

from gpu_support import why_not

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples/python/paged_decode.py"


@unittest.skipIf(why_not(), why_not())
class Examples(unittest.TestCase):
    def test_paged_decode(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(EXAMPLE))
        self.assertEqual(printed.getvalue(), "captured once, right twice\n")

"""The examples in Python that need a GPU run on one."""

import pathlib
import subprocess
import sys
import unittest

from gpu_support import why_not

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples/python"
LAST_LINES = {
    "paged_decode": "captured once, right twice",
    "functions": "all functions ran",
    "torch_backend": "served: ",
    "transformers_model": "served: ",
    "compat_flash_attn": "flash_attn ",
    "compat_flashinfer": "all wrappers ran",
    "jax_layer": "o ",
    "tvm_ffi_functions": "attention of tvm-ffi is that of Python",
    "engine": "64 bytes of columns; the first is 0",
}


@unittest.skipIf(why_not(), why_not())
class Examples(unittest.TestCase):
    def test_each_ends_as_it_should(self):
        for name, last in LAST_LINES.items():
            with self.subTest(name):
                done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=600,
                                      check=False)
                if done.stderr.startswith("this example needs "):
                    self.skipTest(done.stderr.strip())
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(done.stdout.splitlines()[-1].startswith(last), done.stdout)

    def test_all_of_them(self):
        needing = [file.stem for file in EXAMPLES.glob("*.py") if "this example needs a GPU" in file.read_text(encoding="utf-8")]
        self.assertEqual(sorted(needing), sorted(LAST_LINES))


if __name__ == "__main__":
    unittest.main()

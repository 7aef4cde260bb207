"""The README's Python, on the CPU by the stand-in of the plain functions; gpu/test_readme.py runs it by the kernels."""

import importlib
import re
import unittest

from support import REPOSITORY, attnsmith

try:
    import torch
    from stand_in import standing_in
except ImportError:
    torch = None

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


class Readme(unittest.TestCase):
    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_its_program(self):
        program, = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
        names = {}
        with standing_in() as calls:
            exec(compile(program.replace('"cuda"', '"cpu"'), "README.md", "exec"), names)
        self.assertEqual([name for name, *_ in calls], ["attention", "attention", "paged_attention"])
        self.assertEqual((names["lse"].shape, names["o"].shape), ((2, 512, 32), (4, 32, 128)))
        self.assertTrue(names["o"].isfinite().all())

    def test_what_programs_change_is_there(self):
        rows = re.search(r"^\| your program uses .*\n\| ---.*\n((?:\|.*\n)+)", README, re.MULTILINE)[1].splitlines()
        self.assertEqual(len(rows), 6)
        for row in rows:
            change = re.findall(r"`([^`]*attnsmith\.\w+[.( ][^`]*|vllm serve [^`]*)`", row)[0]
            with self.subTest(change=change):
                if change.startswith("vllm serve "):
                    module, name = "attnsmith_vllm", "register"
                    self.assertIn(f"`{importlib.import_module(module).NAME}`", row)
                elif found := re.match(r"python -m (\S+) program.py$", change):
                    module, name = found[1] + ".__main__", "main"
                elif found := re.match(r"import (\S+) as \w+$", change):
                    module, name = found[1], "BatchDecodeWithPagedKVCacheWrapper"
                else:
                    module, name = re.match(r"(attnsmith\.\w+)\.(\w+)\(", change).groups()
                try:
                    self.assertTrue(callable(getattr(importlib.import_module(module), name)))
                except ImportError as error:  # of the framework that the module is for
                    self.assertNotIn("attnsmith", error.name or "", str(error))


if __name__ == "__main__":
    unittest.main()

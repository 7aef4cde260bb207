"""The modules of the Python package import each other in one direction, and the checker sees each kind of cycle."""

import pathlib
import unittest

import import_cycles

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = REPOSITORY / "tools/python/attnsmith"

FILES = {
    "pack/__init__.py": "from .calls import call\n",
    "pack/calls.py": "from . import errors\nfrom .inner import words\n",
    "pack/errors.py": "import os\n",
    "pack/inner/__init__.py": "",
    "pack/inner/words.py": "from ..errors import Error\n",
}


def cycles(extra):
    return import_cycles.import_cycles({**FILES, **extra})


class Package(unittest.TestCase):
    def test_modules_have_no_cycle(self):
        found = import_cycles.import_cycles(import_cycles.texts_at(PACKAGE))
        self.assertEqual(found, [], "\n" + "\n".join(found))


class Cycles(unittest.TestCase):
    def test_a_clean_package_has_none(self):
        self.assertEqual(cycles({}), [])

    def test_one_at_the_top_of_files_is_found(self):
        self.assertEqual(cycles({"pack/errors.py": "import os\nimport pack.calls\n"}), [
            "pack.calls -> pack.errors: pack/calls.py:1",
            "pack.calls -> pack.inner.words: pack/calls.py:2",
            "pack.errors -> pack.calls: pack/errors.py:2",
            "pack.inner.words -> pack.errors: pack/inner/words.py:1"])

    def test_one_within_a_function_is_found(self):
        for line in ("from .calls import call", "from . import calls", "import pack.calls", "from pack import calls",
                     "importlib.import_module('.calls', __package__)", "import_module('pack.calls')"):
            with self.subTest(line):
                self.assertIn("pack.errors -> pack.calls: pack/errors.py:2",
                              cycles({"pack/errors.py": f"def late():\n    {line}\n"}))

    def test_one_for_type_checkers_is_found(self):
        text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..calls import Call\n"
        self.assertIn("pack.inner.words -> pack.calls: pack/inner/words.py:3", cycles({"pack/inner/words.py": text}))

    def test_one_by_the_package_itself_is_found(self):
        self.assertIn("pack.errors -> pack: pack/errors.py:1",
                      cycles({"pack/errors.py": "from . import call\n", "pack/__init__.py": "from .errors import Error\n"}))

    def test_other_packages_are_none(self):
        self.assertEqual(cycles({"pack/errors.py": "import calls\nfrom torch import calls\n"}), [])


if __name__ == "__main__":
    unittest.main()

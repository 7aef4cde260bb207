"""How the package finds its library, and what it says when it does not."""

import json
import shutil
import subprocess
import unittest

from support import LIBRARY, PACKAGE, PythonTest, attnsmith, compiler, python

from attnsmith._c_api import abi

PROGRAM = """
import attnsmith, json
try:
    print(json.dumps({"features": attnsmith.features()}))
except attnsmith.LibraryMissing as error:
    print(json.dumps({"message": str(error), "library": error.library, "tried": error.tried,
                      "details": error.details}))
"""


class Library(PythonTest):
    def outcome(self, **environment):
        result = python(PROGRAM, **environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def assert_missing(self, outcome, *words):
        self.assertEqual((outcome["library"], outcome["details"]["code"]), ("libattnsmith", "library_missing"))
        for word in (*words, "ATTNSMITH_LIBRARY", "pip install"):
            self.assertIn(word, outcome["message"])
        for tried in outcome["tried"]:
            self.assertIn(tried, outcome["message"])
        self.assertNotIn("\n", outcome["message"])

    def shared(self, name, source):
        """A shared library of C source, or a skipped test."""
        if compiler() is None:
            self.skipTest("no C compiler")
        file = self.folder / name
        subprocess.run([compiler(), "-shared", "-fPIC", "-x", "c", "-", "-o", str(file)], input=source, text=True,
                       check=True)
        return str(file)

    def copy_of_the_package(self):
        shutil.copytree(PACKAGE, self.folder / "site/attnsmith", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
        return self.folder / "site"

    def test_the_named_file(self):
        self.assertIn("op:attention", self.outcome()["features"])

    def test_a_named_file_that_is_not_there(self):
        outcome = self.outcome(ATTNSMITH_LIBRARY="/nowhere/libattnsmith.so")
        self.assertEqual(len(outcome["tried"]), 1)
        self.assert_missing(outcome, "/nowhere/libattnsmith.so", "No such file")

    def test_files_that_are_no_libattnsmith(self):
        text = self.folder / "text.so"
        text.write_text("not a library")
        self.assert_missing(self.outcome(ATTNSMITH_LIBRARY=str(text)), str(text))
        self.assert_missing(self.outcome(ATTNSMITH_LIBRARY="libm.so.6"), "libm.so.6", "no C ABI")

    def test_another_abi(self):
        file = self.shared("newer.so", "int attnsmith_abi_version(void) { return 99; }")
        self.assert_missing(self.outcome(ATTNSMITH_LIBRARY=file),
                            f"ABI version is 99; this package needs {abi.ABI_VERSION}")
        file = self.shared("partial.so", f"int attnsmith_abi_version(void) {{ return {abi.ABI_VERSION}; }}")
        self.assert_missing(self.outcome(ATTNSMITH_LIBRARY=file), "older than this package")

    def test_beside_the_package(self):
        """As a wheel has it: one file, under whatever name, without the links that its SONAME would want."""
        for name in ("libattnsmith.so", "libattnsmith.so.0.1.0"):
            with self.subTest(name=name):
                site = self.copy_of_the_package()
                shutil.copy(LIBRARY, site / "attnsmith" / name)
                outcome = self.outcome(ATTNSMITH_LIBRARY=None, PYTHONPATH=str(site))
                self.assertIn("op:attention", outcome["features"])
                shutil.rmtree(site)

    def test_nowhere(self):
        outcome = self.outcome(ATTNSMITH_LIBRARY=None, PYTHONPATH=str(self.copy_of_the_package()), LD_LIBRARY_PATH=None)
        if "features" in outcome:
            self.skipTest("a libattnsmith is installed on this machine")
        self.assert_missing(outcome, "libattnsmith.so")

    def test_importing_opens_nothing(self):
        program = "import attnsmith, attnsmith.torch, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
        result = python(program, ATTNSMITH_LIBRARY="/nowhere/libattnsmith.so")
        self.assertEqual((result.stdout, result.stderr), ("False False\n", ""))

    def test_importing_does_not_import_importlib_metadata(self):
        program = "import sys; before = set(sys.modules); import attnsmith; print('importlib.metadata' in {*sys.modules} - before)"
        result = python(program)
        self.assertEqual((result.stdout, result.stderr), ("False\n", ""))

    def test_version(self):
        self.assertRegex(attnsmith.__version__, r"^\d+\.\d+\.\d+$")
        with self.assertRaises(AttributeError):
            attnsmith.no_such_thing  # noqa: B018


if __name__ == "__main__":
    unittest.main()

"""The package, a program that uses it and the examples, as mypy and pyright see them. tests/python/frameworks.lock has both."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

import typed_program
from support import PACKAGE, REPOSITORY, PythonTest

EXAMPLES = REPOSITORY / "examples/python"


def without(*packages):
    """A decorator that skips a test where a package is not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"{' and '.join(missing)} is not installed; tests/python/frameworks.lock has it")


class Mypy(PythonTest):
    @without("mypy")
    def test_strict(self):
        """The package, the program and the examples. pyproject.toml says that frameworks are not read."""
        output, refused = typed_program.check(self.folder, "--config-file", str(REPOSITORY / "pyproject.toml"), str(PACKAGE),
                                              str(PACKAGE.with_name("attnsmith_vllm")), *map(str, EXAMPLES.glob("*.py")),
                                              MYPYPATH=str(PACKAGE.parent))
        self.assertEqual(refused, typed_program.REFUSED, output)


class Pyright(PythonTest):
    def report(self, *arguments, path=""):
        """The JSON that pyright prints. It looks for packages where the first Python of `path` has them."""
        done = subprocess.run([sys.executable, "-m", "pyright", "--outputjson", *map(str, arguments)], cwd=self.folder,
                              capture_output=True, text=True, timeout=600, check=False,
                              env={**os.environ, "PATH": path, "PYTHONPATH": str(PACKAGE.parent)})
        return json.loads(done.stdout)

    def errors_of(self, mode, *files):
        """Of files in the test's folder. The types of frameworks, which take long to read, are not looked for."""
        (self.folder / "pyrightconfig.json").write_text(json.dumps({
            "typeCheckingMode": mode, "include": files, "extraPaths": [str(PACKAGE.parent)],
            "reportMissingImports": False}), encoding="utf-8")
        return [one for one in self.report("-p", self.folder)["generalDiagnostics"] if one["severity"] == "error"]

    @without("pyright")
    def test_strict_of_a_program(self):
        file = self.folder / "program.py"
        file.write_text(typed_program.PROGRAM, encoding="utf-8")
        errors = self.errors_of("strict", "program.py")
        self.assertEqual({one["range"]["start"]["line"] + 1 for one in errors}, typed_program.REFUSED, errors)

    @without("pyright", "torch")
    def test_every_public_name_has_a_known_type(self):
        report = self.report("--verifytypes", "attnsmith", "--ignoreexternal", path=str(pathlib.Path(sys.executable).parent))
        report = report["typeCompleteness"]
        unknown = [one["name"] for one in report["symbols"] if one["isExported"] and not one["isTypeKnown"]]
        self.assertEqual(unknown, [])
        self.assertGreater(report["exportedSymbolCounts"]["withKnownType"], 1000)

    @without("pyright")
    def test_examples(self):
        for file in EXAMPLES.glob("*.py"):
            (self.folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        errors = self.errors_of("standard", *(file.name for file in EXAMPLES.glob("*.py")))
        self.assertEqual([(pathlib.Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"]) for one in errors], [])


if __name__ == "__main__":
    unittest.main()

"""No file of the Python package has a name that the wheel is built without."""

import pathlib
import subprocess
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
# scikit-build-core leaves these out of packages, besides what .gitignore names.
LEFT_OUT = (".dist-info", "__pycache__", "__pypackages__", ".tox", ".nox")


def tracked(*options):
    listed = subprocess.run(["git", "ls-files", *options], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise unittest.SkipTest("not a clone of git's")
    return listed.stdout.splitlines()


class PackageFiles(unittest.TestCase):
    def test_names(self):
        files = tracked("tools/python/attnsmith")
        self.assertIn("tools/python/attnsmith/__init__.py", files)
        for file in files:
            self.assertFalse(any(part.endswith(LEFT_OUT) for part in pathlib.PurePath(file).parts), file)

    def test_no_file_is_ignored(self):
        self.assertEqual(tracked("--cached", "--ignored", "--exclude-standard"), [])


if __name__ == "__main__":
    unittest.main()

"""tests/python/frameworks.lock pins everything of frameworks.txt, within its ranges and with hashes, and CI installs it."""

import pathlib
import re
import sys
import unittest

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:
    try:
        from pip._vendor.packaging.requirements import Requirement
        from pip._vendor.packaging.utils import canonicalize_name
    except ImportError:
        print("skipped: neither packaging nor pip is installed")
        sys.exit(77)

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
WANTED = REPOSITORY / "tests/python/frameworks.txt"
LOCK = REPOSITORY / "tests/python/frameworks.lock"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def requirements(file):
    """(requirement, hashes) of each line of a requirements file, whose continued lines are one."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(str.strip, text.splitlines()):
        requirement, *hashes = line.split(" --")
        yield Requirement(requirement.strip()), ["--" + one.strip() for one in hashes]


class FrameworksLock(unittest.TestCase):
    def test_every_line_is_one_version_with_hashes(self):
        locked = list(requirements(LOCK))
        self.assertGreater(len(locked), len(list(requirements(WANTED))))
        for requirement, hashes in locked:
            with self.subTest(str(requirement)):
                self.assertRegex(str(requirement.specifier), r"^==[^*,]+$")
                self.assertTrue(hashes)
                for one in hashes:
                    self.assertRegex(one, f"^{HASH.pattern}$")

    def test_every_requirement_is_pinned_within_its_range(self):
        pinned = {}
        for requirement, _ in requirements(LOCK):
            version = str(requirement.specifier).removeprefix("==")
            pinned.setdefault(canonicalize_name(requirement.name), []).append((version, requirement.marker))
        for requirement, _ in requirements(WANTED):
            with self.subTest(str(requirement)):
                versions = pinned.get(canonicalize_name(requirement.name), [])
                self.assertTrue(versions)
                for version, _ in versions:
                    self.assertTrue(requirement.specifier.contains(version, prereleases=True), version)
                # For each Python from 3.11 on there is one of them.
                for python in ("3.11", "3.12", "3.13", "3.14"):
                    environment = {"python_version": python, "python_full_version": f"{python}.1"}
                    fitting = [version for version, marker in versions if marker is None or marker.evaluate(environment)]
                    self.assertEqual(len(fitting), 1, python)

    def test_no_index_is_named(self):
        self.assertNotRegex(LOCK.read_text(encoding="utf-8"), r"://|(^|\s)(-i|-f|--index-url|--extra-index-url|--find-links)\b")

    def test_ci_installs_nothing_else(self):
        installs = re.findall(r'pip" install (.*)$', (REPOSITORY / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(installs, ["--require-hashes -r tests/python/frameworks.lock"])


if __name__ == "__main__":
    unittest.main()

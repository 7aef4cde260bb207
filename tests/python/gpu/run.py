"""Runs the Python tests that need a GPU: run.py [NAME ...], e.g. run.py test_paged test_dense.Dense.test_masks.

The library is found as by users: ATTNSMITH_LIBRARY, or an installed wheel. Ends with a line of counts. Exits 0 when all
passed, 1 when one failed, 77 when there is no GPU; what is skipped is named.
"""

import pathlib
import sys
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
SKIPPED = 77


class Result(unittest.TextTestResult):
    """Counts test methods: one with failed subtests failed once."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.bad = set()

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.bad.add(test.id())

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.bad.add(test.id())

    def addError(self, test, error):
        super().addError(test, error)
        self.bad.add(test.id())


def use_the_source_folder():
    try:
        import attnsmith  # noqa: F401
    except ImportError:
        sys.path.insert(0, str(FOLDER.parents[2] / "tools/python"))


def main(names):
    sys.path.insert(0, str(FOLDER))
    use_the_source_folder()
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(FOLDER), "test_*.py", str(FOLDER))
    start = time.monotonic()
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result)
    result = runner.run(suite)
    failed, skipped = len(result.bad), len(result.skipped)
    for test, reason in result.skipped:
        print(f"skipped {test.id()}: {reason}")
    print(f"{time.monotonic() - start:.1f} s")
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    if failed:
        return 1
    return SKIPPED if skipped == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

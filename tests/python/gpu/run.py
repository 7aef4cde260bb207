"""Runs the Python tests that need a GPU: run.py [--ledger FILE --sources DIGEST] [NAME ...], where a NAME is test_paged or
test_dense.Dense.test_masks.

The library is found as by users: ATTNSMITH_LIBRARY, or an installed wheel. Ends with a line of counts. Exits 0 when all
passed, 1 when one failed, 77 when there is no GPU; what is skipped is named. --ledger writes what ran, by group, for the
sources whose digest tests/cpu/architecture/ledger.py prints.
"""

import argparse
import collections
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
# Of modules whose tests are of one thing; others are groups by their names.
GROUPS = {"compile": "torch", "sdpa": "torch", "torch_backend": "torch"}


class Result(unittest.TextTestResult):
    """Counts test methods: one with failed subtests failed once. In `cases` each subtest counts by itself."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.bad = set()
        self.with_subtests = set()
        self.cases = collections.defaultdict(lambda: dict.fromkeys(("passed", "failed", "skipped"), 0))

    def count(self, test, outcome):
        module = type(test).__module__.removeprefix("test_")
        self.cases[GROUPS.get(module, module)][outcome] += 1

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        self.with_subtests.add(test.id())
        self.count(test, "passed" if error is None else "failed")
        if error is not None:
            self.bad.add(test.id())

    def addSuccess(self, test):
        super().addSuccess(test)
        if test.id() not in self.with_subtests:
            self.count(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if isinstance(test, unittest.TestCase):
            self.count(test, "skipped")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.count(test, "failed")
        self.bad.add(test.id())

    def addError(self, test, error):
        super().addError(test, error)
        if isinstance(test, unittest.TestCase):
            self.count(test, "failed")
        self.bad.add(test.id())


def use_the_source_folder():
    try:
        import attnsmith  # noqa: F401
    except ImportError:
        sys.path.insert(0, str(FOLDER.parents[2] / "tools/python"))


def write_ledger(path, sources, result, seconds):
    import torch
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "kernels", "jax")
                if importlib.util.find_spec(name)}
    groups = dict(sorted(result.cases.items()))
    totals = {outcome: sum(group[outcome] for group in groups.values()) for outcome in ("passed", "failed", "skipped")}
    ledger = {"sources": sources, **totals, "gpu": torch.cuda.get_device_name(), "versions": versions,
              "seconds": round(seconds, 1), "groups": groups}
    path.write_text(json.dumps(ledger, indent=2) + "\n", encoding="utf-8")


def main(options):
    names = options.names
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
    seconds = time.monotonic() - start
    if options.ledger and skipped < result.testsRun:
        write_ledger(options.ledger, options.sources, result, seconds)
    print(f"{seconds:.1f} s")
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    if failed:
        return 1
    return SKIPPED if skipped == result.testsRun else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=pathlib.Path, help="the file to write")
    parser.add_argument("--sources", default="", help="the digest of the sources, for the ledger")
    parser.add_argument("names", nargs="*", metavar="NAME")
    sys.exit(main(parser.parse_args()))

"""Runs the Python tests that need a GPU: run.py [--jobs N] [--ledger FILE --sources DIGEST] [NAME ...], where a NAME is
test_paged or test_dense.Dense.test_masks.

The library is found as by users: ATTNSMITH_LIBRARY, or an installed wheel. Ends with a line of counts. Exits 0 when all
passed, 1 when one failed, 77 when there is no GPU; what is skipped is named. --jobs has N processes share the classes of
tests, since most of the time goes to compilers. --ledger writes what ran, by group, for the sources whose digest
tests/cpu/architecture/ledger.py prints.
"""

import argparse
import collections
import concurrent.futures
import faulthandler
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
# Of modules whose tests are of one thing; others are groups by their names.
GROUPS = {"compile": "torch", "sdpa": "torch", "torch_backend": "torch"}


def group_of(module):
    name = module.removeprefix("test_")
    return GROUPS.get(name, name)


class Result(unittest.TextTestResult):
    """Counts test methods: one with failed subtests failed once. In `cases` each subtest counts by itself."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.bad = set()
        self.with_subtests = set()
        self.cases = collections.defaultdict(lambda: dict.fromkeys(("passed", "failed", "skipped"), 0))

    def count(self, test, outcome):
        self.cases[group_of(type(test).__module__)][outcome] += 1

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


def tests_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def outcome_of(suite):
    """Runs them in this process."""
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result).run(suite)
    return {"run": result.testsRun, "failed": sorted(result.bad), "cases": result.cases,
            "skipped": [[test.id(), reason] for test, reason in result.skipped]}


def outcome_of_child(name):
    """Runs the tests of that name in a process of their own, and prints what they print once they are done."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "outcome.json"
        done = subprocess.run([sys.executable, "-B", __file__, "--outcome", str(path), name], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
        print(done.stdout, flush=True)
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        print(f"{name}: the process ended with {done.returncode} and no outcome", flush=True)
        return {"run": 1, "failed": [name], "cases": {group_of(name.partition(".")[0]): {"failed": 1}}, "skipped": []}


def outcome_of_all(suite, jobs):
    # Modules that did not load have no class that a child could be given; a child of their name fails as they do.
    names = {test.id() if type(test).__module__.startswith("unittest") else f"{type(test).__module__}.{type(test).__qualname__}": None
             for test in tests_of(suite)}
    names = [name.removeprefix("unittest.loader._FailedTest.") for name in names]
    total = {"run": 0, "failed": [], "cases": collections.defaultdict(collections.Counter), "skipped": []}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(outcome_of_child, names):
            for group, counts in outcome.pop("cases").items():
                total["cases"][group].update(counts)
            for key, value in outcome.items():
                total[key] += value
    return total


def write_ledger(path, sources, outcome, seconds):
    import torch
    from gpu_support import version_of
    versions = dict(filter(all, ((name, version_of(name)) for name in ("torch", "transformers", "kernels", "jax", "vllm"))))
    outcomes = ("passed", "failed", "skipped")
    groups = {name: {key: counts.get(key, 0) for key in outcomes} for name, counts in sorted(outcome["cases"].items())}
    totals = {key: sum(group[key] for group in groups.values()) for key in outcomes}
    ledger = {"sources": sources, **totals, "gpu": torch.cuda.get_device_name(), "versions": versions,
              "seconds": round(seconds, 1), "groups": groups}
    path.write_text(json.dumps(ledger, indent=2) + "\n", encoding="utf-8")


def main(options):
    names = options.names
    faulthandler.enable()
    sys.path.insert(0, str(FOLDER))
    use_the_source_folder()
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(FOLDER), "test_*.py", str(FOLDER))
    start = time.monotonic()
    outcome = outcome_of_all(suite, options.jobs) if options.jobs > 1 else outcome_of(suite)
    if options.outcome:
        options.outcome.write_text(json.dumps(outcome), encoding="utf-8")
    failed, skipped = len(outcome["failed"]), len(outcome["skipped"])
    for test, reason in outcome["skipped"]:
        print(f"skipped {test}: {reason}")
    for test in outcome["failed"]:
        print(f"FAILED {test}")
    seconds = time.monotonic() - start
    if options.ledger and skipped < outcome["run"]:
        write_ledger(options.ledger, options.sources, outcome, seconds)
    print(f"{seconds:.1f} s")
    print(f"{outcome['run'] - failed - skipped} passed, {failed} failed, {skipped} skipped")
    if failed:
        return 1
    return SKIPPED if skipped == outcome["run"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many processes run tests at a time")
    parser.add_argument("--ledger", type=pathlib.Path, help="the file to write")
    parser.add_argument("--sources", default="", help="the digest of the sources, for the ledger")
    parser.add_argument("--outcome", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    sys.exit(main(parser.parse_args()))

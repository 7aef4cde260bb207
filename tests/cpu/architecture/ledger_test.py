"""Says whether these sources ran on a GPU. An old ledger is only told; a broken one, or one of a failed run, fails."""

import json
import pathlib
import subprocess
import tempfile
import unittest

import ledger

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
GOOD = {"sources": "0" * 64, "passed": 3, "failed": 0, "skipped": 1}


class Repository(unittest.TestCase):
    def test_ledgers(self):
        for name, folders in ledger.LEDGERS.items():
            with self.subTest(name):
                if not (REPOSITORY / name).exists():
                    print(f"{name}: there is none: nothing shows that these sources ran on a GPU")
                    continue
                text = (REPOSITORY / name).read_text(encoding="utf-8")
                self.assertEqual(ledger.faults(text), [])
                try:
                    now = ledger.sources_digest(REPOSITORY, folders)
                except (OSError, subprocess.CalledProcessError):
                    self.skipTest("this is no git repository, so the sources cannot be compared with the ledger's")
                if json.loads(text)["sources"] == now:
                    print(f"{name}: these very sources ran on a GPU")
                else:
                    print(f"{name}: older than the sources: {' or '.join(folders)} changed since they ran on a GPU")


class Rules(unittest.TestCase):
    def test_a_good_ledger(self):
        self.assertEqual(ledger.faults(json.dumps({**GOOD, "gpu": "H100", "groups": {}})), [])

    def test_broken_ledgers(self):
        for text in ("", "{", "[]", "{}", json.dumps({**GOOD, "sources": "abc"}), json.dumps({**GOOD, "passed": "3"}),
                     json.dumps({**GOOD, "skipped": -1}), json.dumps({**GOOD, "failed": True})):
            self.assertNotEqual(ledger.faults(text), [], text)

    def test_failures_are_failures(self):
        self.assertEqual(ledger.faults(json.dumps({**GOOD, "failed": 2})), ["2 tests failed on the GPU"])
        self.assertEqual(ledger.faults(json.dumps({**GOOD, "passed": 0})), ["no test passed on the GPU"])

    def test_digest_is_that_of_the_documented_command(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("runtime/b.cpp", "runtime/B.cpp", "runtime/a/z.hpp", "kernel_templates/x.cuh",
                         "kernel_templates/a/NOTES.md", "cache/no.cpp"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(name, encoding="utf-8")
            command = ("git init -q . && git add . && "
                       "git ls-files kernel_templates runtime ':!*.md' | LC_ALL=C sort | xargs sha256sum | sha256sum")
            try:
                printed = subprocess.run(["bash", "-c", command], cwd=root, capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError):
                self.skipTest("git is not installed")
            self.assertEqual(ledger.sources_digest(root), printed.stdout.split()[0])


if __name__ == "__main__":
    unittest.main()

"""Record a program, prewarm what it asked for into a fresh cache, and run it again where nothing may be compiled and
no NVRTC is."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import attnsmith

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "recorded_program.py"
PACKAGE = pathlib.Path(attnsmith.__file__).resolve().parents[1]
HEAD_DIM = "128"
OTHER_SM = 89  # the fleet's other machines


def run_program(cache, **environment):
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE), "ATTNSMITH_CACHE_DIR": str(cache), **environment}
    return subprocess.run([sys.executable, "-B", str(PROGRAM), HEAD_DIM, "1"], env=variables, capture_output=True,
                          text=True, timeout=300, check=False)


class Recorded(unittest.TestCase):
    def setUp(self):
        if not attnsmith.devices():
            self.skipTest("no GPU")

    def test_a_recorded_program_does_not_miss(self):
        own = attnsmith.devices()[0]["sm"]
        with tempfile.TemporaryDirectory() as folder:
            staging, fleet, nothing = (pathlib.Path(folder) / name for name in ("staging", "fleet", "nothing"))
            nothing.mkdir()
            recorded = pathlib.Path(folder) / "recorded.jsonl"
            done = run_program(staging, ATTNSMITH_RECORD=str(recorded))
            self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)

            report = attnsmith.Runtime(cache_dirs=fleet).prewarm(recorded=recorded, sm=[own, OTHER_SM])
            self.assertEqual(report["summary"]["failed"], 0)
            self.assertEqual(report["summary"]["compiled"], report["summary"]["total"])
            self.assertEqual({kernel["sm"] for kernel in report["kernels"]}, {own, OTHER_SM})
            self.assertEqual(report["unsupported"], [])

            done = run_program(fleet, ATTNSMITH_ON_MISS="error", ATTNSMITH_NVRTC_PATH=str(nothing))
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))
            counters = attnsmith.Runtime(cache_dirs=fleet).cache("stat")["counters"]
            self.assertEqual(counters["miss_errors"], 0)
            self.assertGreater(counters["hits"], 0)

            # It can fail: in an empty cache every kernel is missing.
            done = run_program(pathlib.Path(folder) / "empty", ATTNSMITH_ON_MISS="error")
            self.assertEqual(done.returncode, 1)
            self.assertIn("KernelMissing", done.stderr)


if __name__ == "__main__":
    unittest.main()

"""A sample of the oracle (model_oracle/oracle.py): plans of models against what reaches attention in transformers.

ATTNSMITH_ORACLE_TRANSFORMERS is a folder with what oracle.lock lists.
"""

import importlib.util
import os
import re
import subprocess
import sys
import unittest

from support import COMMAND, REPOSITORY

FOLDER = os.environ.get("ATTNSMITH_ORACLE_TRANSFORMERS", "")
ORACLE = REPOSITORY / "tests/python/model_oracle/oracle.py"


def missing():
    if importlib.util.find_spec("torch") is None:
        return "PyTorch and transformers are not installed"
    if not os.path.isdir(os.path.join(FOLDER, "transformers")):
        return "transformers 5.24.0 of oracle.lock (ATTNSMITH_ORACLE_TRANSFORMERS) is not installed"
    return None


def run_oracle(*arguments):
    environment = {**os.environ, "PYTHONPATH": FOLDER}
    return subprocess.run([sys.executable, "-B", ORACLE, "--command", COMMAND, *arguments], env=environment,
                          capture_output=True, text=True, timeout=600)


@unittest.skipIf(missing(), missing())
class Oracle(unittest.TestCase):
    def test_a_sample_of_types_is_planned_as_their_code_has_it(self):
        run = run_oracle("--seconds", "60")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        judged = [int(number) for number in re.findall(r": (\d+) judged of", run.stdout)]
        self.assertEqual(len(judged), 3, run.stdout)
        self.assertGreaterEqual(sum(judged), 20, run.stdout)

    def test_a_wrong_plan_is_found(self):
        """The oracle itself: against a command whose plans have another scale, each type is silent."""
        wrong = REPOSITORY / "tests/python/model_oracle/wrong_scale.py"
        environment = {**os.environ, "PYTHONPATH": FOLDER, "ATTNSMITH_BIN": COMMAND}
        run = subprocess.run([sys.executable, "-B", ORACLE, "--command", wrong, "--types", "llama"], env=environment,
                             capture_output=True, text=True, timeout=300)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("llama: silent: the code has", run.stdout)


if __name__ == "__main__":
    unittest.main()

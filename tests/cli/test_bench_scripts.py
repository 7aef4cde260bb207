"""The scripts of tools/bench on a machine without a GPU, and without torch: what they are asked for is said, and nothing else is done."""

import os
import subprocess
import sys

from support import REPOSITORY, CliTest, main

FOLDER = REPOSITORY / "tools/bench"
# Modules that the others import.
MODULES = ("launches.py", "adapter_models.py", "adapter_programs.py")
SCRIPTS = sorted(file for file in FOLDER.iterdir() if file.suffix in (".py", ".sh") and file.name not in MODULES)
SKIPPED = 77


class BenchScripts(CliTest):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        missing = self.folder / "modules/torch.py"
        missing.parent.mkdir()
        missing.write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n", encoding="ascii")
        self.env = {**os.environ, "PYTHONPATH": str(missing.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def run_script(self, script, *arguments):
        command = [sys.executable, script] if script.suffix == ".py" else ["bash", script]
        result = subprocess.run([*command, *arguments], cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                                text=True, timeout=60, check=False)
        self.assertNotIn("Traceback", result.stderr, script.name)
        self.assertEqual(list(self.work.iterdir()), [], script.name)
        return result

    def test_they_can_be_run(self):
        self.assertGreater(len(SCRIPTS), 7)
        for script in SCRIPTS:
            with self.subTest(script=script.name):
                self.assertTrue(os.access(script, os.X_OK))
                self.assertTrue(script.read_text(encoding="utf-8").startswith("#!/usr/bin/env "))

    def test_help(self):
        for script in SCRIPTS:
            with self.subTest(script=script.name):
                result = self.run_script(script, "--help")
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn(script.name, result.stdout)

    def test_without_arguments(self):
        for script in SCRIPTS:
            with self.subTest(script=script.name):
                result = self.run_script(script)
                self.assertIn(result.returncode, (1, 2, SKIPPED))
                self.assertTrue(result.stdout.startswith("skipped: ") if result.returncode == SKIPPED else
                                f"{script.name}: " in result.stderr, result.stdout + result.stderr)

    def test_a_reader_that_stops_early(self):
        for script, *arguments in (("peers.py", "--list"), ("append.py", "--list"), ("scheme_errors.py", "--list"),
                                   ("adapters.py", "--list")):
            command = f'"{sys.executable}" "{FOLDER / script}" {" ".join(arguments)} | head -n 1'
            result = subprocess.run(["bash", "-c", command], cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                                    text=True, timeout=60, check=False)
            self.assertEqual((result.stderr, len(result.stdout.splitlines())), ("", 1), script)

    def test_a_run_on_a_gpu_names_what_is_missing(self):
        result = self.run_script(FOLDER / "gpu_run.sh", "/nowhere", "out")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nowhere holds no attnsmith", result.stderr)


if __name__ == "__main__":
    main()

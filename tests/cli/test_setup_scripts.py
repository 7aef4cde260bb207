"""The scripts of tools/setup: what they say of themselves, and which packages they ask for."""

import os
import shutil
import subprocess

from support import REPOSITORY, CliTest, main

SCRIPTS = ("setup.sh", "demo.sh", "test.sh", "fuzz.sh", "lock_frameworks.sh")
# Programs that would change the machine or build something: each notes that it was called, and with what.
STUBS = ("apt-get", "sudo", "ctest", "pip", "dpkg-deb")
TEST_PACKAGES = ("catch2", "clang-format-14", "doxygen", "python3-yaml", "skopeo")


class SetupScripts(CliTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(REPOSITORY / "tools/setup", self.folder / "tree/tools/setup")
        for name in STUBS:
            self.stub(name, f'echo "{name} $*" >> "{self.folder}/calls"')
        self.stub("cmake", f'echo "cmake $*" >> "{self.folder}/calls"; echo cmake version 3.25.0')
        self.stub("dpkg-query", "echo not-installed")
        self.stub("apt-cache", "echo Package: any")
        self.stub("id", "echo 0")
        # A toolkit, so that nothing is fetched from PyPI.
        for header in ("cuda.h", "nvrtc.h"):
            file = self.folder / "cuda/include" / header
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("#define CUDA_VERSION 13000\n", encoding="ascii")

    def stub(self, name, body):
        file = self.folder / "stubs" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
        file.chmod(0o755)

    def run_script(self, name, *arguments):
        env = {**os.environ, "PATH": f"{self.folder}/stubs:{os.environ['PATH']}", "HOME": str(self.folder),
               "CUDA_HOME": str(self.folder / "cuda"), "ATTNSMITH_NVRTC_PATH": "/nowhere"}
        return subprocess.run(["bash", self.folder / "tree/tools/setup" / name, *arguments], cwd=self.folder, env=env,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)

    def calls(self):
        log = self.folder / "calls"
        return log.read_text(encoding="utf-8") if log.exists() else ""

    def assert_nothing_done(self):
        self.assertEqual(self.calls(), "")
        self.assertFalse((self.folder / "tree/build").exists())

    def test_help_does_nothing_else(self):
        for name in SCRIPTS:
            for flag in ("--help", "-h"):
                result = self.run_script(name, flag)
                self.assertEqual((result.returncode, result.stderr), (0, ""), name)
                self.assertIn(f"Usage: tools/setup/{name}", result.stdout)
        self.assert_nothing_done()

    def test_bad_arguments(self):
        for name, *arguments in (("setup.sh", "--hepl"), ("setup.sh", "x"), ("demo.sh", "--nothing"), ("demo.sh", "/missing"),
                                 ("demo.sh", "/dev/null", "/dev/null"), ("test.sh", "--nothing"),
                                 ("test.sh", "--sanitize"), ("test.sh", "--sanitize", "memory"),
                                 ("test.sh", "--sanitize=x"), ("test.sh", "-R"), ("fuzz.sh", "soon"), ("fuzz.sh", "0"),
                                 ("fuzz.sh", "1", "2"), ("fuzz.sh", "--nothing"), ("fuzz.sh", "--parts", "soon"), ("lock_frameworks.sh", "--nothing"),
                                 ("lock_frameworks.sh", "--upgrade", "x")):
            with self.subTest(name=name, arguments=arguments):
                result = self.run_script(name, *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertTrue(result.stderr.startswith(f"{name}: "), result.stderr)
                self.assertIn("Usage: ", result.stderr)
        self.assert_nothing_done()

    def test_packages_of_tests_are_for_tests(self):
        self.run_script("setup.sh")
        asked = self.calls()
        self.assertIn("libcli11-dev", asked)
        for package in TEST_PACKAGES:
            self.assertNotIn(package, asked)
        self.run_script("setup.sh", "--tests")
        self.assertIn("catch2", self.calls())

    def test_the_demo_needs_no_tests_and_says_how_long_it_takes(self):
        result = self.run_script("demo.sh", "/dev/null")
        self.assertRegex(result.stdout.splitlines()[0], r"about \d+ min on this machine's \d+ cores")
        self.assertIn("-DATTNSMITH_TESTS=OFF", self.calls())
        for package in TEST_PACKAGES:
            self.assertNotIn(package, self.calls())
        (self.folder / "tree/build/valijson").mkdir()  # as if it were fetched
        result = self.run_script("test.sh", "--sanitize", "thread", "-R", "cli/help")
        self.assertRegex(result.stdout.splitlines()[0], r"building about \d+ min, testing about \d+ min on")
        self.assertIn("-DATTNSMITH_TESTS=ON", self.calls())
        self.assertRegex(self.calls(), r"ctest --preset tsan -j \d+ -R cli/help\n")


if __name__ == "__main__":
    main()

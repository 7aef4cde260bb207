"""`python -m attnsmith` and the console script: the command of a wheel, from a copy of the package that has it."""

import os
import importlib
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

from support import COMMAND, PACKAGE, REPOSITORY, PythonTest, attnsmith, python

try:
    import tomllib
except ImportError:  # Python before 3.11
    tomllib = None

PRINT_NVRTC = "#!/bin/sh\necho \"${ATTNSMITH_NVRTC_PATH:-none}\"\n"


class Command(PythonTest):
    def setUp(self):
        super().setUp()
        self.site = self.folder / "site"
        shutil.copytree(PACKAGE, self.site / "attnsmith", ignore=shutil.ignore_patterns("bin", "*.so*", "__pycache__"))

    def put(self, text=None):
        """A program in the command's place: this text, or the command of the build."""
        file = self.site / "attnsmith/bin/attnsmith"
        file.parent.mkdir()
        if text is None:
            if not pathlib.Path(COMMAND).is_file():
                self.skipTest(f"there is no command to run ({COMMAND})")
            file.symlink_to(COMMAND)
        else:
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755)

    def run_module(self, *arguments, **environment):
        variables = {**os.environ, "PYTHONPATH": str(self.site), "ATTNSMITH_NVRTC_PATH": None, **environment}
        return subprocess.run([sys.executable, "-B", "-m", "attnsmith", *arguments], capture_output=True, text=True,
                              timeout=120, check=False,
                              env={name: value for name, value in variables.items() if value is not None})

    def test_output_and_exit_codes_are_the_commands(self):
        self.put()
        done = self.run_module("--version")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"attnsmith {attnsmith.__version__}\n", ""))
        done = self.run_module("plan", "--head-dim", "64", "--q-heads", "0", "--sm", "90")
        self.assertEqual(done.returncode, 2)
        self.assertIn("q_heads", done.stderr)

    def test_arguments_come_as_they_are(self):
        self.put('#!/bin/sh\nfor argument; do echo "<$argument>"; done\nkill -TERM $$\n')
        done = self.run_module("a b", "", "--x=*")
        self.assertEqual((done.returncode, done.stdout), (-signal.SIGTERM, "<a b>\n<>\n<--x=*>\n"))

    def test_the_nvrtc_of_a_wheel_is_found(self):
        self.put(PRINT_NVRTC)
        for version in ("12", "13"):
            folder = self.site / f"nvidia/cu{version}/lib"
            folder.mkdir(parents=True)
            (folder / f"libnvrtc.so.{version}").touch()
        self.assertEqual(self.run_module().stdout, f"{self.site}/nvidia/cu13/lib/libnvrtc.so.13\n")
        self.assertEqual(self.run_module(ATTNSMITH_NVRTC_PATH="/mine").stdout, "/mine\n")

    def test_without_an_nvrtc_the_command_looks_by_itself(self):
        self.put(PRINT_NVRTC)
        program = ("import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
                   "runpy.run_module('attnsmith', run_name='__main__')")
        done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program, str(self.site)], text=True,
                              capture_output=True, timeout=120, check=False, env={"PATH": os.environ["PATH"]})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "none\n", ""))

    def test_a_package_without_the_command(self):
        done = self.run_module("--version")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(str(self.site / "attnsmith/bin/attnsmith"), done.stderr)
        self.assertIn("pip install", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_the_console_script_is_the_same(self):
        self.put()
        done = python("import sys; from attnsmith.__main__ import main; sys.argv[1:] = ['--version']; sys.exit(main())",
                      PYTHONPATH=str(self.site))
        self.assertEqual((done.returncode, done.stdout), (0, f"attnsmith {attnsmith.__version__}\n"))


@unittest.skipIf(tomllib is None, "Python before 3.11 reads no TOML")
class Project(PythonTest):
    """pyproject.toml names what there is. tools/python/build_wheel.sh builds by it."""

    def test_names(self):
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
        build, facts = project["tool"]["scikit-build"], project["project"]
        self.assertEqual([REPOSITORY / folder for folder in build["wheel"]["packages"]],
                         [PACKAGE, PACKAGE.with_name("attnsmith_vllm")])
        for file in (facts["readme"], *facts["license-files"]):
            self.assertTrue((REPOSITORY / file).is_file(), file)
        module, function = facts["scripts"]["attnsmith"].split(":")
        self.assertTrue(callable(getattr(importlib.import_module(module), function)))
        version = build["metadata"]["version"]
        found = re.search(version["regex"], (REPOSITORY / version["input"]).read_text(encoding="utf-8"))
        self.assertEqual(found["value"], attnsmith.__version__)

    def test_headers_for_a_machine_without_a_toolkit(self):
        """The backend asks for the wheels of tools/setup, where it is not told of a toolkit and finds none."""
        program = """
import os, pathlib, sys, types
inner = types.ModuleType("scikit_build_core.build")
for name in ("wheel", "editable"):
    setattr(inner, f"get_requires_for_build_{name}", lambda settings=None: ["inner"])
    setattr(inner, f"build_{name}", lambda folder, settings=None, metadata=None: settings)
for name in ("build_sdist", "get_requires_for_build_sdist", "prepare_metadata_for_build_editable",
             "prepare_metadata_for_build_wheel"):
    setattr(inner, name, None)
outer = types.ModuleType("scikit_build_core")
outer.build = inner
sys.modules.update({"scikit_build_core": outer, "scikit_build_core.build": inner})
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import build_backend
real = pathlib.Path.is_file
pathlib.Path.is_file = lambda self: real(self) and str(self).startswith(sys.argv[2])
print(build_backend.get_requires_for_build_wheel())
print(build_backend.build_wheel("folder", {"given": "1"}))
os.environ["CUDA_HOME"] = sys.argv[2]
print(build_backend.get_requires_for_build_editable(), build_backend.build_editable("folder"))
"""
        wheels, toolkit = self.folder / "nvidia/cu13/include", self.folder / "include"
        for folder in (wheels, toolkit):
            folder.mkdir(parents=True)
            for name in ("cuda.h", "nvrtc.h"):
                (folder / name).touch()
        done = python(program, REPOSITORY / "tools/python", self.folder, CUDA_HOME=None, CUDA_PATH=None,
                      CMAKE_ARGS=None, SKBUILD_CMAKE_ARGS=None)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        asked, settings, told = done.stdout.splitlines()
        pinned = re.findall(r"^(nvidia[^ ]*)", (REPOSITORY / "tools/setup/cuda-wheels.txt").read_text(), re.MULTILINE)
        self.assertEqual((len(pinned), asked), (2, str(["inner", *pinned])))
        self.assertEqual(settings, str({"given": "1", "cmake.define.ATTNSMITH_CUDA_INCLUDE": str(wheels),
                                        "cmake.define.ATTNSMITH_NVRTC_INCLUDE": str(wheels)}))
        self.assertEqual(told, "['inner'] {}")


if __name__ == "__main__":
    unittest.main()

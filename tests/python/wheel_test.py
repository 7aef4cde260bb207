"""What is published, as a user gets it: wheel_test.py WHEEL SDIST. tools/python/build_wheel.sh makes both and runs it.

Needs neither a GPU nor NVRTC, and takes nothing from any package index. Types are checked where there is mypy.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import typed_program

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WHEEL, SDIST = (pathlib.Path(name).resolve() for name in sys.argv[1:3]) if len(sys.argv) > 2 else (None, None)
BINARIES = ("attnsmith/libattnsmith.so", "attnsmith/bin/attnsmith", "attnsmith/libattnsmith_torch.so",
            "attnsmith/libattnsmith_tvm_ffi.so", "attnsmith/_native.abi3.so")
LICENCES = ("LICENSE", "THIRD_PARTY_NOTICES")
FOR_JAX = "attnsmith/libattnsmith_jax.so"  # in wheels that were built where JAX is
FOR_TORCH = "attnsmith/libattnsmith_torch.so"  # throws through torch, and so has torch's libstdc++
# Libraries that every system has that the tag names; anything else would have to be in the wheel.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def run(*command, **environment):
    variables = {**{name: value for name, value in os.environ.items() if not name.startswith(("ATTNSMITH", "PYTHON"))},
                 **environment}
    return subprocess.run([str(part) for part in command], env=variables, capture_output=True, text=True, timeout=300,
                          check=False)


class Files(unittest.TestCase):
    """What is in the archives."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        with zipfile.ZipFile(WHEEL) as wheel:
            cls.names = wheel.namelist()
            cls.modes = {entry.filename: entry.external_attr >> 16 for entry in wheel.infolist()}
            wheel.extractall(cls.folder)
        cls.binaries = (*BINARIES, *[name for name in cls.names if name == FOR_JAX])

    def read(self, *arguments):
        done = subprocess.run(["readelf", "--wide", *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def test_the_package(self):
        folder = REPOSITORY / "tools/python"
        files = [file for package in ("attnsmith", "attnsmith_vllm") for file in (folder / package).rglob("*")]
        sources = {str(file.relative_to(folder)) for file in files
                   if file.suffix in (".py", ".json") or file.name == "py.typed" or file.parent.suffix == ".egg-info"}
        sources |= {f"attnsmith/schemas/{file.name}" for file in (REPOSITORY / "runtime/schemas").iterdir()}
        package = {name for name in self.names
                   if not name.split("/")[0].endswith(".dist-info") and not name.endswith("/")}
        self.assertEqual(package, {*sources, *self.binaries}, "nothing else, such as libraries of this machine")
        self.assertTrue(self.modes["attnsmith/bin/attnsmith"] & 0o111)
        for name in LICENCES:
            [found] = [one for one in self.names if one.endswith(f".dist-info/licenses/{name}")]
            self.assertEqual((self.folder / found).read_bytes(), (REPOSITORY / name).read_bytes())

    def test_the_tag_is_true(self):
        """Told from the files themselves, apart from what tagged them."""
        tag = re.fullmatch(r"attnsmith-[\w.]+-py3-none-(.*)\.whl", WHEEL.name).group(1)
        promised = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", tag)]
        self.assertTrue(promised, tag)
        for name in self.binaries:
            with self.subTest(file=name):
                versions = self.read("--version-info", self.folder / name)
                needed = [tuple(map(int, one.split("."))) for one in re.findall(r"Name: GLIBC_([\d.]+)", versions)]
                self.assertTrue(needed)
                self.assertLessEqual(max(needed)[:2], min(promised))
                self.assertNotIn("GLIBC_PRIVATE", versions)
                libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", self.read("--dynamic", self.folder / name))
                self.assertLessEqual(set(libraries), {*SYSTEM, "libstdc++.so.6"} if name == FOR_TORCH else SYSTEM)

    def test_the_libraries_export_their_own_symbols_alone(self):
        """None of the libstdc++ in them, which another library of a process might take."""
        for name, symbol in ((BINARIES[0], "attnsmith_abi_version"), (FOR_JAX, "attnsmith_jax_execute"),
                             (FOR_TORCH, "attnsmith_torch_open"), ("attnsmith/_native.abi3.so", "PyInit__native"),
                             ("attnsmith/libattnsmith_tvm_ffi.so", "__tvm_ffi_attention")):
            if name not in self.binaries:
                continue
            with self.subTest(file=name):
                symbols = self.read("--dyn-syms", self.folder / name)
                defined = [line.split()[7].split("@")[0] for line in symbols.splitlines()
                           if re.match(r"\s+\d+:", line) and len(line.split()) > 7 and line.split()[6] != "UND"]
                self.assertIn(symbol, defined)
                ours = ("attnsmith", "__tvm_ffi_") if symbol.startswith("__tvm_ffi_") else ("attnsmith",)
                self.assertEqual([name for name in defined if not any(one in name for one in ours) and name != symbol], [])

    def test_the_sdist(self):
        with tarfile.open(SDIST) as sdist:
            names = {name.partition("/")[2] for name in sdist.getnames()}
        for name in ("CMakeLists.txt", "PKG-INFO", *LICENCES, "README.md", "tools/python/build_backend.py"):
            self.assertIn(name, names)
        self.assertEqual([name for name in names if name.startswith(("build/", "."))], [])


class Installed(unittest.TestCase):
    """In an environment that has nothing but the wheel."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-installed-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([sys.executable, "-m", "venv", cls.folder / "env"], check=True)
        cls.bin = cls.folder / "env/bin"
        subprocess.run([cls.bin / "pip", "install", "--quiet", "--no-index", WHEEL], check=True)

    def test_the_command(self):
        asked = ("plan", "--head-dim", "64", "--q-heads", "4", "--sm", "90", "--json")
        for command in ((self.bin / "attnsmith",), (self.bin / "python", "-m", "attnsmith")):
            with self.subTest(command=command[-1]):
                done = run(*command, *asked)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(json.loads(done.stdout)["schema"], "attnsmith.plan/1")
                done = run(*command, "plan", "--q-heads", "0", "--sm", "90")
                self.assertEqual(done.returncode, 2)

    def test_the_package(self):
        program = ("import attnsmith, json, sys; print(attnsmith.__version__, attnsmith.__file__); "
                   "print(attnsmith.plan(head_dim=64, q_heads=4, sm=90)['schema']); "
                   "print(sorted(name for name in sys.modules if name in ('torch', 'numpy', 'typing_extensions')))")
        done = run(self.bin / "python", "-c", program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        version, schema, loaded = done.stdout.splitlines()
        self.assertTrue(version.split()[1].startswith(str(self.folder)), version)
        self.assertEqual((schema, loaded), ("attnsmith.plan/1", "[]"))
        self.assertIn(version.split()[0], WHEEL.name)

    def test_the_plugin_of_vllm(self):
        """It loads in less than the 50 ms that vLLM may be held up, and without vLLM it warns."""
        program = ("import importlib.metadata as metadata, time; [plugin] = metadata.entry_points(group='vllm.general_plugins'); "
                   "begin = time.perf_counter(); register = plugin.load(); seconds = time.perf_counter() - begin; register(); "
                   "print(plugin.name, seconds < 0.05)")
        done = run(self.bin / "python", "-c", program)
        self.assertEqual((done.returncode, done.stdout), (0, "attnsmith True\n"), done.stderr)
        self.assertIn("not available in this vLLM: ModuleNotFoundError", done.stderr)

    def test_programs_of_flash_attn(self):
        """They find its packages and their metadata, which transformers and diffusers ask for."""
        program = ("import importlib.metadata as metadata, importlib.util as util; "
                   "print(*[metadata.version(name) for name in ('flash_attn', 'flash_attn_3')], "
                   "*[util.find_spec(name) is not None for name in ('flash_attn', 'flash_attn_interface')])")
        done = run(self.bin / "python", "-m", "attnsmith.compat.flash_attn", "-c", program)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "2.8.3 3.0.0 True True\n", ""))

    def test_types(self):
        """mypy takes them from the wheel."""
        missing = typed_program.mypy_missing()
        if missing:
            self.skipTest(missing)
        output, refused = typed_program.check(self.folder, "--python-executable", str(self.bin / "python"))
        self.assertEqual(refused, typed_program.REFUSED, output)

    def test_without_nvrtc(self):
        """What helps is said."""
        program = ("import attnsmith, sys; r = attnsmith.Runtime(cache_dirs=sys.argv[1], nvrtc_path=sys.argv[1], "
                   "log_level='off'); r.prewarm({'head_dim': 64, 'q_heads': 1}, sm=90)")
        done = run(self.bin / "python", "-c", program, self.folder)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("LibraryMissing", done.stderr)
        self.assertIn("correct what ATTNSMITH_NVRTC_PATH or nvrtc_path names", done.stderr)


if __name__ == "__main__":
    if WHEEL is None:
        sys.exit("wheel_test.py WHEEL SDIST")
    unittest.main(argv=[sys.argv[0], "-v"])

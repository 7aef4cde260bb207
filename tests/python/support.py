"""What the Python tests share. They need neither torch nor a GPU.

ATTNSMITH_LIBRARY is the shared library; ATTNSMITH_BIN the attnsmith command; ATTNSMITH_FAKE_CUDA, if set, a stub of
libcuda (tests/support/fake_cuda); ATTNSMITH_FAKE_NVRTC, if set, one of libnvrtc.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "tools/python/attnsmith"
INCLUDE = REPOSITORY / "runtime/include"
# The public headers, with those that CMake makes.
INCLUDES = (INCLUDE, *filter(None, [os.environ.get("ATTNSMITH_GENERATED_INCLUDE")]))
MODELS = REPOSITORY / "tests/models"
LIBRARY = os.environ.setdefault("ATTNSMITH_LIBRARY", str(REPOSITORY / "build/release/runtime/libattnsmith.so"))
COMMAND = os.environ.get("ATTNSMITH_BIN", str(REPOSITORY / "build/release/bin/attnsmith"))
FAKE_CUDA = os.environ.get("ATTNSMITH_FAKE_CUDA", "")
FAKE_NVRTC = os.environ.get("ATTNSMITH_FAKE_NVRTC", "")

# Neither the user's kernels nor their settings count here.
_own_cache = tempfile.TemporaryDirectory(prefix="attnsmith-python-cache-")
os.environ["ATTNSMITH_CACHE_DIR"] = _own_cache.name
os.environ.pop("ATTNSMITH_LOG", None)

sys.path.insert(0, str(PACKAGE.parent))
import attnsmith  # noqa: E402  (of this repository, not one that is installed)

# A small problem: quick to plan, and few small kernels to compile.
SMALL = {"dtype": "bf16", "head_dim": 64, "q_heads": 4, "kv_heads": 2}


class PythonTest(unittest.TestCase):
    """Each test has a folder of its own. `runtime()` makes runtimes with a cache and a log of their own."""

    maxDiff = None

    def setUp(self):
        os.umask(0o022)  # a cache that the group may write to is not trusted
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-python-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.log = []

    def runtime(self, **options):
        options = {"cache_dirs": self.folder / "cache", "log_level": "info",
                   "log": lambda level, line: self.log.append((level, line)), **options}
        runtime = attnsmith.Runtime(**options)
        self.addCleanup(runtime.close)
        return runtime

    def assert_refused(self, field, function, *arguments, **words):
        """An InvalidRequest for this field, whose message, attributes and details say the same."""
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            function(*arguments, **words)
        error = caught.exception
        self.assertEqual(error.field, field, str(error))
        self.assertIsInstance(error, ValueError)
        self.assertEqual(error.details["code"], "invalid_request")
        for name in ("field", "value", "accepted"):
            self.assertEqual(error.details[name], getattr(error, name))
            said = "is missing" if getattr(error, name) == "nothing" else getattr(error, name)
            self.assertIn(said, str(error))
        return error


def python(program, *arguments, **environment):
    """Runs a program in an interpreter of its own; None takes a variable away."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    return subprocess.run([sys.executable, "-B", "-c", program, *map(str, arguments)], env=variables,
                          capture_output=True, text=True, timeout=240)


def in_threads(count, work):
    """Runs `work` in `count` threads at once. What they raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def compiler():
    """A C compiler, or None."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = name and shutil.which(name)
        if found:
            return found
    return None


def nvrtc_missing():
    """Why kernels cannot be compiled here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = attnsmith.Runtime(cache_dirs=folder, log_level="off")
        try:
            report = runtime.prewarm({**SMALL, "head_dim": 8, "q_heads": 1, "kv_heads": 1}, sm=90)
        except attnsmith.LibraryMissing as error:
            return str(error)
        failed = [kernel for kernel in report["kernels"] if kernel["state"] == "failed"]
        return failed[0]["error"] if failed else None


# ---- The fake driver


class FakeLaunch(ctypes.Structure):
    """struct fake_cuda_launch."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
                ("function", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("context", ctypes.c_void_p),
                ("parameter", ctypes.c_ubyte * 4096), ("parameter_bytes", ctypes.c_size_t), ("device", ctypes.c_int),
                ("entry", ctypes.c_char * 128)]


class FakeState(ctypes.Structure):
    """struct fake_cuda_state, as far as these tests look."""

    _fields_ = [(name, ctypes.c_int) for name in
                ("inits", "library_loads", "library_unloads", "kernels", "materialised", "attribute_sets", "launches",
                 "allocations", "frees", "primary_retains", "primary_releases", "captures", "graph_launches",
                 "context_queries")] + [
                ("bytes_allocated", ctypes.c_size_t), ("last_launch", FakeLaunch), ("param_bytes", ctypes.c_size_t)] + [
                (name, ctypes.c_int) for name in
                ("refuse_next_loads", "refuse_code", "fail_launch", "fail_alloc")] + [("global_u32", ctypes.c_uint)] + [
                (name, ctypes.c_int) for name in ("defer", "bad_frees", "lost_captures", "stream_waits",
                                                  "default_stream_waits")]


def fake_state():
    """The state of the fake driver that this process has."""
    function = ctypes.CDLL(FAKE_CUDA).fake_cuda_get_state
    function.restype = ctypes.POINTER(FakeState)
    return function().contents

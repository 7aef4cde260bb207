"""A user who has the wheel, a driver, and kernels that were compiled elsewhere: no CUDA toolkit, no NVRTC, no torch.

ATTNSMITH_WHEEL is the wheel, ATTNSMITH_WARM_CACHE a folder into which somebody ran
`attnsmith prewarm --head-dim 128 --q-heads 8 --kv-heads 2 --mask causal --sm SM`.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

WHEEL = os.environ.get("ATTNSMITH_WHEEL", "")
WARM_CACHE = os.environ.get("ATTNSMITH_WARM_CACHE", "")

PROGRAM = """
import struct, sys
sys.path.insert(0, sys.argv[1])
import attnsmith
assert attnsmith.__file__.startswith(sys.argv[1])

def ones(*shape):
    buffer = attnsmith.default_runtime().allocate(2 * shape[0] * shape[1] * shape[2] * shape[3])
    buffer.upload(struct.pack("<H", 0x3f80) * (buffer.nbytes // 2))
    return buffer.array(shape, "bf16")

q, k, v = ones(2, 40, 8, 128), ones(2, 300, 2, 128), ones(2, 300, 2, 128)
o = attnsmith.attention(q, k, v, causal=True)
attnsmith.default_runtime().synchronize()
assert o.tobytes() == struct.pack("<H", 0x3f80) * (2 * 40 * 8 * 128), "the mean of ones is not one"
assert "nvrtc" not in open("/proc/self/maps").read()
print("ran")
try:
    attnsmith.attention(q, k, v, causal=True, softcap=30.0)
except attnsmith.LibraryMissing as error:
    print(error)
"""


@unittest.skipUnless(WHEEL and WARM_CACHE, "ATTNSMITH_WHEEL and ATTNSMITH_WARM_CACHE are not set")
class Wheel(unittest.TestCase):
    def test_without_nvrtc(self):
        with tempfile.TemporaryDirectory() as folder:
            site, cache, nothing = (pathlib.Path(folder) / name for name in ("site", "cache", "nothing"))
            nothing.mkdir()
            zipfile.ZipFile(WHEEL).extractall(site)
            shutil.copytree(WARM_CACHE, cache)
            environment = {"PATH": "/usr/bin:/bin", "ATTNSMITH_CACHE_DIR": str(cache),
                           "ATTNSMITH_NVRTC_PATH": str(nothing)}
            done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM, str(site)], env=environment,
                                  capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            ran, error = done.stdout.splitlines()
            self.assertEqual(ran, "ran")
            self.assertIn("pip install nvidia-cuda-nvrtc", error)
            self.assertIn("prewarm", error)


if __name__ == "__main__":
    unittest.main()

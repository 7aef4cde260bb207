"""What the tests that launch share: a runtime with a stub of the CUDA driver, and arrays and streams of the stub."""

import ctypes
import os
import re
import tempfile

from support import FAKE_CUDA, REPOSITORY, PythonTest, attnsmith, fake_state, nvrtc_missing

os.environ["FAKE_CUDA_DEVICES"] = "2"
os.environ["FAKE_CUDA_SM"] = "90"


def pointers_of_arguments():
    """The addresses that the arguments of every attention kernel begin with, by their names there."""
    header = (REPOSITORY / "kernel_templates/abi/attention_arguments.h").read_text(encoding="utf-8")
    members = header.partition("struct AttentionArguments {")[2].partition("int64 ")[0]
    return re.findall(r"^    (?:const )?\w+\* (\w+);", members, re.MULTILINE)


class LaunchTest(PythonTest):
    """All share one folder of kernels, since each of the small ones takes a while to compile."""

    @classmethod
    def setUpClass(cls):
        cls.missing = nvrtc_missing() if FAKE_CUDA else "ATTNSMITH_FAKE_CUDA is not set"
        cls.cache = tempfile.TemporaryDirectory(prefix="attnsmith-python-")
        cls.addClassCleanup(cls.cache.cleanup)

    def setUp(self):
        super().setUp()
        if self.missing:
            self.skipTest(self.missing)
        self.state = fake_state()
        self.state.fail_launch = self.state.fail_alloc = self.state.param_bytes = 0
        self.rt = self.runtime(cache_dirs=self.cache.name, driver_path=FAKE_CUDA)
        attnsmith.set_default_runtime(self.rt)
        self.addCleanup(attnsmith.set_default_runtime, None)

    def array(self, *shape, dtype="bf16", values=None, device=0, offset=0):
        """A new array; `values` (integers) are its elements."""
        size = {"bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "int64": 8, "uint8": 1}[dtype]
        count = size
        for extent in shape:
            count *= extent
        buffer = self.rt.allocate(max(count + offset, 1), device)
        array = buffer.array(shape, dtype, offset)
        if values is not None:
            kind = {"int32": ctypes.c_int32, "int64": ctypes.c_int64}[dtype]
            buffer.upload(bytes((kind * len(values))(*values)))
        return array

    def launched(self, function, *arguments, **options):
        """How many kernels a call launches, and what it gives."""
        before = self.state.launches
        result = function(*arguments, **options)
        return self.state.launches - before, result

    def launched_at(self, *names):
        """The addresses that the last launch had of these, 0 for none. Needs param_bytes that reach them."""
        known = pointers_of_arguments()
        words = (ctypes.c_uint64 * len(known)).from_buffer_copy(self.state.last_launch.parameter)
        return [words[known.index(name)] for name in names]

    def stream(self, device=0):
        """A stream of the stub."""
        driver = ctypes.CDLL(FAKE_CUDA)
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        driver.cuCtxPushCurrent_v2(context)
        driver.cuStreamCreate(ctypes.byref(stream), 0)
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        return stream.value

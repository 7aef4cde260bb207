"""prepare, bind and launch through a stub of the CUDA driver, whose device memory is the host's."""

import ctypes
import gc
import io
import os
import re
import tempfile
import threading
import unittest
import weakref
from unittest import mock

from support import FAKE_CUDA, REPOSITORY, SMALL, PythonTest, attnsmith, fake_state, nvrtc_missing

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


class Objects(LaunchTest):
    def bound(self, q_len=8, **words):
        kernel = self.rt.prepare(**SMALL, batch=1, q_len=q_len, kv_len=16, **words)
        q, k, o = self.array(1, q_len, 4, 64), self.array(1, 16, 2, 64), self.array(1, q_len, 4, 64)
        return kernel, q, k, o

    def test_devices(self):
        devices = self.rt.devices()
        self.assertEqual([(one["index"], one["sm"], one["name"]) for one in devices],
                         [(0, 90, "Fake GPU"), (1, 90, "Fake GPU")])

    def test_buffers(self):
        buffer = self.rt.allocate(16)
        buffer.upload(b"0123456789abcdef")
        buffer.upload(bytearray(b"XY"), offset=2)
        self.assertEqual((buffer.download(), buffer.download(4, 1), buffer.nbytes), (b"01XY456789abcdef", b"1XY4", 16))
        self.assertEqual(buffer.array([2, 2], "int32").tobytes(), b"01XY456789abcdef")
        self.assertEqual(buffer.array([0, 2], "int32").tobytes(), b"")
        for bad in (lambda: buffer.upload(b"12", 15), lambda: buffer.download(17), lambda: buffer.array([5], "int32"),
                    lambda: buffer.array([1], "fp8")):
            with self.assertRaises(attnsmith.InvalidRequest):
                bad()
        frees = self.state.frees
        array = buffer.array([1], "fp32")
        buffer = None
        gc.collect()
        self.assertEqual(self.state.frees, frees, "freed under an array")
        del array
        gc.collect()
        self.assertEqual(self.state.frees, frees + 1)

    def test_integers_that_c_has_no_room_for(self):
        """ctypes would cut them off: an offset of 2**64 would be one of 0."""
        class Integer:
            def __index__(self):
                return 4
        buffer = self.rt.allocate(16)
        buffer.upload(bytes(16))
        for offset in (-1, 2**64, 2**64 + 4, 1.0, "0", None, True):
            with self.subTest(offset=offset):
                self.assert_refused("offset", buffer.upload, b"x", offset)
                self.assert_refused("offset", buffer.download, 1, offset)
                self.assert_refused("offset", buffer.array, [1], "int32", offset)
        self.assertEqual(buffer.download(), bytes(16))
        for nbytes in (-1, 2**64, 2**64 + 1, 1.0, "1"):
            self.assert_refused("nbytes", buffer.download, nbytes)
        with self.assertRaises(attnsmith.InvalidRequest):
            buffer.download(2**62)  # no memory is taken for it first
        for shape in ((-1,), (-1, -1), (2, -1), (1.5,), ("1",), (0, 2**63), (0, 2**62, 2**62), (True,)):
            self.assert_refused("shape", buffer.array, shape, "fp32")
        for dtype, offset in (("fp32", 2), ("bf16", 1), ("int64", 4)):
            self.assert_refused("offset", buffer.array, (1,), dtype, offset)
        self.assertEqual(buffer.array((Integer(),), "fp16", Integer()).data, buffer.data + 4)

        kernel, q, k, o = self.bound()
        for name, bounds in (("batch", (2**64 + 1, 1, 1)), ("q_tokens", (1, -2**64, 1)), ("max_kv_len", (1, 1, 2**63))):
            self.assert_refused(name, kernel.workspace_bytes, *bounds)
        for name in ("max_q_len", "max_kv_len"):
            for bound in (2**63, 2**64 + 1, "8", 8.0):
                self.assert_refused(name, kernel.bind, q, k, k, o, **{name: bound})
        call = kernel.bind(q, k, k, o)
        word = ctypes.c_uint32()
        for stream in (2**64, -1, True):
            self.assert_refused("stream", call.launch, stream)
            self.assert_refused("stream", call.status, stream)
            self.assert_refused("stream", call.clear_status, stream)
            self.assert_refused("stream", call.copy_status, ctypes.addressof(word), stream)
        for wrong in (None, object(), "word", 1.5, 2**64, -1, True):
            self.assert_refused("word", call.copy_status, wrong)

        class Tensor:
            def __init__(self, count, item_bytes, is_float):
                self.dtype, self.count, self.item_bytes, self.is_float = "a dtype", count, item_bytes, is_float

            def data_ptr(self):
                return ctypes.addressof(word)

            def numel(self):
                return self.count

            def element_size(self):
                return self.item_bytes

            def is_floating_point(self):
                return self.is_float

        for tensor in (Tensor(0, 4, False), Tensor(2, 4, False), Tensor(1, 8, False), Tensor(1, 4, True)):
            self.assert_refused("word", call.copy_status, tensor)
        call.copy_status(Tensor(1, 4, False))
        for device in (2**32, -1):
            self.assert_refused("device", self.rt.prepare, **SMALL, device=device)

    def test_out_of_device_memory(self):
        self.state.fail_alloc = 2
        with self.assertRaises(attnsmith.DriverError) as caught:
            self.rt.allocate(16)
        error = caught.exception
        self.assertEqual((error.code, error.call, error.details["driver_code"]), (2, "cuMemAlloc", 2))

    def test_a_call(self):
        kernel, q, k, o = self.bound()
        self.assertEqual((kernel.device, kernel.spec["head_dim_qk"], kernel.spec["kv_heads"]), (0, 64, 2))
        self.assertNotIn("batch", kernel.spec)
        self.assertEqual(kernel.plan()["schema"], "attnsmith.plan/1")
        self.assertGreaterEqual(kernel.workspace_bytes(1, 8, 16), 8192)
        self.state.param_bytes = 64
        call = kernel.bind(q=q, k=k, v=k, o=o)
        count, _ = self.launched(call.launch)
        self.assertEqual(count, 1)
        self.assertEqual(self.launched_at("q", "k", "v", "o"), [q.data, k.data, k.data, o.data])
        self.assertIsNone(self.state.last_launch.stream)
        self.assertIn("CTAs", call.describe())
        self.assertIn("CTAs", repr(call))
        self.assertFalse(call.status())
        call.clear_status()

    def test_streams(self):
        kernel, q, k, o = self.bound()
        call = kernel.bind(q, k, k, o)
        stream = self.stream()
        for given in (stream, ctypes.c_void_p(stream)):
            if isinstance(given, ctypes.c_void_p):
                given = type("Stream", (), {"ptr": stream})()
            call.launch(given)
            self.assertEqual(self.state.last_launch.stream, stream)

    def test_a_call_keeps_its_tensors(self):
        kernel, q, k, o = self.bound()
        call = kernel.bind(q, k, k, o)
        alive = [weakref.ref(one._buffer) for one in (q, k, o)]
        del q, k, o, kernel
        gc.collect()
        self.assertTrue(all(one() is not None for one in alive))
        call.launch()
        del call
        gc.collect()
        self.assertTrue(all(one() is None for one in alive))

    def test_a_merge_keeps_its_tensors_when_the_list_changes(self):
        kernel = self.rt.prepare(op="merge", head_dim=64, q_heads=4)
        o_states, lse_states = [self.array(5, 4, 64) for _ in range(2)], [self.array(5, 4, dtype="fp32") for _ in range(2)]
        alive = [weakref.ref(one._buffer) for one in (*o_states, *lse_states)]
        call = kernel.bind_merge(o_states, lse_states, self.array(5, 4, 64))
        o_states.clear()
        lse_states.clear()
        gc.collect()
        self.assertEqual([one() is not None for one in alive], [True] * 4)
        call.launch()
        del call
        gc.collect()
        self.assertEqual([one() for one in alive], [None] * 4)

    def test_a_launch_with_other_tensors(self):
        kernel, q, k, o = self.bound()
        call = kernel.bind(q, k, k, o)
        other, out = self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        self.state.param_bytes = 64

        def addresses():
            return tuple(self.launched_at("q", "k", "v", "o"))
        for layer in ({"k": other, "o": out}, {"k": other.data, "o": out.data}):
            self.assertEqual(self.launched(call.launch, **layer)[0], 1)
            self.assertEqual(addresses(), (q.data, other.data, k.data, out.data))
        call.launch()
        self.assertEqual(addresses(), (q.data, k.data, k.data, o.data))
        self.state.param_bytes = 0
        for field, layer in (("k.shape", {"k": self.array(1, 15, 2, 64)}), ("o.dtype", {"o": self.array(
                1, 8, 4, 64, dtype="fp16")}), ("k", {"k": "keys"}), ("k", {"k": -1}), ("k", {"k": 0}),
                ("addresses.lse", {"lse": self.array(1, 8, 4, dtype="fp32")}),
                ("addresses.v", {"v": other.data + 2}), ("o", {"v": o.data}),
                ("k.device", {"k": self.array(1, 16, 2, 64, device=1)})):
            with self.subTest(field=field):
                self.assert_refused(field, call.launch, **layer)

    def test_a_set_of_kernels(self):
        kernels = self.rt.prepare_set(**SMALL)
        self.assertGreater(len(kernels), 1)
        self.assertEqual((kernels.device, kernels.spec["head_dim_qk"]), (0, 64))
        picked = kernels.pick(1, 8, 16)
        self.assertIs(kernels.pick(batch=1, q_len=8, kv_len=16), picked)
        prepared = self.rt.prepare(**SMALL, batch=1, q_len=8, kv_len=16)
        self.assertEqual(picked.plan()["kernels"][0]["name"], prepared.plan()["kernels"][0]["name"])
        self.assertGreaterEqual(kernels.workspace_bytes(1, 8, 16), picked.workspace_bytes(1, 8, 16))
        q, k = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64)
        call = picked.bind(q, k, k, self.array(1, 8, 4, 64))
        del kernels
        gc.collect()
        self.assertEqual(picked.device, 0, "the set is freed under its kernel")
        self.assertEqual(self.launched(call.launch)[0], 1)
        self.assert_refused("batch", self.rt.prepare_set, **SMALL, batch=3)
        again = self.rt.prepare_set(**SMALL)
        for field, sizes in (("batch", (0, 1, 1)), ("q_len", (1, -1, 1)), ("kv_len", (1, 1, 2**40))):
            self.assert_refused(field, again.pick, *sizes)
        again.pick(8, 1, 1)
        for wrong in (8.0, True, [8]):
            self.assert_refused("batch", again.pick, wrong, 1, 1)
        for field, bounds in (("max_batch", (-1, 1, 1)), ("max_batch", (2**40, 1, 1)), ("max_q_tokens", (1, 2**62, 1))):
            self.assert_refused(field, again.workspace_bytes, *bounds)
        for prepare in (self.rt.prepare, self.rt.prepare_async, self.rt.prepare_set):
            self.assert_refused("sm", prepare, **SMALL, sm=80)

    def test_calls_outlive_their_runtime(self):
        kernel, q, k, o = self.bound()
        call = kernel.bind(q, k, k, o)
        self.rt.close()
        self.assertEqual(self.launched(call.launch)[0], 1)

    def test_status(self):
        kernel, q, k, o = self.bound()
        workspace = self.rt.allocate(kernel.workspace_bytes(1, 8, 16))
        workspace.upload(bytes(8192))
        call = kernel.bind(q, k, k, o, workspace=workspace)
        self.assertFalse(call.status())
        workspace.upload(bytes([5]))
        status = call.status()
        self.assertEqual((bool(status), status.q_len_clamped, status.kv_len_clamped, status.page_out_of_range,
                          status.workspace_not_zeroed), (True, True, False, True, False))
        self.assertIn("q_len_clamped=True", repr(status))
        workspace.upload(bytes([8]))
        status = call.status()
        self.assertEqual((bool(status), status.q_len_clamped, status.workspace_not_zeroed), (True, False, True))
        call.clear_status()
        self.assertFalse(call.status())

    def test_status_of_a_stream(self):
        kernel, q, k, o = self.bound()
        workspace = self.rt.allocate(kernel.workspace_bytes(1, 8, 16))
        workspace.upload(bytes([5]) + bytes(8191))
        call = kernel.bind(q, k, k, o, workspace=workspace)
        stream, word = self.stream(), ctypes.c_uint32()
        before = self.state.default_stream_waits
        call.copy_status(ctypes.addressof(word), stream)
        call.clear_status(stream)
        self.assertFalse(call.status(stream))
        self.assertEqual(word.value, 5)
        self.assertTrue(attnsmith.CallStatus(word.value).page_out_of_range)
        self.assertEqual(self.state.default_stream_waits, before)
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            call.copy_status(0)
        self.assertEqual(caught.exception.field, "word")

    def test_memory_of_the_callers(self):
        memory, freed = {}, []

        def allocate(nbytes, device):
            block = ctypes.create_string_buffer(nbytes + 256)
            address = -(-ctypes.addressof(block) // 256) * 256
            memory[address] = (block, nbytes, device)
            return address

        def free(address, nbytes, device):
            self.assertEqual(memory.pop(address)[1:], (nbytes, device))
            freed.append(nbytes)

        runtime = self.runtime(driver_path=FAKE_CUDA, allocate=allocate, free=free)
        before = self.state.allocations
        buffer = runtime.allocate(1000)
        self.assertEqual([nbytes for _, nbytes, _ in memory.values()], [1000])
        kernel = runtime.prepare(head_dim=64, q_heads=4, kv_heads=2)
        _, q, k, o = self.bound()
        before = self.state.allocations
        call = kernel.bind(q, k, k, o)
        self.assertEqual(len(memory), 2)
        self.assertFalse(call.status())
        self.assertEqual(self.state.allocations, before)
        runtime.close()
        del buffer, call, kernel
        gc.collect()
        self.assertEqual((len(freed), memory), (2, {}))
        self.assert_refused("free", attnsmith.Runtime, allocate=allocate)
        self.assert_refused("allocate", attnsmith.Runtime, free=free)
        self.assert_refused("allocate", attnsmith.Runtime, allocate=3, free=free)
        self.assert_refused("free", attnsmith.Runtime, allocate=allocate, free="free")
        empty = self.runtime(driver_path=FAKE_CUDA, allocate=lambda nbytes, device: None, free=free)
        with self.assertRaises(attnsmith.DriverError) as caught:
            empty.allocate(4711)
        self.assertIn("4711 bytes", str(caught.exception))

    def test_a_callers_allocator_that_gives_no_address(self):
        """Where ctypes cannot convert a result it hands the library whatever lies there."""
        freed = []
        for given in (object(), 4096.0, "4096", -1, -256, 2**64, 2**64 + 4096, True, b"x", [256]):
            runtime = self.runtime(driver_path=FAKE_CUDA, allocate=lambda nbytes, device: given,
                                   free=lambda *memory: freed.append(memory))
            with self.subTest(given=given), mock.patch("sys.stderr", io.StringIO()) as errors:
                with self.assertRaises(attnsmith.DriverError) as caught:
                    runtime.allocate(4711)
                self.assertIn("4711 bytes", str(caught.exception))
                self.assertIn("allocate: ", errors.getvalue())
                self.assertIn("Traceback", errors.getvalue())
        self.assertEqual(freed, [])

    def test_a_callers_allocator_with_integers_of_another_kind(self):
        block = ctypes.create_string_buffer(1024)

        class Address:
            def __index__(self):
                return -(-ctypes.addressof(block) // 256) * 256
        freed = []
        runtime = self.runtime(driver_path=FAKE_CUDA, allocate=lambda nbytes, device: Address(),
                               free=lambda *memory: freed.append(memory))
        buffer = runtime.allocate(16)
        self.assertEqual(buffer.data, Address().__index__())
        del buffer
        gc.collect()
        self.assertEqual(freed, [(Address().__index__(), 16, 0)])

    def test_workspaces(self):
        kernel, q, k, o = self.bound()
        with self.assertRaises(attnsmith.InvalidRequest):
            kernel.bind(q, k, k, o, workspace=self.rt.allocate(16))
        self.assert_refused("workspace", kernel.bind, q, k, k, o, workspace=b"host memory")

    def test_a_failed_launch(self):
        kernel, q, k, o = self.bound()
        call = kernel.bind(q, k, k, o)
        self.state.fail_launch = 719
        with self.assertRaises(attnsmith.DriverError) as caught:
            call.launch()
        self.assertEqual(caught.exception.code, 719)
        self.state.fail_launch = 0
        call.launch()

    def test_wrong_tensors(self):
        kernel, q, k, o = self.bound()
        self.assert_refused("q", kernel.bind, None, k, k, o)
        self.assert_refused("k", kernel.bind, q, [1], k, o)
        self.assert_refused("lse", kernel.bind, q, k, k, o, lse=self.array(1, 8, 4, dtype="fp32"))
        self.assert_refused("v.dtype", kernel.bind, q, k, self.array(1, 16, 2, 64, dtype="fp16"), o)
        self.assert_refused("k.device", kernel.bind, q, self.array(1, 16, 2, 64, device=1), k, o)
        self.assert_refused("q.data", kernel.bind, self.array(1, 8, 4, 64, offset=2), k, k, o)
        with self.assertRaises(attnsmith.InvalidRequest):
            kernel.bind(self.array(1, 1, 1, 1, 8, 64), k, k, o)

    def test_pending(self):
        pending = self.rt.prepare_async(**SMALL, kv_len=64)
        kernel = pending.result()
        self.assertTrue(pending.ready())
        self.assertEqual(pending.result(timeout=1).spec, kernel.spec)
        self.assert_refused("head_dim", self.rt.prepare_async, **{**SMALL, "head_dim": 0})
        with self.assertRaises(attnsmith.Unsupported):
            self.rt.prepare_async(**SMALL, consistency="bitwise", precision="high").result()

    def test_devices_of_kernels(self):
        kernel = self.rt.prepare(device=1, **SMALL, q_len=8, kv_len=16)
        self.assertEqual(kernel.device, 1)
        q, k, o = (self.array(*shape, device=1) for shape in ((1, 8, 4, 64), (1, 16, 2, 64), (1, 8, 4, 64)))
        self.assertEqual(self.launched(kernel.bind(q, k, k, o).launch)[0], 1)
        with self.assertRaises(attnsmith.Error):
            self.rt.prepare(device=7, **SMALL)


class Plain(LaunchTest):
    def test_attention(self):
        q, k = self.array(2, 8, 4, 64), self.array(2, 16, 2, 64)
        count, o = self.launched(attnsmith.attention, q, k, k, causal=True)
        self.assertEqual((count, type(o), o.shape, o.dtype), (1, attnsmith.Array, (2, 8, 4, 64), "bf16"))
        _, (o, lse) = self.launched(attnsmith.attention, q, k, k, return_lse=True)
        heads_first = self.launched(attnsmith.attention, q, k, k, return_lse=True, lse_order="HND")[1][1]
        self.assertEqual(heads_first.shape, (*lse.shape[:-2], lse.shape[-1], lse.shape[-2]))
        self.assertNotIsInstance(self.launched(attnsmith.attention, q, k, k, lse_order="HND")[1], tuple)
        self.assertEqual((lse.shape, lse.dtype), ((2, 8, 4), "fp32"))
        out = self.array(2, 8, 4, 64)
        self.assertIs(attnsmith.attention(q, k, k, out=out), out)
        lens = self.array(2, dtype="int64", values=[3, 16])
        self.assertEqual(self.launched(attnsmith.attention, q, k, k, kv_lens=lens, q_lens=lens)[0], 1)

    def test_kernels_are_reused_as_sequences_grow(self):
        q = self.array(1, 1, 4, 64)
        entries = set()
        for kv_len in (33, 40, 64):
            k = self.array(1, kv_len, 2, 64)
            attnsmith.attention(q, k, k)
            entries.add(len(attnsmith._calls.dispatch.dispatch_now().prepared))
        self.assertEqual(entries, {1})

    def launched_pointers(self):
        return self.launched_at("q", "k", "v", "o")

    def test_layouts_are_kept_from_the_second_time_on(self):
        """Calls with a layout that is known launch with their own pointers, stream and options."""
        self.state.param_bytes = 64
        recipes = attnsmith._calls.dispatch.dispatch_now().recipes
        stream = self.stream()
        for kept in (0, 1, 1, 1):
            q, k, v, out = (self.array(1, n, heads, 64) for n, heads in ((8, 4), (16, 2), (16, 2), (8, 4)))
            attnsmith.attention(q, k, v, out=out, stream=stream)
            self.assertEqual(len(recipes), kept)
            self.assertEqual(self.launched_pointers(), [one.data for one in (q, k, v, out)])
            self.assertEqual(self.state.last_launch.stream, stream)
        for offset, kept in ((2, 1), (2, 2), (0, 2)):  # another alignment is another kernel
            q = self.array(1, 8, 4, 64, offset=offset)
            attnsmith.attention(q, k, v, out=out)
            self.assertEqual((len(recipes), self.launched_pointers()[0]), (kept, q.data))
        for _ in range(3):
            made = attnsmith.attention(q, k, v)
            self.assertEqual(self.launched_pointers()[3], made.data)
            o, lse = attnsmith.attention(q, k, v, return_lse=True)
            self.assertEqual(self.launched_pointers()[3], o.data)
            self.assert_refused("k", attnsmith.attention, q, None, v)
            self.assert_refused("o", attnsmith.attention, q, k, v, out=q)
            self.assert_refused("k.shape[3]", attnsmith.attention, q, self.array(1, 16, 2, 32), v)

    def test_pages_in_one_tensor_when_they_are_known(self):
        self.state.param_bytes = 64
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        for _ in range(4):
            q, cache = self.array(2, 4, 64), self.array(4, 2, 16, 2, 64)
            o = attnsmith.paged_attention(q, cache, table, lens)
            v = cache.data + cache.strides[1] * 2
            self.assertEqual(self.launched_pointers(), [q.data, cache.data, v, o.data])

    def test_how_many_layouts_are_kept(self):
        limits = {"_MOST_RECIPES": 3, "_MOST_SEEN": 5}
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        with mock.patch.multiple(attnsmith._calls.dispatch, **limits):
            for kv_len in range(1, 10):
                k = self.array(1, kv_len, 2, 64)
                for _ in range(3):
                    attnsmith.attention(self.array(1, 1, 4, 64), k, k)
                self.assertLessEqual(len(dispatch.recipes), 3)
                self.assertLessEqual(len(dispatch.seen), 5)

    def test_nothing_is_allocated_on_the_way(self):
        q, k, out = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        attnsmith.attention(q, k, k, out=out)
        before = self.state.allocations
        for _ in range(10):
            attnsmith.attention(q, k, k, out=out)
        self.assertEqual(self.state.allocations, before)

    def test_a_decode_is_one_launch_whose_workspace_does_not_grow(self):
        """The first call of a bound allocates its workspace; a longer or larger one of the same kind goes on with it."""
        for batch, kv_len in ((1, 4096), (1, 65536), (4, 65536)):
            q, k = self.array(batch, 1, 4, 40), self.array(batch, kv_len, 2, 40)
            self.assertEqual(self.launched(attnsmith.attention, q, k, k)[0], 1, "no merge follows")
            kernel = self.rt.prepare(head_dim=40, q_heads=4, kv_heads=2, batch=batch, kv_len=kv_len)
            self.assertEqual(kernel.plan()["split_kv"]["policy"], "shares")
            sizes = {kernel.workspace_bytes(*bounds) for bounds in ((1, 1, 65536), (4, 4, 65536), (256, 256, 1 << 20))}
            self.assertEqual(len(sizes), 1)

    def test_a_workspace_begins_with_zeros(self):
        """All that kernels count in: the stub's memory is full of something else."""
        q, k = self.array(1, 1, 4, 40), self.array(1, 4096, 2, 40)
        attnsmith.attention(q, k, k)
        workspace = attnsmith._calls.dispatch.dispatch_now().workspaces.of(0, 0)
        self.assertEqual(ctypes.string_at(workspace.data, 8192), bytes(8192))

    def test_alignment_follows_the_tensors(self):
        k, out = self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        for offset, alignment in ((0, 16), (8, 8), (4, 4), (2, 2)):
            attnsmith.attention(self.array(1, 8, 4, 64, offset=offset), k, k, out=out)
            keys = list(attnsmith._calls.dispatch.dispatch_now().prepared)
            self.assertIn(alignment, keys[-1])

    def test_which_tensors_count_for_the_alignment(self):
        """Those that a kernel loads by it, whichever others are given or left out, and in layouts that are known too."""
        q, k, o, pages = (("bf16", shape) for shape in ((2, 8, 4, 64), (2, 16, 2, 64), (2, 8, 4, 64), (4, 16, 2, 64)))
        rows, keys, q_pe, ckv, kpe = (("bf16", shape) for shape in ((16, 4, 64), (32, 2, 64), (2, 8, 4, 8), (4, 16, 64),
                                                                    (4, 16, 8)))
        lens, ends, table, sinks = ("int32", (2,)), ("int32", (3,)), ("int32", (2, 2)), ("fp32", (4,))
        lie = {"page_table": table, "kv_lens": lens}
        for function, words, others in (
                (attnsmith.attention, {"q": q, "k": k, "v": k}, {"out": o, "sinks": sinks, "q_lens": lens, "kv_lens": lens}),
                (attnsmith.varlen_attention, {"q": rows, "k": keys, "v": keys, "q_indptr": ends, "kv_indptr": ends},
                 {"out": rows, "sinks": sinks}),
                (attnsmith.paged_attention, {"q": q, "k_cache": pages, "v_cache": pages, **lie},
                 {"out": o, "sinks": sinks, "q_lens": lens}),
                (attnsmith.mla_attention, {"q": q, "ckv": ckv, "q_pe": q_pe, "kpe": kpe, **lie}, {"out": o, "q_lens": lens})):
            for given in (words, {**words, **others}):
                for odd in (None, None, *given):  # known from the second call on
                    with self.subTest(function=function.__name__, odd=odd, out="out" in given):
                        tensors = {name: self.array(*shape, dtype=dtype, offset=8 if name == odd else 0)
                                   for name, (dtype, shape) in given.items()}
                        counts = odd is not None and given[odd][0] == "bf16"
                        self.assertEqual(self.kernel_taken(function, tensors)["alignment"], 8 if counts else 16)

    def kernel_taken(self, function, words):
        """The normalised request of the kernel that a call with these tensors launches."""
        if "k_cache" in words:
            words["kv_cache"] = words.pop("k_cache"), words.pop("v_cache")
        if function is attnsmith.mla_attention:
            words["scale"] = 0.1
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        run, taken = dispatch.run, []

        def seen(kernel, *rest):
            taken.append(kernel.value)
            return run(kernel, *rest)
        with mock.patch.object(dispatch, "run", seen):
            function(**words)
        (spec,) = [entry.kernel.spec for entry in dispatch.prepared.values() if [entry.pointer.value] == taken]
        return spec

    def test_empty(self):
        for batch, q_len, kv_len in ((0, 2, 2), (2, 0, 2)):
            count, o = self.launched(attnsmith.attention, self.array(batch, q_len, 4, 64),
                                     *[self.array(batch, kv_len, 2, 64)] * 2)
            self.assertEqual((count, o.shape), (0, (batch, q_len, 4, 64)))

    def test_varlen(self):
        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        for limits in ({}, {"max_q_len": 15, "max_kv_len": 30}):
            count, (o, lse) = self.launched(attnsmith.varlen_attention, q, k, k, offsets, offsets, return_lse=True,
                                            **limits)
            self.assertEqual((count, o.shape, lse.shape), (1, (20, 4, 64), (20, 4)))
        self.assert_refused("q.shape", attnsmith.varlen_attention, self.array(1, 20, 4, 64), k, k, offsets, offsets)
        self.assert_refused("q_indptr", attnsmith.varlen_attention, q, k, k, [0, 5, 20], offsets)

    def test_paged(self):
        lens = self.array(2, dtype="int32", values=[20, 3])
        table = self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        compressed = {"page_indptr": self.array(3, dtype="int32", values=[0, 2, 3]),
                      "page_indices": self.array(3, dtype="int32", values=[0, 1, 2]), "last_page_len": lens}
        for order, cache in (("NHD", self.array(4, 2, 16, 2, 64)), ("HND", self.array(4, 2, 2, 16, 64))):
            parts = [attnsmith.Array((cache.data + i * cache.strides[1] * 2, cache.shape[:1] + cache.shape[2:],
                                      cache.strides[:1] + cache.strides[2:], *cache._view[3:]), cache._buffer)
                     for i in range(2)]
            for kv_cache in (cache, tuple(parts)):
                for form in ({"page_table": table, "kv_lens": lens}, compressed):
                    with self.subTest(order=order, form=sorted(form), one=kv_cache is cache):
                        options = {"page_order": order, "return_lse": True, **form}
                        o, lse = attnsmith.paged_attention(self.array(2, 4, 64), kv_cache, **options)
                        self.assertEqual((o.shape, lse.shape), ((2, 4, 64), (2, 4)))
                        o, lse = attnsmith.paged_attention(self.array(2, 3, 4, 64), kv_cache, **options)
                        self.assertEqual((o.shape, lse.shape), ((2, 3, 4, 64), (2, 3, 4)))
                        count, (o, lse) = self.launched(
                            attnsmith.paged_attention, self.array(7, 4, 64), kv_cache, **options,
                            q_indptr=self.array(3, dtype="int32", values=[0, 5, 7]))
                        self.assertEqual((count, o.shape, lse.shape), (1, (7, 4, 64), (7, 4)))
        rows = {"page_table": self.array(7, 2, dtype="int32", values=[0] * 14), "kv_lens": lens,
                "table_rows": self.array(2, dtype="int32", values=[6, 0]), "page_order": "HND"}
        count, o = self.launched(attnsmith.paged_attention, self.array(2, 4, 64), cache, **rows)
        self.assertEqual((count, o.shape), (1, (2, 4, 64)))
        for name in ("table_rows", "page_table"):
            with self.assertRaises(attnsmith.InvalidRequest):
                attnsmith.paged_attention(self.array(2, 4, 64), cache, **{**rows, name: None})
        with self.assertRaises(attnsmith.InvalidRequest):
            attnsmith.paged_attention(self.array(2, 4, 64), cache)
        self.assert_refused("page_order", attnsmith.paged_attention, self.array(2, 4, 64), cache, table, lens,
                            page_order="nhd")
        self.assert_refused("kv_cache", attnsmith.paged_attention, self.array(2, 4, 64), (cache,), table, lens)
        self.assert_refused("kv_cache.shape", attnsmith.paged_attention, self.array(2, 4, 64), lens, table, lens)

    def test_merge(self):
        o, lse = [self.array(5, 4, 64) for _ in range(3)], [self.array(5, 4, dtype="fp32") for _ in range(3)]
        if "op:merge" not in attnsmith.features():
            with self.assertRaises(attnsmith.Error):
                attnsmith.merge_states(o, lse)
            self.skipTest("this library has no op merge")
        count, (merged, total) = self.launched(attnsmith.merge_states, o, lse)
        self.assertEqual((count, merged.shape, total.shape), (1, (5, 4, 64), (5, 4)))
        stacked = self.array(5, 3, 4, 64), self.array(5, 3, 4, dtype="fp32")
        self.assertEqual(self.launched(attnsmith.merge_states, *stacked, return_lse=False)[1].shape, (5, 4, 64))
        self.assertEqual(self.launched(attnsmith.merge_states, o * 20, lse * 20)[0], 3, "60 states in two steps")
        kernel = self.rt.prepare(op="merge", head_dim=64, q_heads=4, lse=True)
        call = kernel.bind_merge(o, lse, self.array(5, 4, 64), self.array(5, 4, dtype="fp32"))
        self.assertEqual(self.launched(call.launch)[0], 1)

    def test_merges_that_differ_take_different_kernels(self):
        """A kernel is made for these facts, so a merge does not take the kernel of an earlier one that differs in a fact."""
        facts = {"dtype": "bf16", "q_heads": 4, "head_dim_vo": 64, "lse": True, "alignment": 16}
        cases = [({}, {}), ({"offset": 8}, {"alignment": 8}), ({"offset": 2}, {"alignment": 2}),
                 ({"out_offset": 4}, {"alignment": 4}), ({"heads": 2}, {"q_heads": 2}), ({"head_dim": 40}, {"head_dim_vo": 40}),
                 ({"dtype": "fp16"}, {"dtype": "fp16"}), ({"return_lse": False}, {"lse": False})]
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        run, taken = dispatch.run_merge, []

        def seen(kernel, *rest):
            taken.append(kernel.value)
            return run(kernel, *rest)
        dispatch.run_merge = seen

        def merge(heads=4, head_dim=64, dtype="bf16", offset=0, out_offset=None, return_lse=True):
            o = [self.array(5, heads, head_dim, dtype=dtype), self.array(5, heads, head_dim, dtype=dtype, offset=offset)]
            out = None if out_offset is None else self.array(5, heads, head_dim, dtype=dtype, offset=out_offset)
            attnsmith.merge_states(o, [self.array(5, heads, dtype="fp32")] * 2, out=out, return_lse=return_lse)
        for order in (cases, cases[::-1]):
            dispatch.prepared.clear()
            for words, changed in order:
                with self.subTest(first=order is cases, **words):
                    merge(**words)
                    (spec,) = [entry.kernel.spec for entry in dispatch.prepared.values() if entry.pointer.value == taken[-1]]
                    wanted = {**facts, **changed}
                    self.assertEqual({name: spec[name] for name in wanted}, wanted)

    def test_merges_that_make_no_sense(self):
        o, lse = self.array(5, 4, 64), self.array(5, 4, dtype="fp32")
        for o_states, lse_states in (([], []), ([o, o], [lse]), ([o], lse), (o, lse)):
            with self.assertRaises(attnsmith.InvalidRequest):
                attnsmith.merge_states(o_states, lse_states)

    def test_refusals(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        self.assert_refused("q.shape", attnsmith.attention, self.array(8, 4, 64), k, k)
        with self.assertRaises(attnsmith.Unsupported) as caught:
            attnsmith.attention(self.array(1, 8, 4, 64, dtype="fp32"), k, k)
        self.assertIn("fp32", str(caught.exception))
        self.assert_refused("window", attnsmith.attention, q, k, k, window=7)
        self.assert_refused("window_left", attnsmith.attention, q, k, k, window=(-5, 0))
        self.assert_refused("precision", attnsmith.attention, q, k, k, precision="best")
        self.assert_refused("o", attnsmith.attention, q, k, k, out=q)
        self.assert_refused("k.device", attnsmith.attention, q, self.array(1, 8, 2, 64, device=1), k)
        with self.assertRaises(attnsmith.Unsupported):
            attnsmith.attention(q, k, k, consistency="bitwise", precision="high")

    def test_a_failed_launch_leaves_all_in_order(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        attnsmith.attention(q, k, k)
        self.state.fail_launch = 700
        for _ in range(3):
            with self.assertRaises(attnsmith.DriverError):
                attnsmith.attention(q, k, k)
        self.state.fail_launch = 0
        attnsmith.attention(q, k, k)

    def test_streams_and_devices(self):
        stream = self.stream(device=1)
        q, k = self.array(1, 8, 4, 64, device=1), self.array(1, 8, 2, 64, device=1)
        o = attnsmith.attention(q, k, k, stream=stream)
        self.assertEqual((self.state.last_launch.stream, o.device), (stream, 1))
        attnsmith.attention(q, k, k)
        self.assertIsNone(self.state.last_launch.stream)
        self.assert_refused("stream", attnsmith.attention, q, k, k, stream="default")

    def test_foreign_tensors_are_given_back_after_the_launch(self):
        array = self.array(1, 8, 4, 64)

        class Foreign:
            def __dlpack_device__(self):
                return array.__dlpack_device__()

            def __dlpack__(self, stream=None):
                return array.__dlpack__()

        from attnsmith._tensors import dlpack
        before = len(dlpack._lent)
        count, o = self.launched(attnsmith.attention, Foreign(), Foreign(), Foreign())
        gc.collect()
        self.assertEqual((count, type(o), len(dlpack._lent)), (1, attnsmith.Array, before))

    def calls_with(self, change):
        """Right calls, one for each tensor of each function: the tensor's name, the function, and its words with change()
        applied to that tensor."""
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        pages = [self.array(4, 16, 2, 64) for _ in range(2)]
        new = {name: self.array(4, 2, 64) for name in ("k", "v")}
        states, lse = [self.array(5, 4, 64) for _ in range(2)], [self.array(5, 4, dtype="fp32") for _ in range(2)]
        for function, words in (
                (attnsmith.attention, {"q": self.array(2, 8, 4, 64), "k": self.array(2, 24, 2, 64),
                                       "v": self.array(2, 24, 2, 64), "kv_lens": lens}),
                (attnsmith.varlen_attention, {"q": self.array(20, 4, 64), "k": self.array(30, 2, 64),
                                              "v": self.array(30, 2, 64), "q_indptr": offsets, "kv_indptr": offsets}),
                (attnsmith.paged_attention, {"q": self.array(2, 4, 64), "kv_cache": pages, "page_table": table,
                                             "kv_lens": lens}),
                (attnsmith.mla_attention, {"q": self.array(2, 4, 72), "ckv": self.array(4, 16, 72), "page_table": table,
                                           "kv_lens": lens, "head_dim_ckv": 64, "scale": 0.1}),
                (attnsmith.merge_states, {"o_states": states, "lse_states": lse}),
                (attnsmith.append, {**new, "k_cache": pages[0], "v_cache": pages[1], "page_order": "NHD",
                                    "slot_mapping": self.array(4, dtype="int64")})):
            for name, given in words.items():
                if isinstance(given, list):
                    yield f"{name}[1]", function, {**words, name: [given[0], change(given[1])]}
                elif isinstance(given, attnsmith.Array):
                    yield name, function, {**words, name: change(given)}

    def test_foreign_tensors_live_until_the_launch_is_done(self):
        """A framework may use their memory again at once, so a call with one waits for its stream before it lets go of it.
        A call with attnsmith's own arrays does not wait."""
        from attnsmith._tensors import dlpack

        class Foreign:
            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, stream=None):
                return self.array.__dlpack__()

        stream, release, done = self.stream(), dlpack.Borrowed.release, []

        def released(borrowed):
            done.append((self.state.launches, self.state.stream_waits))
            release(borrowed)
        for change in (Foreign, lambda array: array):
            for name, function, words in self.calls_with(change):
                with self.subTest(function=function.__name__, tensor=name, foreign=change is Foreign):
                    done.clear()
                    function(**words)  # what a first call makes is there
                    launches, waits = self.state.launches, self.state.stream_waits
                    with mock.patch.object(dlpack.Borrowed, "release", released):
                        function(**words, stream=stream)
                        gc.collect()
                    self.assertEqual(self.state.launches, launches + 1)
                    if change is Foreign:
                        self.assertEqual(done[0], (launches + 1, waits + 1))
                        self.assertEqual(self.state.last_launch.stream, stream)
                    else:
                        self.assertEqual((done, self.state.stream_waits), ([], waits))

    def test_threads(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64)
        attnsmith.attention(q, k, k)
        failures = []

        def work():
            try:
                for _ in range(50):
                    attnsmith.attention(q, k, k, out=self.array(1, 8, 4, 64))
            except BaseException as failure:
                failures.append(failure)
        before = self.state.launches
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failures, self.state.launches - before), ([], 400))


if __name__ == "__main__":
    unittest.main()

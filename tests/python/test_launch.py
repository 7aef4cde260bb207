"""prepare, bind and launch through a stub of the CUDA driver, whose device memory is the host's."""

import ctypes
import gc
import io
import unittest
import weakref
from unittest import mock

from launch_case import LaunchTest
from support import FAKE_CUDA, SMALL, attnsmith


ONE = {"batch": 1, "q_tokens": 1, "max_kv_len": 1}


class Objects(LaunchTest):
    def bound(self, q_len=8, **words):
        kernel = self.rt.prepare(**SMALL, batch=1, q_len=q_len, kv_len=16, **words)
        q, k, o = self.array(1, q_len, 4, 64), self.array(1, 16, 2, 64), self.array(1, q_len, 4, 64)
        return kernel, q, k, o

    def test_devices(self):
        devices = self.rt.devices()
        self.assertEqual([(one["device"], one["sm"], one["name"]) for one in devices],
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
        for name, bound in (("batch", 2**64 + 1), ("q_tokens", -2**64), ("max_kv_len", 2**63)):
            self.assert_refused(name, kernel.workspace_bytes, **{**ONE, name: bound})
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
        self.assertGreaterEqual(kernel.workspace_bytes(batch=1, q_tokens=8, max_kv_len=16), 8192)
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
        bounds = {"batch": 1, "q_tokens": 8, "max_kv_len": 16}
        self.assertGreaterEqual(kernels.workspace_bytes(**bounds), picked.workspace_bytes(**bounds))
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
        for field, bound in (("batch", -1), ("batch", 2**40), ("q_tokens", 2**62)):
            self.assert_refused(field, again.workspace_bytes, **{**ONE, field: bound})
        for prepare in (self.rt.prepare, self.rt.prepare_async, self.rt.prepare_set):
            self.assert_refused("sm", prepare, **SMALL, sm=80)

    def test_calls_outlive_their_runtime(self):
        kernel, q, k, o = self.bound()
        call = kernel.bind(q, k, k, o)
        self.rt.close()
        self.assertEqual(self.launched(call.launch)[0], 1)

    def test_status(self):
        kernel, q, k, o = self.bound()
        workspace = self.rt.allocate(kernel.workspace_bytes(batch=1, q_tokens=8, max_kv_len=16))
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
        workspace = self.rt.allocate(kernel.workspace_bytes(batch=1, q_tokens=8, max_kv_len=16))
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

    def test_synchronize_waits_for_one_stream(self):
        kernel, q, k, o = self.bound()
        call, stream = kernel.bind(q, k, k, o), self.stream()

        class Stream:
            cuda_stream = stream

        for wait in (call.synchronize, self.rt.synchronize):
            for one, of_default in ((None, 1), (0, 1), (stream, 0), (Stream(), 0)):
                before = self.state.default_stream_waits, self.state.stream_waits
                call.launch(one)
                wait(one)
                after = self.state.default_stream_waits, self.state.stream_waits
                self.assertEqual((after[0] - before[0], after[1] - before[1]), (of_default, 1 - of_default))
            self.assert_refused("stream", wait, "a word")

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


if __name__ == "__main__":
    unittest.main()

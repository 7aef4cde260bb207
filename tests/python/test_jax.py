"""attnsmith.jax through XLA's CPU backend: it calls the real handler, whose kernels the stub of the driver launches.

XLA's CPU has no streams, no context of CUDA and no stage of initialization. `Host` stands between the two: it calls
both stages as XLA's GPU backend does, in the context of a GPU, and says which stream and which GPU a call is on.
"""

import contextlib
import ctypes
import importlib.machinery
import inspect
import json
import os
import re
import unittest
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

from launch_case import LaunchTest
from support import FAKE_CUDA, PACKAGE, REPOSITORY, attnsmith, in_threads, python

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None
else:
    import numpy as np
    from attnsmith._c_api import abi
    from attnsmith._jax import handler, primitive
    from attnsmith._tensors import views as _views

BUILT = bool(os.environ.get("ATTNSMITH_JAX_LIBRARY"))
FUNCTIONS = ("attention", "varlen_attention", "paged_attention")
# In XLA_FFI_CallFrame and XLA_FFI_Api: where the call's own fields lie.
_EXTENSION, _API, _STAGE = 8, 16, 32
_STREAM_GET, _DEVICE_ORDINAL_GET, _API_BYTES = 80, 184, 192
_INITIALIZE, _EXECUTE = 2, 3
_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Host:
    """XLA's CPU backend as if it were that of a GPU."""

    def __init__(self, opened):
        self.stream, self.device, self.initializes = 0, 0, True
        self.stages = {}
        for stage in ("initialize", "execute"):
            self.stages[stage] = getattr(opened, f"attnsmith_jax_{stage}")
            self.stages[stage].restype, self.stages[stage].argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        # Kept from here on.
        self.answers = [_Handler(self.say_stream), _Handler(self.say_device), _Handler(self.called)]

    def say_stream(self, arguments):
        ctypes.c_uint64.from_address(arguments + 24).value = self.stream

    def say_device(self, arguments):
        ctypes.c_int32.from_address(arguments + 24).value = self.device

    def called(self, frame):
        def pointer(at):
            return ctypes.c_uint64.from_address(frame + at).value
        if pointer(_EXTENSION):  # XLA asks for the version and the traits
            return self.stages["execute"](frame)
        copy = bytearray(ctypes.string_at(frame, pointer(0) + 8))
        api = bytearray(ctypes.string_at(pointer(_API), _API_BYTES))
        for at, answer in zip((_STREAM_GET, _DEVICE_ORDINAL_GET), self.answers):
            api[at:at + 8] = ctypes.cast(answer, ctypes.c_void_p).value.to_bytes(8, "little")
        copy[_API:_API + 8] = address_of(api).to_bytes(8, "little")
        with context(self.device):
            for stage, number in (("initialize", _INITIALIZE), ("execute", _EXECUTE)):
                copy[_STAGE] = number
                error = self.stages[stage](address_of(copy)) if stage == "execute" or self.initializes else None
                if error:
                    return error
        return None

    def capsule(self):
        return jax.ffi.pycapsule(ctypes.cast(self.answers[-1], ctypes.c_void_p).value)


@contextlib.contextmanager
def context(device):
    """That of a GPU of the stub's is current."""
    driver, current = ctypes.CDLL(FAKE_CUDA), ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(current), device)
    driver.cuCtxPushCurrent_v2(current)
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(current))


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def seen(address):
    """A DLTensor as (shape, strides, dtype, GPU, first byte)."""
    if not address:
        return None
    one = abi.Tensor.from_address(address)
    kind = _views.kind_of(one.dtype.code, one.dtype.bits, one.dtype.lanes)
    return (tuple(one.shape[:one.ndim]), tuple(one.strides[:one.ndim]), _views.WORDS[kind], one.device.device_id,
            one.data + one.byte_offset)


@unittest.skipIf(jax is None, "JAX is not installed")
@unittest.skipUnless(BUILT, "JAX headers are not installed where this was built")
class JaxTest(LaunchTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if cls.missing or hasattr(JaxTest, "host"):
            return
        run = attnsmith._c_api.library.library().functions.attnsmith_run
        JaxTest.launches = []

        def running(kernel, tensors, batch, workspace, stream, error):
            of_tensors, of_batch = abi.Tensors.from_address(tensors), abi.Batch.from_address(batch)
            space = abi.Workspace.from_address(workspace)
            names = {name: seen(getattr(of_tensors, name)) for name in abi.TENSOR_FIELDS}
            names.update({name: seen(getattr(of_batch, name)) for name in abi.BATCH_FIELDS})
            JaxTest.launches.append({**{name: one for name, one in names.items() if one}, "bounds": (
                of_batch.max_q_len, of_batch.max_kv_len), "kernel": kernel, "stream": stream,
                "workspace": (space.data, space.bytes, ctypes.string_at(space.data, abi.WORKSPACE_ZEROED_BYTES))})
            code = run(kernel, tensors, batch, workspace, stream, error)
            ctypes.memset(space.data, 0xFF, abi.WORKSPACE_ZEROED_BYTES)  # as others leave XLA's memory
            return code

        cls.running = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 6)(running)
        functions = mock.Mock(wraps=attnsmith._c_api.library.library().functions)
        functions.attnsmith_run, functions.attnsmith_error_message = cls.running, ctypes.CDLL(
            attnsmith._c_api.library.library().path).attnsmith_error_message
        functions.attnsmith_error_free = ctypes.CDLL(attnsmith._c_api.library.library().path).attnsmith_error_free
        with mock.patch.object(handler, "driver", lambda: ctypes.CDLL(FAKE_CUDA)), \
                mock.patch.object(handler, "library", lambda: mock.Mock(functions=functions)):
            JaxTest.host = Host(handler.handler())
        jax.ffi.register_ffi_target(primitive.TARGET, {"execute": JaxTest.host.capsule()}, platform="cpu")
        jax.interpreters.mlir.register_lowering(primitive.attention_p, primitive.lower, platform="cpu")

    def setUp(self):
        super().setUp()
        for name, stand_in in (("gpus", lambda: [0]), ("register", lambda: None)):
            patch = mock.patch.object(primitive, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        self.host.stream, self.host.device, self.host.initializes = 0, 0, True
        self.prepared = []
        prepare = attnsmith.Runtime.prepare

        def preparing(runtime, **words):
            self.prepared.append(words)
            return prepare(runtime, **words)
        patch = mock.patch.object(attnsmith.Runtime, "prepare", preparing)
        patch.start()
        self.addCleanup(patch.stop)
        del self.launches[:]

    def launched_as(self, function, *arrays, **words):
        """What one call launches, after it is done, and what it gives."""
        before = len(self.launches)
        result = jax.block_until_ready(function(*arrays, **words))
        self.assertEqual(len(self.launches), before + 1)
        return self.launches[-1], result

    def spec(self):
        """Of the last kernel that was launched."""
        return self.kernel().spec

    def kernel(self):
        pointer = self.launches[-1]["kernel"]
        return next(one for one in handler._kernels.values() if one._pointer == pointer)


def dense(batch=2, q_len=8, kv_len=16, q_heads=4, kv_heads=2, dim=64, dim_vo=None):
    return (jnp.ones((batch, q_len, q_heads, dim), jnp.bfloat16),
            jnp.ones((batch, kv_len, kv_heads, dim), jnp.bfloat16),
            jnp.ones((batch, kv_len, kv_heads, dim_vo or dim), jnp.bfloat16))


def compact(*shape):
    return shape, _views.compact_strides(shape)


class Calls(JaxTest):
    def test_tensors(self):
        """Each is where it belongs, eagerly and under jit."""
        q, k, v = dense(dim_vo=32)
        sinks, slopes = jnp.arange(4, dtype=jnp.float32), jnp.arange(4, 8, dtype=jnp.float32)
        q_lens, kv_lens = jnp.array([8, 3], jnp.int32), jnp.array([16, 5], jnp.int32)

        def call(q, k, v, sinks, slopes, q_lens, kv_lens):
            return attnsmith.jax.attention(q, k, v, sinks=sinks, alibi_slopes=slopes, q_lens=q_lens, kv_lens=kv_lens,
                                           return_lse=True, causal=True)
        for function in (call, jax.jit(call)):
            launch, (o, lse) = self.launched_as(function, q, k, v, sinks, slopes, q_lens, kv_lens)
            self.assertEqual((o.shape, o.dtype, lse.shape, lse.dtype), ((2, 8, 4, 32), q.dtype, (2, 8, 4), np.float32))
            for name, one, word in (("q", q, "bf16"), ("k", k, "bf16"), ("v", v, "bf16"), ("sinks", sinks, "fp32"),
                                    ("alibi_slopes", slopes, "fp32"), ("q_lens", q_lens, "int32"),
                                    ("kv_lens", kv_lens, "int32"), ("o", o, "bf16"), ("lse", lse, "fp32")):
                with self.subTest(name):
                    self.assertEqual(launch[name][:4], (*compact(*one.shape), word, 0))
                    if name not in ("o", "lse"):
                        self.assertEqual(launch[name][4], one.unsafe_buffer_pointer())
            self.assertEqual(launch["bounds"], (8, 16))
            spec = self.spec()
            self.assertEqual((spec["mask"], spec["sink"], spec["alibi"], spec["lse"], spec["head_dim_vo"]),
                             ("causal", True, True, True, 32))

    def test_options(self):
        q, k, v = dense()
        for words, wanted in (({"window": (3, None)}, {"window_left": 3, "window_right": None}),
                              ({"attention_chunk": 4}, {"attention_chunk": 4}), ({"softcap": 5}, {"softcap": 5.0}),
                              ({"scale": 0.25}, {"scale": 0.25}), ({"precision": "high"}, {"precision": "high"}),
                              ({"consistency": "bitwise"}, {"consistency": "bitwise"}),
                              ({"o_dtype": "fp32"}, {"o_dtype": "fp32"}),
                              ({"o_dtype": jnp.float32}, {"o_dtype": "fp32"}),
                              ({"causal": np.True_}, {"mask": "causal"})):
            with self.subTest(**words):
                launch, o = self.launched_as(attnsmith.jax.attention, q, k, v, **words)
                spec = self.spec()
                self.assertEqual({name: spec[name] for name in wanted}, wanted)
                self.assertEqual(launch["o"][2], "fp32" if "o_dtype" in words else "bf16")
                self.assertEqual(o.dtype, np.float32 if "o_dtype" in words else q.dtype)

    def test_log_sum_exp_with_its_heads_first(self):
        launch, (_, lse) = self.launched_as(attnsmith.jax.attention, *dense(), return_lse=True, lse_order="HND")
        self.assertEqual(lse.shape, (2, 4, 8))
        self.assertEqual(launch["lse"][:2], ((2, 8, 4), (32, 1, 8)))

    def test_ragged(self):
        q, k = jnp.ones((12, 4, 64), jnp.float16), jnp.ones((20, 2, 64), jnp.float16)
        q_indptr, kv_indptr = jnp.array([0, 4, 12], jnp.int32), jnp.array([0, 10, 20], jnp.int32)
        call = jax.jit(lambda *arrays: attnsmith.jax.varlen_attention(*arrays, max_q_len=8))
        launch, o = self.launched_as(call, q, k, k, q_indptr, kv_indptr)
        self.assertEqual((o.shape, launch["bounds"]), ((12, 4, 64), (8, 20)))
        self.assertEqual((launch["q_indptr"][0], launch["kv_indptr"][0]), ((3,), (3,)))
        self.assertEqual((self.spec()["kv"], self.spec()["dtype"]), ("ragged", "fp16"))

    def test_pages(self):
        q, cache = jnp.ones((2, 4, 64), jnp.bfloat16), jnp.ones((5, 2, 16, 2, 64), jnp.bfloat16)
        table, lens = jnp.array([[0, 1], [2, 3]], jnp.int32), jnp.array([20, 3], jnp.int32)
        half = 16 * 2 * 64
        launch, o = self.launched_as(attnsmith.jax.paged_attention, q, cache, table, lens)
        self.assertEqual((o.shape, launch["bounds"]), ((2, 4, 64), (1, 32)))
        self.assertEqual((launch["q"][0], launch["o"][0]), ((2, 1, 4, 64),) * 2)
        self.assertEqual(launch["k"][:2], ((5, 16, 2, 64), (2 * half, 128, 64, 1)))
        self.assertEqual(launch["v"][4] - launch["k"][4], 2 * half)
        launch, _ = self.launched_as(attnsmith.jax.paged_attention, q[:, None], (cache[:, 0], cache[:, 1]), table, lens,
                                     q_lens=lens // 20, table_rows=jnp.array([1, 0], jnp.int32), page_order="NHD")
        self.assertEqual(launch["k"][:2], compact(5, 16, 2, 64))
        self.assertEqual(launch["table_rows"][0], (2,))
        self.assertEqual((self.spec()["kv"], self.spec()["page_size"]), ("paged", 16))

    def test_a_workspace(self):
        """Aligned, as large as is needed, and its head is zero in memory that others have used."""
        q, k, v = dense(q_len=1, kv_len=4096, batch=1)
        call = jax.jit(lambda q, k, v: attnsmith.jax.attention(q * 3, k * 5, v * 7))
        for _ in range(3):
            data, nbytes, head = self.launched_as(call, q, k, v)[0]["workspace"]
            self.assertEqual((data % 256, set(head)), (0, {0}))
            self.assertGreaterEqual(nbytes, self.kernel().workspace_bytes(batch=1, q_tokens=1, max_kv_len=4096))

    def test_a_workspace_is_that_of_the_gpu_that_needs_most(self):
        """A program is lowered once for all GPUs of the process, which may differ."""
        q, k, v = dense(1, 1, 1025)
        needed = handler.workspace_bytes

        def more(device, *bounds):
            return needed(device, *bounds) + extra[device]
        for gpus in ([0, 1], [1, 0]):
            for extra in ({0: 0, 1: 1 << 20}, {0: 1 << 20, 1: 0}):
                with self.subTest(gpus=gpus, extra=extra), mock.patch.object(primitive, "gpus", lambda: gpus), \
                        mock.patch.object(handler, "workspace_bytes", more):
                    call = jax.jit(lambda q, k, v: attnsmith.jax.attention(q, k, v))
                    nbytes = self.launched_as(call, q, k, v)[0]["workspace"][1]
                    least = self.kernel().workspace_bytes(batch=1, q_tokens=1, max_kv_len=1025) + (1 << 20)
                    self.assertGreaterEqual(nbytes, least)

    def test_a_loop(self):
        q, k, v = dense(q_len=1)

        def step(carry, _):
            o, lens = carry
            return (attnsmith.jax.attention(o, k, v, kv_lens=lens), lens + 1), None
        (o, lens), _ = jax.jit(lambda q: jax.lax.scan(step, (q, jnp.array([3, 4], jnp.int32)), length=5))(q)
        jax.block_until_ready(o)
        self.assertEqual((len(self.launches), list(lens)), (5, [8, 9]))

    def test_no_elements(self):
        q, k, v = dense(batch=0)
        self.assertEqual(attnsmith.jax.attention(q, k, v).shape, (0, 8, 4, 64))

    def test_arrays_of_numpy(self):
        q, k, v = (np.asarray(one) for one in dense())
        self.assertEqual(self.launched_as(attnsmith.jax.attention, q, k, v, kv_lens=np.array([1, 2]))[1].shape, q.shape)

    def test_shards(self):
        mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
        spec = jax.sharding.PartitionSpec("x")
        if not hasattr(jax, "shard_map"):
            self.skipTest("jax is older than jax.shard_map")
        q, k, v = dense(batch=4)
        call = jax.shard_map(attnsmith.jax.attention, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
        o = jax.block_until_ready(jax.jit(call)(q, k, v))
        self.assertEqual(o.shape, q.shape)
        self.assertEqual([launch["q"][0] for launch in self.launches], [(2, 8, 4, 64)] * 2)


class Kernels(JaxTest):
    def test_one_is_prepared_for_many_calls(self):
        q, k, v = dense(kv_len=33)
        call = jax.jit(lambda q, k, v: attnsmith.jax.attention(q, k, v))
        for _ in range(3):
            self.launched_as(call, q, k, v)
        self.launched_as(jax.jit(lambda q, k, v: attnsmith.jax.attention(q, k, v) * 2), q, k, v)
        self.launched_as(attnsmith.jax.attention, q, k, v)
        self.assertEqual([words["device"] for words in self.prepared], [0])

    def test_each_gpu_has_its_own(self):
        q, k, v = dense(kv_len=65)
        call = jax.jit(lambda q, k, v: attnsmith.jax.attention(q, k, v))
        kernels = []
        for device in (0, 1, 0, 1):
            self.host.device = device
            launch, _ = self.launched_as(call, q, k, v)
            self.assertEqual((launch["q"][3], launch["o"][3]), (device, device))
            kernels.append(launch["kernel"])
        self.assertEqual([words["device"] for words in self.prepared], [0, 1])
        self.assertEqual(kernels[:2], kernels[2:])
        self.assertNotEqual(kernels[0], kernels[1])

    def test_nothing_is_prepared_by_a_call_that_was_not_initialized(self):
        """It may be in a capture."""
        q, k, v = dense(kv_len=129)
        self.host.initializes, self.host.device = False, 1
        with self.assertRaisesRegex(Exception, r"attnsmith \(kernel_missing\): no kernel is ready on GPU 1"):
            jax.block_until_ready(jax.jit(attnsmith.jax.attention)(q, k, v))
        self.assertEqual((self.launches, [words["device"] for words in self.prepared]), ([], [0]))

    def test_a_capture(self):
        q, k, v = dense(kv_len=257)
        call = jax.jit(attnsmith.jax.attention).lower(q, k, v).compile()
        driver, graph, execution = ctypes.CDLL(FAKE_CUDA), ctypes.c_void_p(), ctypes.c_void_p()
        self.host.stream = self.stream()
        stream, lost = ctypes.c_void_p(self.host.stream), self.state.lost_captures
        self.assertEqual(driver.cuStreamBeginCapture_v2(stream, 0), 0)
        launch, _ = self.launched_as(call, q, k, v)
        self.assertEqual(driver.cuStreamEndCapture(stream, ctypes.byref(graph)), 0)
        self.assertEqual((launch["stream"], self.state.lost_captures), (self.host.stream, lost))
        replays = self.state.graph_launches
        self.assertEqual(driver.cuGraphInstantiateWithFlags(ctypes.byref(execution), graph, ctypes.c_ulonglong(0)), 0)
        self.assertEqual(driver.cuGraphLaunch(execution, stream), 0)
        self.assertEqual(driver.cuStreamSynchronize(stream), 0)
        self.assertEqual((self.state.graph_launches, self.state.lost_captures), (replays + 1, lost))

    def test_threads(self):
        q, k, v = dense(kv_len=513)

        def run():
            for _ in range(5):
                jax.block_until_ready(attnsmith.jax.attention(q, k, v))

        self.assertEqual((in_threads(6, run), len(self.launches), len({launch["kernel"] for launch in self.launches})), ([], 30, 1))


class Errors(JaxTest):
    def test_what_is_wrong_is_named_when_the_call_is_traced(self):
        q, k, v = dense()
        eight = k.astype(jnp.float8_e4m3fn)
        cases = {"k.shape": ((q, k[:1], v), {}), "v.shape": ((q, k, v[:, :3]), {}), "q.shape": ((q[0], k, v), {}),
                 "k.dtype": ((q, k.astype(jnp.float16), v), {}), "v.dtype": ((q, k, v.astype(jnp.float16)), {}),
                 "kv_heads": ((q[:, :, :3], k, v), {}), "q": ((None, k, v), {}), "k": ((q, [1], v), {}),
                 "sinks.dtype": ((q, k, v), {"sinks": jnp.ones(4, jnp.bfloat16)}),
                 "sinks.shape": ((q, k, v), {"sinks": jnp.ones(3, jnp.float32)}),
                 "kv_lens.shape": ((q, k, v), {"kv_lens": jnp.ones(3, jnp.int32)}),
                 "kv_lens.dtype": ((q, k, v), {"q_lens": jnp.ones(2, jnp.int32), "kv_lens": jnp.ones(2, jnp.int16)}),
                 "causal": ((q, k, v), {"causal": 1}), "softcap": ((q, k, v), {"softcap": "x"}),
                 "window": ((q, k, v), {"window": 3}), "precision": ((q, k, v), {"precision": "hgh"}),
                 "consistency": ((q, k, v), {"consistency": []}), "lse_order": ((q, k, v), {"lse_order": "x"}),
                 "o_dtype": ((q, k, v), {"o_dtype": "int32"})}
        for field, (arrays, words) in cases.items():
            with self.subTest(field):
                for function in (attnsmith.jax.attention, jax.jit(lambda *arrays, words=words: attnsmith.jax.attention(
                        *arrays, **words)) if not isinstance(arrays[1], list) else attnsmith.jax.attention):
                    with self.assertRaises(attnsmith.InvalidRequest) as caught:
                        function(*arrays, **(words if function is attnsmith.jax.attention else {}))
                    self.assertEqual(caught.exception.field, field, str(caught.exception))
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            attnsmith.jax.attention(q, eight, eight)
        self.assertEqual(caught.exception.field, "k.dtype")
        with self.assertRaisesRegex(attnsmith.Unsupported, "fp32"):
            attnsmith.jax.attention(*(one.astype(jnp.float32) for one in (q, k, v)))
        table, lens = jnp.zeros((2, 2), jnp.int32), jnp.zeros(2, jnp.int32)
        pages = jnp.zeros((4, 16, 2, 64), jnp.bfloat16)
        for field, arrays, words in (("kv_cache", (q, (pages,), table, lens), {}),
                                     ("kv_cache.shape", (q, pages, table, lens), {}),
                                     ("page_table", (q, (pages, pages), None, lens), {}),
                                     ("page_table.shape", (q, (pages, pages), table[:1], lens), {}),
                                     ("page_order", (q, (pages, pages), table, lens), {"page_order": "x"}),
                                     ("max_kv_len", (q, (pages, pages), table, lens), {"max_kv_len": -1})):
            with self.subTest(field), self.assertRaises(attnsmith.InvalidRequest) as caught:
                attnsmith.jax.paged_attention(*arrays, **words)
            self.assertEqual(caught.exception.field, field)
        self.assertEqual(self.launches, [])

    def test_a_kernel_that_cannot_be_had(self):
        """The exception is attnsmith's own, where the call is."""
        q, k, v = dense(kv_len=1025)
        with mock.patch.object(attnsmith.Runtime, "prepare", side_effect=attnsmith.KernelMissing("none")), \
                self.assertRaises(attnsmith.KernelMissing):
            jax.jit(attnsmith.jax.attention)(q, k, v)

    def test_a_launch_that_fails(self):
        q, k, v = dense()
        self.state.fail_launch = 700
        with self.assertRaisesRegex(Exception, r"attnsmith \(driver_error\): cuLaunchKernel"):
            jax.block_until_ready(attnsmith.jax.attention(q, k, v))
        self.state.fail_launch = 0
        self.launched_as(attnsmith.jax.attention, q, k, v)

    def test_programs_of_others(self):
        """What the handler is given by a program that was not made here."""
        q, k, v = dense()
        asked = primitive._asked((q, k, v), "attention", ("q", "k", "v"), attnsmith.jax._options(
            False, None, None, None, None, False, "NHD", "standard", "standard", None))
        layouts = np.array(asked.layouts, np.int64)
        beyond, negative = layouts.copy(), layouts.copy()
        beyond[5], negative[9] = 3, -1
        for request, of_tensors, workspace, wanted in (
                ("{", layouts, 1 << 20, r"attnsmith \(failed\): JSONDecodeError"),
                (json.dumps({"head_dim": 7, "q_heads": 1}), layouts, 1 << 20, r"attnsmith \(\w+\): .*head_dim"),
                (asked.request, layouts[:-1], 1 << 20, r"attnsmith \(failed\): the layouts"),
                (asked.request, beyond, 1 << 20, r"attnsmith \(failed\): the layouts"),
                (asked.request, negative, 1 << 20, r"attnsmith \(failed\): the layouts"),
                (asked.request, layouts, 8000, r"attnsmith \(failed\): the workspace"),
                (asked.request, layouts, 8192 + 255, r"attnsmith \(invalid_request\): workspace\.bytes"),
                (asked.request, layouts[:-13], 1 << 20, r"attnsmith \(invalid_request\): o")):
            call = jax.ffi.ffi_call(primitive.TARGET, (jax.ShapeDtypeStruct(q.shape, q.dtype),
                                                       jax.ShapeDtypeStruct((workspace,), np.uint8)))
            with self.subTest(request=request, workspace=workspace), self.assertRaisesRegex(Exception, wanted):
                jax.block_until_ready(call(q, k, v, request=request, layouts=of_tensors, max_q_len=np.int64(8),
                                           max_kv_len=np.int64(16)))


class Transformations(JaxTest):
    def test_shapes_need_no_gpu(self):
        abstract = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in dense()]
        with mock.patch.object(primitive, "gpus", side_effect=AssertionError):
            o, lse = jax.eval_shape(lambda *arrays: attnsmith.jax.attention(*arrays, return_lse=True, o_dtype="fp32"),
                                    *abstract)
            jax.make_jaxpr(attnsmith.jax.attention)(*abstract)
        self.assertEqual((o.shape, o.dtype, lse.shape), ((2, 8, 4, 64), np.float32, (2, 8, 4)))

    def test_gradients_are_refused(self):
        q, k, v = dense()

        def loss(q, k):
            return attnsmith.jax.attention(q, k, v).astype(jnp.float32).sum()
        for function in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.value_and_grad(loss, 1),
                         lambda q, k: jax.jvp(loss, (q, k), (q, k))):
            with self.assertRaisesRegex(attnsmith.Unsupported, "attnsmith.jax.attention has no gradient"):
                function(q, k)
        stopped = jax.grad(lambda q: loss(jax.lax.stop_gradient(q), k) + q.astype(jnp.float32).sum())(q)
        self.assertEqual(float(stopped.sum()), q.size)

    def test_vmap_makes_its_axis_part_of_the_batch(self):
        q, k, v = (jnp.stack([one, one, one], 1) for one in dense())
        lens = jnp.array([16, 5], jnp.int32)

        def call(q, k, v):
            return attnsmith.jax.attention(q, k, v, q_lens=lens // 4, kv_lens=lens, return_lse=True, lse_order="HND")
        launch, (o, lse) = self.launched_as(jax.jit(jax.vmap(call, in_axes=(1, 1, 1), out_axes=1)), q, k, v)
        self.assertEqual((o.shape, lse.shape), ((2, 3, 8, 4, 64), (2, 3, 4, 8)))
        self.assertEqual((launch["q"][0], launch["q_lens"][0], launch["kv_lens"][0], self.spec()["lse"]),
                         ((6, 8, 4, 64), (6,), (6,), True))
        again = jax.vmap(jax.vmap(attnsmith.jax.attention))(*(one[None] for one in (q, k, v)))
        self.assertEqual(again.shape, (1, *q.shape))

    def test_other_vmaps_are_refused(self):
        q, k, v = dense()
        with self.assertRaisesRegex(attnsmith.Unsupported, "with k not mapped"):
            jax.vmap(attnsmith.jax.attention, in_axes=(0, None, None))(q[None], k, v)
        with self.assertRaisesRegex(attnsmith.Unsupported, "vmap over sinks"):
            jax.vmap(lambda q, k, v, sinks: attnsmith.jax.attention(q, k, v, sinks=sinks))(
                q[None], k[None], v[None], jnp.ones((1, 4), jnp.float32))
        with self.assertRaisesRegex(attnsmith.Unsupported, "vmap over attnsmith.jax.varlen_attention"):
            jax.vmap(attnsmith.jax.varlen_attention)(q, k, v, *[jnp.zeros((2, 2), jnp.int32)] * 2)

    def test_without_jit(self):
        with jax.disable_jit():
            self.launched_as(attnsmith.jax.attention, *dense())


@unittest.skipIf(jax is None, "JAX is not installed")
class Refusals(unittest.TestCase):
    """In a process of its own, as users meet them."""

    CALL = ("import jax, jax.numpy as jnp, attnsmith.jax\n"
            "q = jnp.ones((1, 2, 2, 64), jnp.bfloat16)\n"
            "try:\n    {}\nexcept attnsmith.Error as error:\n    print(type(error).__name__, error)\n")

    def said(self, program, **environment):
        done = python(program, JAX_PLATFORMS="cpu", **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_another_platform(self):
        for call in ("attnsmith.jax.attention(q, q, q)", "jax.jit(attnsmith.jax.attention)(q, q, q)"):
            self.assertRegex(self.said(self.CALL.format(call)),
                             r"^Unsupported .*NVIDIA GPUs, and not on the platform cpu")

    def test_no_gpu_to_lower_for(self):
        call = "attnsmith._jax.primitive.handler.handler = lambda: attnsmith; attnsmith._jax.primitive.gpus()"
        program = self.CALL.format(call).replace("attnsmith.jax\n", "attnsmith.jax, attnsmith._jax.primitive\n", 1)
        self.assertRegex(self.said(program), "^Unsupported attnsmith.jax needs an NVIDIA GPU to lower a program")

    def test_no_library(self):
        register = self.CALL.format("attnsmith.jax.register()")
        self.assertRegex(self.said(register, ATTNSMITH_JAX_LIBRARY="/nowhere/lib.so"),
                         r"^LibraryMissing .*/nowhere/lib.so.*pip install .*ATTNSMITH_XLA_INCLUDE")
        self.assertRegex(self.said(register, ATTNSMITH_JAX_LIBRARY=attnsmith._c_api.library.library().path),
                         r"^LibraryMissing .*attnsmith_jax_use.*ATTNSMITH_XLA_INCLUDE")


class WithoutJax(unittest.TestCase):
    def test_the_source_folder_has_no_package_of_a_framework(self):
        """tools/python may be on PYTHONPATH, where every folder is a package, so that programs would find a framework."""
        find = importlib.machinery.PathFinder.find_spec
        self.assertIsNotNone(find("attnsmith", [str(PACKAGE.parent)]))
        for name in ("cupy", "diffusers", "flash_attn", "flashinfer", "jax", "numpy", "torch", "transformers"):
            self.assertIsNone(find(name, [str(PACKAGE.parent)]), name)

    def said(self, program):
        done = python("import sys\n" + program)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_importing_costs_nothing(self):
        self.assertEqual(self.said("import attnsmith, attnsmith.jax\nprint('jax' in sys.modules)"), "False\n")

    def test_what_is_missing_is_named(self):
        program = ("import attnsmith.jax\ntry:\n    attnsmith.jax.{}\n"
                   "except (attnsmith.Error, ImportError) as error:\n    print(type(error).__name__, error)\n")
        call = program.format("attention(1, 2, 3)")
        page = " ".join((REPOSITORY / "docs/jax.md").read_text(encoding="utf-8").split())
        self.assertIn("without it, the first call raises an `ImportError`", page)
        for name, arguments in (("attention", "1, 2, 3"), ("varlen_attention", "1, 2, 3, 4, 5"),
                                ("paged_attention", "1, 2, 3, 4"), ("register", "")):
            self.assertRegex(self.said("sys.modules['jax'] = None\n" + program.format(f"{name}({arguments})")),
                             r"^ImportError attnsmith.jax needs JAX: pip install 'jax\[cuda12\]'")
            raised = inspect.getdoc(getattr(attnsmith.jax, name)).rpartition("Raises ")[2]
            self.assertRegex(raised, r"\bImportError\b", name)
        old = ("import types\nsys.modules['jax'] = types.SimpleNamespace(__version__='0.4.30')\n"
               "sys.modules['jax.ffi'] = None\n")
        self.assertRegex(self.said(old + call), r"^Unsupported jax 0\.4\.30 has no jax\.ffi: take jax 0\.5 or newer")

    def test_the_page(self):
        """docs/jax.md says of each argument what becomes of it."""
        page = (REPOSITORY / "docs/jax.md").read_text(encoding="utf-8")
        tables = {part.partition("\n")[0].strip("`"): set(re.findall(r"`(\w+)`", " ".join(re.findall(
            r"^\| (`.*?) \|", part, re.MULTILINE)))) for part in page.split("\n## ")[1:]}
        words = set()
        for name in FUNCTIONS:
            taken, all_of = (set(inspect.signature(getattr(module, name)).parameters)
                             for module in (attnsmith.jax, attnsmith))
            self.assertLessEqual(taken, all_of)
            words |= all_of
        self.assertEqual(tables["Arguments"], words)
        refused = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \| refused", page, re.MULTILINE))))
        self.assertEqual(refused, words - {name for one in FUNCTIONS for name in inspect.signature(
            getattr(attnsmith.jax, one)).parameters})


if __name__ == "__main__":
    unittest.main()

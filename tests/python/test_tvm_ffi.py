"""attnsmith.tvm_ffi through the real tvm-ffi, whose tensors lie in the memory of a stub of the CUDA driver."""

import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from launch_case import LaunchTest, pointers_of_arguments
from support import FAKE_CUDA, INCLUDES, LIBRARY, REPOSITORY, attnsmith, compiler, in_threads, python

from attnsmith._c_api import nvrtc as _nvrtc

try:
    import tvm_ffi
except ImportError:
    tvm_ffi = None

FILE = os.environ.get("ATTNSMITH_TVM_FFI_LIBRARY", "")
FUNCTIONS = ("attention", "varlen_attention", "paged_attention", "mla_attention", "merge_states")
OWN_MEMORY = ("partial_o", "partial_ml", "status")  # addresses within a workspace


def signature(name):
    """The parameters of an exported function with their defaults, None for those that have none."""
    text = re.fullmatch(rf"{name}\((.*)\)", module().get_function_doc(name))[1]
    words = {"None": None, "False": False}
    return {one: words[value] if value in words else value.strip('"') if value.startswith('"') else float(value or "nan")
            for one, _, value in (part.partition("=") for part in text.split(", "))}


def module():
    """The functions, by the stub of the driver."""
    loaded = attnsmith.tvm_ffi.load()
    # Until the first call, which load() leaves to the caller.
    nvrtc = os.environ.get("ATTNSMITH_NVRTC_PATH") or _nvrtc.of_a_wheel() or ""
    ctypes.CDLL(FILE).attnsmith_tvm_ffi_use(LIBRARY.encode(), nvrtc.encode(), FAKE_CUDA.encode())
    return loaded


@unittest.skipIf(tvm_ffi is None, "apache-tvm-ffi is not installed")
@unittest.skipUnless(FILE, "ATTNSMITH_TVM_FFI_LIBRARY is not set")
class TvmFfiTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.module = module()
        self.state.param_bytes = 8 * len(pointers_of_arguments())

    def call(self, name, *tensors, **words):
        """One call, whose tensors are attnsmith's arrays."""
        parameters = list(signature(name))
        words = {**dict(zip(parameters, tensors)), **words}
        self.assertLessEqual(words.keys(), set(parameters))
        last = max(parameters.index(one) for one in words)
        given = [words.get(one) for one in parameters[:last + 1]]
        lent = [tvm_ffi.from_dlpack(one) if isinstance(one, attnsmith.Array) else one for one in given]
        return getattr(self.module, name)(*lent)

    def dense(self, batch=2, q_len=8, kv_len=16, q_heads=4, kv_heads=2, dim=64, dim_vo=None, dtype="bf16", device=0):
        """q, k, v and out."""
        return (self.array(batch, q_len, q_heads, dim, dtype=dtype, device=device),
                self.array(batch, kv_len, kv_heads, dim, dtype=dtype, device=device),
                self.array(batch, kv_len, kv_heads, dim_vo or dim, dtype=dtype, device=device),
                self.array(batch, q_len, q_heads, dim_vo or dim, dtype=dtype, device=device))

    def paged(self, order="NHD", dtype="bf16"):
        """q, k_cache, v_cache, page_table, kv_lens and out of two sequences."""
        pages = (6, 4, 2, 64) if order == "NHD" else (6, 2, 4, 64)
        return (self.array(2, 4, 64), self.array(*pages, dtype=dtype), self.array(*pages, dtype=dtype),
                self.array(2, 3, dtype="int32", values=[0, 1, 2, 3, 4, 5]), self.array(2, dtype="int32", values=[12, 5]),
                self.array(2, 4, 64))

    def last(self, *made):
        """The last launch, without what lies in its workspace, and without the pointers that are named."""
        launch, known = self.state.last_launch, pointers_of_arguments()
        words = (ctypes.c_uint64 * len(known)).from_buffer_copy(launch.parameter)
        pointers = {name: word for name, word in zip(known, words) if name not in (*OWN_MEMORY, *made)}
        return launch.entry, tuple(launch.grid), tuple(launch.block), launch.shared_bytes, pointers

    def assert_refused_with(self, kind, pattern, name, *tensors, **words):
        before = self.state.launches
        with self.assertRaisesRegex(kind, pattern) as caught:
            self.call(name, *tensors, **words)
        self.assertIs(type(caught.exception), kind)
        self.assertEqual(self.state.launches, before)


class Calls(TvmFfiTest):
    def assert_as_in_python(self, name, tensors, function, *arguments, made=(), **words):
        """Three calls launch what attnsmith's function launches."""
        function(*arguments)
        wanted = self.last(*made)
        for _ in range(3):
            count, result = self.launched(self.call, name, *tensors, **words)
            self.assertEqual((count, result), (1, None))
            self.assertEqual(self.last(*made), wanted)

    def test_dense(self):
        q, k, v, out = self.dense(dim_vo=32)
        floats = {name: self.array(4, dtype="fp32") for name in ("sinks", "alibi_slopes")}
        lens = {"q_lens": self.array(2, dtype="int32", values=[8, 3]), "kv_lens": self.array(2, dtype="int32", values=[16, 5])}
        for ours, words in (({}, {}), ({"causal": True}, {"causal": True}), ({"scale": 0.3}, {"scale": 0.3}),
                            ({"window_left": 5}, {"window": (5, None)}), ({"window_right": 0}, {"window": (None, 0)}),
                            ({"attention_chunk": 4}, {"attention_chunk": 4}), ({"softcap": 20}, {"softcap": 20}),
                            (floats, floats), (lens, lens), ({"precision": "high"}, {"precision": "high"}),
                            ({"consistency": "bitwise"}, {"consistency": "bitwise"})):
            with self.subTest(**ours):
                self.assert_as_in_python("attention", (q, k, v, out),
                                         lambda words=words: attnsmith.attention(q, k, v, out=out, **words), **ours)

    def test_lse(self):
        q, k, v, out = self.dense()
        lse = self.array(2, 8, 4, dtype="fp32")
        self.assert_as_in_python("attention", (q, k, v, out, lse),
                                 lambda: attnsmith.attention(q, k, v, out=out, return_lse=True), made=("lse",))
        self.assertEqual(self.launched_at("lse"), [lse.data])
        self.call("attention", q, k, v, out)
        self.assertEqual(self.launched_at("lse"), [0])

    def test_outputs_of_fp32(self):
        q, k, v, _ = self.dense()
        out = self.array(2, 8, 4, 64, dtype="fp32")
        self.assert_as_in_python("attention", (q, k, v, out), lambda: attnsmith.attention(q, k, v, out=out))

    def test_ragged(self):
        q, k, v, out = (self.array(16, heads, 64) for heads in (4, 2, 2, 4))
        ends = self.array(3, dtype="int32", values=[0, 9, 16])
        for limits in ({}, {"max_q_len": 9, "max_kv_len": 9}):
            self.assert_as_in_python(
                "varlen_attention", (q, k, v, ends, ends, out),
                lambda limits=limits: attnsmith.varlen_attention(q, k, v, ends, ends, out=out, causal=True, **limits),
                causal=True, **limits)

    def test_pages(self):
        for order in ("NHD", "HND"):
            q, k, v, table, lens, out = self.paged(order)
            self.assert_as_in_python(
                "paged_attention", (q, k, v, table, lens, out),
                lambda k=k, v=v, order=order, q=q, table=table, lens=lens, out=out: attnsmith.paged_attention(
                    q, (k, v), table, lens, out=out, page_order=order), page_order=order)

    def test_pages_of_8_bits(self):
        scale = self.array(1, dtype="fp32")
        q, _, _, table, lens, out = self.paged()
        k, v = (self.rt.allocate(6 * 4 * 2 * 64).array((6, 4, 2, 64), "e4m3") for _ in "kv")
        self.assert_as_in_python("paged_attention", (q, k, v, table, lens, out),
                                 lambda: attnsmith.paged_attention(q, (k, v), table, lens, out=out, k_scale=scale,
                                                                   v_scale=scale), k_scale=scale, v_scale=scale)
        k, v = (self.array(6, 4, 2, 64, dtype="uint8") for _ in "kv")
        self.assert_as_in_python("paged_attention", (q, k, v, table, lens, out),
                                 lambda: attnsmith.paged_attention(q, (k, v), table, lens, out=out, kv_dtype="e5m2"),
                                 kv_dtype="e5m2")

    def test_pages_that_are_listed(self):
        q, k, v, _, _, out = self.paged()
        listed = {"page_indptr": self.array(3, dtype="int32", values=[0, 3, 5]),
                  "page_indices": self.array(5, dtype="int32", values=[0, 1, 2, 3, 4]),
                  "last_page_len": self.array(2, dtype="int32", values=[4, 1])}
        self.assert_as_in_python("paged_attention", (q, k, v, None, None, out),
                                 lambda: attnsmith.paged_attention(q, (k, v), out=out, **listed), **listed)

    def test_queries_of_pages(self):
        _, k, v, table, lens, _ = self.paged()
        q, out = self.array(2, 3, 4, 64), self.array(2, 3, 4, 64)
        lse, q_lens = self.array(2, 3, 4, dtype="fp32"), self.array(2, dtype="int32", values=[3, 1])
        self.assert_as_in_python("paged_attention", (q, k, v, table, lens, out, lse),
                                 lambda: attnsmith.paged_attention(q, (k, v), table, lens, out=out, return_lse=True,
                                                                   q_lens=q_lens, causal=True), made=("lse",),
                                 q_lens=q_lens, causal=True)
        q, out, ends = self.array(4, 4, 64), self.array(4, 4, 64), self.array(3, dtype="int32", values=[0, 3, 4])
        rows = self.array(2, dtype="int32", values=[1, 0])
        self.assert_as_in_python("paged_attention", (q, k, v, table, lens, out),
                                 lambda: attnsmith.paged_attention(q, (k, v), table, lens, out=out, q_indptr=ends,
                                                                   table_rows=rows), q_indptr=ends, table_rows=rows)

    def test_latents(self):
        table, lens = self.array(2, 3, dtype="int32", values=[0, 1, 2, 3, 4, 5]), self.array(2, dtype="int32", values=[12, 5])
        q, cache, out = self.array(2, 4, 128), self.array(6, 4, 1, 128), self.array(2, 4, 64)
        self.assert_as_in_python("mla_attention", (q, cache, table, lens, out),
                                 lambda: attnsmith.mla_attention(q, cache, table, lens, out=out, scale=0.1,
                                                                 head_dim_ckv=64), scale=0.1, head_dim_ckv=64)
        q, q_pe = self.array(2, 3, 4, 64), self.array(2, 3, 4, 64)
        ckv, kpe, out = self.array(6, 4, 64), self.array(6, 4, 64), self.array(2, 3, 4, 64)
        self.assert_as_in_python("mla_attention", (q, ckv, table, lens, out),
                                 lambda: attnsmith.mla_attention(q, ckv, table, lens, out=out, scale=0.1, q_pe=q_pe,
                                                                 kpe=kpe, causal=True),
                                 scale=0.1, q_pe=q_pe, kpe=kpe, causal=True)

    def test_states(self):
        states, sums = self.array(3, 2, 4, 64), self.array(3, 2, 4, dtype="fp32")
        out, lse = self.array(3, 4, 64), self.array(3, 4, dtype="fp32")
        for tensors, returns in (((out,), False), ((out, lse), True)):
            attnsmith.merge_states(states, sums, out=out, return_lse=returns)
            wanted = self.last()[:4]
            for _ in range(2):
                count, _ = self.launched(self.call, "merge_states", states, sums, *tensors)
                self.assertEqual((count, self.last()[:4]), (1, wanted))

    def test_tensors_move(self):
        """Each call launches at the addresses that it is given."""
        for _ in range(4):
            q, k, v, out = self.dense()
            lse = self.array(2, 8, 4, dtype="fp32")
            self.call("attention", q, k, v, out, lse)
            self.assertEqual(self.launched_at("q", "k", "v", "o", "lse"), [one.data for one in (q, k, v, out, lse)])
            pages = self.paged()
            self.call("paged_attention", *pages)
            self.assertEqual(self.launched_at("q", "k", "v", "page_ids", "kv_lens", "o"), [one.data for one in pages])

    def test_views_begin_where_they_say(self):
        _, k, v, out = self.dense()
        for _ in range(3):
            inner = self.array(2, 8, 4, 64, offset=512)
            self.call("attention", inner, k, v, out)
            self.assertEqual(self.launched_at("q"), [inner.data])

    def test_sequences_of_no_tokens(self):
        before = self.state.bad_frees
        for shape in ({"batch": 0}, {"q_len": 0}, {"kv_len": 0}):
            with self.subTest(**shape):
                for _ in range(3):
                    self.call("attention", *self.dense(**shape))
        self.assertEqual(self.state.bad_frees, before)

    def test_devices(self):
        for _ in range(3):
            for device in (0, 1):
                self.call("attention", *self.dense(device=device))
                self.assertEqual(self.state.last_launch.device, device)

    def test_None_is_the_default(self):
        for name, tensors in (("attention", self.dense()), ("paged_attention", self.paged())):
            self.call(name, *tensors)
            wanted, parameters = self.last(), signature(name)
            defaults = {one: int(value) if one.startswith(("window", "max", "attention_chunk")) else value
                        for one, value in parameters.items() if value == value}
            for words in (defaults, dict.fromkeys(defaults)):
                self.call(name, *tensors, **words)
                self.assertEqual(self.last(), wanted)

    def test_global_functions(self):
        tensors = [tvm_ffi.from_dlpack(one) for one in self.dense()]
        for name in FUNCTIONS:
            self.assertIsNotNone(tvm_ffi.get_global_func(f"attnsmith.{name}"))
        self.assertEqual(self.launched(tvm_ffi.get_global_func("attnsmith.attention"), *tensors), (1, None))


class Streams(TvmFfiTest):
    def on(self, stream, device=0):
        return tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device), stream)

    def test_the_current_one(self):
        tensors = self.dense()
        streams = [self.stream(), self.stream()]
        for _ in range(3):
            for stream in streams:
                with self.on(stream):
                    self.call("attention", *tensors)
                self.assertEqual(self.state.last_launch.stream, stream)
            self.call("attention", *tensors)
            self.assertIsNone(self.state.last_launch.stream)

    def test_each_has_its_own_workspace(self):
        q, k, v, out = self.dense(batch=1, q_len=1, kv_len=4096, q_heads=2, kv_heads=2)
        words, places = [], {name: pointers_of_arguments().index(name) for name in ("partial_o",)}
        for stream in (self.stream(), self.stream()):
            with self.on(stream):
                self.call("attention", q, k, v, out)
                self.call("attention", q, k, v, out)
            known = (ctypes.c_uint64 * len(pointers_of_arguments())).from_buffer_copy(self.state.last_launch.parameter)
            words.append(known[places["partial_o"]])
        self.assertTrue(all(words))
        self.assertNotEqual(*words)

    def test_that_of_each_thread_is_refused(self):
        with self.on(2):
            self.assert_refused_with(ValueError, "cudaStreamPerThread", "attention", *self.dense())

    @contextlib.contextmanager
    def capture(self, stream):
        driver, graph = ctypes.CDLL(FAKE_CUDA), ctypes.c_void_p()
        self.assertEqual(driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 2), 0)
        try:
            yield
        finally:
            ended = driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        self.assertEqual(ended, 0, "the capture was lost")

    def test_a_captured_one(self):
        tensors, stream, other = self.dense(), self.stream(), self.stream()
        with self.on(stream):
            self.call("attention", *tensors)
            allocations = self.state.allocations
            with self.capture(stream):
                self.call("attention", *tensors)
            self.assertEqual(self.state.allocations, allocations)
        with self.on(other), self.capture(other):
            self.assert_refused_with(RuntimeError, "workspace of this stream has 0 bytes.*before the capture", "attention",
                                     *tensors)


class Wrong(TvmFfiTest):
    def test_counts(self):
        tensors = self.dense()
        self.assert_refused_with(TypeError, "attention: 3 arguments are not accepted; expected 4 to ", "attention", *tensors[:3])
        with self.assertRaisesRegex(TypeError, r"25 arguments are not accepted; .*attention\(q, k, v, out, lse=None"):
            self.module.attention(*[None] * 25)

    def test_types(self):
        q, k, v, out = self.dense()
        for words, message in (({"q": None}, "q: None is not accepted; expected a tensor"),
                               ({"q": 3}, "q: 3 is not accepted; expected a tensor"),
                               ({"q": "q"}, 'q: "q" is not accepted; expected a tensor'),
                               ({"lse": True}, "lse: True is not accepted; expected a tensor, or None"),
                               ({"causal": 1}, "causal: 1 is not accepted; expected True or False, or None"),
                               ({"window_left": 1.5}, "window_left: 1.5.* expected an integer, or None"),
                               ({"window_left": True}, "window_left: True is not"),
                               ({"softcap": False}, "softcap: False is not accepted; expected a number, or None"),
                               ({"precision": 1}, "precision: 1 is not accepted; expected a word, or None"),
                               ({"kv_dtype": q}, "kv_dtype: a tensor is not accepted; expected a word"),
                               ({"sinks": [1.0]}, "sinks: a value of TVM FFI's type [0-9]+ is not accepted")):
            with self.subTest(message):
                self.assert_refused_with(TypeError, message, "attention", **{"q": q, "k": k, "v": v, "out": out, **words})
        self.assert_refused_with(TypeError, "scale: None is not accepted; expected a number$", "mla_attention", q, k, None,
                                 None, out, None)

    def test_values(self):
        q, k, v, out = self.dense()
        for words, message in (({"scale": float("nan")}, "scale: nan is not accepted; expected a finite number"),
                               ({"precision": "hihg"}, 'precision: "hihg" is not accepted; .*did you mean high'),
                               ({"precision": 'so "very" \\ high\n'}, "precision: "),
                               ({"consistency": "a word of any length"}, 'consistency: "a word of any length" is not'),
                               ({"window_left": -7}, "window_left: -7 is not"),
                               ({"softcap": -1.0}, "softcap: -1"),
                               ({"attention_chunk": -3}, "attention_chunk: -3")):
            for _ in range(2):
                self.assert_refused_with(ValueError, message, "attention", **{"q": q, "k": k, "v": v, "out": out, **words})
        self.assert_refused_with(ValueError, "max_q_len: -1 is not accepted", "varlen_attention", self.array(4, 4, 64),
                                 *(self.array(4, 2, 64) for _ in "kv"), *[self.array(2, dtype="int32", values=[0, 4])] * 2,
                                 self.array(4, 4, 64), max_q_len=-1)

    def test_tensors(self):
        q, k, v, out = self.dense()
        six, scale = self.array(1, 1, 1, 1, 1, 1), self.array(1, dtype="fp32")
        for words, message in (({"q": self.array(8, 4, 64)}, r"q.shape: \(8, 4, 64\) is not accepted; expected \[batch, q_len"),
                               ({"k": self.array(16, 2, 64)}, r"k.shape: \(16, 2, 64\) is not accepted"),
                               ({"v": self.array(2, 9, 2, 64)}, "v.shape"),
                               ({"out": self.array(2, 8, 5, 64)}, "out.shape"),
                               ({"out": self.array(2, 8, 4, 64, dtype="fp16")}, "out.dtype: "),
                               ({"out": q}, "out"),
                               ({"lse": self.array(2, 8, 4)}, "lse.dtype"),
                               ({"lse": self.array(2, 8, dtype="fp32")}, "lse.ndim"),
                               ({"k": self.array(2, 16, 2, 64, dtype="fp16")}, "k.dtype"),
                               ({"k": self.array(2, 16, 3, 64), "v": self.array(2, 16, 3, 64)}, "kv_heads: 3 is not accepted"),
                               ({"k": self.array(2, 16, 2, 64, device=1)}, "k.device"),
                               ({"kv_lens": self.array(2, dtype="fp32")}, "kv_lens.dtype: fp32 is not accepted; expected int32 or int64"),
                               ({"k_scale": self.array(2, 3, dtype="fp32")}, "k_scale.shape"),
                               ({"k_scale": scale, "v_scale": scale}, "k_scale: "),
                               ({"q": six}, "q.ndim: 6 is not accepted; expected up to 5 axes")):
            with self.subTest(message):
                self.assert_refused_with(ValueError, message, "attention", **{"q": q, "k": k, "v": v, "out": out, **words})

    def test_names_of_pages_and_latents(self):
        q, k, v, table, lens, out = self.paged()
        self.assert_refused_with(ValueError, r"k_cache.shape: \(16, 64\)", "paged_attention", q, self.array(16, 64), v, table,
                                 lens, out)
        self.assert_refused_with(ValueError, "v_cache.shape", "paged_attention", q, k, self.array(6, 5, 2, 64), table, lens, out)
        self.assert_refused_with(ValueError, "page_table: an absent", "paged_attention", q, k, v, None, None, out)
        self.assert_refused_with(ValueError, 'page_order: "hnd" is not accepted; expected "NHD" or "HND"', "paged_attention",
                                 q, k, v, table, lens, out, page_order="hnd")
        self.assert_refused_with(ValueError, "kv_lens.dtype: int32 is not accepted; expected int64", "paged_attention", q, k, v,
                                 table, lens, out, q_indptr=self.array(3, dtype="int64", values=[0, 1, 2]))
        none, rows, keys = self.array(0, dtype="int32"), self.array(4, 4, 64), [self.array(4, 2, 64) for _ in "kv"]
        self.assert_refused_with(ValueError, "q_indptr|batch", "varlen_attention", rows, *keys, none, none, self.array(4, 4, 64))
        self.assert_refused_with(ValueError, "ckv.shape", "mla_attention", q, self.array(6, 4, 2, 64), table, lens, out, 0.1)
        self.assert_refused_with(ValueError, "states", "merge_states", self.array(3, 2, 4, 64),
                                 self.array(3, 3, 4, dtype="fp32"), out)
        self.assert_refused_with(ValueError, r"o_states.shape.*1 to 32 states", "merge_states", self.array(3, 33, 4, 64),
                                 self.array(3, 33, 4, dtype="fp32"), out)

    def test_plain_tensors(self):
        """DLTensors with any strides and without, and what is none, as callers without a framework pass them."""
        call = ctypes.CDLL(FILE)["__tvm_ffi_attention"]
        tensors = [_Tensor(one) for one in self.dense()]
        for _ in range(2):
            self.assertEqual(call(None, values(*tensors), 4, ctypes.byref(_Any())), 0)
        tensors[0].strides[3] = 2
        self.assertEqual(call(None, values(*tensors), 4, ctypes.byref(_Any())), -1)
        tensors[0].strides[3], tensors[0].strides[2] = 1, 128  # heads that lie further apart
        self.assertEqual(call(None, values(*tensors), 4, ctypes.byref(_Any())), 0)
        for field, value in (("shape", None), ("ndim", -1), ("ndim", 6), ("data", None), ("device_type", 1), ("device_type", 10)):
            good = getattr(tensors[0].tensor, field)
            setattr(tensors[0].tensor, field, value)
            self.assertEqual(call(None, values(*tensors), 4, ctypes.byref(_Any())), -1, field)
            setattr(tensors[0].tensor, field, good)
        for extent in (-1, 1 << 62):
            tensors[0].shape[0] = extent
            self.assertEqual(call(None, values(*tensors), 4, ctypes.byref(_Any())), -1, extent)
        tensors[0].shape[0] = 2
        tensors[0].tensor.strides = None  # row-major and compact
        tensors[0].tensor.byte_offset = 64
        self.assertEqual(call(None, values(*tensors), 4, ctypes.byref(_Any())), 0)
        self.assertEqual(self.launched_at("q"), [tensors[0].tensor.data + 64])

    def test_a_driver_that_fails(self):
        tensors = self.dense()
        self.call("attention", *tensors)
        self.call("attention", *tensors)
        self.state.fail_launch = 700
        self.assert_raises_driver_error("attention", *tensors)
        self.state.fail_launch = 0
        self.call("attention", *tensors)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), self.stream()):
            self.state.fail_alloc = 2
            self.assert_raises_driver_error("attention", *tensors)
            self.state.fail_alloc = 0
            self.call("attention", *tensors)

    def assert_raises_driver_error(self, name, *tensors):
        with self.assertRaisesRegex(RuntimeError, "cu[A-Z]"):
            self.call(name, *tensors)


class _Dl(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class _Any(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("pointer", ctypes.c_void_p)]


class _Tensor:
    """A DLTensor of an array, to be passed by its address."""

    def __init__(self, array):
        self.array, rank = array, len(array.shape)
        self.shape, self.strides = (ctypes.c_int64 * rank)(*array.shape), (ctypes.c_int64 * rank)(*array.strides)
        self.tensor = _Dl(array.data, 2, array.device, rank, 4, 16, 1, ctypes.addressof(self.shape),
                          ctypes.addressof(self.strides), 0)


def values(*tensors):
    return (_Any * len(tensors))(*[_Any(7, 0, ctypes.addressof(one.tensor)) for one in tensors])


class Process(TvmFfiTest):
    def test_threads(self):
        """Known and new layouts on one stream and on several."""
        layouts = [self.dense(batch=1 + i, kv_len=16 + 8 * i) for i in range(4)]
        streams = [0, self.stream(), self.stream()]
        before, calls = self.state.launches, 60

        def work():
            for i in range(calls):
                with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), streams[i % 3]):
                    self.call("attention", *layouts[i % 4], causal=bool(i & 8))
        self.assertEqual(in_threads(6, work), [])
        self.assertEqual(self.state.launches - before, 6 * calls)

    def test_repeated_calls_take_no_memory(self):
        tensors = [tvm_ffi.from_dlpack(one) for one in self.dense()]
        states = [tvm_ffi.from_dlpack(one) for one in (
            self.array(3, 2, 4, 64), self.array(3, 2, 4, dtype="fp32"), self.array(3, 4, 64))]

        def work(count):
            for _ in range(count):
                self.module.attention(*tensors)
                self.module.merge_states(*states)
                with contextlib.suppress(ValueError):
                    self.module.attention(*tensors[:3], tensors[1])

        work(300)
        allocations, used = self.state.allocations, resident()
        work(5000)
        self.assertEqual(self.state.allocations, allocations)
        self.assertLess(resident() - used, 1 << 20)

    def test_new_layouts_take_bounded_memory(self):
        for kv_len in range(17, 33):  # one kernel, many layouts
            self.call("attention", *self.dense(kv_len=kv_len))
        loads, kernels, used = self.state.library_loads, self.state.kernels, resident()
        k, v = (self.rt.allocate(2 * 4096 * 2 * 64 * 2) for _ in "kv")
        q, out = self.array(2, 8, 4, 64), self.array(2, 8, 4, 64)
        for kv_len in range(2049, 4097):
            self.call("attention", q, *(one.array((2, kv_len, 2, 64), "bf16") for one in (k, v)), out)
        self.assertLessEqual(self.state.library_loads - loads, 2)
        self.assertLessEqual(self.state.kernels - kernels, 2)
        self.assertLess(resident() - used, 16 << 20)

    def test_loaded_twice(self):
        again, raw = module(), tvm_ffi.load_module(FILE)
        tensors = [tvm_ffi.from_dlpack(one) for one in self.dense()]
        for one in (self.module, again, raw):
            self.assertEqual(self.launched(one.attention, *tensors), (1, None))
        self.assertEqual(ctypes.CDLL(FILE).attnsmith_tvm_ffi_use(b"/nowhere", None, None), 0, "it came too late")


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


PROGRAM = """
import ctypes, os, sys, threading
import tvm_ffi, attnsmith, attnsmith.tvm_ffi
module = attnsmith.tvm_ffi.load()
ctypes.CDLL(os.environ["ATTNSMITH_TVM_FFI_LIBRARY"]).attnsmith_tvm_ffi_use(
    os.environ["ATTNSMITH_LIBRARY"].encode(), attnsmith._c_api.nvrtc.of_a_wheel().encode(),
    os.environ["ATTNSMITH_FAKE_CUDA"].encode())
runtime = attnsmith.Runtime(driver_path=os.environ["ATTNSMITH_FAKE_CUDA"])
def tensor(*shape):
    return tvm_ffi.from_dlpack(runtime.allocate(1 << 16).array(shape, "bf16"))
tensors = tensor(2, 8, 4, 64), tensor(2, 16, 2, 64), tensor(2, 16, 2, 64), tensor(2, 8, 4, 64)
"""


class Programs(TvmFfiTest):
    def said(self, program, **environment):
        done = python(program, PYTHONPATH=f"{REPOSITORY / 'tools/python'}:{pathlib.Path(tvm_ffi.__file__).parents[1]}",
                      FAKE_CUDA_SM="90", **environment)
        return done.returncode, done.stdout, done.stderr

    def test_exit(self):
        """Calls may come until the very end. Threads that call while the interpreter goes are tvm-ffi's to end, and it does not
        end them well; those of C++ are in tvm_ffi_program.cpp."""
        done = self.said(PROGRAM + """
import atexit
atexit.register(lambda: print(module.attention(*tensors)))
threads = [threading.Thread(target=module.attention, args=tensors) for _ in range(4)]
for thread in threads:
    thread.start()
print("done")
""", ATTNSMITH_CACHE_DIR=self.cache.name)
        self.assertEqual(done, (0, "done\nNone\n", ""))

    def test_loading_opens_nothing(self):
        done = self.said("""
import os, tvm_ffi
def opened():
    return {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
before = opened()
module = tvm_ffi.load_module(os.environ["ATTNSMITH_TVM_FFI_LIBRARY"])
module.register_global_functions()
print(module.get_function_doc("merge_states"))
print([os.path.basename(name) for name in opened() - before])
""")
        self.assertEqual(done, (0, "merge_states(o_states, lse_states, out, lse=None)\n['libattnsmith_tvm_ffi.so']\n", ""))

    def test_without_tvm_ffi(self):
        """An error cannot be set, so it is printed."""
        done = self.said("import ctypes, os\nprint(ctypes.CDLL(os.environ['ATTNSMITH_TVM_FFI_LIBRARY'])['__tvm_ffi_attention']"
                         "(None, None, 0, None))")
        self.assertEqual(done, (0, "-1\n", "attnsmith: this process has no libtvm_ffi.so, by which this library was called\n"))

    def test_without_the_package(self):
        code, _, stderr = self.said("import sys\nsys.modules['tvm_ffi'] = None\nimport attnsmith\nattnsmith.tvm_ffi.load()")
        self.assertEqual(code, 1)
        self.assertIn("ImportError: attnsmith.tvm_ffi needs apache-tvm-ffi: pip install apache-tvm-ffi", stderr)

    def test_without_libraries(self):
        code, _, stderr = self.said("import attnsmith\nattnsmith.tvm_ffi.load()", ATTNSMITH_TVM_FFI_LIBRARY="/nowhere/lib.so")
        self.assertEqual(code, 1)
        self.assertRegex(stderr, "LibraryMissing: libattnsmith_tvm_ffi could not be opened: .*set ATTNSMITH_TVM_FFI_LIBRARY")
        raw = PROGRAM.replace("attnsmith.tvm_ffi.load()", 'tvm_ffi.load_module(os.environ["ATTNSMITH_TVM_FFI_LIBRARY"])').replace(
            'os.environ["ATTNSMITH_LIBRARY"].encode()', 'b"/nowhere/libattnsmith.so"')
        code, stdout, stderr = self.said(raw + """
for _ in range(2):
    try:
        module.attention(*tensors)
    except RuntimeError as error:
        print(error)
""")
        self.assertEqual((code, stderr), (0, ""))
        self.assertEqual(len(re.findall("libattnsmith could not be opened; tried /nowhere.*set ATTNSMITH_LIBRARY", stdout)), 2)


@unittest.skipIf(tvm_ffi is None, "apache-tvm-ffi is not installed")
class Declarations(unittest.TestCase):
    def test_they_are_those_of_the_headers(self):
        cxx = compiler()
        if cxx is None:
            self.skipTest("there is no compiler")
        done = subprocess.run([cxx, "-x", "c++", "-std=c++20", "-fsyntax-only", *includes(),
                               str(REPOSITORY / "tests/python/tvm_ffi_abi_test.cpp")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


def includes():
    from tvm_ffi import libinfo
    return [f"-I{folder}" for folder in (*libinfo.include_paths(), REPOSITORY / "tools", *INCLUDES)]


class Cpp(TvmFfiTest):
    def test_a_program(self):
        """By tvm-ffi's own C++ API: the library is opened by its file alone, and the workspace comes from the environment's
        allocator."""
        cxx = shutil.which("g++") or shutil.which("clang++")
        if cxx is None:
            self.skipTest("there is no C++ compiler")
        from tvm_ffi import libinfo
        library = pathlib.Path(libinfo.find_libtvm_ffi())
        program = self.folder / "program"
        source = REPOSITORY / "tests/python/tvm_ffi_program.cpp"
        built = subprocess.run([cxx, "-std=c++17", "-w", *includes(), source, library, f"-Wl,-rpath,{library.parent}", "-o", program],
                               capture_output=True, text=True)
        self.assertEqual(built.returncode, 0, built.stderr)
        drivers = self.folder / "drivers"
        drivers.mkdir()
        (drivers / "libcuda.so.1").symlink_to(FAKE_CUDA)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(drivers), "FAKE_CUDA_SM": "90",
                       "ATTNSMITH_CACHE_DIR": self.cache.name}
        nvrtc = _nvrtc.of_a_wheel()
        if nvrtc is not None:
            environment.setdefault("ATTNSMITH_NVRTC_PATH", nvrtc)
        done = subprocess.run([program, FILE], env=environment, capture_output=True, text=True, timeout=240)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(done.stdout.splitlines(), [
            "TypeError: v: None is not accepted; expected a tensor", "allocations: 1", "a larger one: 2", "global: 2"])


class Page(TvmFfiTest):
    TEXT = (REPOSITORY / "docs/tvm-ffi.md").read_text(encoding="utf-8")

    def test_signatures(self):
        shown = " ".join(re.search(r"^```text\n(.*?)^```$", self.TEXT, re.MULTILINE | re.DOTALL)[1].split())
        self.assertEqual(shown, " ".join(self.module.get_function_doc(name) for name in FUNCTIONS))

    def test_every_argument_is_in_the_table(self):
        listed = {name for row in re.findall(r"^\| (`.*?`) \|", self.TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(listed & set().union(*map(signature, FUNCTIONS)), set().union(*map(signature, FUNCTIONS)))


if __name__ == "__main__":
    unittest.main()

"""What the plain functions make of other libraries' words and of bounds, and the status that they can give."""

import contextlib
import ctypes
import sys
import types
import unittest
from fractions import Fraction
from unittest import mock

from launch_case import LaunchTest
from support import FAKE_CUDA, SMALL, attnsmith


class Spellings(LaunchTest):
    """What FlashAttention and FlashInfer write for "none", and what bounds of 0 are."""

    def spec(self, function, *arguments, **options):
        """The normalised request of the kernel that a call takes."""
        attnsmith.set_default_runtime(self.rt)
        attnsmith._calls.dispatch._current = None  # what earlier calls found is not looked at
        self.assertEqual(self.launched(function, *arguments, **options)[0], 1)
        (entry,) = attnsmith._calls.dispatch.dispatch_now().prepared.values()
        return entry.kernel.spec

    def test_none_of_it(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        plain = self.spec(attnsmith.attention, q, k, k)
        self.assertEqual((plain["softcap"], plain["window_left"], plain["window_right"], plain["attention_chunk"]),
                         (None, None, None, None))
        for words in ({"softcap": 0.0}, {"softcap": 0}, {"window": (-1, -1)}, {"window": [-1, None]},
                      {"attention_chunk": 0}):
            with self.subTest(**words):
                self.assertEqual(self.spec(attnsmith.attention, q, k, k, **words), plain)

    def test_a_window_under_a_causal_mask(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        for window in ((3, 0), (3, -1)):
            with self.subTest(window=window):
                spec = self.spec(attnsmith.attention, q, k, k, causal=True, window=window)
                self.assertEqual((spec["mask"], spec["window_left"], spec["window_right"]), ("causal", 3, None))

    def test_chunks(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        offsets = self.array(2, dtype="int32", values=[0, 8])
        lens, table = self.array(1, dtype="int32", values=[8]), self.array(1, 1, dtype="int32", values=[0])
        for function, arguments in ((attnsmith.attention, (q, k, k)),
                                    (attnsmith.varlen_attention,
                                     (self.array(8, 4, 64), *[self.array(8, 2, 64)] * 2, offsets, offsets)),
                                    (attnsmith.paged_attention, (q, self.array(1, 2, 16, 2, 64), table, lens))):
            with self.subTest(function=function.__name__):
                spec = self.spec(function, *arguments, causal=True, attention_chunk=4)
                self.assertEqual((spec["mask"], spec["attention_chunk"]), ("causal", 4))

    def test_bounds(self):
        """0 is no bound: it is what the longest of no sequences comes to."""
        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        pages = self.array(4, 2, 16, 2, 64)
        calls = ((attnsmith.varlen_attention, (q, k, k, offsets, offsets), (20, 30)),
                 (attnsmith.paged_attention, (self.array(2, 4, 64), pages, table, lens), (1, 32)))
        for function, tensors, shapes in calls:
            for given, wanted in ((None, shapes), (0, shapes), (1, (1, 1)), (10**12, shapes)):
                with self.subTest(function=function.__name__, bounds=given):
                    attnsmith._calls.dispatch._current = None
                    seen = []
                    fill = attnsmith._tensors.blocks.AttentionBlock.fill

                    def filled(block, views, max_q_len, max_kv_len, *rest):
                        seen.append((max_q_len, max_kv_len))
                        fill(block, views, max_q_len, max_kv_len, *rest)
                    with mock.patch.object(attnsmith._tensors.blocks.AttentionBlock, "fill", filled):
                        self.assertEqual(self.launched(function, *tensors, max_q_len=given, max_kv_len=given)[0], 1)
                    self.assertEqual(seen, [wanted])
            for name in ("max_q_len", "max_kv_len"):
                for bad in (-1, 2.5, "16", object()):
                    self.assert_refused(name, function, *tensors, **{name: bad})


class Arguments(LaunchTest):
    """Errors name Python's arguments, and what was meant."""

    def test_index_tensors_of_two_dtypes(self):
        q, k = self.array(8, 4, 64), self.array(8, 2, 64)
        narrow, wide = self.array(2, dtype="int32", values=[0, 8]), self.array(2, dtype="int64", values=[0, 8])
        lens, table = self.array(1, dtype="int64", values=[8]), self.array(1, 1, dtype="int32", values=[0])
        pages = self.array(1, 2, 16, 2, 64)
        for field, other, call in (
                ("kv_indptr", "q_indptr", lambda: attnsmith.varlen_attention(q, k, k, narrow, wide)),
                ("page_table", "kv_lens", lambda: attnsmith.paged_attention(self.array(1, 4, 64), pages, table, lens)),
                ("kv_lens", "q_indptr", lambda: attnsmith.paged_attention(q, pages, table, lens, q_indptr=narrow))):
            with self.subTest(field=field):
                error = self.assert_refused(f"{field}.dtype", call)
                self.assertRegex(str(error), rf"int(32|64), as {other} is")
        error = self.assert_refused("q_indptr.dtype", attnsmith.varlen_attention, q, k, k, self.array(2, dtype="fp32"), wide)
        self.assertIn("int32 or int64", str(error))

    def test_errors_of_the_library_name_arguments(self):
        """There lengths and tables are members of a struct, "batch.kv_lens"."""
        q, k = self.array(8, 4, 64), self.array(8, 2, 64)
        ends = self.array(2, dtype="int32", values=[0, 8])
        longer = self.array(5, dtype="int32", values=[0, 1, 2, 3, 8])
        lens, table = self.array(3, dtype="int32"), self.array(1, 1, dtype="int32")
        kernel = self.rt.prepare(**{**SMALL, "kv": "ragged"})
        for name, call in (
                ("kv_indptr", lambda: attnsmith.varlen_attention(q, k, k, ends, longer)),
                ("kv_lens", lambda: attnsmith.paged_attention(self.array(1, 4, 64), self.array(1, 2, 16, 2, 64), table, lens)),
                ("kv_lens", lambda: attnsmith.append(**{name: self.array(2, 2, 2, 64) for name in "kv"}, kv_lens=lens,
                                                     k_cache=self.array(2, 9, 2, 64), v_cache=self.array(2, 9, 2, 64))),
                ("kv_indptr", lambda: kernel.bind(q, k, k, self.array(8, 4, 64), q_indptr=ends, kv_indptr=longer))):
            with self.subTest(name=name), self.assertRaises(attnsmith.InvalidRequest) as caught:
                call()
            error = caught.exception
            self.assertTrue(error.field.startswith(name), error)
            self.assertNotIn("batch.", f"{error} {error.details}")

    def test_near_misses(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        for name, right, call in (
                ("sm_scale", "scale", lambda word: attnsmith.attention(q, k, k, **word)),
                ("causl", "causal", lambda word: attnsmith.attention(q, k, k, **word)),
                ("block_table", "page_table", lambda word: attnsmith.paged_attention(q, k, **word)),
                ("cache_dir", "cache_dirs", lambda word: attnsmith.Runtime(**word)),
                ("cache", "cache_dirs", lambda word: attnsmith.Runtime(**word)),
                ("nvrtc", "nvrtc_path", lambda word: attnsmith.Runtime(**word)),
                ("cache", "Runtime(cache_dirs=...)", lambda word: attnsmith.prewarm(SMALL, sm=90, **word)),
                ("cache_dirs", "ATTNSMITH_CACHE_DIR", lambda word: attnsmith.prewarm(models=[{}], sm=90, **word)),
                ("device", "device", lambda word: self.rt.devices(**word))):
            with self.subTest(name=name):
                error = self.assert_refused(name, call, {name: "x"})
                if name != "device":
                    self.assertIn(right, error.accepted)
        self.assert_refused("k", attnsmith.attention, q)
        self.assert_refused("kv_indptr", attnsmith.varlen_attention, q, k, k, q_indptr=q)
        self.assert_refused("config", attnsmith.plan_model)
        self.assert_refused("arguments", attnsmith.attention, q, k, k, True)
        self.assert_refused("q", attnsmith.attention, q, k, k, q=q)

    def test_a_scale_alone(self):
        q = self.array(1, 8, 4, 64)
        k, scale = self.array(1, 8, 2, 64, dtype="uint8"), self.array(1, dtype="fp32")
        for given, missing in (("k_scale", "v_scale"), ("v_scale", "k_scale")):
            self.assert_refused(missing, attnsmith.attention, q, k, k, kv_dtype="e4m3", **{given: scale})

    def test_public_names(self):
        names = dir(attnsmith)
        self.assertLessEqual({*attnsmith.__all__, "compat", "errors", "jax", "torch", "transformers", "words", "__version__"},
                             set(names))
        self.assertEqual([name for name in names if name.startswith("_") and not name.startswith("__")], [])
        for name in ("errors", "words", "compat"):
            self.assertIsNotNone(getattr(attnsmith, name))


class Words(LaunchTest):
    """What is no tensor has one type, whatever was called before: to a dict 1, 1.0 and True are one."""

    def call(self, **options):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        return attnsmith.attention(q, k, k, **options)

    def test_bools(self):
        self.assert_refused("lse_order", self.call, return_lse=True, lse_order="heads")
        for name in ("causal", "return_lse", "return_status"):
            for _ in range(2):  # the second call looks up what the first found
                for right in (True, False):
                    self.call(**{name: right})
            for wrong in (0, 1, 1.0, None, "no", "", object(), [], ctypes.c_bool(True)):
                with self.subTest(**{name: wrong}):
                    self.assert_refused(name, self.call, **{name: wrong})
        o, lse = self.array(5, 4, 64), self.array(5, 4, dtype="fp32")
        self.assert_refused("return_lse", attnsmith.merge_states, [o], [lse], return_lse=1)

    def test_bools_of_numpy(self):
        class Bool:
            def __init__(self, value):
                self.value = value

            def __bool__(self):
                return self.value
        numpy = types.ModuleType("numpy")
        numpy.bool_ = Bool
        with mock.patch.dict(sys.modules, numpy=numpy):
            self.assertIsInstance(self.call(causal=Bool(True), return_lse=Bool(False)), attnsmith.Array)
        self.assert_refused("causal", self.call, causal=Bool(True))

    def test_numbers(self):
        class Indexed:  # an array of one element, say
            def __index__(self):
                raise TypeError("not an integer")
        for name in ("scale", "softcap"):
            for _ in range(2):
                for right in (1.0, 1, Fraction(1), None):
                    self.call(**{name: right})
            for wrong in (True, False, "1", [1], 1j, object(), Indexed(), 10**400, -1.0, float("nan"), float("inf")):
                with self.subTest(**{name: wrong}):
                    self.assert_refused(name, self.call, **{name: wrong})

    def test_windows(self):
        for _ in range(2):
            self.call(window=(1, 0))
            self.call(window=[1, 0])
        for wrong in ((True, 0), (1.0, 0), ([1], 0)):
            self.assert_refused("window_left", self.call, window=wrong)
        self.assert_refused("window", self.call, window=(1, 0, 0))

    def test_chunks(self):
        for _ in range(2):
            for right in (None, 0, 4):
                self.call(attention_chunk=right)
        for wrong in (True, 4.0, "4", [4], -1, 1 << 70):
            with self.subTest(attention_chunk=wrong):
                self.assert_refused("attention_chunk", self.call, attention_chunk=wrong)

    def test_words(self):
        for name in ("precision", "consistency", "o_dtype"):
            for wrong in ("best", 1, ["standard"], {}):
                with self.subTest(**{name: wrong}):
                    self.assert_refused(name, self.call, **{name: wrong})

    def test_bounds_are_integers(self):
        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        for name in ("max_q_len", "max_kv_len"):
            self.assert_refused(name, attnsmith.varlen_attention, q, k, k, offsets, offsets, **{name: True})

    def test_counts_that_no_kernel_takes(self):
        """They come from shapes, and it is the shape that the message is of."""
        k = self.array(1, 8, 4, 64, dtype="fp16")
        interface = dict(self.array(1, 8, 4, 64, dtype="fp16").__cuda_array_interface__)
        interface.update(shape=(2**62, 16, 4, 64), strides=None)
        error = self.assert_refused("q.shape", attnsmith.attention,
                                    types.SimpleNamespace(__cuda_array_interface__=interface), k, k)
        self.assertEqual(error.value, "(4611686018427387904, 16, 4, 64)")
        self.assertIn("here it is 73786976294838206464", error.accepted)
        self.assertNotIn("-9223372036854775808", str(error))

        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        offsets, none = self.array(3, dtype="int32", values=[0, 5, 20]), self.array(0, dtype="int32")
        error = self.assert_refused("q_indptr.shape", attnsmith.varlen_attention, q, k, k, none, offsets)
        self.assertEqual(error.value, "(0,)")
        pages, table = self.array(4, 2, 16, 2, 64), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        lens = self.array(2, dtype="int32", values=[20, 3])
        self.assert_refused("q_indptr.shape", attnsmith.paged_attention, q, pages, table, lens, q_indptr=none)

    def test_words_of_torch(self):
        torch = types.ModuleType("torch")
        torch.Tensor = attnsmith.Array
        query = self.array(1, 4, 8, 64)
        with mock.patch.object(attnsmith.torch, "Torch", object):  # any tensor will do
            for name in ("is_causal", "enable_gqa"):
                self.assert_refused(name, attnsmith.torch.scaled_dot_product_attention, query, query, query,
                                    **{name: 1})


class LeadingAxes(LaunchTest):
    """torch.scaled_dot_product_attention takes any number of axes before the heads, where they can be viewed as one."""

    HEADS = (4, 8, 64)  # heads, len, head_dim of one sequence
    ONE = 4 * 8 * 64  # its elements

    def setUp(self):
        super().setUp()
        patch = mock.patch.object(attnsmith.torch, "Torch", object)  # any tensor will do
        patch.start()
        self.addCleanup(patch.stop)

    def tensor(self, lead, strides):
        """`strides`: those of the leading axes, in sequences."""
        memory = self.array(12 * self.ONE)
        strides = (*[stride * self.ONE for stride in strides], 512, 64, 1)
        return attnsmith.Array((memory.data, (*lead, *self.HEADS), strides, *memory._view[3:]), memory._buffer)

    def batch_of(self, *tensors):
        """Sequences and their stride, of q, k and v as they reach the library."""
        seen, fill = [], attnsmith._tensors.blocks.AttentionBlock.fill

        def filled(block, views, *rest):
            seen.append([(view[1][0], view[2][0]) for view in views[:3]])
            fill(block, views, *rest)
        attnsmith._calls.dispatch._current = None
        with mock.patch.object(attnsmith._tensors.blocks.AttentionBlock, "fill", filled):
            count, o = self.launched(attnsmith.torch.scaled_dot_product_attention, *tensors)
        self.assertEqual((count, o.shape), (1, tensors[0].shape))
        return seen[0]

    def test_that_can_be_viewed_as_one(self):
        """An axis of one has any stride."""
        for lead, strides, batch, stride in (
                ((2, 3), (3, 1), 6, 1), ((3, 2), (4, 2), 6, 2), ((2, 1, 3), (3, 7, 1), 6, 1), ((2, 3, 1), (3, 1, 7), 6, 1),
                ((1, 2, 3), (7, 3, 1), 6, 1), ((2, 2, 3), (6, 3, 1), 12, 1), ((2, 3), (0, 0), 6, 0)):
            with self.subTest(lead=lead, strides=strides):
                tensors = [self.tensor(lead, strides) for _ in range(3)]
                self.assertEqual(self.batch_of(*tensors), [(batch, stride * self.ONE)] * 3)

    def test_that_lie_apart(self):
        for lead, compact, strides in (((2, 3), (3, 1), (2, 1)), ((2, 3), (3, 1), (4, 1)), ((3, 2), (2, 1), (1, 3)),
                                       ((2, 3), (3, 1), (0, 1)), ((2, 2, 3), (6, 3, 1), (6, 2, 1)),
                                       ((2, 2, 3), (6, 3, 1), (3, 3, 1))):
            for place, name in enumerate(("query", "key", "value")):
                with self.subTest(tensor=name, lead=lead, strides=strides):
                    tensors = [self.tensor(lead, strides if i == place else compact) for i in range(3)]
                    error = self.assert_refused(f"{name}.strides", attnsmith.torch.scaled_dot_product_attention, *tensors)
                    self.assertIn(f"{name}.contiguous()", error.accepted)


class OutputDTypes(LaunchTest):
    """What o is stored as: what o_dtype says, else the dtype of out, else that of q."""

    class DType:  # as torch has them
        name, itemsize = "float32", 4

    def calls(self):
        """Each function with its tensors, the shape of its output, and how to call it."""
        q, k = self.array(2, 3, 4, 64), self.array(2, 8, 2, 64)
        yield attnsmith.attention, (q, k, k), (2, 3, 4, 64)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        yield attnsmith.varlen_attention, (q, k, k, offsets, offsets), (20, 4, 64)
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        yield attnsmith.paged_attention, (self.array(2, 4, 64), self.array(4, 2, 16, 2, 64), table, lens), (2, 4, 64)

    def launched_with(self, function, tensors, **options):
        """What a call gives, and the dtype that its kernel writes."""
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        dispatch.prepared.clear()
        dispatch.recipes.clear()
        count, result = self.launched(function, *tensors, **options)
        self.assertEqual(count, 1)
        (entry,) = dispatch.prepared.values()
        return result, entry.kernel.spec["o_dtype"]

    def test_new_outputs(self):
        for function, tensors, shape in self.calls():
            for given, wanted in ((None, "bf16"), ("bf16", "bf16"), ("bfloat16", "bf16"), ("fp32", "fp32"),
                                  ("f32", "fp32"), (self.DType(), "fp32")):
                with self.subTest(function=function.__name__, o_dtype=given):
                    for options in ({}, {"return_lse": True}):
                        result, written = self.launched_with(function, tensors, o_dtype=given, **options)
                        o = result[0] if options else result
                        self.assertEqual((o.dtype, o.shape, written), (wanted, shape, wanted))

    def test_out_decides(self):
        for function, tensors, shape in self.calls():
            for dtype in ("bf16", "fp32"):
                for o_dtype in (None, dtype):
                    with self.subTest(function=function.__name__, out=dtype, o_dtype=o_dtype):
                        out = self.array(*shape, dtype=dtype)
                        result, written = self.launched_with(function, tensors, out=out, o_dtype=o_dtype)
                        self.assertIs(result, out)
                        self.assertEqual(written, dtype)

    def test_contradictions(self):
        for function, tensors, shape in self.calls():
            for dtype, o_dtype, wanted in (("bf16", "fp32", "fp32"), ("fp32", "bf16", "bf16"), ("fp16", "f32", "fp32"),
                                           ("bf16", self.DType(), "fp32")):
                out = self.array(*shape, dtype=dtype)
                for _ in range(2):  # kernels that are known change nothing
                    with self.subTest(function=function.__name__, out=dtype, o_dtype=o_dtype):
                        count = self.state.launches
                        error = self.assert_refused("out.dtype", function, *tensors, out=out, o_dtype=o_dtype)
                        self.assertEqual(error.value, dtype)
                        self.assertIn(f"{wanted}, as o_dtype says", error.accepted)
                        self.assertEqual(self.state.launches, count)
                    function(*tensors, o_dtype=o_dtype)

    def test_what_no_output_is(self):
        for function, tensors, shape in self.calls():
            error = self.assert_refused("o_dtype", function, *tensors, o_dtype="fp16")
            self.assertIn("bf16", error.accepted)
            self.assertIn("fp32", error.accepted)
            self.assert_refused("o_dtype", function, *tensors, o_dtype="int32")
            for dtype in ("fp16", "int32"):
                error = self.assert_refused("out.dtype", function, *tensors, out=self.array(*shape, dtype=dtype))
                self.assertEqual(error.value, dtype)
                self.assertIn("fp32", error.accepted)

    def test_alignment_counts_in_bytes(self):
        """A row of 4 x 66 elements of fp32 is a multiple of 8 bytes, one of 68 of 16."""
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        for columns, offset, wanted in ((68, 0, 16), (66, 0, 8), (65, 0, 4), (68, 8, 8), (68, 4, 4)):
            with self.subTest(columns=columns, offset=offset):
                wide = self.array(1, 8, 4, columns, dtype="fp32", offset=offset)
                view = (wide.data, (1, 8, 4, 64), wide.strides, *wide._view[3:])
                out = attnsmith.buffers.Array(view, wide._buffer)
                attnsmith._calls.dispatch.dispatch_now().prepared.clear()
                self.assertIs(attnsmith.attention(q, k, k, out=out), out)
                (entry,) = attnsmith._calls.dispatch.dispatch_now().prepared.values()
                self.assertEqual(entry.kernel.spec["alignment"], wanted)

    def test_merges_keep_the_dtype_of_their_states(self):
        o, lse = self.array(5, 4, 64), self.array(5, 4, dtype="fp32")
        self.assertEqual(attnsmith.merge_states([o], [lse])[0].dtype, "bf16")
        self.assert_refused("o.dtype", attnsmith.merge_states, [o], [lse], out=self.array(5, 4, 64, dtype="fp32"))


class DeviceUnsaid(LaunchTest):
    """Tensors with the CUDA array interface alone, as Numba has them, do not say which GPU they lie on: it is the one
    that is current."""

    def setUp(self):
        super().setUp()
        self.driver = ctypes.CDLL(FAKE_CUDA)

    def current(self, device):
        context = ctypes.c_void_p()
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.driver.cuCtxPushCurrent_v2(context)
        self.addCleanup(self.driver.cuCtxPopCurrent_v2, ctypes.byref(ctypes.c_void_p()))

    def tensor(self, *shape, device=0, dtype="fp16", **options):
        array = self.array(*shape, dtype=dtype, device=device, **options)
        return types.SimpleNamespace(__cuda_array_interface__=dict(array.__cuda_array_interface__), array=array)

    def test_attention(self):
        for device in (None, 1, 0):
            if device is not None:
                self.current(device)
            device = device or 0
            q, k = self.tensor(1, 8, 4, 64, device=device), self.tensor(1, 16, 2, 64, device=device)
            for _ in range(3):
                count, (o, lse, status) = self.launched(attnsmith.attention, q, k, k, return_lse=True,
                                                        return_status=True)
                self.assertEqual((count, o.device, lse.device, o.shape), (1, device, device, (1, 8, 4, 64)))
                self.assertEqual(self.state.last_launch.device, device)
                self.assertFalse(attnsmith.CallStatus(status))
            out = self.tensor(1, 8, 4, 64, device=device)
            self.assertIs(attnsmith.attention(q, k, k, out=out), out)

    def test_varlen_paged_and_merge(self):
        self.current(1)
        q, k = self.tensor(20, 4, 64, device=1), self.tensor(30, 2, 64, device=1)
        offsets = self.tensor(3, dtype="int32", values=[0, 5, 20], device=1)
        self.assertEqual(attnsmith.varlen_attention(q, k, k, offsets, offsets).device, 1)
        lens = self.tensor(2, dtype="int32", values=[20, 3], device=1)
        table = self.tensor(2, 2, dtype="int32", values=[0, 1, 2, 0], device=1)
        o = attnsmith.paged_attention(self.tensor(2, 4, 64, device=1), self.tensor(4, 2, 16, 2, 64, device=1), table,
                                      lens)
        self.assertEqual(o.device, 1)
        states = [self.tensor(5, 4, 64, device=1) for _ in range(2)]
        o, lse = attnsmith.merge_states(states, [self.tensor(5, 4, dtype="fp32", device=1) for _ in range(2)])
        self.assertEqual((o.device, lse.device, self.state.last_launch.device), (1, 1, 1))

    def test_a_tensor_that_is_elsewhere(self):
        q, k = self.tensor(1, 8, 4, 64), self.array(1, 8, 2, 64, dtype="fp16", device=1)
        self.assert_refused("k.device", attnsmith.attention, q, k, k)

    def test_what_is_wrong_leaves_nothing_behind(self):
        q, k = self.array(1, 8, 4, 64, dtype="fp16"), self.tensor(1, 8, 2, 64)
        attnsmith.attention(q, k, k)
        for wrong in ({"data": (2**64, False)}, {"data": (-256, False)}, {"mask": q}, {"strides": (2048, 256, 128)}):
            broken = self.tensor(1, 8, 2, 64)
            broken.__cuda_array_interface__.update(wrong)
            for _ in range(3):
                with self.assertRaises(attnsmith.InvalidRequest):
                    attnsmith.attention(q, broken, k)
            self.assertEqual(self.launched(attnsmith.attention, q, k, k)[0], 1)
        out = self.tensor(1, 8, 4, 64)
        out.__cuda_array_interface__["data"] = (out.array.data, True)
        self.assert_refused("out.data", attnsmith.attention, q, k, k, out=out)
        self.assert_refused("out.data", attnsmith.merge_states, [self.tensor(5, 4, 64)],
                            [self.tensor(5, 4, dtype="fp32")], out=out)

    def test_workspaces(self):
        kernel = self.rt.prepare(dtype="fp16", head_dim=64, q_heads=4, kv_heads=2, batch=1, q_len=8, kv_len=8)
        q, k, o = self.array(1, 8, 4, 64, dtype="fp16"), self.array(1, 8, 2, 64, dtype="fp16"), self.tensor(1, 8, 4, 64)
        workspace = self.tensor(1 << 16, dtype="int32")
        kernel.bind(q, k, k, o, workspace=workspace).launch()
        workspace.__cuda_array_interface__["data"] = (workspace.array.data, True)
        self.assert_refused("workspace.data", kernel.bind, q, k, k, o, workspace=workspace)
        o.__cuda_array_interface__["data"] = (o.array.data, True)
        self.assert_refused("o.data", kernel.bind, q, k, k, o)


class Statuses(LaunchTest):
    """return_status=True: what one call found wrong in lengths on the GPU."""

    def setUp(self):
        super().setUp()
        self.found = 0
        functions = self.rt._library.functions
        launch = functions.attnsmith_launch

        def launched(call, stream, error):
            """Sets the bits, as the kernel would that the stub does not run."""
            code = launch(call, stream, error)
            workspace = attnsmith._calls.dispatch.dispatch_now().workspaces.of(0, self.stream_number)
            ctypes.c_uint32.from_address(workspace.data).value |= self.found
            return code
        self.stream_number = 0
        patch = mock.patch.object(functions, "attnsmith_launch", launched)
        patch.start()
        self.addCleanup(patch.stop)
        self.q, self.k = self.array(2, 8, 4, 64), self.array(2, 16, 2, 64)
        self.lens = self.array(2, dtype="int32", values=[3, 99])

    def status(self, **options):
        count, results = self.launched(attnsmith.attention, self.q, self.k, self.k, kv_lens=self.lens,
                                       return_status=True, **options)
        self.assertEqual(count, 1)
        return results

    def test_of_one_call(self):
        for found in (0, 2, 5, 0):  # none is left of the call before
            with self.subTest(found=found):
                self.found = found
                o, status = self.status()
                self.assertEqual((o.shape, status.shape, status.dtype), ((2, 8, 4, 64), (), "int32"))
                said = attnsmith.CallStatus(status)
                self.assertEqual((int(status), bool(said)), (found, found != 0))
                self.assertEqual((said.kv_len_clamped, said.q_len_clamped), (found == 2, found == 5))

    def test_beside_lse_out_and_on_a_stream(self):
        self.found, self.stream_number = 2, self.stream()
        out = self.array(2, 8, 4, 64)
        o, lse, status = self.status(return_lse=True, out=out, stream=self.stream_number)
        self.assertIs(o, out)
        self.assertEqual((lse.shape, int(status)), ((2, 8, 4), 2))
        self.assertEqual(self.state.last_launch.stream, self.stream_number)

    def test_what_is_made_for_a_call_is_made_with_its_stream_current(self):
        """A framework orders memory after the work of the stream that is current when it is made."""
        self.found = 0
        q, k, lse = self.array(2, 8, 4, 64), self.array(2, 8, 2, 64), self.array(8, 4, dtype="fp32")
        part, stream, framework = self.array(8, 4, 64), self.stream(), type(attnsmith._tensors.frameworks.of(q, "q"))
        scopes, made, empty = [None], [], framework.empty

        @contextlib.contextmanager
        def scope(_, index, number):
            scopes.append((index, number))
            yield
            scopes.pop()

        def noted(*arguments):
            made.append(scopes[-1])
            return empty(*arguments)

        with mock.patch.object(framework, "scope", scope), mock.patch.object(framework, "empty", noted):
            attnsmith.attention(q, k, k, stream=stream)
            self.assertEqual(set(made), {(0, stream)})
            made.clear()
            attnsmith.merge_states([part, part], [lse, lse], stream=stream)
            self.assertEqual(set(made), {(0, stream)})

    def test_of_ragged_and_paged(self):
        self.found = 4
        q, k, offsets = self.array(20, 4, 64), self.array(30, 2, 64), self.array(3, dtype="int32", values=[0, 5, 20])
        _, status = attnsmith.varlen_attention(q, k, k, offsets, offsets, return_status=True)
        self.assertTrue(attnsmith.CallStatus(status).page_out_of_range)
        table = self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        _, status = attnsmith.paged_attention(self.array(2, 4, 64), self.array(4, 2, 16, 2, 64), table, self.lens,
                                              return_status=True)
        self.assertEqual(int(status), 4)

    def test_failures(self):
        self.state.fail_launch = 700
        with self.assertRaises(attnsmith.DriverError):
            self.status()
        self.state.fail_launch = 0
        self.assert_refused("o", attnsmith.attention, self.q, self.k, self.k, out=self.q, return_status=True)
        self.assertEqual(int(self.status()[1]), 0)

    def test_calls_without_it_make_none(self):
        functions = self.rt._library.functions
        out = self.array(2, 8, 4, 64)
        attnsmith.attention(self.q, self.k, self.k, out=out)
        before = self.state.allocations
        with mock.patch.object(functions, "attnsmith_call_copy_status", side_effect=AssertionError):
            attnsmith.attention(self.q, self.k, self.k, out=out)
        self.assertEqual(self.state.allocations, before)

    def test_integers_of_arrays(self):
        self.assertEqual(int(self.array(1, dtype="int64", values=[-7])), -7)
        for array in (self.array(2, dtype="int32"), self.array(1, dtype="fp32")):
            with self.assertRaises(TypeError):
                int(array)


if __name__ == "__main__":
    unittest.main()

"""Keys and values of 8 bits: their dtypes from every framework, their scales, and the words of a call."""

import ctypes
import sys
import types
import unittest
from unittest import mock

from launch_case import LaunchTest
from support import SMALL, PythonTest, attnsmith
from test_tensors import FakeTorch, Foreign, Interface

from attnsmith._c_api import abi, requests
from attnsmith._calls import dispatch as _dispatch
from attnsmith._tensors import frameworks, views as _views

FP8 = {"e4m3": _views.E4M3, "e5m2": _views.E5M2}


class Tensors(PythonTest):
    def view(self, tensor, name="k"):
        return frameworks.of(tensor, name).view(tensor, name, frameworks.Order(0, lambda stream: None))

    def test_dlpack(self):
        for code, kind in ((10, _views.E4M3), (12, _views.E5M2), (1, _views.UINT8)):
            view = self.view(Foreign(4097, (2, 16), (32, 1), dtype=(code, 8)))
            self.assertEqual(view[:4], (4097, (2, 16), (32, 1), kind))
        for code in (7, 8, 9, 11):  # e3m4, and the floats of 8 bits of other makers
            self.assert_refused("k.dtype", self.view, Foreign(4096, (2,), dtype=(code, 8)))

    def test_the_cuda_array_interface(self):
        view = self.view(Interface(typestr="|u1", strides=(48, 2)))
        self.assertEqual(view[2:4], ((48, 2), _views.UINT8))

    def test_torch(self):
        torch = FakeTorch()
        for name in ("float8_e4m3fn", "float8_e5m2", "uint8"):
            setattr(torch, name, f"torch.{name}")
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.dict(frameworks._met, clear=True), \
                mock.patch.dict(frameworks._by_type):
            for dtype, kind in (("float8_e4m3fn", _views.E4M3), ("float8_e5m2", _views.E5M2), ("uint8", _views.UINT8)):
                tensor = FakeTorch.Tensor(dtype=f"torch.{dtype}")
                framework = frameworks.of(tensor, "k")
                self.assertEqual(framework.view(tensor, "k")[3], kind)
                self.assertEqual(framework.views(*framework.layouts([tensor]))[0][3], kind)

    def test_a_torch_that_has_none_of_8_bits(self):
        with mock.patch.dict(sys.modules, torch=FakeTorch()), mock.patch.dict(frameworks._met, clear=True), \
                mock.patch.dict(frameworks._by_type):
            framework = frameworks.of(FakeTorch.Tensor(), "k")
            self.assertNotIn(_views.E4M3, framework.kinds.values())

    def test_alignment_counts_bytes(self):
        def view(kind, stride):
            return 4096, (2, 16), (stride, 1), kind, 2
        self.assertEqual(_views.reach_bits([view(_views.E4M3, 24)]) & 15, 8)
        self.assertEqual(_views.reach_bits([view(_views.BF16, 24)]) & 15, 0)
        self.assertEqual(_views.selected(view(_views.UINT8, 24), 0, 1)[0], 4096 + 24)


class Words(PythonTest):
    def normalised(self, **words):
        library = attnsmith.runtime.library()
        spec, _ = requests.parse(library, {**SMALL, **words})
        return library.json(library.functions.attnsmith_request_json, ctypes.byref(spec), None)

    def test_requests(self):
        plain = self.normalised()
        self.assertEqual((plain["kv_dtype"], plain["kv_scale"]), ("bf16", "none"))
        float8 = type("dtype", (), {"__str__": lambda self: "torch.float8_e4m3fn", "itemsize": 1})
        for given, wanted in (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("float8_e5m2", "e5m2"), (float8(), "e4m3")):
            for scale in ("none", "tensor", "head", "token_head", "block128"):
                made = self.normalised(kv_dtype=given, kv_scale=scale)
                self.assertEqual((made["kv_dtype"], made["kv_scale"], made["dtype"]), (wanted, scale, "bf16"))

    def test_what_is_refused(self):
        self.assert_refused("kv_dtype", self.normalised, kv_dtype="fp16")
        self.assert_refused("kv_dtype", self.normalised, kv_dtype="uint8")
        self.assert_refused("kv_scale", self.normalised, kv_scale="head")
        self.assert_refused("kv_scale", self.normalised, kv_dtype="e4m3", kv_scale="token")


class Asked(Exception):
    """What a call asks to be prepared."""

    def __init__(self, words):
        super().__init__(str(words))
        self.words = words


class Functions(LaunchTest):
    """The plain functions, up to the kernel that they ask for and the tensors that they give it."""

    def array(self, *shape, dtype="bf16", **more):
        if dtype not in (*FP8, "uint8"):
            return super().array(*shape, dtype=dtype, **more)
        count = 1
        for extent in shape:
            count *= extent
        return self.rt.allocate(count).array(shape, dtype)

    def calls(self, dtype):
        """Each function with tensors of 3 KV heads, in every form of the cache."""
        q, k = self.array(2, 8, 6, 64), self.array(2, 8, 3, 64, dtype=dtype)
        yield attnsmith.attention, (q, k, k)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        yield attnsmith.varlen_attention, (self.array(20, 6, 64), *[self.array(30, 3, 64, dtype=dtype)] * 2, offsets,
                                           offsets)
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        q, pages = self.array(2, 6, 64), self.array(4, 16, 3, 64, dtype=dtype)
        yield attnsmith.paged_attention, (q, (pages, pages), table, lens)
        yield attnsmith.paged_attention, (q, self.array(4, 2, 16, 3, 64, dtype=dtype), table, lens)

    def asked(self, function, *tensors, **options):
        """The words of the request that a call makes."""
        def prepare(dispatch, key, words, index):
            hash(key)
            raise Asked(words)
        with mock.patch.object(_dispatch.Dispatch, "prepare", prepare), self.assertRaises(Asked) as caught:
            attnsmith._calls.dispatch._current = None
            function(*tensors, **options)
        return caught.exception.words

    def bound(self, function, *tensors, **options):
        """The addresses of the scales that a call gives to the library. Its kernel is one of 16 bits, which the
        library refuses to run with these."""
        made = []

        def prepare(dispatch, key, words, index):
            return _dispatch.Prepared(self.rt.prepare(**SMALL))

        def run(kernel, tensors, batch, *rest):
            struct = abi.Tensors.from_address(tensors.value)
            for name in ("k_scale", "v_scale"):
                tensor = abi.Tensor.from_address(getattr(struct, name))
                made.append((tensor.data, tuple(tensor.shape[:tensor.ndim]), tensor.dtype.bits))
            return 0
        attnsmith._calls.dispatch._current = None
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        dispatch.run = run
        with mock.patch.object(_dispatch.Dispatch, "prepare", prepare):
            function(*tensors, **options)
        return made

    def test_dtypes_of_tensors(self):
        for dtype in FP8:
            for function, tensors in self.calls(dtype):
                with self.subTest(function=function.__name__, dtype=dtype):
                    words = self.asked(function, *tensors)
                    self.assertEqual((words["dtype"], words["kv_dtype"], words["kv_scale"]), ("bf16", dtype, None))

    def test_bytes(self):
        for function, tensors in self.calls("uint8"):
            with self.subTest(function=function.__name__):
                error = self.assert_refused("kv_dtype", function, *tensors)
                self.assertIn("e4m3", error.accepted)
                for given in ("e4m3", "e5m2"):
                    self.assertEqual(self.asked(function, *tensors, kv_dtype=given)["kv_dtype"], given)
                self.assert_refused("kv_dtype", function, *tensors, kv_dtype=["e4m3"])

    def test_16_bits_are_as_ever(self):
        for function, tensors in self.calls("bf16"):
            words = self.asked(function, *tensors)
            self.assertEqual((words["kv_dtype"], words["kv_scale"]), (None, None))

    def test_scales_by_their_shapes(self):
        one, heads = self.array(1, dtype="fp32"), self.array(3, dtype="fp32")
        for dtype in FP8:
            for function, tensors in self.calls(dtype):
                for scales, wanted in ((one, "tensor"), (heads, "head"), (self.array(dtype="fp32"), "tensor")):
                    with self.subTest(function=function.__name__, dtype=dtype, scale=wanted):
                        words = self.asked(function, *tensors, k_scale=scales, v_scale=scales)
                        self.assertEqual((words["kv_dtype"], words["kv_scale"]), (dtype, wanted))

    def test_scales_of_tokens_by_their_axes(self):
        for function, tensors in self.calls("e4m3"):
            k = tensors[1][0] if isinstance(tensors[1], tuple) else tensors[1]
            outer = (*k.shape[:1], *k.shape[2:-1]) if len(k.shape) == 5 else k.shape[:-1]
            for shape, wanted in ((outer, "token_head"), ((*outer, 1), "block128")):
                with self.subTest(function=function.__name__, scale=wanted):
                    scales = self.array(*shape, dtype="fp32")
                    words = self.asked(function, *tensors, k_scale=scales, v_scale=scales)
                    self.assertEqual((words["kv_dtype"], words["kv_scale"]), ("e4m3", wanted))
                    self.assertEqual(self.bound(function, *tensors, k_scale=scales, v_scale=scales),
                                     2 * [(scales.data, tuple(shape), 32)])
            error = self.assert_refused("k_scale.shape", function, *tensors, k_scale=self.array(2, 3, dtype="fp32")
                                        if len(outer) != 2 else self.array(1, 1, 2, 3, dtype="fp32"),
                                        v_scale=self.array(1, dtype="fp32"))
            self.assertIn("the axes of the keys", error.accepted)

    def test_scales_of_latents_by_their_axes(self):
        """As rows of 656 bytes have them: latents of 8 bits, a scale of each 128 columns, positions of 16 bits."""
        q, ckv = self.array(2, 1, 8, 576), self.array(2, 40, 512, dtype="uint8")
        wide, stored = self.array(2, 40, 64), self.array(2, 40, 64, dtype="uint8")
        for shape, kpe, wanted in (((2, 40), stored, "token_head"), ((2, 40, 4), wide, "block128"), ((1,), stored, "tensor")):
            with self.subTest(scale=wanted):
                scale = self.array(*shape, dtype="fp32")
                if kpe is stored:  # beside a position of 16 bits it is the scale that is wrong
                    self.assert_refused("k_scale", attnsmith.mla_attention, q, ckv, kpe=wide, scale=0.1, kv_dtype="e4m3",
                                        k_scale=scale)
                words = self.asked(attnsmith.mla_attention, q, ckv, kpe=kpe, scale=0.1, kv_dtype="e4m3", k_scale=scale)
                self.assertEqual((words["op"], words["kv_scale"], words["head_dim_ckv"]), ("mla", wanted, 512))

    def test_scales_reach_the_library(self):
        for function, tensors in self.calls("e4m3"):
            for shape, wanted in (((3,), (3,)), ((), (1,))):
                k_scale, v_scale = self.array(*shape, dtype="fp32"), self.array(*shape, dtype="fp32")
                with self.subTest(function=function.__name__, shape=shape):
                    self.assertEqual(self.bound(function, *tensors, k_scale=k_scale, v_scale=v_scale),
                                     [(k_scale.data, wanted, 32), (v_scale.data, wanted, 32)])

    def test_a_known_layout_takes_other_scales(self):
        (function, tensors), *_ = self.calls("e4m3")
        made = []
        with mock.patch.object(_dispatch.Dispatch, "prepare",
                               lambda *_: _dispatch.Prepared(self.rt.prepare(**SMALL))):
            attnsmith._calls.dispatch._current = None
            dispatch = attnsmith._calls.dispatch.dispatch_now()

            def run(kernel, tensors, *rest):
                struct = abi.Tensors.from_address(tensors.value)
                made.append(tuple(abi.Tensor.from_address(at).data for at in (struct.k_scale, struct.v_scale)))
                return 0
            dispatch.run = run
            wanted = []
            for _ in range(4):  # the third is looked up
                scales = self.array(3, dtype="fp32"), self.array(3, dtype="fp32")
                wanted.append(tuple(scale.data for scale in scales))
                function(*tensors, k_scale=scales[0], v_scale=scales[1])
            self.assertEqual(len(dispatch.recipes), 1)
        self.assertEqual(made, wanted)

    def test_latents(self):
        """Keys and values at once: one scale, of one element."""
        scale, one = self.array(1, dtype="fp32"), self.array(dtype="fp32")
        for dtype in (*FP8, "uint8"):
            said = {"kv_dtype": "e4m3"} if dtype == "uint8" else {}
            wanted = said.get("kv_dtype", dtype)
            q, q_pe = self.array(2, 3, 6, 64), self.array(2, 3, 6, 16)
            whole, joined = self.array(2, 8, 80, dtype=dtype), self.array(2, 3, 6, 80)
            ckv, kpe = self.array(2, 8, 64, dtype=dtype), self.array(2, 8, 16, dtype=dtype)
            for tensors, apart in (((q, ckv), {"q_pe": q_pe, "kpe": kpe}), ((joined, whole), {"head_dim_ckv": 64})):
                for given, kv_scale in ((None, None), (scale, "tensor"), (one, "tensor")):
                    with self.subTest(dtype=dtype, apart=bool(apart), scale=kv_scale):
                        words = self.asked(attnsmith.mla_attention, *tensors, scale=0.1, k_scale=given, **apart, **said)
                        self.assertEqual((words["op"], words["kv_dtype"], words["kv_scale"]), ("mla", wanted, kv_scale))
        self.assert_refused("kv_dtype", attnsmith.mla_attention, joined, whole, scale=0.1, head_dim_ckv=64)
        error = self.assert_refused("k_scale", attnsmith.mla_attention, joined, whole, scale=0.1, head_dim_ckv=64,
                                    k_scale=0.5, kv_dtype="e4m3")
        self.assertIn("torch.tensor([0.5]", error.accepted)

    def test_what_is_no_scale(self):
        scale = self.array(1, dtype="fp32")
        for function, tensors in self.calls("e4m3"):
            with self.subTest(function=function.__name__):
                for number in (0.5, 1, True):
                    error = self.assert_refused("k_scale", function, *tensors, k_scale=number, v_scale=scale)
                    self.assertIn(f"torch.tensor([{number}]", error.accepted)
                self.assert_refused("v_scale", function, *tensors, k_scale=scale, v_scale=2.0)
                self.assert_refused("v_scale", function, *tensors, k_scale=scale)
                self.assert_refused("k_scale", function, *tensors, v_scale=scale)
                self.assert_refused("k_scale", function, *tensors, k_scale="1", v_scale=scale)
        for function, tensors in self.calls("bf16"):
            error = self.assert_refused("k_scale", function, *tensors, k_scale=scale, v_scale=scale)
            self.assertIn("keys are of bf16", error.accepted)

    def test_the_plain_path_has_no_more_to_look_at(self):
        """A call without scales has the layouts that it had before there were any."""
        with mock.patch.object(_dispatch.Dispatch, "recipe", side_effect=Asked("a recipe")) as made:
            for function, tensors in self.calls("bf16"):
                attnsmith._calls.dispatch._current = None
                with self.assertRaises(Asked):
                    function(*tensors)
                form = made.call_args.args[1]
                self.assertNotIn("k_scale", form.names)

    def test_queries_are_never_of_8_bits(self):
        q = self.array(1, 8, 4, 64, dtype="e4m3")
        self.assert_refused("q.dtype", attnsmith.attention, q, q, q)

    def test_prepared_kernels(self):
        kernel = self.rt.prepare(**SMALL)
        q, k, o = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64), self.array(1, 8, 4, 64)
        scale = self.array(2, dtype="fp32")
        for name in ("k_scale", "v_scale"):  # of a spec without a scale
            self.assert_refused(name, kernel.bind, q, k, k, o, **{name: scale})
            error = self.assert_refused(name, kernel.bind, q, k, k, o, **{name: 0.5})
            self.assertIn("torch.tensor([0.5]", error.accepted)
        self.assert_refused("k.dtype", kernel.bind, q, self.array(1, 8, 2, 64, dtype="e4m3"), k, o)
        call = kernel.bind(q, k, k, o)
        for name in ("k_scale", "v_scale"):
            self.assert_refused(f"addresses.{name}", call.launch, **{name: scale})
            self.assert_refused(f"addresses.{name}", call.launch, **{name: scale.data})
            self.assert_refused(name, call.launch, **{name: 0.5})

    def test_the_status(self):
        self.assertTrue(attnsmith.CallStatus(abi.SCALE_NOT_POSITIVE))
        self.assertTrue(attnsmith.CallStatus(abi.SCALE_NOT_POSITIVE).scale_not_positive)
        self.assertFalse(attnsmith.CallStatus(abi.KV_LEN_CLAMPED).scale_not_positive)


if __name__ == "__main__":
    unittest.main()

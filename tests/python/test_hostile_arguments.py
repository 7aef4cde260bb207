"""Arguments that no caller should pass: each call ends, and what it raises is one of attnsmith's errors.

One argument of a right call is replaced at a time, by each of the values below and by seeded random ones, and two at a
time. A runtime that compiles nothing answers, through the stub of the driver, so that only the checks are met.
"""

import ctypes
import decimal
import fractions
import inspect
import pathlib
import random
import types
import unittest

from launch_case import LaunchTest
from support import FAKE_CUDA, attnsmith
from attnsmith._base.integers import shown


class Indexed:
    """An array of several elements, say."""

    def __index__(self):
        raise TypeError("only an array of one element is an integer")


class NoAxes:
    """An array without axes, as numpy has them: of all methods of arrays."""

    ndim, shape, dtype = 0, (), "int64"

    def __iter__(self):
        raise TypeError("iteration over a 0-d array")

    def __len__(self):
        raise TypeError("len() of unsized object")

    def __index__(self):
        return 4


class Axis(NoAxes):
    """An array of two elements, which is not equal to anything, nor unequal."""

    ndim, shape = 1, (2,)
    __hash__ = None

    def __iter__(self):
        return iter((4, 5))

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (4, 5)[index]

    def __bool__(self):
        raise ValueError("the truth value of an array with more than one element is ambiguous")

    def __index__(self):
        raise TypeError("only integer scalar arrays can be converted to a scalar index")

    def __eq__(self, other):
        return self

    __ne__ = __eq__


class Word(str):
    pass


def interface(**changes):
    """An object with this CUDA array interface."""
    plain = {"shape": (2, 8, 4, 64), "typestr": "<f2", "data": (1 << 20, False), "version": 3, "strides": None}
    return types.SimpleNamespace(__cuda_array_interface__={name: value for name, value in {**plain, **changes}.items()
                                                           if value is not KeyError})


class Dlpack:
    """An object whose DLPack methods give this."""

    def __init__(self, device, capsule):
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        return self.capsule


PLAIN = [None, True, False, 0, 1, -1, 7, 2**31 - 1, 2**31, -2**31 - 1, 2**63 - 1, 2**63, 2**64, -2**63 - 1, 10**30, 0.0, -0.0,
         0.5, -3.5, 1e300, float("nan"), float("inf"), 3 + 4j, decimal.Decimal("0.1"), fractions.Fraction(1, 3), "", "causal",
         "e4m3", "NHD", "90", "x" * 300, "nul\0nul", "\udcff", Word("fp16"), b"", b"bf16", bytearray(b"ab"), [], [1], [[]], [None],
         (), (1, 2), (None, None), (-1, 10**30), ("a", "b"), (1, 2, 3), {}, {"a": 1}, {1: 2}, set(), frozenset({1}), range(3),
         NoAxes(), Axis(), [NoAxes()], [Axis()], 10**400, 10**5000, fractions.Fraction(10**400), {b"a": 1},
         object(), Indexed(), type, int, len, lambda: None, NotImplemented, ..., pathlib.PurePath("/no/such/file"),
         ctypes.c_int(3), memoryview(b"abcd"), slice(1, 2), types.SimpleNamespace()]
ARRAYS = [interface(), interface(shape=()), interface(shape=(-1, 8, 4, 64)), interface(shape=(2**62, 2**62)),
          interface(shape="ab"), interface(shape=(1.5, 2)), interface(shape=None), interface(shape=KeyError),
          interface(shape=(1,) * 70), interface(typestr="<f8"), interface(typestr="|V2"), interface(typestr=7),
          interface(typestr=KeyError), interface(data=None), interface(data=(None, False)), interface(data=(-1, False)),
          interface(data=(2**64, False)), interface(data=("a", "b")), interface(data=()), interface(data=KeyError),
          interface(strides=(1, 2)), interface(strides=(2**70,) * 4), interface(strides=("a",) * 4), interface(strides=7),
          interface(version=None), interface(mask=object()), interface(stream="no"), interface(stream=0),
          interface(stream=2**70), types.SimpleNamespace(__cuda_array_interface__=None),
          types.SimpleNamespace(__cuda_array_interface__=[]), Dlpack(None, None), Dlpack((2, 0), None), Dlpack((2, 0), 7),
          Dlpack(("a", "b"), object()), Dlpack((2,), None), Dlpack((1, 0), None), Dlpack((2, 10**12), None)]
FUNCTIONS = ("attention", "varlen_attention", "paged_attention", "mla_attention", "merge_states", "append", "append by lengths",
             "top_k")
SEED = 20261126
CALLS = 12000


class Hostile(LaunchTest):
    def setUp(self):
        super().setUp()
        # Made before, by a runtime that compiles: a call that is right gets as far as its launch.
        self.kernels = {"attention": self.rt.prepare(dtype="bf16", head_dim=64, q_heads=4, kv_heads=2),
                        "merge": self.rt.prepare(op="merge", dtype="bf16", head_dim=64, q_heads=4),
                        "append": self.rt.prepare(op="append", dtype="bf16", head_dim=64, q_heads=4, kv_heads=2, kv="paged",
                                                  page_size=16, slots="mapping"),
                        "top_k": self.rt.prepare(op="top_k")}
        self.set = self.rt.prepare_set(dtype="bf16", head_dim=64, q_heads=4, kv_heads=2)
        attnsmith._calls.dispatch._current = None
        for name, (function, given) in self.calls().items():
            if name in FUNCTIONS:
                function(**given)
        self.rt = self.runtime(cache_dirs=self.cache.name, driver_path=FAKE_CUDA, on_miss="error", log_level="off")
        attnsmith.set_default_runtime(self.rt)
        attnsmith._calls.dispatch._current = None
        self.random = random.Random(SEED)

    def arrays(self):
        """Tensors of other shapes and dtypes than those that belong there."""
        return [self.array(*shape, dtype=dtype) for shape in ((), (1,), (0,), (3,), (2, 8, 4, 64), (4, 64), (2, 0, 4, 64), (1, 1, 1, 1, 1))
                for dtype in ("bf16", "fp32", "int32", "int64", "uint8")]

    def calls(self):
        """By name, a function and a right call's arguments by name."""
        q, k = self.array(2, 8, 4, 64), self.array(2, 16, 2, 64)
        rows, keys = self.array(16, 4, 64), self.array(32, 2, 64)
        ends, kv_ends = self.array(3, dtype="int32"), self.array(3, dtype="int32")
        lens, table = self.array(2, dtype="int32"), self.array(2, 4, dtype="int32")
        pages, v_pages = self.array(8, 16, 2, 64), self.array(8, 16, 2, 64)
        state, lse = self.array(5, 4, 64), self.array(5, 4, dtype="fp32")
        new = self.array(4, 2, 64)
        request = {"dtype": "bf16", "head_dim": 64, "q_heads": 4, "kv_heads": 2}
        config = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256,
                  "num_hidden_layers": 2}
        return {
            "attention": (attnsmith.attention, {"q": q, "k": k, "v": k}),
            "varlen_attention": (attnsmith.varlen_attention, {"q": rows, "k": keys, "v": keys, "q_indptr": ends,
                                                              "kv_indptr": kv_ends}),
            "paged_attention": (attnsmith.paged_attention, {"q": q, "kv_cache": (pages, pages), "page_table": table,
                                                            "kv_lens": lens}),
            "mla_attention": (attnsmith.mla_attention, {"q": self.array(2, 4, 576), "ckv": self.array(8, 16, 576),
                                                        "page_table": table, "kv_lens": lens, "scale": 0.1}),
            "merge_states": (attnsmith.merge_states, {"o_states": [state, state], "lse_states": [lse, lse]}),
            "append": (attnsmith.append, {"k": new, "v": new, "k_cache": pages, "v_cache": v_pages, "page_order": "NHD",
                                          "slot_mapping": self.array(4, dtype="int64")}),
            "append by lengths": (attnsmith.append, {
                "k": self.array(2, 2, 2, 64), "v": self.array(2, 2, 2, 64), "k_cache": pages, "v_cache": v_pages,
                "q": self.array(2, 2, 4, 64), "page_table": table, "kv_lens": lens, "rope": "half",
                "rope_table": self.array(64, 64, dtype="fp32")}),
            "top_k": (attnsmith.top_k, {"scores": self.array(5, 90, dtype="fp32"), "k": 8, "row_ends": self.array(5, dtype="int32")}),
            "plan": (attnsmith.plan, {**request, "sm": 90}),
            "plan_model": (attnsmith.plan_model, {"config": config, "sm": 90}),
            "prewarm": (attnsmith.prewarm, {"requests": request, "sm": 90, "compile": False}),
            "prewarm of models": (attnsmith.prewarm, {"models": [config], "sm": 90, "compile": False}),
            "cache": (attnsmith.cache, {"operation": "ls"}),
            "Runtime": (attnsmith.Runtime, {"cache_dirs": str(self.folder / "other"), "log_level": "off"}),
            "Runtime.prepare": (self.rt.prepare, dict(request)),
            "Runtime.prepare_set": (self.rt.prepare_set, dict(request)),
            "Runtime.allocate": (self.rt.allocate, {"nbytes": 16}),
            "Runtime.model": (self.rt.model, {"config": config}),
            "Runtime.coverage": (self.rt.coverage, {"request": request}),
            "Kernel.bind": (self.kernels["attention"].bind, {"q": q, "k": k, "v": k, "o": self.array(2, 8, 4, 64)}),
            "Kernel.bind_merge": (self.kernels["merge"].bind_merge, {"o_states": [state, state], "lse_states": [lse, lse],
                                                                     "o": self.array(5, 4, 64)}),
            "Kernel.bind_append": (self.kernels["append"].bind_append, {
                "q": self.array(4, 4, 64), "q_out": self.array(4, 4, 64), "k": new, "v": new, "k_cache": pages,
                "v_cache": v_pages, "slot_mapping": self.array(4, dtype="int64")}),
            "Kernel.bind_op": (self.kernels["top_k"].bind_op, {"scores": self.array(5, 90, dtype="fp32"),
                                                               "indices": self.array(5, 8, dtype="int32")}),
            "Kernel.workspace_bytes": (self.kernels["attention"].workspace_bytes, {"batch": 1, "q_tokens": 1, "max_kv_len": 1}),
            "KernelSet.pick": (self.set.pick, {"batch": 2, "q_len": 1, "kv_len": 9}),
            "KernelSet.workspace_bytes": (self.set.workspace_bytes, {"batch": 1, "q_tokens": 1, "max_kv_len": 1}),
            "Buffer.upload": (self.rt.allocate(64).upload, {"host": b"abcd"}),
            "Buffer.download": (self.rt.allocate(64).download, {}),
            "Buffer.array": (self.rt.allocate(64).array, {"shape": (2, 4), "dtype": "bf16"}),
            "set_default_runtime": (attnsmith.set_default_runtime, {}),
        }

    def words(self, function, given):
        """What may be replaced: each parameter by its name, and words that there are not."""
        parameters = inspect.signature(function).parameters.values()
        named = [one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        more = ["no_such_word", *attnsmith.Request.__annotations__] if any(one.kind is one.VAR_KEYWORD for one in parameters) else \
            ["no_such_word"]
        # A stream is an address, which nothing but the driver can tell from another number.
        return [name for name in dict.fromkeys([*given, *named, *more]) if name != "stream"]

    def call(self, name, function, words, changed):
        if callable(words.get("progress")):
            return  # what it raises is raised
        try:
            result = function(**words)
        except attnsmith.Error:
            return
        except Exception as error:
            self.fail(f"{name}({', '.join(f'{word}={shown(value)}' for word, value in changed.items())}) raises "
                      f"{type(error).__name__}: {error}")
        if hasattr(result, "close"):
            result.close()
        if name == "set_default_runtime":
            attnsmith.set_default_runtime(self.rt)

    def values(self):
        return [*PLAIN, *ARRAYS, *self.arrays()]

    def test_one_argument_at_a_time(self):
        for name, (function, given) in self.calls().items():
            for word in self.words(function, given):
                with self.subTest(function=name, word=word):
                    for value in self.values():
                        self.call(name, function, {**given, word: value}, {word: value})

    def test_two_arguments_at_a_time(self):
        calls, values = self.calls(), self.values()
        names = list(calls)
        for _ in range(CALLS):
            name = self.random.choice(names)
            function, given = calls[name]
            changed = {word: self.random.choice(values) for word in self.random.sample(self.words(function, given), 2)}
            self.call(name, function, {**given, **changed}, changed)

    def test_arguments_that_are_missing_or_too_many(self):
        for name, (function, given) in self.calls().items():
            for left_out in given:
                self.call(name, function, {word: value for word, value in given.items() if word != left_out}, {left_out: "-"})
            for count in (0, 1, 2, 5, 40):
                with self.subTest(function=name, positional=count):
                    try:
                        function(*[7] * count)
                    except attnsmith.Error:
                        pass


if __name__ == "__main__":
    unittest.main()

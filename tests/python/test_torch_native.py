"""The module attnsmith._native (tools/python/native): calls of known layouts, with torch's tensors on the CPU and launches
on the host."""

import gc
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import weakref

from support import INCLUDES, PACKAGE, REPOSITORY, attnsmith, compiler, in_threads

try:
    import torch
except ImportError:
    torch = None
else:
    from attnsmith._c_api import abi, native_module
    from attnsmith._calls import native_calls
    from attnsmith._tensors import views as _views
    from attnsmith._tensors.blocks import AttentionBlock
    from attnsmith._tensors.frameworks import Torch
    from host_launch import FIELDS, HostLaunch, by_hand

OPTIONS = (True, None, None, None, 0.25, False, "standard", "standard", None)
NAMES = ("q", "k", "v", "o", "sinks", "alibi_slopes", "kv_lens")  # of the form here


class Kernel:
    def __init__(self, number):
        self.number = number


class Form:
    def __init__(self):
        self.fields = tuple(FIELDS.index(name) for name in NAMES)


@unittest.skipIf(torch is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), "PyTorch 2.10 is not installed")
class Native(unittest.TestCase):
    def setUp(self):
        self.module = native_module.load()
        self.host = HostLaunch()
        self.module.use(*self.host.addresses, 0, 0)
        self.assertTrue(self.module.use_torch(torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled,
                                              torch.autograd.forward_ad))
        self.calls = native_calls.NativeCalls(self.module)
        self.torch = Torch(torch)
        self.form = Form()
        self.addCleanup(self.module.forget)
        self.workspace = bytearray(64)
        self.kernels = []
        self.set_workspace(64)
        self.q, self.k, self.v = self.randn(2, 5, 4, 16), self.randn(2, 7, 2, 16), self.randn(2, 7, 2, 16)

    def set_workspace(self, nbytes, address=4096):
        self.module.set_workspace(0, 0, address, nbytes)

    def randn(self, *shape):
        return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))

    def attend(self, *tensors, options=OPTIONS, form=None):
        return self.module.attend(form or self.form, (*tensors, *[None] * (len(NAMES) - len(tensors))), options)

    def view(self, tensor):
        kind = _views.kind_of(abi.DL_FLOAT if tensor.is_floating_point() else abi.DL_INT, tensor.dtype.itemsize * 8)
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), kind, 1

    def teach(self, *tensors, options=OPTIONS, return_lse=False, o_strides=None, v_offset=None, form=None):
        tensors = (*tensors, *[None] * (len(NAMES) - len(tensors)))
        kernel = Kernel(1000 + len(self.kernels))
        self.kernels.append(weakref.ref(kernel))
        self.host.options[kernel.number] = options[0], options[4]
        q, k = tensors[:2]
        named = {name: tensor for name, tensor in zip(NAMES, tensors) if tensor is not None}
        if v_offset is not None:
            named["k"], named["v"] = k[:, 0], k[:, 1]
        strides = o_strides or _views.compact_strides(tuple(q.shape))
        if tensors[3] is None:
            named["o"] = torch.empty_strided(tuple(q.shape), strides, dtype=q.dtype)
        if return_lse:
            named["lse"] = torch.empty(q.shape[:-1])
        block = AttentionBlock()
        block.fill([self.view(named[name]) if name in named else None for name in FIELDS], q.shape[1], k.shape[1], 0, 0)
        for word in AttentionBlock.pointer_words([named.get(name) for name in FIELDS],
                                                 [i for i, name in enumerate(FIELDS) if name in named]):
            block.words[word] = 0  # a recipe has no pointers
        recipe = types.SimpleNamespace(
            block=lambda: block, blocks=[], nbytes=32, as_q=tensors[3] is None and strides == q.stride(),
            o_shape=tuple(q.shape), o_strides=strides, kind=_views.FP32, v_offset=v_offset,
            lse_shape=tuple(q.shape[:-1]) if return_lse else None,
            entry=types.SimpleNamespace(kernel=kernel, pointer=types.SimpleNamespace(value=kernel.number)))
        dtypes = types.SimpleNamespace(empty_like=self.torch.empty_like, dtypes={_views.FP32: q.dtype})
        if return_lse:
            dtypes.dtypes = {_views.FP32: torch.float32}
        self.module.attend(form or self.form, tensors, options)  # which is not known yet
        self.calls.teach(form or self.form, tensors, options, recipe, dtypes)

    def assert_right(self, results, q, k, v, causal=True, scale=0.25):
        o, lse = by_hand(q, k, v, causal, scale)
        if isinstance(results, tuple):
            torch.testing.assert_close(results[1], lse.float())
            results = results[0]
        torch.testing.assert_close(results, o)

    def test_known_layouts_are_served(self):
        self.assertIsNone(self.attend(self.q, self.k, self.v))
        self.teach(self.q, self.k, self.v)
        before = self.module.served()
        for factor in (1, 2, 3):
            self.assert_right(self.attend(self.q * factor, self.k, self.v * factor), self.q * factor, self.k, self.v * factor)
        self.assertEqual((self.module.served() - before, self.host.binds), (3, 1))  # bound once

    def test_negated_views_are_pythons(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            q = torch._neg_view(torch.ones(2, 5, 4, 16, dtype=dtype))
            self.module.attend(self.form, (q, q, q, *[None] * 4), OPTIONS)
            self.assertFalse(self.module.learn(self.form, (q, q, q, *[None] * 4), OPTIONS, *[None] * 11))

    def test_log_sums_and_outputs(self):
        self.teach(self.q, self.k, self.v, return_lse=True)
        results = self.attend(self.q, self.k, self.v)
        self.assertIsInstance(results, tuple)
        self.assert_right(results, self.q, self.k, self.v)
        out = torch.empty_like(self.q)
        self.assertIsNone(self.attend(self.q, self.k, self.v, out))
        self.teach(self.q, self.k, self.v, out)
        self.assertIs(self.attend(self.q, self.k, self.v, out), out)
        self.assert_right(out, self.q, self.k, self.v)
        q = self.randn(2, 4, 5, 16).transpose(1, 2)
        self.teach(q, self.k, self.v)  # whose o is row-major, not as q
        o = self.attend(q, self.k, self.v)
        self.assertTrue(o.is_contiguous())
        self.assert_right(o, q, self.k, self.v)

    def test_values_in_the_tensor_of_keys(self):
        both = self.randn(2, 2, 7, 2, 16)
        self.teach(self.q, both, v_offset=both.stride(1) * 8)
        for tensor in (both, both * 2):
            self.assert_right(self.attend(self.q, tensor), self.q, tensor[:, 0], tensor[:, 1])

    def test_calls_are_bound_anew_for_other_lengths_and_workspaces(self):
        lens = torch.tensor([7, 7], dtype=torch.int32)
        tensors = (self.q, self.k, self.v, None, None, None)
        self.teach(*tensors, lens)
        other = lens.clone()
        binds = []
        for given in (lens, lens, other, other, lens):
            self.assert_right(self.attend(*tensors, given), self.q, self.k, self.v)
            binds.append(self.host.binds)
        self.assertEqual(binds, [1, 1, 2, 2, 3])
        (_, _, _, _, bound), = self.host.bound.values()  # the others were freed
        self.assertEqual(bound["kv_lens"][0], lens.data_ptr())
        self.set_workspace(64, 8192)
        self.assert_right(self.attend(*tensors, lens), self.q, self.k, self.v)
        self.assertEqual(self.host.binds, 4)

    def test_what_differs_is_not_known(self):
        self.teach(self.q, self.k, self.v)
        aligned = torch.zeros(self.q.numel() + 1, dtype=torch.float64)
        for tensors in ((self.q[:1], self.k[:1], self.v[:1]), (self.q.float(), self.k, self.v), (self.q, self.k[:, :6], self.v),
                        (self.q, self.k.transpose(1, 2).contiguous().transpose(1, 2), self.v),
                        (aligned[1:].view_as(self.q), self.k, self.v), (self.q, self.k),
                        (self.q, self.k, self.v, None, torch.zeros(4))):
            self.assertIsNone(self.attend(*tensors))
        for i, value in enumerate((False, (1, 2), 4, 0.5, 0.5, True, "high", "bitwise", "fp32")):
            self.assertIsNone(self.attend(self.q, self.k, self.v, options=(*OPTIONS[:i], value, *OPTIONS[i + 1:])), i)
        # 1, 1.0 and True are equal to Python, and so are 0.0 and -0.0.
        self.assertIsNone(self.attend(self.q, self.k, self.v, options=(1, *OPTIONS[1:])))
        self.assertIsNone(self.attend(self.q, self.k, self.v, options=(1.0, *OPTIONS[1:])))
        self.assertIsNone(self.attend(self.q, self.k, self.v, form=Form()))
        self.assertIsNotNone(self.attend(self.q, self.k, self.v))

    def test_what_is_for_python_to_look_at(self):
        class Sub(torch.Tensor):
            pass

        self.teach(self.q, self.k, self.v)
        subclass = self.q.as_subclass(Sub)
        for strange in (None, 3, "q", [1.0], object(), subclass, self.q.to_sparse(), self.q.to("meta")):
            self.assertIsNone(self.attend(strange, self.k, self.v), type(strange))
        self.assertIsNone(self.module.attend(self.form, [self.q, self.k, self.v], OPTIONS))
        self.assertIsNone(self.module.attend(self.form, (), OPTIONS))
        self.assertIsNone(self.module.attend(self.form, (self.q,) * 21, OPTIONS))
        for option in ([1], {}, 1 << 70, object(), float, (1, [2])):
            self.assertIsNone(self.attend(self.q, self.k, self.v, options=(option, *OPTIONS[1:])), option)
        q = self.q.clone().requires_grad_()
        self.assertIsNone(self.attend(q, self.k, self.v))
        with torch.no_grad():
            self.assert_right(self.attend(q, self.k, self.v), q, self.k, self.v)
            parameter = torch.nn.Parameter(self.q)
            self.assert_right(self.attend(parameter, self.k, self.v), q, self.k, self.v)
        with torch.autograd.forward_ad.dual_level():
            self.assertIsNone(self.attend(self.q, self.k, self.v))
        negated = torch.complex(self.randn(2, 5, 4, 16), self.q).conj().imag
        self.assertTrue(negated.is_neg())
        like = torch.empty_strided(negated.shape, negated.stride(), dtype=negated.dtype).copy_(negated)
        self.teach(like, self.k, self.v)
        self.assertIsNotNone(self.attend(like, self.k, self.v))
        self.assertIsNone(self.attend(negated, self.k, self.v))

    def test_tensors_without_memory_are_not_those_of_the_first_call(self):
        """To attnsmith_call_launch_at, NULL is the address that was bound."""
        out = torch.empty_like(self.q)
        self.teach(self.q, self.k, self.v)
        self.teach(self.q, self.k, self.v, out)
        self.assertIsNotNone(self.attend(self.q, self.k, self.v))
        self.assertIsNotNone(self.attend(self.q, self.k, self.v, out))
        freed = self.q.clone()
        freed.untyped_storage().resize_(0)
        launches = len(self.host.launches)
        self.assertIsNone(self.attend(freed, self.k, self.v))
        self.assertIsNone(self.attend(self.q, self.k, self.v, freed))
        self.assertIsNone(self.attend(torch._efficientzerotensor(self.q.shape, dtype=self.q.dtype), self.k, self.v))
        self.assertEqual(len(self.host.launches), launches)

    def test_a_layout_is_learnt_as_it_was_before_the_call(self):
        tensors = (self.q, self.k, self.v, None, None, None, None)
        arguments = (self.form, tensors, OPTIONS, object(), 1, 1, 1, 32, self.form.fields, None, None, None, None, None)
        self.assertFalse(self.module.learn(*arguments))  # of no call
        self.module.attend(self.form, tensors, OPTIONS)
        self.q.set_(self.randn(2, 6, 4, 16))  # as another thread may
        self.assertFalse(self.module.learn(*arguments))
        self.module.attend(self.form, tensors, OPTIONS)
        self.assertFalse(self.module.learn(self.form, tuple(list(tensors)), *arguments[2:]))

    def test_interrupts_come_through(self):
        self.teach(self.q, self.k, self.v)

        class Interrupting(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, arguments=(), words=None):
                raise thrown

        with Interrupting():
            thrown = KeyboardInterrupt()
            with self.assertRaises(KeyboardInterrupt):
                self.attend(self.q, self.k, self.v)
            thrown = ValueError()
            self.assertIsNone(self.attend(self.q, self.k, self.v))

    def test_deep_options(self):
        deep = ()
        for _ in range(200000):
            deep = (deep,)
        self.assertIsNone(self.attend(self.q, self.k, self.v, options=(deep, *OPTIONS[1:])))
        while deep:  # or Python's own deallocation goes as deep
            deep, = deep

    def test_what_fails_is_for_python(self):
        self.teach(self.q, self.k, self.v)
        for code, freed in (("code", 77), ("bind_code", 78)):
            self.set_workspace(64, 4096 + freed)  # so that it is bound again
            setattr(self.host, code, 5)
            self.assertIsNone(self.attend(self.q, self.k, self.v))
            setattr(self.host, code, 0)
            self.assertEqual(self.host.errors_freed.pop(), freed)
            self.assertIsNotNone(self.attend(self.q, self.k, self.v))
        self.set_workspace(31)
        self.assertIsNone(self.attend(self.q, self.k, self.v))
        self.set_workspace(32)
        self.assertIsNotNone(self.attend(self.q, self.k, self.v))

    def test_references(self):
        """Of a million calls none would be left: of these none is."""
        options = (*OPTIONS[:-1], "".join(["fp", "32"]))
        self.teach(self.q, self.k, self.v, options=options, return_lse=True)
        objects = (self.q, self.k, self.v, self.form, options, options[-1], OPTIONS, None)
        self.attend(self.q, self.k, self.v, options=options)
        before = [sys.getrefcount(one) for one in objects[:-1]]
        for _ in range(1000):
            self.attend(self.q, self.k, self.v, options=options)
            self.attend(self.q, self.k, self.v)  # unknown
            self.attend(self.q, "k", self.v)
        self.assertEqual([sys.getrefcount(one) for one in objects[:-1]], before)
        o, lse = self.attend(self.q, self.k, self.v, options=options)
        self.assertEqual((sys.getrefcount(o), sys.getrefcount(lse)), (2, 2))
        self.assertIsNotNone(self.kernels[0]())
        self.module.forget()
        gc.collect()
        self.assertIsNone(self.kernels[0]())
        self.assertEqual(self.host.bound, {})
        self.assertLess(sys.getrefcount(options), before[4])

    def test_too_many_layouts_start_over(self):
        for length in range(1, 1027):
            options = (*OPTIONS, length)
            self.teach(self.q, self.k, self.v, options=options)
        gc.collect()
        self.assertLess(sum(kernel() is not None for kernel in self.kernels), 10)
        self.assertIsNone(self.attend(self.q, self.k, self.v, options=(*OPTIONS, 1)))
        self.assertIsNotNone(self.attend(self.q, self.k, self.v, options=options))

    def test_threads(self):
        layouts = [(self.randn(1, length, 2, 16), self.randn(1, length, 2, 16)) for length in range(3, 8)]
        wanted = [by_hand(q, k, k, True, 0.25)[0] for q, k in layouts]
        for q, k in layouts:
            self.teach(q, k, k)
        served = []

        def work():
            for i in range(100):
                q, k = layouts[i % 5]
                o = self.attend(q, k, k)
                if o is None:  # forgotten
                    self.set_workspace(64)
                    self.teach(q, k, k)
                else:
                    served.append(i)
                    torch.testing.assert_close(o, wanted[i % 5])
                if i % 30 == 29:
                    self.module.forget()

        self.assertEqual(in_threads(5, work), [])
        self.assertGreater(len(served), 100)

    def test_bad_arguments_of_the_module(self):
        for call in (lambda: self.module.attend(), lambda: self.module.learn(1), lambda: self.module.use(1),
                     lambda: self.module.set_workspace("a", 0, 0, 0), lambda: self.module.set_workspace(0, 0, 0, -1),
                     lambda: self.module.use_torch(1)):
            with self.assertRaises((TypeError, OverflowError)):
                call()
        self.assertIs(self.module.use_torch(object, object, None, None), False)

    def test_interpreters_come_and_go(self):
        program = f"""
import sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
from attnsmith._c_api import native_module
module = native_module.load()
import _testcapi
assert _testcapi.run_in_subinterp("import sys") == 0
print(module.served())
"""
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True)
        if "_testcapi" in done.stderr:
            self.skipTest("CPython's _testcapi is not installed")
        self.assertEqual((done.returncode, done.stdout), (0, "0\n"), done.stderr)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Declarations(unittest.TestCase):
    def test_the_exchange_api_is_dlpacks(self):
        cxx = compiler()
        include = pathlib.Path(torch.__file__).parent / "include"
        if cxx is None or not (include / "ATen/dlpack.h").exists():
            self.skipTest("PyTorch's headers are not installed")
        members = (("version", "header.version"), ("older", "header.prev_api"), ("allocate", "managed_tensor_allocator"),
                   ("managed_from_object", "managed_tensor_from_py_object_no_sync"),
                   ("object_from_managed", "managed_tensor_to_py_object_no_sync"),
                   ("tensor_from_object", "dltensor_from_py_object_no_sync"), ("current_stream", "current_work_stream"))
        text = "#include <cstddef>\n#include <ATen/dlpack.h>\n#include \"python/native/dlpack_exchange.hpp\"\n"
        text += "using Ours = attnsmith::python::DlpackExchange;\nstatic_assert(sizeof(Ours) == sizeof(DLPackExchangeAPI));\n"
        text += "static_assert(sizeof(attnsmith_dl_tensor) == sizeof(DLTensor));\n"
        text += "".join(f"static_assert(offsetof(Ours, {ours}) == offsetof(DLPackExchangeAPI, {theirs}));\n"
                        for ours, theirs in members)
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
            file.write(text)
            file.flush()
            done = subprocess.run([cxx, "-x", "c++", "-std=c++20", "-fsyntax-only", f"-I{include}", f"-I{REPOSITORY / 'tools'}",
                                   *(f"-I{folder}" for folder in INCLUDES), file.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()

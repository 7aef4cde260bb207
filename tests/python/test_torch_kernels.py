"""torch's flash attention in C++ (tools/python/torch_kernels), registered for the CPU, with launches on the host."""

import ctypes
import gc
import math
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import unittest
import weakref

from support import REPOSITORY, attnsmith, compiler, in_threads

try:
    import torch
except ImportError:
    torch = None
else:
    import attnsmith.torch
    from attnsmith._c_api import abi
    from attnsmith._calls.lent import LAUNCHING
    from attnsmith._operators import torch_kernels
    from attnsmith._tensors import views as _views
    from attnsmith._tensors.blocks import AttentionBlock
    from host_launch import FIELDS, HostLaunch, by_hand

SDPA, FLASH, CUDNN = ("_scaled_dot_product_flash_attention", "_flash_attention_forward",
                      "_scaled_dot_product_cudnn_attention")


# What libtorch_cuda has: torch's own kernels by cuDNN.
OWN_CUDNN = """
#include <cstdint>
extern "C" {
int32_t (*backward)(void*, void*, void*, void**, int64_t, int64_t, double, int32_t, double) = nullptr;
int32_t aoti_torch_get_current_cuda_stream(int32_t, void**) { return 1; }
int32_t aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward(
    void* grad, void* q, void*, void*, void* out, void*, void*, void*, void*, void*, void*, int64_t max_q, int64_t max_k,
    double dropout, int32_t is_causal, double* scale, void** dq, void** dk, void** dv) {
    void* made[3] = {};
    const int32_t code = backward(grad, out, q, made, max_q, max_k, dropout, is_causal, scale ? *scale : 0.0);
    *dq = made[0], *dk = made[1], *dv = made[2];
    return code;
}
}
"""


class Refused(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)


@unittest.skipIf(torch is None or not hasattr(getattr(torch.nn, "attention", None), "register_flash_attention_impl"),
                 "PyTorch 2.11 or newer is not installed")
class Kernels(unittest.TestCase):
    def setUp(self):
        from attnsmith._adapters import torch_backend
        from attnsmith._operators.torch_operators import Operators, working_kernels
        self.native = working_kernels()
        self.assertIsNotNone(self.native, "no libattnsmith_torch, or torch does not throw its exceptions")
        self.met, self.teaches, self.host, self.values_offset = [], True, HostLaunch(), None
        functions = torch_kernels.functions_for(torch)
        for name, address in zip(LAUNCHING, self.host.addresses):
            setattr(functions, name, address)
        self.assertIsNone(torch_kernels.use(self.native._library, functions))
        self.addCleanup(torch_kernels.use, self.native._library, torch_kernels.functions_for(torch))
        self.workspace = ctypes.create_string_buffer(64)
        self.set_workspace(64)
        self.addCleanup(self.native.forget)
        self.operators = Operators(self.native, "aten", "CPU")
        self.addCleanup(self.operators.remove)
        self.results = torch_backend._RESULTS
        self.add_operators()

    def add_operators(self):
        for name, kernel in ((SDPA, self.sdpa_in_python), (FLASH, self.flash_in_python), (CUDNN, self.cudnn_in_python)):
            schema = getattr(torch.ops.aten, name).default._schema
            self.assertTrue(self.operators.add(schema, kernel, self.results[name]))

    def set_workspace(self, nbytes):
        self.native._library.attnsmith_torch_set_workspace(-1, None, ctypes.addressof(self.workspace), nbytes)

    def view(self, tensor):
        kind = _views.kind_of(abi.DL_FLOAT if tensor.is_floating_point() else abi.DL_INT, tensor.dtype.itemsize * 8)
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), kind, 1

    def teach(self, tensors, out, lse, causal, scale, caller, longest):
        """`tensors`: by their fields' names, as the library has their axes. `caller`: o and lse as torch gets them."""
        kernel = 1000 + len(self.host.options)
        self.host.options[kernel] = causal, scale
        named = {**tensors, "o": out, **({} if lse is None else {"lse": lse})}
        block = AttentionBlock()
        block.fill([self.view(named[name]) if name in named else None for name in FIELDS], *longest, 0, 0)
        given = [i for i, name in enumerate(FIELDS) if name in named]
        slots = AttentionBlock.pointer_words([named.get(name) for name in FIELDS], given)
        for word in slots:
            block.words[word] = 0  # a recipe has no pointers
        recipe = types.SimpleNamespace(block=lambda: block, entry=types.SimpleNamespace(pointer=kernel), nbytes=32, blocks=[],
                                       slots=slots, v_offset=self.values_offset, kind=_views.FP16)
        self.native.teach(recipe, [named[FIELDS[i]].data_ptr() for i in given], *caller)

    def sdpa_in_python(self, keys, query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
        self.met.append((SDPA, tuple(query.shape), is_causal, scale))
        out, lse = self.attend(query, key, value, is_causal, scale, lambda lse: lse, dropout_p or return_debug_mask)
        return out, lse, None, None, query.shape[2], key.shape[2], *self.rest(query)

    def cudnn_in_python(self, keys, query, key, value, bias, wants_lse, dropout_p=0.0, is_causal=False, return_debug_mask=False,
                        *, scale=None):
        self.met.append((CUDNN, tuple(query.shape), is_causal, scale))
        out, lse = self.attend(query, key, value, is_causal, scale, lambda lse: lse[..., None] if wants_lse else None)
        rest = [torch.empty((), dtype=torch.int64) for _ in range(2)]
        return out, lse, None, None, query.shape[2], key.shape[2], *rest, None

    def attend(self, query, key, value, is_causal, scale, of_caller, is_passed_on=False):
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        out = torch.empty_like(query)
        scale = scale or 1 / math.sqrt(query.shape[-1])
        o, lse = by_hand(q, k, v, is_causal, scale)
        out.copy_(o.transpose(1, 2))
        lse = lse.transpose(1, 2).float().contiguous()
        callers = out, of_caller(lse)
        if self.teaches and not is_passed_on:
            self.teach({"q": q, "k": k, "v": v}, out.transpose(1, 2), None if callers[1] is None else lse.transpose(1, 2),
                       is_causal, scale, callers, (q.shape[1], k.shape[1]))
        return callers

    def flash_in_python(self, keys, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                        return_debug_mask, *, scale=None, **words):
        self.met.append((FLASH, tuple(query.shape), is_causal, scale, max_q, max_k, words))
        out, scale = torch.empty_like(query), scale or 1 / math.sqrt(query.shape[-1])
        lse = torch.empty(query.shape[1], query.shape[0])
        ends, kv_ends = cum_seq_q.tolist(), cum_seq_k.tolist()
        for rows, keys in zip(map(slice, ends, ends[1:]), map(slice, kv_ends, kv_ends[1:])):
            one = by_hand(query[None, rows], key[None, keys], value[None, keys], is_causal, scale)
            out[rows], lse.transpose(0, 1)[rows] = one[0][0], one[1][0].float()
        if self.teaches:
            self.teach({"q": query, "k": key, "v": value, "q_indptr": cum_seq_q, "kv_indptr": cum_seq_k}, out,
                       lse.transpose(0, 1), is_causal, scale, (out, lse), (max_q, max_k))
        return out, lse, *self.rest(query)

    def rest(self, query):
        return [torch.empty(2, dtype=torch.uint64), torch.empty((), dtype=torch.uint64), query.new_empty(0)]

    def randn(self, *shape):
        return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))

    def sdpa(self, *arguments, **words):
        return torch.ops.aten._scaled_dot_product_flash_attention(*arguments, **words)

    def twice(self, call):
        """The results of a call of a new layout, which Python has, and of the next one, which it has not."""
        self.met.clear()
        self.host.launches.clear()
        first = call()
        self.assertEqual((len(self.met), len(self.host.launches)), (1, 0))
        second = call()
        self.assertEqual((len(self.met), len(self.host.launches)), (1, 1))
        return first, second

    def assert_alike(self, first, second):
        self.assertEqual(len(first), len(second))
        for i, (one, other) in enumerate(zip(first, second)):
            if torch.is_tensor(one):
                for fact in ("shape", "dtype", "stride", "device", "requires_grad"):
                    a, b = getattr(one, fact), getattr(other, fact)
                    self.assertEqual(a() if callable(a) else a, b() if callable(b) else b, (i, fact))
                if i < 2:
                    torch.testing.assert_close(one, other)
            else:
                self.assertEqual(one, other, i)

    def test_known_layouts_are_served_without_python(self):
        packed = self.randn(2, 9, 3, 4, 16).transpose(1, 3)  # [batch, heads, 3, tokens, head_dim]
        for tensors in ([self.randn(2, 4, 5, 16), self.randn(2, 2, 7, 16), self.randn(2, 2, 7, 16)],
                        [self.randn(2, 5, 4, 16).transpose(1, 2), self.randn(2, 7, 4, 16).transpose(1, 2),
                         self.randn(2, 4, 7, 16)],
                        [packed[:, :, i] for i in range(3)]):
            for words in ({}, {"is_causal": True}, {"scale": 0.3}):
                with self.subTest(strides=tensors[0].stride(), **words):
                    first, second = self.twice(lambda: self.sdpa(*tensors, **words))
                    self.assert_alike(first, second)
                    self.assert_alike(self.sdpa(*[tensor.to("meta") for tensor in tensors], **words),
                                      [one.to("meta") if torch.is_tensor(one) else one for one in second])
                    fresh = [tensor.clone(memory_format=torch.preserve_format) * 1.5 for tensor in tensors]
                    if all(one.stride() == tensor.stride() for one, tensor in zip(fresh, tensors)):
                        self.met.clear()
                        o, lse = self.sdpa(*fresh, **words)[:2]
                        self.assertEqual(self.met, [])
                        wanted = by_hand(*[one.transpose(1, 2) for one in fresh], words.get("is_causal", False),
                                         words.get("scale", 0.25))
                        torch.testing.assert_close(o, wanted[0].transpose(1, 2))
                        torch.testing.assert_close(lse, wanted[1].transpose(1, 2).float())
        served = self.operators.served()
        self.assertEqual(list(served), [SDPA])
        self.assertGreater(served[SDPA], 9)

    def cudnn(self, *arguments, **words):
        return torch.ops.aten._scaled_dot_product_cudnn_attention(*arguments, **words)

    def test_cudnn(self):
        packed = self.randn(2, 9, 3, 4, 16).transpose(1, 3)
        for tensors in ([self.randn(2, 4, 5, 16), self.randn(2, 2, 7, 16), self.randn(2, 2, 7, 16)],
                        [packed[:, :, i] for i in range(3)]):
            for lse in (True, False):
                for words in ({}, {"is_causal": True, "scale": 0.3}):
                    with self.subTest(strides=tensors[0].stride(), lse=lse, **words):
                        first, second = self.twice(lambda: self.cudnn(*tensors, None, lse, **words))
                        self.assert_alike(first, second)
                        meta = self.cudnn(*[tensor.to("meta") for tensor in tensors], None, lse, **words)
                        if not lse:
                            self.assertIsNone(second[1])
                            meta = (meta[0], None, *meta[2:])
                        self.assert_alike(meta, [one.to("meta") if torch.is_tensor(one) else one for one in second])
                        fresh = [tensor * 1.5 for tensor in tensors]
                        self.cudnn(*fresh, None, lse, **words)
                        self.met.clear()
                        o, sums = self.cudnn(*fresh, None, lse, **words)[:2]
                        self.assertEqual(self.met, [])
                        wanted = by_hand(*[one.transpose(1, 2) for one in fresh], words.get("is_causal", False),
                                         words.get("scale", 0.25))
                        torch.testing.assert_close(o, wanted[0].transpose(1, 2))
                        if lse:
                            torch.testing.assert_close(sums[..., 0], wanted[1].transpose(1, 2).float())
        self.assertEqual(list(self.operators.served()), [CUDNN])
        q = self.randn(2, 4, 5, 16)
        for bias in (q[..., :5], None):  # masks go to Python here, which has no GPU
            self.met.clear()
            for _ in range(3):
                self.cudnn(q, q, q, bias, False)
            self.assertEqual(len(self.met), 1 if bias is None else 3)

    def test_cudnn_gives_back_tensors(self):
        q, bias = self.randn(2, 4, 8, 16), self.randn(8, 8)

        def uses():
            return [torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) for tensor in (q, bias)]

        calls = [lambda bias=bias, lse=lse: self.cudnn(q, q, q, bias, lse, scale=0.5) for bias in (None, bias) for lse in (0, 1)]
        for call in calls * 2:
            call()
        before = uses()
        for call in calls * 200:
            call()
        self.assertEqual(uses(), before)

    def test_ragged_tensors(self):
        q, k, ends = self.randn(9, 4, 16), self.randn(13, 2, 16), torch.tensor([0, 4, 9], dtype=torch.int32)
        kv_ends = torch.tensor([0, 6, 13], dtype=torch.int32)
        call = lambda *ends, most=5: torch.ops.aten._flash_attention_forward(  # noqa: E731
            q, k, k, *ends, most, 7, 0.0, True, False, scale=0.4)
        self.assert_alike(*self.twice(lambda: call(ends, kv_ends)))
        self.assertEqual(self.host.launches[0][2:], (5, 7))
        others = torch.tensor([0, 5, 9], dtype=torch.int32), torch.tensor([0, 5, 13], dtype=torch.int32)
        self.met.clear()
        o = call(*others)[0]
        self.assertEqual(self.met, [])
        torch.testing.assert_close(o[:5], by_hand(q[None, :5], k[None, :5], k[None, :5], True, 0.4)[0][0])
        call(ends, kv_ends, most=6)  # another bound is another recipe
        self.assertEqual(len(self.met), 1)
        self.assertEqual(self.operators.served(), {FLASH: 2})

    def test_what_differs_is_another_layout(self):
        q, k = self.randn(2, 4, 8, 16), self.randn(2, 2, 8, 16)
        memory = torch.zeros(q.numel() + 1, dtype=torch.float64)
        calls = [lambda: self.sdpa(q, k, k), lambda: self.sdpa(q, k, k, 0.0, True), lambda: self.sdpa(q, k, k, scale=0.25),
                 lambda: self.sdpa(q, k, k, scale=0.5), lambda: self.sdpa(q[:1], k[:1], k[:1]),
                 lambda: self.sdpa(q[:, :, :7], k, k), lambda: self.sdpa(q, k[:, :1], k[:, :1]),
                 lambda: self.sdpa(q.transpose(0, 1).contiguous().transpose(0, 1), k, k),
                 lambda: self.sdpa(memory[1:].view_as(q), k, k),  # of another alignment
                 lambda: self.sdpa(q, k, k.float().double().transpose(0, 1).contiguous().transpose(0, 1))]
        for call in calls:
            call()
        self.assertEqual(len(self.met), len(calls))
        self.met.clear()
        for call in calls:
            call()
        self.assertEqual(self.met, [])

    def test_calls_that_no_recipe_is_for(self):
        q = self.randn(2, 4, 8, 16)
        self.twice(lambda: self.sdpa(q, q, q))
        for words in ({"dropout_p": 0.5}, {"return_debug_mask": True}):
            for _ in range(3):
                self.met.clear()
                self.sdpa(q, q, q, **words)
                self.assertEqual(len(self.met), 1, words)

    def test_what_fails_here_is_for_python_to_say(self):
        q = self.randn(2, 4, 8, 16)
        call = lambda: self.sdpa(q, q, q)  # noqa: E731
        self.twice(call)
        self.host.code = 4
        self.met.clear()
        wanted = by_hand(*[q.transpose(1, 2)] * 3, False, 0.25)[0].transpose(1, 2)
        torch.testing.assert_close(call()[0], wanted)
        self.assertEqual((len(self.met), self.host.errors_freed), (1, [77]))
        self.host.code = 0
        self.host.bind_code = 3
        self.native.forget()
        self.set_workspace(64)
        call()
        self.met.clear()
        call()
        self.assertEqual((len(self.met), self.host.errors_freed), (1, [77, 78]))
        self.host.bind_code = 0
        call()
        self.set_workspace(31)  # a byte less than the recipe needs
        self.met.clear()
        call()
        self.assertEqual(len(self.met), 1)
        self.set_workspace(32)
        call()
        self.assertEqual((len(self.met), self.host.launches[-1][1]), (1, 32))
        self.native.forget()
        call()
        self.assertEqual(len(self.met), 2)

    def test_tensors_without_memory_are_not_those_of_the_first_call(self):
        q, k = self.randn(2, 4, 8, 16), self.randn(2, 4, 8, 16)
        self.twice(lambda: self.sdpa(q, k, k))
        k = k.clone()
        k.untyped_storage().resize_(0)
        launches = len(self.host.launches)
        self.met.clear()
        with self.assertRaises(RuntimeError):  # torch's own, of such a tensor
            self.sdpa(q, k, k)
        self.assertEqual((len(self.met), len(self.host.launches)), (1, launches))

    def test_what_is_forgotten_during_a_call_is_not_learnt(self):
        q = self.randn(2, 4, 8, 16)
        teach = self.teach

        def forget_too(*arguments):
            teach(*arguments)
            self.native.forget()
            self.set_workspace(64)

        self.teach = forget_too
        self.sdpa(q, q, q)
        self.teach = teach
        self.sdpa(q, q, q)
        self.assertEqual((len(self.met), self.host.launches), (2, []))
        self.sdpa(q, q, q)
        self.assertEqual((len(self.met), len(self.host.launches)), (2, 1))

    def test_what_python_made_on_the_way_is_not_learnt(self):
        """The next call has no such tensor."""
        q, k = self.randn(2, 4, 8, 16), self.randn(2, 4, 8, 16)
        teach = self.teach
        self.teach = lambda tensors, *rest: teach({**tensors, "k": tensors["k"].clone()}, *rest)
        self.sdpa(q, k, k)
        self.sdpa(q, k, k)
        self.assertEqual((len(self.met), self.host.launches), (2, []))
        self.teach = teach
        self.twice(lambda: self.sdpa(q, k, k))

    def test_layouts_that_are_not_taught_stay_pythons(self):
        self.teaches = False
        q = self.randn(2, 4, 8, 16)
        for _ in range(3):
            self.sdpa(q, q, q)
        self.assertEqual((len(self.met), self.host.launches), (3, []))

    def test_exceptions_are_those_of_python(self):
        q = self.randn(2, 4, 8, 16)
        for thrown in (Refused("one", 2), attnsmith.InvalidRequest("q.dtype", "fp64", "fp16"), KeyboardInterrupt(),
                       torch.OutOfMemoryError("no room"), StopIteration(3)):
            def throw(*arguments, thrown=thrown, **words):
                raise thrown
            self.teach = throw
            try:
                self.sdpa(q, q, q)
            except BaseException as error:  # assertRaises would take its traceback away
                self.assertIs(error, thrown)
            else:
                self.fail("nothing was thrown")
            names = [frame.name for frame in traceback.extract_tb(thrown.__traceback__)]
            self.assertEqual(names[-1], "throw")
        del self.teach
        self.assert_alike(*self.twice(lambda: self.sdpa(q, q, q)))

    def test_a_lack_of_stack_is_pythons_error(self):
        """torch would look for the words of such an exception until the stack is gone."""
        q = self.randn(1, 1, 1, 8)
        self.teaches = False
        self.sdpa(q, q, q)

        def deep(frames):
            return self.sdpa(q, q, q) if not frames else deep(frames - 1)

        limit = sys.getrecursionlimit()
        for frames in range(limit - 120, limit):
            try:
                deep(frames)
            except RecursionError:
                pass

    def test_an_interrupt_is_pythons(self):
        q = self.randn(1, 1, 1, 8)
        self.teaches = False

        class Alarm(BaseException):
            pass

        def ring(number, frame):
            raise Alarm

        before = signal.signal(signal.SIGALRM, ring)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        rung = others = 0
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)  # on a busy machine it may ring at once
                while True:
                    self.sdpa(q, q, q)
            except Alarm:
                rung += 1
            except RuntimeError:
                others += 1
        # One that comes between the look for it and the operator is a RuntimeError, since torch's C interface has no other.
        self.assertEqual(rung + others, 300)
        self.assertGreater(rung, others)

    def test_kernels_come_and_go_while_they_are_called(self):
        q, stop, failures = self.randn(1, 2, 3, 8), threading.Event(), []
        wanted = by_hand(*[q.transpose(1, 2)] * 3, False, 8 ** -0.5)[0].transpose(1, 2)

        def work():
            while not stop.is_set():
                try:
                    torch.testing.assert_close(self.sdpa(q, q, q)[0], wanted)
                except NotImplementedError:  # torch has no kernel for the CPU
                    pass
                except BaseException as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(150):
            self.operators.remove()
            self.add_operators()
            self.set_workspace(64)
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_exceptions_are_given_back(self):
        class Big(Exception):
            pass

        def throw(*arguments, **words):
            raise Big()

        q = self.randn(1, 1, 1, 8)
        self.teach = throw
        try:
            self.sdpa(q, q, q)
        except Big as error:
            alive = weakref.ref(error)
        self.teach = None
        gc.collect()
        self.assertIsNone(alive())

    def test_tensors_are_given_back(self):
        q, k, v = self.randn(2, 4, 8, 16), self.randn(2, 4, 8, 16), self.randn(2, 4, 8, 16)

        def uses():
            return [torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) for tensor in (q, k, v)]

        def gradless():
            with torch.no_grad():
                return self.sdpa(q, k, v, scale=0.5)

        self.twice(gradless)
        before = uses()
        for _ in range(600):
            gradless()
        self.host.code = 1  # by way of Python, and back
        for _ in range(60):
            gradless()
        self.host.code = 0
        self.assertEqual(uses(), before)
        made = gradless()[0]
        self.assertEqual(torch._C._storage_Use_Count(made.untyped_storage()._cdata), 2)  # with the one that asks

    def test_threads(self):
        tensors = [[self.randn(1, 2, length, 16) for _ in range(3)] for length in range(3, 9)]
        wanted = [by_hand(*[one.transpose(1, 2) for one in three], True, 0.25)[0].transpose(1, 2) for three in tensors]

        def work():
            for i in range(60):
                o = self.sdpa(*tensors[i % 6], 0.0, True)[0]
                torch.testing.assert_close(o, wanted[i % 6])
                if i % 20 == 19:
                    self.native.forget()
                    self.set_workspace(64)

        self.assertEqual(in_threads(6, work), [])

    def own_cudnn(self):
        """A library with the functions that the kernels take from libtorch_cuda. Its backward gives q + the sum of the gradient, k
        and v, and what it was given is in `asked`: strides of the gradient, and numbers."""
        cxx = compiler()
        if cxx is None:
            self.skipTest("no C++ compiler")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        source, library = pathlib.Path(folder.name) / "own.cpp", pathlib.Path(folder.name) / "own.so"
        source.write_text(OWN_CUDNN)
        subprocess.run([cxx, "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        opened = ctypes.CDLL(str(library))
        asked = []
        call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, ctypes.c_double, ctypes.c_int32,
                                ctypes.c_double)
        of_torch = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so"))

        def backward(grad, out, q, made, *numbers):
            strides = ctypes.POINTER(ctypes.c_int64)()
            of_torch.aoti_torch_get_strides(ctypes.c_void_p(grad), ctypes.byref(strides))
            asked.append((tuple(strides[:4]), *numbers))
            if self.host.code:
                return 1
            for place, tensor in enumerate((grad, q, out)):
                of_torch.aoti_torch_clone_preserve_strides(ctypes.c_void_p(tensor), ctypes.c_void_p(made + 8 * place))
            return 0

        kept = call(backward)
        ctypes.c_void_p.in_dll(opened, "backward").value = ctypes.cast(kept, ctypes.c_void_p).value
        return opened, kept, asked

    def test_the_gradient_for_cudnn_has_the_strides_of_o(self):
        library, kept, asked = self.own_cudnn()
        functions = torch_kernels.functions_for(torch)
        functions.cuda_library = library._handle
        self.assertIsNone(torch_kernels.use(self.native._library, functions))
        in_python = []

        def kernel(keys, grad, q, k, v, out, *rest, **words):
            in_python.append(rest)
            return grad * 2, k, v

        backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
        self.assertTrue(self.operators.add(backward.default._schema, kernel, "uuu", own=torch_kernels.CUDNN_BACKWARD))
        q, out = self.randn(2, 4, 5, 16), self.randn(2, 5, 4, 16).transpose(1, 2)
        lse, none = torch.zeros(2, 4, 5, 1), None
        wide = self.randn(2, 5, 4, 48).transpose(1, 2)[..., :16]

        def uses():
            return [torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) for tensor in (q, out, wide, lse)]

        before = uses()
        for grad in (out, wide, self.randn(2, 4, 5, 16), self.randn(2, 1, 1, 16).expand(2, 4, 5, 16)):
            for scale in (None, 0.25):
                asked.clear()
                made = backward(grad, q, q, q, out, lse, lse, lse, none, none, none, 5, 7, 0.0, True, scale=scale)
                self.assertEqual(asked, [(out.stride(), 5, 7, 0.0, 1, scale or 0.0)])
                torch.testing.assert_close(made[0], grad)
                self.assertEqual((made[0].stride(), made[1].stride()), (out.stride(), q.stride()))
                self.host.code = 1  # torch's own fails, and Python says why
                self.assertTrue(torch.equal(backward(grad, q, q, q, out, lse, lse, lse, none, none, none, 5, 7, 0.0, True,
                                                     scale=scale)[0], grad * 2))
                self.host.code = 0
                del made
        self.assertEqual(len(in_python), 8)
        self.assertEqual(uses(), before)
        del kept

    def own_operators(self):
        """Those of torch.ops.attnsmith for the CPU, by other names. Gives the four of attention."""
        from attnsmith._operators.torch_operators import Operators
        library = torch.library.Library("attnsmith", "FRAGMENT")
        self.addCleanup(library._destroy)
        operators = Operators(self.native, "attnsmith", "CPU")
        self.addCleanup(operators.remove)
        made = []
        for suffix, results in (("", "o"), ("_with_lse", "ol"), ("_out", ""), ("_out_with_lse", "l")):
            schema = str(getattr(torch.ops.attnsmith, f"attention{suffix}").default._schema)
            library.define(schema.replace("attnsmith::", "tried_", 1))
            operator = getattr(torch.ops.attnsmith, f"tried_attention{suffix}")
            self.assertTrue(operators.add(operator.default._schema, self.own_in_python(results), results, refuses_gradients=True))
            made.append(operator)
        return made

    def own_in_python(self, results):
        def kernel(keys, *arguments):
            out, (q, k, v, *rest) = ([arguments[0], arguments[1:]] if "o" not in results else [None, arguments])
            names = ("causal", "window_left", "window_right", "attention_chunk", "softcap", "sinks", "scale", "alibi_slopes",
                     "kv_lens", "q_lens", "lse_order", "o_dtype", "precision")
            words = dict(zip(names, rest))
            self.met.append(words)
            causal, scale = words.get("causal", False), words.get("scale") or 1 / math.sqrt(q.shape[-1])
            o, lse = by_hand(q, k, v, causal, scale)
            made = torch.empty(q.shape, dtype=q.dtype) if out is None else out
            made.copy_(o)
            lse = lse.float().contiguous() if "l" in results else None
            given = {name: words[name] for name in ("sinks", "kv_lens") if words.get(name) is not None}
            if self.teaches:
                self.teach({"q": q, "k": k, "v": v, **given}, made, lse, causal, scale, (made, lse), (q.shape[1], k.shape[1]))
            return tuple([made if letter == "o" else lse for letter in results])

        return kernel

    def test_own_operators(self):
        plain, with_lse, to_out, to_out_with_lse = self.own_operators()
        q, k, v = self.randn(2, 5, 4, 16), self.randn(2, 7, 2, 16), self.randn(2, 7, 2, 16)
        out, lens = torch.empty_like(q), torch.tensor([7, 7], dtype=torch.int32)
        with torch.no_grad():
            for words in ({}, {"causal": True}, {"scale": 0.3, "kv_lens": lens}, {"lse_order": "HND", "precision": "high"},
                          {"window_left": 3, "o_dtype": "fp32"}):
                wanted = by_hand(q, k, v, words.get("causal", False), words.get("scale", 0.25))
                for call in (lambda **words: plain(q, k, v, **words), lambda **words: with_lse(q, k, v, **words),
                             lambda **words: to_out(out, q, k, v, **words) or out,
                             lambda **words: (out, to_out_with_lse(out, q, k, v, **words))):
                    self.twice(lambda: call(**words))
                    out.zero_()
                    got = call(**words)
                    self.assertEqual(len(self.met), 1)
                    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, wanted[0])
                    if isinstance(got, tuple):
                        torch.testing.assert_close(got[1], wanted[1].float())
        self.assertEqual(self.operators.served(), {})

    def test_own_operators_that_are_pythons(self):
        plain, _, to_out, _ = self.own_operators()
        q, k = self.randn(2, 5, 4, 16), self.randn(2, 5, 4, 16)

        def is_pythons(call):
            self.met.clear()
            call()
            return bool(self.met)

        plain(q, k, k)
        self.assertTrue(is_pythons(lambda: plain(q, k, k)))  # gradients may be wanted
        with torch.no_grad():
            self.twice(lambda: plain(q, k, k))
            self.assertFalse(is_pythons(lambda: plain(q, k, k)))
            for words in ({"precision": "high"}, {"o_dtype": "fp16"}, {"o_dtype": "fp32"}, {"window_right": 0}, {"softcap": 0.0},
                          {"window_left": 0}, {"sinks": q[0, 0, :, 0]}, {"precision": "standard" * 3}):
                with self.subTest(words):
                    self.assertTrue(is_pythons(lambda: plain(q, k, k, **words)))
                    self.assertEqual(is_pythons(lambda: plain(q, k, k, **words)), words == {"precision": "standard" * 3})
            out = torch.empty_like(q)
            self.twice(lambda: to_out(out, q, k, k))
            both = torch.cat((q, k))
            self.assertFalse(is_pythons(lambda: to_out(out, both[:2], both[2:], k)))
            self.assertTrue(is_pythons(lambda: to_out(both[:2], q, both[2:], k)))  # memory of an input
            self.assertTrue(is_pythons(lambda: to_out(q, q, k, k)))

    def test_own_operators_give_back_words(self):
        plain = self.own_operators()[0]
        q = self.randn(1, 2, 1, 8)
        self.teaches = False
        word = "x" * 100_000
        with torch.no_grad():
            plain(q, q, q, precision="standard")
            self.met.clear()
            plain(q, q, q, precision="default\0junk")
            self.assertEqual(self.met[0]["precision"], "default?junk")  # which is refused, and what is before it would not be
            for i in range(600):
                if i == 100:
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                plain(q, q, q, precision=word, o_dtype=word)
                self.met.clear()
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 20_000)  # of 100 MB, in KB

    def test_the_package_forgets_with_its_runtime(self):
        q = self.randn(2, 4, 8, 16)
        self.twice(lambda: self.sdpa(q, q, q))
        attnsmith.set_default_runtime(None)
        self.met.clear()
        self.sdpa(q, q, q)
        self.assertEqual(len(self.met), 1)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Declarations(unittest.TestCase):
    def test_they_are_those_of_torchs_headers(self):
        cxx = compiler()
        include = pathlib.Path(torch.__file__).parent / "include"
        if cxx is None or not (include / "torch/csrc/stable/c/shim.h").exists():
            self.skipTest("PyTorch's headers are not installed")
        done = subprocess.run([cxx, "-x", "c++", "-std=c++20", "-fsyntax-only", "-DUSE_CUDA", f"-I{include}",
                               f"-I{REPOSITORY / 'tools'}",
                               str(REPOSITORY / "tests/python/torch_abi_test.cpp")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()

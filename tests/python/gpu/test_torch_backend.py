"""torch's own calls after attnsmith.torch.activate(): results, gradients against torch's own, and what report() says."""

import os
import subprocess
import sys
import threading
import unittest

from gpu_support import GpuTest, offsets, reference, torch

import attnsmith

VARLEN = "_flash_attention_forward"
SDPA = {"_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"}  # torch chooses one by the call


class Backend(GpuTest):
    def setUp(self):
        super().setUp()
        if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
            self.skipTest("torch 2.11 or newer is not installed")
        import attnsmith.torch as adapter
        self.adapter = adapter
        adapter.reset()
        self.addCleanup(adapter.deactivate)
        adapter.activate()

    def assert_served(self, **counts):
        report = self.adapter.report()
        self.assertEqual(report["passed_on"], [])
        served = dict(report["served"])
        found = {"varlen": served.pop(VARLEN, 0), "sdpa": sum(served.pop(name, 0) for name in SDPA), **served}
        self.assertEqual({name: count for name, count in found.items() if count}, counts)

    def tensors(self, q_len=65, kv_len=65, dtype=None, dim=64, heads=(8, 2)):
        return [self.randn(2, count, length, dim, dtype=dtype) for count, length in
                ((heads[0], q_len), (heads[1], kv_len), (heads[1], kv_len))]

    def wanted(self, q, k, v, **options):
        """[batch, heads, tokens, head_dim] -> o and lse [batch, heads, tokens]."""
        rows = [reference(*[tensor[b].transpose(0, 1) for tensor in (q, k, v)], **options) for b in range(q.shape[0])]
        return torch.stack([o.transpose(0, 1) for o, _ in rows]), torch.stack([lse.transpose(0, 1) for _, lse in rows])

    def test_activated_before_torch_chose_for_the_first_time(self):
        """In a process of its own: at its first choice torch sets the order in which it tries its backends. No GPU is chosen
        in the caller's place meanwhile."""
        program = """
import torch
import attnsmith.torch
attnsmith.torch.activate(strict=True)
assert not torch.cuda.is_initialized()
q = torch.randn(1, 4, 32, 64, device="cuda").bfloat16()
torch.nn.functional.scaled_dot_product_attention(q, q, q)
print(sum(attnsmith.torch.report()["served"].values()))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual((done.returncode, done.stdout), (0, "1\n"), done.stderr)

    def test_sdpa(self):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        cases = [{"is_causal": True}, {}, {"scale": 0.3}, {"kv_len": 200}, {"q_len": 1, "kv_len": 300}, {"dim": 128},
                 {"dim": 256, "is_causal": True}, {"dim": 72}, {"heads": (8, 8)}, {"heads": (6, 1)},
                 {"dtype": torch.float16}, {"dtype": torch.float16, "q_len": 33, "kv_len": 33, "is_causal": True}]
        for case in cases:
            with self.subTest(**case):
                options = {name: case[name] for name in ("is_causal", "scale") if name in case}
                q, k, v = self.tensors(**{name: case[name] for name in case if name not in options})
                o = sdpa(q, k, v, enable_gqa=True, **options)
                self.assertEqual(o.stride(), q.stride())
                self.assert_near(o, self.wanted(q, k, v, causal=case.get("is_causal", False), scale=case.get("scale"))[0])
        self.assert_served(sdpa=len(cases))

    def test_packed_projections_keep_their_layout(self):
        q, k, v = self.randn(2, 50, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        self.assert_near(o, self.wanted(q, k, v, causal=True)[0])
        self.assertEqual(o.transpose(1, 2).reshape(2, 50, 256).data_ptr(), o.data_ptr())
        self.assert_served(sdpa=1)

    def test_log_sum_exp_has_torchs_layout(self):
        q, k, v = self.tensors(40, 60, heads=(4, 4))
        lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[1]
        self.assertTrue(lse.is_contiguous())
        self.assert_near(lse, self.wanted(q, k, v)[1])

    def test_varlen_attn(self):
        from torch.nn.attention.varlen import AuxRequest, varlen_attn
        lens, kv_lens = (5, 64, 1), (9, 64, 130)
        q, k, v = self.randn(70, 8, 64), self.randn(203, 8, 64), self.randn(203, 8, 64)
        for window in ((-1, -1), (-1, 0), (20, 0)):
            with self.subTest(window=window):
                o, lse = varlen_attn(q, k, v, offsets(lens), offsets(kv_lens), 64, 130, window_size=window,
                                     return_aux=AuxRequest(lse=True))
                first = kv_first = 0
                for length, kv_length in zip(lens, kv_lens):
                    rows, keys = slice(first, first + length), slice(kv_first, kv_first + kv_length)
                    wanted = reference(q[rows], k[keys], v[keys], window=window)
                    self.assert_near(o[rows], wanted[0])
                    self.assert_near(lse[:, rows].transpose(0, 1), wanted[1])
                    first, kv_first = first + length, kv_first + kv_length
        self.assert_served(varlen=3)

    def errors_of_gradients(self, tensors, **options):
        """The largest error of each gradient against fp64, by what is active now."""
        def gradients(these):
            these = [tensor.detach().clone().requires_grad_() for tensor in these]
            with torch.enable_grad():
                o = torch.nn.functional.scaled_dot_product_attention(*these, **options)
                (o * weights.to(o.dtype)).sum().backward()
            return [tensor.grad.double() for tensor in these]

        shape = (*tensors[0].shape[:-1], tensors[2].shape[-1])
        weights = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            wanted = gradients([tensor.double() for tensor in tensors])
        return [float((got - want).abs().max()) for got, want in zip(gradients(tensors), wanted)]

    def gradient_cases(self):
        """Tensors and options of SDPA, for each of the two backends that takes them."""
        flash, cudnn = (getattr(torch.nn.attention.SDPBackend, name) for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"))
        packed = self.randn(2, 50, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        for backend in (flash, cudnn):
            for tensors, options in ((self.tensors(heads=(4, 4)), {"is_causal": True}), (self.tensors(heads=(4, 4)), {}),
                                     (self.tensors(heads=(4, 4), dim=128), {"is_causal": True, "scale": 0.1}),
                                     (self.tensors(heads=(4, 4), kv_len=300), {}), (packed, {"is_causal": True}),
                                     (self.tensors(), {"enable_gqa": True, "is_causal": True})):
                yield backend, tensors, options
        yield cudnn, self.tensors(40, 90, heads=(4, 4)), {"is_causal": True}
        yield cudnn, self.tensors(90, 40, heads=(4, 4)), {"is_causal": True}
        q, k, _ = self.tensors(heads=(4, 4), dim=128)
        yield cudnn, [q, k, k[..., :64]], {"is_causal": True}

    def test_gradients_are_as_good_as_torchs(self):
        cases = list(self.gradient_cases())
        for backend, tensors, options in cases:
            with self.subTest(backend=backend, shape=tensors[0].shape, **options), torch.nn.attention.sdpa_kernel(backend):
                ours = self.errors_of_gradients(tensors, **options)
                self.adapter.deactivate()
                torchs = self.errors_of_gradients(tensors, **options)
                self.adapter.activate()
                for one, other in zip(ours, torchs):
                    self.assertLessEqual(one, 2 * other)
        self.assert_served(sdpa=len(cases))

    def test_what_torch_gets_of_cudnn_is_what_its_own_kernel_gives(self):
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        packed = self.randn(2, 50, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        q, k, v = self.tensors(heads=(4, 4), dim=128)
        for tensors in (packed, (q, k, v), (q, k, v[..., :64]), self.tensors(),
                        [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]):
            for lse in (True, False):
                with self.subTest(strides=tensors[0].stride(), lse=lse):
                    ours = [cudnn(*tensors, None, lse, 0.0, True) for _ in range(3)][-1]
                    self.adapter.deactivate()
                    torchs = cudnn(*tensors, None, lse, 0.0, True)
                    self.adapter.activate()
                    self.assert_near(ours[0], torchs[0])
                    for i, (one, other) in enumerate(zip(ours, torchs)):
                        if not torch.is_tensor(other):
                            self.assertEqual(one, other, i)
                            continue
                        self.assertEqual((one.shape, one.dtype, one.stride()), (other.shape, other.dtype, other.stride()), i)
                    if lse:
                        torch.testing.assert_close(ours[1], torchs[1], rtol=1e-3, atol=1e-3)

    def test_masks_are_cudnns_own(self):
        q, k, v = self.tensors(heads=(4, 4))
        mask = self.randn(2, 1, 65, 65)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            ours = [torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) for _ in range(3)][-1]
            self.adapter.deactivate()
            torchs = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
            self.adapter.activate()
        self.assertTrue(torch.equal(ours, torchs))
        self.assertEqual(self.adapter.report(), {"served": {}, "passed_on": []})

    def test_compiled(self):
        def block(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

        torch._dynamo.reset()
        tensors = self.tensors(heads=(4, 4))
        for mode in (None, "reduce-overhead"):
            with self.subTest(mode=mode):
                compiled = torch.compile(block, fullgraph=True, mode=mode)
                for _ in range(3):
                    self.assert_near(compiled(*tensors), self.wanted(tensors[0] * 2, *tensors[1:], causal=True)[0] + 1)
        self.assertTrue(SDPA.issuperset(self.adapter.report()["served"]))

    def test_calls_in_cpp_have_the_bits_of_those_in_python(self):
        """The first two calls of a layout are Python's, the others the library's."""
        sdpa = torch.nn.functional.scaled_dot_product_attention
        packed = self.randn(2, 50, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        for tensors, options in ((self.tensors(), {"is_causal": True, "enable_gqa": True}), (packed, {"scale": 0.2}),
                                 (self.tensors(1, 3000, heads=(8, 1)), {"enable_gqa": True})):
            with self.subTest(strides=tensors[0].stride(), **options):
                before = self.in_cpp()
                results = [sdpa(*tensors, **options) for _ in range(5)]
                self.assertGreaterEqual(self.in_cpp() - before, 3)  # 4 where another test had this layout before
                for result in results[1:]:
                    self.assertTrue(torch.equal(result, results[0]))
                    self.assertEqual(result.stride(), results[0].stride())
        q, k, ends, kv_ends = self.randn(70, 8, 64), self.randn(203, 2, 64), offsets((5, 64, 1)), offsets((9, 64, 130))
        before = self.in_cpp()
        results = [torch.ops.aten._flash_attention_forward(q, k, k, ends, kv_ends, 64, 130, 0.0, True, False)
                   for _ in range(4)]
        self.assertGreaterEqual(self.in_cpp() - before, 2)
        for result in results[1:]:
            self.assertTrue(torch.equal(result[0], results[0][0]) and torch.equal(result[1], results[0][1]))

    def in_cpp(self):
        """Calls that the library has served."""
        from attnsmith._adapters import torch_backend
        self.assertIsNotNone(torch_backend.served.elsewhere, "there is no libattnsmith_torch, or torch refuses it")
        return sum(torch_backend.served.elsewhere.served().values())

    def test_calls_in_cpp_on_streams_and_in_graphs(self):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        tensors = self.tensors(1, 5000, heads=(8, 1))  # whose keys are divided, by way of a workspace
        wanted = sdpa(*tensors, enable_gqa=True)
        streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()
        results = []
        for i in range(30):
            with torch.cuda.stream(streams[i % 3]):
                results.append(sdpa(*tensors, enable_gqa=True))
        torch.cuda.synchronize()
        self.assertGreater(self.in_cpp(), 20)
        for result in results:
            self.assertTrue(torch.equal(result, wanted))
        graph, before = torch.cuda.CUDAGraph(), self.in_cpp()
        with torch.cuda.graph(graph):
            captured = sdpa(*tensors, enable_gqa=True)
        self.assertEqual(self.in_cpp(), before)  # a graph's workspace is its own, which Python makes
        captured.zero_()
        for _ in range(3):
            sdpa(*tensors, enable_gqa=True)
            graph.replay()
        self.assertTrue(torch.equal(captured, wanted))
        self.assertEqual(self.in_cpp() - before, 3)

    def test_calls_in_cpp_from_threads(self):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        sets = [self.tensors(1, length, heads=(8, 1)) for length in (900, 3000, 5000)]
        wanted = [sdpa(*tensors, enable_gqa=True) for tensors in sets]
        torch.cuda.synchronize()
        failures = []

        def work(number):
            try:
                with torch.no_grad():
                    for i in range(60):
                        if not torch.equal(sdpa(*sets[(i + number) % 3], enable_gqa=True), wanted[(i + number) % 3]):
                            failures.append((number, i))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(self.in_cpp(), 200)

    def test_no_memory_is_torchs_error(self):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        small = self.tensors()
        for _ in range(3):
            sdpa(*small, enable_gqa=True)
        q = self.randn(1, 1, 1 << 20, 64)
        for _ in range(3):
            sdpa(q, q[:, :, :64], q[:, :, :64])
        # Of this process alone: other tests use the GPU meanwhile.
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        with self.assertRaises(torch.OutOfMemoryError):
            sdpa(q, q[:, :, :64], q[:, :, :64])
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.assertEqual(sdpa(q, q[:, :, :64], q[:, :, :64]).shape, q.shape)

    def test_another_runtime_has_its_own_kernels(self):
        tensors = self.tensors()
        sdpa = torch.nn.functional.scaled_dot_product_attention
        results = [sdpa(*tensors, enable_gqa=True) for _ in range(3)]
        before = self.in_cpp()
        attnsmith.set_default_runtime(attnsmith.Runtime())
        self.addCleanup(attnsmith.set_default_runtime, None)
        results += [sdpa(*tensors, enable_gqa=True) for _ in range(2)]
        self.assertEqual(self.in_cpp(), before)
        results.append(sdpa(*tensors, enable_gqa=True))
        self.assertEqual(self.in_cpp() - before, 1)
        for result in results[1:]:
            self.assertTrue(torch.equal(result, results[0]))

    def test_what_is_passed_on(self):
        tensors = self.tensors(heads=(4, 4))
        torch.nn.functional.scaled_dot_product_attention(*tensors, dropout_p=0.5)
        (entry,) = self.adapter.report()["passed_on"]
        self.assertEqual((entry["why"], entry["calls"]), ("dropout", 1))
        self.adapter.activate(strict=True)
        with self.assertRaisesRegex(attnsmith.Unsupported, "dropout"):
            torch.nn.functional.scaled_dot_product_attention(*tensors, dropout_p=0.5)
        self.adapter.activate()


if __name__ == "__main__":
    unittest.main()

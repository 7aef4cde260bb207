"""The plain functions under torch.compile, in CUDA graphs and through torch.ops, against their own plain calls."""

import os
import subprocess
import sys
import unittest

from gpu_support import GpuTest, torch

import attnsmith


class Compiled(GpuTest):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()

    def dense(self, length=33, keys=50):
        return [self.randn(2, length, 8, 64), self.randn(2, keys, 2, 64), self.randn(2, keys, 2, 128)]

    def paged(self):
        pages = [self.randn(7, 16, 2, 64) for _ in range(2)]
        return [self.randn(3, 8, 64), *pages, torch.randperm(6, device="cuda", dtype=torch.int32).view(3, 2),
                torch.tensor([5, 32, 17], device="cuda", dtype=torch.int32)]

    def test_one_graph_has_the_same_bits(self):
        def dense(q, k, v):
            o, lse = attnsmith.attention(q, k, v, causal=True, window=(20, None), softcap=30.0, return_lse=True)
            return o * 2, lse

        def paged(q, k, v, table, lens):
            return attnsmith.paged_attention(q, (k, v), table, lens) * 2

        long = [self.randn(1, 1, 8, 64), self.randn(1, 20000, 2, 64), self.randn(1, 20000, 2, 64)]  # needs a workspace
        for function, tensors in ((dense, self.dense()), (dense, long), (paged, self.paged())):
            for mode in (None, "reduce-overhead"):
                with self.subTest(function.__name__, keys=tensors[1].shape[1], mode=mode):
                    torch._dynamo.reset()
                    compiled = torch.compile(function, fullgraph=True, mode=mode)
                    for _ in range(3):  # warm-up, capture, replay
                        torch.testing.assert_close(compiled(*tensors), function(*tensors), rtol=0, atol=0)

    def test_a_step_that_writes_its_cache(self):
        def step(q, k, v, k_cache, v_cache, table, lens, q_indptr):
            attnsmith.append(k, v, k_cache, v_cache, kv_lens=lens, page_table=table, q_indptr=q_indptr, page_order="NHD")
            return attnsmith.paged_attention(q, (k_cache, v_cache), table, lens, causal=True)

        q, k_pages, v_pages, table, lens = self.paged()
        tensors = [q, self.randn(3, 2, 64), self.randn(3, 2, 64), k_pages, v_pages, table, lens,
                   torch.arange(4, device="cuda", dtype=torch.int32)]
        for mode in (None, "reduce-overhead"):
            with self.subTest(mode=mode):
                torch._dynamo.reset()
                compiled = torch.compile(step, fullgraph=True, mode=mode)
                for _ in range(3):
                    results = []
                    for call in (compiled, step):
                        given = [tensor.clone() for tensor in tensors]
                        results.append((call(*given).clone(), given))
                    torch.testing.assert_close(*results, rtol=0, atol=0)

    def test_written_outputs_and_merges(self):
        def both(q, k, v, out):
            parts = [attnsmith.attention(q, part, values, return_lse=True) for part, values in
                     zip(k.chunk(2, 1), v.chunk(2, 1))]
            o, lse = attnsmith.merge_states([o.flatten(0, 1) for o, _ in parts], [lse.flatten(0, 1) for _, lse in parts])
            attnsmith.attention(q, k, v, out=out)
            return o, lse, out + 1

        q, k, v = self.dense()
        out = torch.empty(2, 33, 8, 128, device="cuda", dtype=q.dtype)
        wanted = both(q, k, v, out.clone())
        torch.testing.assert_close(torch.compile(both, fullgraph=True)(q, k, v, out), wanted, rtol=0, atol=0)
        torch.testing.assert_close(out + 1, wanted[2], rtol=0, atol=0)

    def test_an_output_that_was_a_copy_of_an_input(self):
        """Whose memory Inductor gives to both."""
        def attend(q):
            q = q * 2
            out = q.clone()
            attnsmith.attention(q, q, q, out=out)
            return out

        q = self.randn(2, 300, 4, 64)
        torch.testing.assert_close(torch.compile(attend, fullgraph=True)(q), attend(q), rtol=0, atol=0)

    def test_queries_that_are_rotated_alone(self):
        def turn(q, positions, table):
            return attnsmith.append(q=q * 2, positions=positions, rope_table=table, rope="half") + 1

        tensors = self.randn(5, 8, 64), torch.arange(5, device="cuda"), self.randn(32, 64)
        torch.testing.assert_close(torch.compile(turn, fullgraph=True)(*tensors), turn(*tensors), rtol=0, atol=0)

    def test_make_fx_records_a_call(self):
        from torch.fx.experimental.proxy_tensor import make_fx
        tensors, others = self.dense(), self.dense()

        def attend(q, k, v):
            return attnsmith.attention(q, k, v, causal=True) * 2

        recorded = make_fx(attend)(*tensors)
        torch.testing.assert_close(recorded(*others), attend(*others), rtol=0, atol=0)

    def test_autocast(self):
        q, k, v = self.dense()
        compiled = torch.compile(lambda q, k, v: attnsmith.attention(q, k, v), fullgraph=True)
        with torch.autocast("cuda", torch.bfloat16):
            got = compiled(q.float(), k, v.float())
        torch.testing.assert_close(got, attnsmith.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()), rtol=0, atol=0)

    def test_exported(self):
        class Module(torch.nn.Module):
            def forward(self, q, k, v):
                return attnsmith.attention(q, k, v, causal=True) * 2

        tensors = tuple(self.dense())
        program = torch.export.export(Module(), tensors)
        torch.testing.assert_close(program.module()(*tensors), Module()(*tensors), rtol=0, atol=0)

    def test_exported_and_run_by_aotinductor(self):
        """In a process of its own, which tries first whether torch can load what it made of a module without attnsmith."""
        program = """
import torch

def run(function, *tensors):
    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(torch.export.export(Module(), tensors))
        torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*tensors), function(*tensors), rtol=0, atol=0)

q, k, v = (torch.randn(2, length, heads, 64, device="cuda").bfloat16() for length, heads in ((33, 8), (50, 2), (50, 2)))
run(lambda q: q * 2, q)
print("without", flush=True)
import attnsmith
run(lambda q, k, v: attnsmith.attention(q, k, v, causal=True) * 2, q, k, v)
print("with", flush=True)
"""
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        if done.returncode < 0 and not done.stdout:
            self.skipTest(f"torch's AOTInductor ends with signal {-done.returncode} here, attnsmith not being loaded")
        self.assertEqual((done.returncode, done.stdout), (0, "without\nwith\n"), done.stderr[-2000:])

    def test_side_streams(self):
        q, k, v = self.dense()
        compiled = torch.compile(lambda q, k, v: attnsmith.attention(q, k, v) * 2, fullgraph=True)
        wanted = compiled(q, k, v)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            got = compiled(q, k, v)
        stream.synchronize()
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)

    def test_another_device_than_the_current_one(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("one GPU")
        here = self.dense()
        there = [tensor.to("cuda:1") for tensor in here]
        compiled = torch.compile(lambda q, k, v: attnsmith.attention(q, k, v) * 2, fullgraph=True)
        wanted = compiled(*here)
        self.assertEqual(torch.cuda.current_device(), 0)
        torch.testing.assert_close(compiled(*there).to("cuda:0"), wanted, rtol=0, atol=0)
        torch.testing.assert_close(torch.ops.attnsmith.attention(*there).to("cuda:0") * 2, wanted, rtol=0, atol=0)
        with self.assertRaises(attnsmith.InvalidRequest):
            torch.ops.attnsmith.attention(here[0], there[1], there[2])

    def test_other_lengths_compile_nothing(self):
        compiled = torch.compile(lambda q, k, v: attnsmith.attention(q, k, v), fullgraph=True, dynamic=True)
        for lengths in ((33, 50), (34, 61), (5, 7)):
            with torch._dynamo.config.patch(error_on_recompile=lengths[0] != 33):
                tensors = self.dense(*lengths)
                torch.testing.assert_close(compiled(*tensors), attnsmith.attention(*tensors), rtol=0, atol=0)

    def test_operators_are_what_torch_expects(self):
        import attnsmith.torch  # which defines them  # noqa: F401
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(torch.ops.attnsmith.attention.default, tuple(self.dense()), {"causal": True}, test_utils=tests)
        torch.library.opcheck(torch.ops.attnsmith.paged_attention_with_lse.default, tuple(self.paged()), test_utils=tests)
        q, k, v = self.dense()
        torch.library.opcheck(torch.ops.attnsmith.attention_out.default, (self.randn(2, 33, 8, 128), q, k, v), test_utils=tests)
        states, lse = [self.randn(5, 4, 64) for _ in range(2)], [self.randn(5, 4).float() for _ in range(2)]
        torch.library.opcheck(torch.ops.attnsmith.merge_states_with_lse.default, (states, lse), test_utils=tests)
        k, caches = self.randn(3, 2, 64), [self.randn(7, 16, 2, 64) for _ in range(2)]
        slots = torch.tensor([1, 20, 3], device="cuda")
        torch.library.opcheck(torch.ops.attnsmith.append.default, (k, k.clone(), *caches),
                              {"slot_mapping": slots, "page_order": "NHD"}, test_utils=tests)

    def test_operators_in_cpp_have_the_bits_of_the_functions(self):
        """The first two calls of a layout are Python's, the others the library's."""
        import attnsmith.torch  # which defines the operators  # noqa: F401
        from attnsmith._operators import torch_ops
        self.assertIsNotNone(torch_ops._native, "there is no libattnsmith_torch, or torch refuses it")
        q, k_pages, v_pages, table, lens = self.paged()
        pages = torch.stack((k_pages, v_pages), 1)
        flat = [self.randn(70, 8, 64), self.randn(203, 2, 64), self.randn(203, 2, 64)]
        ends = [torch.tensor(numbers, device="cuda", dtype=torch.int32) for numbers in ((0, 5, 69, 70), (0, 9, 73, 203))]
        latents = self.randn(7, 16, 576)
        sinks, slopes = (torch.rand(8, device="cuda") for _ in range(2))
        calls = {
            "attention": [(self.dense(), {}), (self.dense(), {"causal": True, "softcap": 20.0, "sinks": sinks}),
                          (self.dense(5, 3000), {"alibi_slopes": slopes, "scale": 0.2, "o_dtype": "fp32"}),
                          (self.dense(), {"kv_lens": torch.tensor([50, 21], device="cuda", dtype=torch.int32)})],
            "varlen_attention": [((*flat, *ends), {"max_q_len": 64, "max_kv_len": 130}), ((*flat, *ends), {"causal": True})],
            "paged_attention": [((q, k_pages, v_pages, table, lens), {}), ((q, pages, None, table, lens), {"page_order": "NHD"})],
            "mla_attention": [((self.randn(3, 16, 576), latents, table, lens), {"scale": 0.1})]}
        for name, given in calls.items():
            function = getattr(attnsmith, name)
            for tensors, words in given:
                for with_lse in (False, True):
                    with self.subTest(name, with_lse=with_lse, **{word: str(words[word])[:20] for word in words}):
                        plain = (tensors[0], tensors[1] if tensors[2] is None else tensors[1:3], *tensors[3:]) \
                            if name == "paged_attention" else tensors
                        operator = getattr(torch.ops.attnsmith, f"{name}_with_lse" if with_lse else name)
                        to_out = getattr(torch.ops.attnsmith, f"{name}_out_with_lse" if with_lse else f"{name}_out")
                        before = sum(torch_ops._native.served().values())
                        for i in range(4):
                            tensors[0].mul_(-1.5)
                            wanted = function(*plain, return_lse=with_lse, **words)
                            got = operator(*tensors, **words)
                            out = torch.empty_like(wanted[0] if with_lse else wanted)
                            lse = to_out(out, *tensors, **words)
                            for one, other in zip(*((result if with_lse else (result,)) for result in (got, wanted))):
                                self.assertTrue(torch.equal(one, other), i)
                            self.assertTrue(torch.equal(out, wanted[0] if with_lse else wanted), i)
                            if with_lse:
                                self.assertTrue(torch.equal(lse, wanted[1]), i)
                        self.assertGreaterEqual(sum(torch_ops._native.served().values()) - before, 4)

    def test_a_gradient_is_refused(self):
        import attnsmith.torch  # which defines the operators  # noqa: F401
        q, k, v = self.dense()
        with torch.enable_grad():
            for call in (attnsmith.attention, torch.ops.attnsmith.attention):
                with self.assertRaises(attnsmith.InvalidRequest):
                    call(q.requires_grad_(), k, v)


if __name__ == "__main__":
    unittest.main()

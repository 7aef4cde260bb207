"""The plain functions under torch.compile, in CUDA graphs and through torch.ops, against their own plain calls."""

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

        for function, tensors in ((dense, self.dense()), (paged, self.paged())):
            for mode in (None, "reduce-overhead"):
                with self.subTest(function.__name__, mode=mode):
                    compiled = torch.compile(function, fullgraph=True, mode=mode)
                    for _ in range(3):  # warm-up, capture, replay
                        torch.testing.assert_close(compiled(*tensors), function(*tensors), rtol=0, atol=0)

    def test_other_lengths_compile_nothing(self):
        compiled = torch.compile(lambda q, k, v: attnsmith.attention(q, k, v), fullgraph=True, dynamic=True)
        for lengths in ((33, 50), (34, 61), (5, 7)):
            with torch._dynamo.config.patch(error_on_recompile=lengths[0] != 33):
                tensors = self.dense(*lengths)
                torch.testing.assert_close(compiled(*tensors), attnsmith.attention(*tensors), rtol=0, atol=0)

    def test_operators_are_what_torch_expects(self):
        from attnsmith import _torch_ops  # noqa: F401
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(torch.ops.attnsmith.attention.default, tuple(self.dense()), {"causal": True}, test_utils=tests)
        torch.library.opcheck(torch.ops.attnsmith.paged_attention_with_lse.default, tuple(self.paged()), test_utils=tests)

    def test_a_gradient_is_refused(self):
        q, k, v = self.dense()
        with self.assertRaises(attnsmith.InvalidRequest):
            attnsmith.attention(q.requires_grad_(), k, v)


if __name__ == "__main__":
    unittest.main()

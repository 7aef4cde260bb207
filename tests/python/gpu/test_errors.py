"""What is refused, by name: wrong devices, dtypes, shapes, gradients."""

import unittest

from gpu_support import GpuTest, lengths, nan, torch

import attnsmith


class Errors(GpuTest):
    def refused(self, field, *arguments, **options):
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            attnsmith.attention(*arguments, **options)
        self.assertIn(field, caught.exception.field)
        self.assertTrue(caught.exception.accepted)

    def setUp(self):
        super().setUp()
        self.q, self.k = self.randn(1, 8, 4, 64), self.randn(1, 8, 2, 64)

    def test_devices(self):
        self.refused("q.device", self.q.cpu(), self.k, self.k)
        self.refused("v.device", self.q, self.k, self.k.cpu())
        self.refused("kv_lens.device", self.q, self.k, self.k, kv_lens=torch.tensor([3], dtype=torch.int32))
        self.refused("out.device", self.q, self.k, self.k, out=self.q.cpu())
        self.refused("kv_lens", self.q, self.k, self.k, kv_lens=[3])
        self.refused("q", None, self.k, self.k)

    def test_dtypes(self):
        with self.assertRaisesRegex(attnsmith.Unsupported, "fp32"):
            attnsmith.attention(self.q.float(), self.k.float(), self.k.float())
        self.refused("q.dtype", self.q.double(), self.k, self.k)
        self.refused("k.dtype", self.q, self.k.half(), self.k)
        self.refused("dtype", self.q, self.k, self.k, kv_lens=lengths([3], torch.int16))
        self.refused("sinks.dtype", self.q, self.k, self.k, sinks=self.randn(4))
        self.refused("out.dtype", self.q, self.k, self.k, out=self.q.half())
        self.refused("o_dtype", self.q, self.k, self.k, o_dtype=torch.float16)

    def test_output_dtypes_that_contradict_each_other(self):
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "out.dtype: bf16.*fp32, as o_dtype says"):
            attnsmith.attention(self.q, self.k, self.k, out=torch.empty_like(self.q), o_dtype="fp32")
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "out.dtype: fp32.*bf16, as o_dtype says"):
            attnsmith.attention(self.q, self.k, self.k, out=torch.empty_like(self.q, dtype=torch.float32),
                                o_dtype=torch.bfloat16)

    def test_shapes(self):
        self.refused("q.shape", self.q[0], self.k, self.k)
        self.refused("k.shape", self.q, self.k[..., :32], self.k)
        self.refused("v.shape", self.q, self.k, self.k[:, :5])
        self.refused("kv_heads", self.q, self.randn(1, 8, 3, 64), self.randn(1, 8, 3, 64))
        with self.assertRaisesRegex(attnsmith.Unsupported, "head_dim 60 is not supported"):
            attnsmith.attention(*[self.randn(1, 8, 4, 60)] * 3)
        self.refused("o.shape", self.q, self.k, self.k, out=nan(1, 8, 4, 32, dtype=self.q.dtype))
        self.refused("strides", self.q.transpose(2, 3).contiguous().transpose(2, 3), self.k, self.k)
        self.refused("o", self.q, self.k, self.k, out=self.q)

    def test_words(self):
        with self.assertRaisesRegex(attnsmith.InvalidRequest, r"\(127, 0\)"):
            attnsmith.attention(self.q, self.k, self.k, window=128)
        self.refused("precision", self.q, self.k, self.k, precision="highest")
        self.refused("scale", self.q, self.k, self.k, scale=-1.0)
        self.refused("window_left", self.q, self.k, self.k, causal=True, window=(-3, 3))
        self.refused("window_right", self.q, self.k, self.k, causal=True, window=(9, 4))

    def test_tangents(self):
        import attnsmith.torch  # which defines the operators  # noqa: F401
        q = self.randn(1, 8, 2, 64)
        attnsmith.attention(q, q, q)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
            for call in (attnsmith.attention, torch.ops.attnsmith.attention):
                with self.assertRaisesRegex(attnsmith.InvalidRequest, "k.tangent"):
                    call(q, dual, q)
            attnsmith.attention(q, q, q)

    def test_gradients(self):
        leaf = self.q.clone().requires_grad_()
        with torch.enable_grad():
            with self.assertRaisesRegex(attnsmith.InvalidRequest, r"torch.no_grad\(\).*q.detach\(\)"):
                attnsmith.attention(leaf, self.k, self.k)
            attnsmith.attention(leaf.detach(), self.k, self.k)
        attnsmith.attention(leaf, self.k, self.k)

    def test_sparse_tensors(self):
        self.refused("q", torch.zeros(1, 8, 4, 64, device=self.q.device).to_sparse(), self.k, self.k)

    def test_a_failed_call_leaves_no_trace(self):
        for _ in range(3):
            self.refused("k.dtype", self.q, self.k.half(), self.k)
            attnsmith.attention(self.q, self.k, self.k)


if __name__ == "__main__":
    unittest.main()

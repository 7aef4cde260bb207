"""attnsmith.torch.scaled_dot_product_attention against torch's own, in fp64."""

import unittest

from gpu_support import GpuTest, torch

import attnsmith
from attnsmith.torch import scaled_dot_product_attention as sdpa


class Sdpa(GpuTest):
    def wanted(self, q, k, v, is_causal=False, scale=None, enable_gqa=False):
        if enable_gqa:
            group = q.shape[-3] // k.shape[-3]
            k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
        return torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(),
                                                                is_causal=is_causal, scale=scale)

    def check(self, q, k, v, **options):
        got = sdpa(q, k, v, **options)
        self.assertEqual(got.dtype, q.dtype)
        self.assert_near(got, self.wanted(q, k, v, **options))

    def test_batches(self):
        for dtype in (torch.float16, torch.bfloat16):
            for lead in ((2, 4), (3, 2, 4), (4,), ()):
                q = self.randn(*lead, 33, 64, dtype=dtype)
                k, v = (self.randn(*lead, 50, 64, dtype=dtype) for _ in range(2))
                with self.subTest(lead=lead, dtype=dtype):
                    self.check(q, k, v)

    def test_causal_is_counted_from_the_top(self):
        for q_len, kv_len in ((33, 33), (10, 50), (50, 10), (1, 40), (40, 1), (64, 63), (63, 64)):
            with self.subTest(q_len=q_len, kv_len=kv_len):
                self.check(self.randn(2, 4, q_len, 64), self.randn(2, 4, kv_len, 64), self.randn(2, 4, kv_len, 64),
                           is_causal=True)

    def test_gqa(self):
        q, k, v = self.randn(2, 8, 30, 64), self.randn(2, 2, 30, 64), self.randn(2, 2, 30, 128)
        self.check(q, k, v, is_causal=True, enable_gqa=True, scale=0.2)
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "enable_gqa"):
            sdpa(q, k, v)

    def test_views(self):
        q, k, v = self.randn(2, 50, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        self.check(q, k, v, is_causal=True)
        big = self.randn(4, 3, 4, 30, 64)
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "contiguous"):
            sdpa(big[:, :2], big[:, :2], big[:, :2])

    def test_the_usual_reshape_is_a_view(self):
        for tensors in ([self.randn(2, 4, 30, 64) for _ in range(3)], [self.randn(2, 30, 4, 64).transpose(1, 2) for _ in range(3)]):
            o = sdpa(*tensors)
            self.assertEqual(o.transpose(1, 2).reshape(2, 30, 256).data_ptr(), o.data_ptr())

    def test_what_is_refused(self):
        q = self.randn(1, 2, 8, 64)
        with self.assertRaisesRegex(attnsmith.Unsupported, "attn_mask"):
            sdpa(q, q, q, attn_mask=torch.ones(8, 8, dtype=torch.bool))
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "value.shape.*8 tokens"):
            sdpa(q[:, :, :4], q, q[:, :, :5], is_causal=True)  # of which only 4 keys count
        for shape in ((2, 8, 64), (1, 1, 2, 8, 64), (2, 2, 8, 64)):
            with self.assertRaisesRegex(attnsmith.InvalidRequest, "key.shape.*leading"):
                sdpa(q, *[self.randn(*shape)] * 2)
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "resolve_neg"):
            sdpa(q, torch._neg_view(q), q)
        with self.assertRaisesRegex(attnsmith.Unsupported, "dropout_p"):
            sdpa(q, q, q, dropout_p=0.1)
        with torch.enable_grad(), self.assertRaisesRegex(attnsmith.InvalidRequest, "value.detach"):
            sdpa(q, q, self.randn(1, 2, 8, 64).requires_grad_())


if __name__ == "__main__":
    unittest.main()

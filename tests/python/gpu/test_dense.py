"""attention() against an fp64 reference: options, strides, lengths on the device."""

import itertools
import unittest

from gpu_support import GpuTest, lengths, nan, reference, torch

import attnsmith
from attnsmith._adapters import heads_first as _heads_first


class Dense(GpuTest):
    def check(self, q, k, v, *, q_lens=None, kv_lens=None, index_dtype=None, **options):
        """All of attention()'s outputs, in new and in poisoned memory."""
        device_lens = {name: lengths(lens, index_dtype) for name, lens in (("q_lens", q_lens), ("kv_lens", kv_lens))
                       if lens is not None}
        out = nan(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        plain = attnsmith.attention(q, k, v, **device_lens, **options)
        o, lse = attnsmith.attention(q, k, v, out=out, return_lse=True, **device_lens, **options)
        self.assertEqual(o.data_ptr(), out.data_ptr())
        self.assertEqual((plain.dtype, plain.device, tuple(plain.shape)), (q.dtype, q.device, tuple(out.shape)))
        self.assertEqual(lse.dtype, torch.float32)
        _, heads_first = attnsmith.attention(q, k, v, return_lse=True, lse_order="HND", **device_lens, **options)
        if q_lens is None and options.keys() <= {"causal", "window", "softcap", "sinks", "scale"}:
            words = {"causal": False, "kv_lens": device_lens.get("kv_lens"), **options}
            same = _heads_first.attention(*(tensor.transpose(1, 2) for tensor in (q, k, v)), **words)
            self.assertEqual((same.shape, same.stride()), (plain.shape, plain.stride()))
            self.assertTrue(torch.equal(same, plain))
        for b in range(q.shape[0]):
            rows = q.shape[1] if q_lens is None else q_lens[b]
            keys = k.shape[1] if kv_lens is None else kv_lens[b]
            wanted = reference(q[b, :rows], k[b, :keys], v[b, :keys], **options)
            self.assert_near(o[b, :rows], wanted[0], f"o of sequence {b}")
            self.assert_near(plain[b, :rows], wanted[0], f"o without lse of sequence {b}")
            self.assert_near(lse[b, :rows], wanted[1], f"lse of sequence {b}")
            self.assertTrue(torch.equal(heads_first[b, :, :rows].T, lse[b, :rows]))  # rows behind are not written

    def tensors(self, batch=2, q_len=33, kv_len=70, q_heads=4, kv_heads=2, dim=64, dim_vo=None, dtype=None):
        return (self.randn(batch, q_len, q_heads, dim, dtype=dtype),
                self.randn(batch, kv_len, kv_heads, dim, dtype=dtype),
                self.randn(batch, kv_len, kv_heads, dim_vo or dim, dtype=dtype))

    def test_dtypes_and_heads(self):
        for dtype, heads in itertools.product((torch.float16, torch.bfloat16), ((4, 4), (8, 2), (6, 1))):
            with self.subTest(dtype=dtype, heads=heads):
                self.check(*self.tensors(q_heads=heads[0], kv_heads=heads[1], dtype=dtype), causal=True)

    def test_head_dims(self):
        for dim, dim_vo in ((8, 8), (40, 40), (128, 128), (192, 128), (256, 256)):
            with self.subTest(dim=dim, dim_vo=dim_vo):
                self.check(*self.tensors(dim=dim, dim_vo=dim_vo))

    def test_masks(self):
        for options in ({"causal": True}, {"window": (5, 3)}, {"window": (7, 0)}, {"window": (None, 2)},
                        {"window": [4, -1]}, {"causal": True, "window": (9, None)}, {"causal": True, "window": (9, 0)},
                        {"causal": True, "window": (9, -1), "softcap": 0.0}, {"causal": True, "attention_chunk": 16},
                        {"attention_chunk": 24}, {"causal": True, "attention_chunk": 0},
                        {"causal": True, "window": (9, 0), "attention_chunk": 48}):
            with self.subTest(**options):
                self.check(*self.tensors(), **options)

    def test_tensors_whose_heads_come_first(self):
        """Tensors of any memory, also where heads are as many as tokens, which a shape does not tell apart."""
        for heads, tokens in ((4, 33), (4, 4), (1, 7), (4, 1)):
            for rows_first in (False, True):
                with self.subTest(heads=heads, tokens=tokens, rows_first=rows_first):
                    q, k, v = self.tensors(q_len=tokens, kv_len=tokens, q_heads=heads, kv_heads=1)
                    first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
                    if not rows_first:
                        first = [tensor.contiguous() for tensor in first]
                    o, lse = attnsmith.attention(q, k, v, causal=True, return_lse=True, lse_order="HND")
                    for _ in range(3):  # the second is remembered, the third looked up
                        got = _heads_first.attention(*first, causal=True)
                        self.assertTrue(torch.equal(got, o) and got.is_contiguous())
                        for out in (nan(2, heads, tokens, 64, dtype=q.dtype), nan(2, tokens, heads, 64, dtype=q.dtype).transpose(1, 2)):
                            told = _heads_first.attention_into(out, *first, causal=True, scale=None)
                            self.assertTrue(torch.equal(out, o.transpose(1, 2)) and torch.equal(told, lse))

    def test_more_queries_than_keys(self):
        self.check(*self.tensors(q_len=40, kv_len=17), causal=True)  # the first rows see nothing

    def test_scores(self):
        slopes, sinks = self.randn(4, dtype=torch.float32).abs() / 4, self.randn(4, dtype=torch.float32)
        for options in ({"scale": 0.3}, {"softcap": 2.0}, {"sinks": sinks}, {"alibi_slopes": slopes},
                        {"causal": True, "softcap": 3.0, "sinks": sinks, "window": (20, 0), "scale": 0.2}):
            with self.subTest(words=sorted(options)):
                self.check(*self.tensors(), **options)

    def test_precision_high_or_refused(self):
        q, k, v = self.tensors(batch=1)
        try:
            self.assert_near(attnsmith.attention(q, k, v, precision="high")[0], reference(q[0], k[0], v[0])[0])
        except attnsmith.Unsupported as error:
            self.assertTrue(error.refusals)

    def test_outputs_of_fp32(self):
        for dtype in (torch.float16, torch.bfloat16):
            q, k, v = self.tensors(dtype=dtype)
            rounded = attnsmith.attention(q, k, v, causal=True)
            for o_dtype in ("fp32", torch.float32):
                o = attnsmith.attention(q, k, v, causal=True, o_dtype=o_dtype)
                self.assertEqual((o.dtype, o.device, o.shape), (torch.float32, q.device, q.shape))
                self.assertTrue(torch.equal(o.to(dtype), rounded), "o is not what the rounded one was rounded from")
                self.assertFalse(torch.equal(o, rounded.float()), "o was rounded")
            out = nan(*q.shape, dtype=torch.float32)
            self.assertIs(attnsmith.attention(q, k, v, causal=True, out=out), out)
            self.assertTrue(torch.equal(out, o))
            wide = nan(*q.shape[:-1], q.shape[-1] + 1, dtype=torch.float32)  # rows at multiples of 4 bytes alone
            attnsmith.attention(q, k, v, causal=True, out=wide[..., :-1])
            self.assert_near(wide[..., :-1], rounded)  # by another kernel
            self.assertTrue(wide[..., -1].isnan().all())

    def test_outputs_of_fp32_from_a_split(self):
        q, k, v = self.tensors(batch=1, q_len=1, kv_len=9000, q_heads=8, kv_heads=2, dim=128)
        o = attnsmith.attention(q, k, v, o_dtype="fp32")
        self.assertTrue(torch.equal(o.to(q.dtype), attnsmith.attention(q, k, v)))
        self.assertFalse(torch.equal(o, o.to(q.dtype).float()))

    def test_precision_high_in_fp32(self):
        for dtype, options in itertools.product(
                (torch.float16, torch.bfloat16),
                ({}, {"causal": True}, {"window": (9, 4)}, {"softcap": 3.0}, {"scale": 0.9})):
            q, k, v = self.tensors(dtype=dtype, kv_len=700, **({"dim": 128} if options else {"q_len": 1}))
            with self.subTest(dtype=dtype, **options):
                o, lse = attnsmith.attention(q, k, v, precision="high", o_dtype="fp32", return_lse=True, **options)
                rounded = attnsmith.attention(q, k, v, precision="high", **options)
                self.assertEqual(rounded.dtype, dtype)
                self.assertTrue(torch.equal(o.to(dtype), rounded))
                for b in range(q.shape[0]):
                    wanted = reference(q[b], k[b], v[b], **options)
                    self.assert_within(1e-5, o[b], wanted[0], f"o of sequence {b}")
                    self.assert_within(1e-5, lse[b], wanted[1], f"lse of sequence {b}")

    def test_lengths_on_the_device(self):
        for index_dtype in (torch.int32, torch.int64):
            q, k, v = self.tensors(batch=4)
            kv_lens = [70, 1, 0, 33]
            for b, keys in enumerate(kv_lens):  # unused memory changes nothing
                k[b, keys:], v[b, keys:] = float("nan"), float("nan")
            with self.subTest(index_dtype=index_dtype):
                self.check(q, k, v, kv_lens=kv_lens, q_lens=[33, 1, 7, 0], causal=True, index_dtype=index_dtype)

    def test_decode_with_a_split(self):
        self.check(*self.tensors(batch=1, q_len=1, kv_len=9000, q_heads=8, kv_heads=2, dim=128), causal=True)

    def test_growing_sequences(self):
        q, k, v = self.tensors(batch=1, q_len=1, kv_len=300)
        for kv_len in (1, 2, 3, 127, 128, 129, 300):
            self.check(q, k[:, :kv_len], v[:, :kv_len], causal=True)

    def test_nothing(self):
        for batch, q_len, kv_len in ((0, 3, 3), (2, 0, 3), (2, 3, 0)):
            with self.subTest(batch=batch, q_len=q_len, kv_len=kv_len):
                self.check(*self.tensors(batch=batch, q_len=q_len, kv_len=kv_len))

    # ---- Strides

    def test_heads_before_tokens(self):
        q, k, v = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in self.tensors())
        self.check(q, k, v, causal=True)

    def test_packed_qkv(self):
        packed = self.randn(2, 50, 3, 4, 64)
        self.check(*packed.unbind(2), causal=True)
        flat = self.randn(2, 50, (8 + 2 * 2) * 64)
        q, k, v = flat.split([8 * 64, 2 * 64, 2 * 64], dim=-1)
        self.check(q.view(2, 50, 8, 64), k.view(2, 50, 2, 64), v.view(2, 50, 2, 64), causal=True)

    def test_slices(self):
        q, k, v = self.tensors(batch=5, q_len=40, kv_len=90)
        self.check(q[1::2, 3:36], k[1::2, :70], v[1::2, 20:])

    def test_a_batch_that_shares_keys(self):
        q, k, v = self.tensors(batch=3)
        self.check(q, k[:1].expand(3, -1, -1, -1), v[:1].expand(3, -1, -1, -1))

    def test_alignment_classes(self):
        """Memory that is aligned to 8, 4 and 2 bytes alone, by its base and by its rows."""
        for odd in (4, 2, 1):
            flat = self.randn(2, 33, 2, 64 + odd)
            for view in (flat[..., odd:], flat[..., :64]):
                with self.subTest(elements=odd):
                    self.check(view, view, view, causal=True)

    def test_strided_outputs(self):
        q, k, v = self.tensors()
        for odd in (0, 1):
            room = nan(2, 4, 33, 64 + odd, dtype=q.dtype)
            out = room.transpose(1, 2)[..., odd:]
            attnsmith.attention(q, k, v, out=out)
            for b in range(2):
                self.assert_near(out[b], reference(q[b], k[b], v[b])[0])
            if odd:
                self.assertTrue(torch.isnan(room[..., 0]).all(), "written outside of out")


if __name__ == "__main__":
    unittest.main()

"""attnsmith.compat.flash_attn: what FlashAttention's arguments mean, by the plain functions' stand-in."""

import math
import re
import unittest
import unittest.mock

from flash_attn_cases import FlashTest, batched, flash
from support import attnsmith

try:
    import torch
except ImportError:
    torch = None
else:
    from stand_in import functions

    import attnsmith.compat.flash_attn as fa

    REAL_ATTENTION = functions.attention


class Dense(FlashTest):
    def check(self, q, k, v, reference=None, **words):
        """out and the LSE; `reference`: the words as flash() has them, where they differ."""
        wanted, wanted_lse = batched(q, k, v, **(words if reference is None else reference))
        out, lse, nothing = fa.flash_attn_func(q, k, v, return_attn_probs=True, **words)
        self.assert_same(out, wanted)
        self.assert_same(lse, wanted_lse)
        self.assertTrue(lse.is_contiguous())
        self.assertEqual((lse.dtype, tuple(nothing.shape), nothing.dtype), (torch.float32, (0,), q.dtype))
        self.assert_same(fa.flash_attn_func(q, k, v, **words), wanted)

    def test_no_words(self):
        self.check(*self.dense())
        self.check(*self.dense(heads=3, kv_heads=3))
        self.check(*self.dense(heads=4, kv_heads=1, value_columns=16))

    def test_causal_aligns_the_last_query_with_the_last_key(self):
        for q_len, k_len in ((2, 5), (5, 5), (1, 4)):
            with self.subTest(q_len=q_len, k_len=k_len):
                self.check(*self.dense(q_len, k_len), causal=True)

    def test_a_query_that_sees_no_key_gives_0_and_minus_infinity(self):
        q, k, v = self.dense(5, 2)
        self.check(q, k, v, causal=True)
        out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
        self.assertTrue((out[:, :3] == 0).all() and (lse[:, :, :3] == -math.inf).all())
        self.assertTrue(lse[:, :, 3:].isfinite().all())
        self.check(*self.dense(3, 0))

    def test_windows(self):
        for window in ((2, 1), (0, 0), (3, -1), (-1, 2), (-1, -1), (-7, 0), (None, 1), [1, 1]):
            for causal in (False, True):
                with self.subTest(window=window, causal=causal):
                    self.check(*self.dense(4, 6), window_size=window, causal=causal)

    def test_softmax_scale_and_softcap(self):
        for words in ({"softmax_scale": 0.3}, {"softcap": 0.7}, {"softcap": 0.0}, {"softcap": -1.0},
                      {"softmax_scale": 1.2, "softcap": 2.5, "causal": True}):
            with self.subTest(**words):
                self.check(*self.dense(), **words)
        self.check(*self.dense(), reference={}, softcap=None)

    def test_alibi_where_no_later_key_is_seen(self):
        slopes = torch.rand(4)
        for words in ({"causal": True}, {"window_size": (3, 0)}, {"causal": True, "window_size": (2, 2)}):
            with self.subTest(**words):
                self.check(*self.dense(), alibi_slopes=slopes, **words)
        self.check(*self.dense(1, 6), alibi_slopes=slopes)
        for words in ({}, {"window_size": (3, 1)}, {"window_size": (3, -1)}):
            with self.subTest(refused=words):
                self.assert_refused("alibi_slopes", attnsmith.Unsupported, fa.flash_attn_func, *self.dense(),
                                    alibi_slopes=slopes, **words)

    def test_alibi_of_a_batch_is_one_row(self):
        slopes = torch.rand(4)
        for given in (slopes.expand(2, 4), slopes[None]):
            self.check(*self.dense(), reference={"causal": True, "alibi_slopes": slopes}, causal=True,
                       alibi_slopes=given)

    def test_alibi_of_each_sequence(self):
        slopes, (q, k, v) = torch.rand(2, 4), self.dense()
        each = [batched(*(x[b:b + 1] for x in (q, k, v)), causal=True, alibi_slopes=slopes[b]) for b in range(2)]
        wanted, wanted_lse = (torch.cat(parts) for parts in zip(*each))
        out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, return_attn_probs=True)
        self.assert_same(out, wanted)
        self.assert_same(lse, wanted_lse)
        self.assertEqual(len(self.calls), 2, "a launch for each")
        cache = [self.randn(3, 9, 2, 8), self.randn(3, 9, 2, 8)]
        rows, lens = self.integers(2, 0), self.integers(7, 4)
        each = [flash(q[b], cache[0][row][:n], cache[1][row][:n], causal=True, alibi_slopes=slopes[b])[0]
                for b, (row, n) in enumerate(zip((2, 0), (7, 4)))]
        for words in ({"cache_batch_idx": rows}, {"block_table": rows[:, None]}):
            out = torch.empty_like(q)
            got = fa.flash_attn_with_kvcache(q, *cache, cache_seqlens=lens, causal=True, alibi_slopes=slopes, out=out, **words)
            self.assertIs(got, out)
            self.assert_same(got, torch.stack(each))
        self.assert_refused("alibi_slopes.shape", attnsmith.InvalidRequest, fa.flash_attn_func, q, k, v, causal=True,
                            alibi_slopes=torch.rand(3, 4))
        offsets = self.integers(0, 5, 10), self.integers(0, 7, 14)
        self.assert_refused("alibi_slopes", attnsmith.Unsupported, fa.flash_attn_varlen_func,
                            *(x.flatten(0, 1) for x in (q, k, v)), *offsets, 5, 7, causal=True, alibi_slopes=slopes)

    def test_words_of_other_types(self):
        """causal as a number, and windows that a tensor holds."""
        q, k, v = self.dense(4, 6)
        for causal in (1, 0):
            self.assert_same(fa.flash_attn_func(q, k, v, causal=causal), batched(q, k, v, causal=bool(causal))[0])
            self.assertIs(self.calls[-1][2]["causal"], bool(causal))
        for window in (torch.tensor([2, 1]), (torch.tensor(2), torch.tensor([1])), torch.tensor([2, 1], dtype=torch.int32)):
            self.assert_same(fa.flash_attn_func(q, k, v, window_size=window), batched(q, k, v, window_size=(2, 1))[0])
            self.assertEqual([type(side) for side in self.calls[-1][2]["window"]], [int, int])
        self.assert_same(fa.flash_attn_func(q, k, v, window_size=torch.tensor([-1, -1])), batched(q, k, v)[0])
        for name, value in (("causal", 2), ("causal", "yes"), ("window_size", torch.tensor([2, 1, 1])),
                            ("window_size", ()), ("window_size", (5,)), ("window_size", 5), ("window_size", "ab"),
                            ("window_size", torch.tensor([2.0, 1.0]))):
            # By attnsmith's own function, which the stand-in is not.
            with unittest.mock.patch.object(functions, "attention", REAL_ATTENTION):
                self.assert_refused(name, attnsmith.InvalidRequest, fa.flash_attn_func, *(x.bfloat16() for x in (q, k, v)),
                                    **{name: value})

    def test_a_causal_mask_ends_windows_at_the_query(self):
        """As in FlashAttention; attnsmith's functions refuse a bound to the right beside it."""
        q, k, v = self.dense(4, 6)
        for window, passed in (((2, 3), (2, None)), ((2, -1), (2, None)), ((-1, 3), None), (torch.tensor([2, 2]), (2, None))):
            self.assert_same(fa.flash_attn_func(q, k, v, causal=True, window_size=window),
                             batched(q, k, v, causal=True, window_size=(passed or (-1,))[0:1] + (-1,))[0])
            self.assertEqual(self.calls[-1][2]["window"], passed)

    def test_scheduler_metadata_is_nothing(self):
        told = fa.get_scheduler_metadata(batch_size=2, max_seqlen_q=1, max_seqlen_k=9, num_heads_q=4, num_heads_kv=2, headdim=8)
        self.assertIsNone(told)
        self.assertIsNone(fa.flash_attn_interface.get_scheduler_metadata(2, 1, 9, 4, 2, 8, self.integers(9, 9)))
        q, k, v = self.dense()
        self.assert_same(fa.flash_attn_with_kvcache(q, k, v, scheduler_metadata=told), batched(q, k, v)[0])

    def test_sinks_by_either_name_in_16_or_32_bits(self):
        for dtype in (torch.float32, torch.bfloat16):
            sinks = torch.randn(4).to(dtype)
            for name in ("sinks", "s_aux"):
                with self.subTest(name, dtype=dtype):
                    self.check(*self.dense(5, 3), reference={"sinks": sinks, "causal": True}, causal=True,
                               **{name: sinks})
                    self.assertEqual(self.calls[-1][2]["sinks"].dtype, torch.float32)

    def test_attention_chunks(self):
        for words in ({}, {"causal": True}, {"window_size": (2, 1)}):
            for chunk in (0, 1, 3, 100):
                with self.subTest(chunk=chunk, **words):
                    self.check(*self.dense(4, 7), attention_chunk=chunk, **words)

    def test_any_strides(self):
        q, k, v = self.dense()
        wanted, _ = batched(q, k, v)
        transposed = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
        self.assert_same(fa.flash_attn_func(*transposed), wanted)
        self.assertIs(self.calls[-1][1][0], transposed[0])
        inner = [tensor.transpose(1, 3).contiguous().transpose(1, 3) for tensor in (q, k, v)]
        self.assertTrue(all(tensor.stride(-1) != 1 for tensor in inner))
        self.assert_same(fa.flash_attn_func(*inner), wanted)
        self.assertTrue(all(tensor.stride(-1) == 1 for tensor in self.calls[-1][1]))

    def test_empty_batches(self):
        for batch, q_len, k_len in ((0, 3, 4), (2, 0, 4)):
            out, lse, _ = fa.flash_attn_func(*self.dense(q_len, k_len, batch=batch), return_attn_probs=True)
            self.assertEqual((tuple(out.shape), tuple(lse.shape)), ((batch, q_len, 4, 8), (batch, 4, q_len)))

    def test_packed_tensors(self):
        q, k, v = self.dense(5, 5, kv_heads=4)
        wanted, wanted_lse = batched(q, k, v, causal=True, window_size=(2, 0))
        words = {"causal": True, "window_size": (2, 0), "return_attn_probs": True}
        for out, lse, nothing in (fa.flash_attn_qkvpacked_func(torch.stack((q, k, v), 2), **words),
                                  fa.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), **words)):
            self.assert_same(out, wanted)
            self.assert_same(lse, wanted_lse)
            self.assertEqual(nothing.numel(), 0)

    def test_packed_tensors_with_fewer_kv_heads(self):
        q, k, v = self.dense(5, 5)
        wanted, _ = batched(q, k, v, attention_chunk=2)
        self.assert_same(fa.flash_attn_kvpacked_func(q, torch.stack((k, v), 2)), batched(q, k, v)[0])
        qkv = torch.cat((q, k, v), 2)
        self.assert_same(fa.flash_attn_qkvpacked_func(qkv, num_heads_q=4, attention_chunk=2), wanted)
        for heads in (3, 8, 9):
            self.assert_refused("num_heads_q", attnsmith.InvalidRequest, fa.flash_attn_qkvpacked_func, qkv,
                                num_heads_q=heads)

    def test_scales_of_keys_and_values_of_8_bits(self):
        q = torch.randn(2, 3, 4, 8).bfloat16()
        k, v = (torch.randn(2, 6, 2, 8).to(torch.float8_e4m3fn) for _ in range(2))
        k_scale, v_scale = torch.tensor([0.5, 2.0]), torch.tensor([3.0, 0.25])
        one = torch.tensor(0.5)

        def wanted(k_scale, v_scale):
            return batched(q, k.double() * k_scale[:, None], v.double() * v_scale[:, None])[0]

        both, ones = (k_scale, v_scale), torch.ones(2)
        for given, of_heads in ((both, both), ((k_scale[None], v_scale[None]), both),
                                ((k_scale.expand(2, 2), v_scale.expand(2, 2)), both),
                                ((one.expand(2, 2), one.expand(2, 2)), (one.expand(2), one.expand(2))),
                                ((k_scale, None), (k_scale, ones)), ((None, v_scale), (ones, v_scale))):
            out = fa.flash_attn_func(q, k, v, k_descale=given[0], v_descale=given[1])
            torch.testing.assert_close(out.double(), wanted(*of_heads), rtol=1e-2, atol=1e-2)
            for name in ("k_scale", "v_scale"):
                self.assertIn(self.calls[-1][2][name].stride(), ((1,), (0,)))
        self.assertEqual(tuple(self.scale_of(one.expand(2, 2)).shape), (1,))
        for name in ("k_descale", "v_descale"):
            self.assert_refused(name, attnsmith.Unsupported, fa.flash_attn_func, q, k, v, **{name: torch.rand(2, 2)})

    def scale_of(self, given):
        q, k, v = (tensor.bfloat16() for tensor in self.dense())
        fa.flash_attn_func(q, k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn), k_descale=given, v_descale=given)
        return self.calls[-1][2]["k_scale"]


class Latents(FlashTest):
    """qv, which FlashAttention 3 has for latent attention: q k^T + qv v^T over one KV head."""

    def test_all_storages(self):
        q, qv = self.randn(2, 3, 4, 8), self.randn(2, 3, 4, 16)
        k, v = self.randn(2, 6, 1, 8), self.randn(2, 6, 1, 16)
        joined = torch.cat((q, qv), -1), torch.cat((k, v), -1), v
        for scale in (None, 0.2):
            wanted, wanted_lse = batched(*joined, causal=True, softmax_scale=scale)
            words = {"qv": qv, "causal": True, "softmax_scale": scale}
            out, lse, _ = fa.flash_attn_func(q, k, v, return_attn_probs=True, **words)
            self.assert_same(out, wanted)
            self.assert_same(lse, wanted_lse)
            self.assert_same(fa.flash_attn_with_kvcache(q, k, v, **words), wanted)
            words["qv"] = qv.flatten(0, 1)
            offsets = self.integers(0, 3, 6), self.integers(0, 6, 12)
            out = fa.flash_attn_varlen_func(*(tensor.flatten(0, 1) for tensor in (q, k, v)), *offsets, 3, 6, **words)
            self.assert_same(out, wanted.flatten(0, 1))
            pages = [tensor.view(6, 2, 1, -1) for tensor in (k, v)]
            out = fa.flash_attn_with_kvcache(q.flatten(0, 1), *pages, cache_seqlens=6, cu_seqlens_q=offsets[0],
                                             max_seqlen_q=3, page_table=self.integers(0, 1, 2, 3, 4, 5).view(2, 3),
                                             **words)
            self.assert_same(out, wanted.flatten(0, 1))
        self.assertEqual({name for name, _, _ in self.calls}, {"mla_attention"})

    def test_what_latent_attention_lacks_is_refused(self):
        q, qv = self.randn(2, 3, 4, 8), self.randn(2, 3, 4, 16)
        k, v = self.randn(2, 6, 1, 8), self.randn(2, 6, 1, 16)
        for name, value in (("window_size", (3, 0)), ("attention_chunk", 4), ("softcap", 1.0), ("sinks", torch.rand(4)),
                            ("s_aux", torch.rand(4)), ("k_descale", torch.rand(1)), ("alibi_slopes", torch.rand(4))):
            with self.subTest(name):
                self.assert_refused(name, attnsmith.Unsupported, fa.flash_attn_func, q, k, v, qv=qv, causal=True,
                                    **{name: value})
        self.assert_refused("qv", attnsmith.Unsupported, fa.flash_attn_func, q, k.expand(2, 6, 2, 8),
                            v.expand(2, 6, 2, 16), qv=qv)


class Ragged(FlashTest):
    Q_LENS, K_LENS = (3, 0, 1, 4, 2), (5, 2, 0, 3, 2)

    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = self.randn(10, 4, 8), self.randn(12, 2, 8), self.randn(12, 2, 16)
        self.offsets = self.integers(0, 3, 3, 4, 8, 10), self.integers(0, 5, 7, 7, 10, 12)

    def wanted(self, q, k, v, **words):
        each = [flash(*one, **words) for one in zip(q.split(self.Q_LENS), k.split(self.K_LENS), v.split(self.K_LENS))]
        return torch.cat([out for out, _ in each]), torch.cat([lse for _, lse in each], 1)

    def check(self, reference=None, **words):
        wanted, wanted_lse = self.wanted(self.q, self.k, self.v, **(words if reference is None else reference))
        given = (self.q, self.k, self.v, *self.offsets, 4, 5)
        out, lse, nothing = fa.flash_attn_varlen_func(*given, return_attn_probs=True, **words)
        self.assert_same(out, wanted)
        self.assert_same(lse, wanted_lse)
        self.assertTrue(lse.is_contiguous() and nothing.numel() == 0)
        self.assert_same(fa.flash_attn_varlen_func(*given, **words), wanted)
        out, lse = fa.flash_attn_varlen_func(*given, return_softmax_lse=True, **words)
        self.assert_same(lse, wanted_lse)

    def test_words_and_sequences_of_no_length(self):
        sinks, slopes = torch.randn(4), torch.rand(4)
        for words in ({}, {"causal": True}, {"window_size": (1, 1)}, {"softcap": 0.9, "softmax_scale": 0.8},
                      {"attention_chunk": 2}, {"alibi_slopes": slopes, "causal": True},
                      {"sinks": sinks, "causal": True}):
            with self.subTest(**words):
                self.check(**words)
        self.check(reference={"sinks": sinks}, s_aux=sinks)

    def test_packed_tensors(self):
        k, v = self.randn(10, 4, 8), self.randn(10, 4, 8)
        offsets = self.offsets[0]
        each = [flash(*one, causal=True) for one in zip(*(tensor.split(self.Q_LENS) for tensor in (self.q, k, v)))]
        wanted, wanted_lse = torch.cat([out for out, _ in each]), torch.cat([lse for _, lse in each], 1)
        words = {"causal": True, "return_attn_probs": True}
        for out, lse, _ in (
                fa.flash_attn_varlen_qkvpacked_func(torch.stack((self.q, k, v), 1), offsets, 4, **words),
                fa.flash_attn_varlen_kvpacked_func(self.q, torch.stack((k, v), 1), offsets, offsets, 4, 4, **words)):
            self.assert_same(out, wanted)
            self.assert_same(lse, wanted_lse)

    def test_pages_by_a_block_table(self):
        table, pages = torch.randperm(10, dtype=torch.int32).view(5, 2), []
        for tensor in (self.k, self.v):
            cache = torch.full((10, 3, *tensor.shape[1:]), math.nan, dtype=torch.float64)
            for rows, one in zip(table, tensor.split(self.K_LENS)):
                for token, row in enumerate(one):
                    cache[rows[token // 3], token % 3] = row
            pages.append(cache)
        wanted, wanted_lse = self.wanted(self.q, self.k, self.v, causal=True)
        used = self.integers(*self.K_LENS)
        for words in ({"cu_seqlens_k": self.offsets[1]}, {"cu_seqlens_k": None, "seqused_k": used}):
            out, lse = fa.flash_attn_varlen_func(self.q, *pages, cu_seqlens_q=self.offsets[0], max_seqlen_q=4,
                                                 max_seqlen_k=5, causal=True, block_table=table,
                                                 return_softmax_lse=True, **words)
            self.assert_same(out, wanted)
            self.assert_same(lse, wanted_lse)
        self.assert_refused("cu_seqlens_k", attnsmith.InvalidRequest, fa.flash_attn_varlen_func, self.q, *pages,
                            self.offsets[0], None, 4, 5, block_table=table)

    def test_tokens_that_are_not_in_use(self):
        """Of each sequence's queries and keys the first ones count; other queries get 0, and keys that do not count are NaN."""
        used_q, used_k = (2, 0, 1, 4, 0), (3, 2, 0, 1, 1)
        k, v = self.k.clone(), self.v.clone()
        for tensor in (k, v):
            for rows, n in zip(tensor.split(self.K_LENS), used_k):
                rows[n:] = math.nan
        for q_used, k_used in ((None, used_k), (used_q, None), (used_q, used_k)):
            for words in ({}, {"causal": True}, {"causal": True, "window_size": (1, 0)}):
                with self.subTest(q_used=q_used, k_used=k_used, **words):
                    each = []
                    for b, (one, keys, values) in enumerate(zip(self.q.split(self.Q_LENS), self.k.split(self.K_LENS),
                                                                self.v.split(self.K_LENS))):
                        m = len(one) if q_used is None else q_used[b]
                        n = len(keys) if k_used is None else k_used[b]
                        out, lse = flash(one[:m], keys[:n], values[:n], **words)
                        rest = len(one) - m
                        each.append((torch.cat((out, torch.zeros(rest, 4, 16, dtype=torch.float64))),
                                     torch.cat((lse, torch.full((4, rest), -math.inf, dtype=torch.float64)), 1)))
                    keys, values = (self.k, self.v) if k_used is None else (k, v)
                    given = {"seqused_q": q_used and self.integers(*q_used), "seqused_k": k_used and self.integers(*k_used)}
                    out, lse = fa.flash_attn_varlen_func(self.q, keys, values, *self.offsets, 4, 5, return_softmax_lse=True,
                                                         **given, **words)
                    self.assert_same(out, torch.cat([out for out, _ in each]))
                    self.assert_same(lse, torch.cat([lse for _, lse in each], 1))
        out = torch.empty(10, 4, 16, dtype=torch.float64)
        got = fa.flash_attn_varlen_func(self.q, k, v, *self.offsets, 4, 5, seqused_k=self.integers(*used_k).long(), out=out)
        self.assertIs(got, out)
        self.assertTrue(out.isfinite().all())

    def test_queries_in_use_with_pages(self):
        pages = [self.randn(8, 3, *tensor.shape[1:]) for tensor in (self.k, self.v)]
        table, used_q, used_k = self.integers(0, 1, 2, 3, 7, 4, 5, 6, 0, 1).view(5, 2), (2, 0, 1, 4, 0), (3, 2, 0, 5, 1)
        each = []
        for one, rows, m, n in zip(self.q.split(self.Q_LENS), table.long(), used_q, used_k):
            out, _ = flash(one[:m], *(cache[rows].flatten(0, 1)[:n] for cache in pages), causal=True)
            each.append(torch.cat((out, torch.zeros(len(one) - m, 4, 16, dtype=torch.float64))))
        out = fa.flash_attn_varlen_func(self.q, *pages, self.offsets[0], None, 4, 5, seqused_q=self.integers(*used_q),
                                        seqused_k=self.integers(*used_k), causal=True, block_table=table)
        self.assert_same(out, torch.cat(each))

    def test_a_bound_of_the_queries_in_use_cuts_no_others(self):
        """max_seqlen_q may be the longest of seqused_q: the queries between are more, and get 0 all the same."""
        pages = [self.randn(8, 3, *tensor.shape[1:]) for tensor in (self.k, self.v)]
        table, used = self.integers(0, 1, 2, 3, 7, 4, 5, 6, 0, 1).view(5, 2), self.integers(1, 0, 1, 1, 0)
        ragged = {"k": self.k, "v": self.v, "cu_seqlens_k": self.offsets[1]}
        paged = {"k": pages[0], "v": pages[1], "cu_seqlens_k": None, "seqused_k": self.integers(*self.K_LENS), "block_table": table}
        for words in (ragged, paged):
            results = [fa.flash_attn_varlen_func(self.q, cu_seqlens_q=self.offsets[0], max_seqlen_q=bound, max_seqlen_k=5,
                                                 seqused_q=used, causal=True, return_softmax_lse=True, **words)
                       for bound in (1, 4)]
            for got, wanted in zip(*results):
                self.assert_same(got, wanted)

    def test_used_lengths_beyond_a_sequence_are_all_of_it(self):
        """And those below 0 none of it: a wrong length says nothing about the sequences before and after."""
        for beyond in (1, 2, 100):
            for place in range(5):
                for name, lens in (("seqused_q", self.Q_LENS), ("seqused_k", self.K_LENS)):
                    with self.subTest(name, beyond=beyond, sequence=place):
                        used = list(lens)
                        used[place] += beyond
                        out, lse = fa.flash_attn_varlen_func(self.q, self.k, self.v, *self.offsets, 4, 5, causal=True,
                                                             return_softmax_lse=True, **{name: self.integers(*used)})
                        wanted, wanted_lse = self.wanted(self.q, self.k, self.v, causal=True)
                        self.assert_same(out, wanted)
                        self.assert_same(lse, wanted_lse)
                        for offsets in ("q_indptr", "kv_indptr"):
                            self.assertTrue((self.calls[-1][2][offsets].diff() >= 0).all(), offsets)
                        used[place] = -beyond
                        none = [0 if i == place else n for i, n in enumerate(lens)]
                        got, wanted = (fa.flash_attn_varlen_func(self.q, self.k, self.v, *self.offsets, 4, 5, causal=True,
                                                                 **{name: self.integers(*lengths)}) for lengths in (used, none))
                        self.assert_same(got, wanted)
        pages = [self.randn(8, 3, *tensor.shape[1:]) for tensor in (self.k, self.v)]
        table = self.integers(0, 1, 2, 3, 7, 4, 5, 6, 0, 1).view(5, 2)
        for used, same in (((3, 2, 1, 99, 3), self.Q_LENS), ((3, 0, -1, 4, -99), (3, 0, 0, 4, 0))):
            got, wanted = (fa.flash_attn_varlen_func(self.q, *pages, self.offsets[0], None, 4, 5, causal=True, block_table=table,
                                                     seqused_q=self.integers(*lengths), seqused_k=self.integers(*self.K_LENS))
                           for lengths in (used, same))
            self.assert_same(got, wanted)

    def test_used_lengths_of_another_batch_are_refused(self):
        for name in ("seqused_q", "seqused_k"):
            for wrong in (self.integers(1, 1), self.integers(1, 1, 1, 1, 1)[None]):
                self.assert_refused(f"{name}.shape", attnsmith.InvalidRequest, fa.flash_attn_varlen_func, self.q, self.k,
                                    self.v, *self.offsets, 4, 5, **{name: wrong})

    def test_the_result_is_written_to_out(self):
        out = torch.empty(10, 4, 16, dtype=torch.float64)
        given = fa.flash_attn_varlen_func(self.q, self.k, self.v, *self.offsets, 4, 5, out=out)
        self.assertIs(given, out)
        self.assert_same(out, self.wanted(self.q, self.k, self.v)[0])
        fa.flash_attn_varlen_func(self.q, self.k, self.v, *self.offsets, 4, 5)
        self.assertNotIn("out", self.calls[-1][2], "which a traced call does not take")


class Errors(FlashTest):
    def test_what_does_not_go_together(self):
        q, k, v = self.dense(1, 1)
        caches = [self.randn(2, 8, 2, 8) for _ in range(2)]
        cos, table = self.randn(9, 4), self.integers(0, 1).view(2, 1)
        for name, words in (("v", {"v": v}), ("v", {"k": k, "cache_seqlens": 0}), ("cache_seqlens", {"k": k, "v": v}),
                            ("rotary_cos", {"rotary_cos": cos, "rotary_sin": cos}),
                            ("rotary_sin", {"k": k, "v": v, "cache_seqlens": 0, "rotary_cos": cos}),
                            ("rotary_cos", {"k": k, "v": v, "cache_seqlens": 0, "rotary_sin": cos}),
                            ("rotary_sin", {"k": k, "v": v, "cache_seqlens": 0, "rotary_cos": cos,
                                            "rotary_sin": cos[1:]}),
                            ("cu_seqlens_k_new", {"cu_seqlens_k_new": self.integers(0, 1, 2)}),
                            ("page_table", {"page_table": table, "block_table": table}),
                            ("s_aux", {"s_aux": torch.rand(4), "sinks": torch.rand(4)})):
            with self.subTest(name, words=list(words)):
                self.assert_refused(name, attnsmith.InvalidRequest, fa.flash_attn_with_kvcache, q, *caches, **words)

    def test_axes_and_types(self):
        q, k, v = self.dense()
        refused = attnsmith.InvalidRequest
        for name, function, arguments in (
                ("q", fa.flash_attn_func, (q[0], k, v)), ("k", fa.flash_attn_func, (q, None, v)),
                ("v", fa.flash_attn_func, (q, k, [[1.0]])), ("kv", fa.flash_attn_kvpacked_func, (q, k)),
                ("kv", fa.flash_attn_kvpacked_func, (q, torch.stack((k, k, v), 2))),
                ("qkv", fa.flash_attn_qkvpacked_func, (torch.stack((k, v), 2),)),
                ("qkv", fa.flash_attn_varlen_qkvpacked_func, (q, None, 4)),
                ("q", fa.flash_attn_with_kvcache, (q[:, 0], k, v)),
                ("k_cache", fa.flash_attn_with_kvcache, (q, k[0], v)),
                ("dropout_p", fa.flash_attn_func, (q, k, v, None)),
                ("dropout_p", fa.flash_attn_varlen_func, (q[0], k[0], v[0], *[self.integers(0, 5)] * 2, 5, 5,
                                                          self.integers(5)))):
            with self.subTest(name, function=function.__name__):
                self.assert_refused(name, refused, function, *arguments)

    def test_errors_of_attnsmith_name_the_argument(self):
        """Where the plain functions refuse a word or a tensor, by the name that it has here."""
        q, k, v = self.dense()
        packed, offsets, table = torch.stack((k, v), 2), self.integers(0, 5), self.integers(0, 1).view(2, 1)
        qkv, ragged = torch.stack((q, q, q), 2), (q[0], k[0], v[0], offsets, offsets, 5, 7)
        dense, varlen, cached = fa.flash_attn_func, fa.flash_attn_varlen_func, fa.flash_attn_with_kvcache
        for function, arguments, field, named in (
                (dense, (q, k, v), "scale", "softmax_scale"), (dense, (q, k, v), "window_left", "window_size"),
                (dense, (q, k, v), "k_scale.shape", "k_descale.shape"), (dense, (q, k, v), "q.dtype", "q.dtype"),
                (dense, (q, k, v), "sinks.dtype", "s_aux.dtype"),
                (dense, (q, k, v), "k.requires_grad", "k.requires_grad"),
                (fa.flash_attn_kvpacked_func, (q, packed), "v.requires_grad", "kv.requires_grad"),
                (fa.flash_attn_qkvpacked_func, (qkv,), "q.requires_grad", "qkv.requires_grad"),
                (varlen, ragged, "kv_indptr.shape[0]", "cu_seqlens_k.shape[0]"),
                (varlen, ragged, "max_q_len", "max_seqlen_q"),
                (fa.flash_attn_varlen_qkvpacked_func, (qkv[0], offsets, 5), "q_indptr", "cu_seqlens"),
                (cached, (q, k, v), "k.shape", "k_cache.shape"), (cached, (q, k, v), "kv_lens", "cache_seqlens")):
            error = attnsmith.InvalidRequest(field, "it", f"another, such as {field.partition('.')[0]}.detach()")
            name = "varlen_attention" if "varlen" in function.__name__ else "attention"
            words = {"s_aux": torch.rand(4)} if field.startswith("sinks") else {}
            with self.subTest(field), unittest.mock.patch.object(functions, name, side_effect=error):
                caught = self.assert_refused(re.escape(named), attnsmith.InvalidRequest, function, *arguments, **words)
                self.assertEqual((caught.field, caught.value), (named, "it"))
                if "." in field:
                    self.assertIn(f" {named.partition('.')[0]}.detach()", str(caught))
        for field, named in (("kv_lens", "cache_seqlens"), ("k.dtype", "k.dtype"), ("k_cache.shape", "k_cache.shape"),
                             ("rope_table.shape", "rotary_cos.shape"), ("page_table", "block_table")):
            error = attnsmith.InvalidRequest(field, "it", "another")
            with self.subTest(append=field), unittest.mock.patch.object(functions, "append", side_effect=error):
                self.assert_refused(re.escape(named), attnsmith.InvalidRequest, cached, q, k, v, q[:, :, :2],
                                    q[:, :, :2], cache_seqlens=0, block_table=table)

    def test_queries_of_8_bits_are_refused(self):
        q, k, v = (tensor.to(torch.float8_e4m3fn) for tensor in self.dense())
        self.assert_refused("q", attnsmith.InvalidRequest, fa.flash_attn_func, q, k, v)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Traced(unittest.TestCase):
    """Dynamo makes one graph of a call, of attnsmith's operators."""

    def traced(self, function, **tensors):
        class Module(torch.nn.Module):
            def forward(self, tensors):
                return function(**tensors)

        program = torch.export.export(Module(), (tensors,), strict=True)
        return [str(node.target).partition(".")[2].partition(".")[0] for node in program.graph.nodes
                if str(node.target).startswith("attnsmith.")]

    def tensor(self, *shape, dtype=None):
        return torch.empty(shape, dtype=dtype or torch.bfloat16, device="cuda")

    def test_attention_stays_in_one_graph(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            offsets, rows = self.tensor(3, dtype=torch.int32), self.tensor(2, 3, dtype=torch.int32)
            q, k = self.tensor(2, 8, 4, 64), self.tensor(2, 9, 2, 64)
            pages, tokens = self.tensor(7, 16, 2, 64), self.tensor(16, 4, 64)

            def dense(q, k, s_aux):
                return fa.flash_attn_func(q, k, k, causal=True, window_size=(4, -1), s_aux=s_aux,
                                          return_attn_probs=True)

            def varlen(q, pages, offsets, rows):
                return fa.flash_attn_varlen_func(q, pages, pages, offsets, offsets, 8, 9, block_table=rows)

            self.assertEqual(self.traced(dense, q=q, k=k, s_aux=self.tensor(4)), ["attention_with_lse"])
            self.assertEqual(self.traced(varlen, q=tokens, pages=pages, offsets=offsets, rows=rows),
                             ["paged_attention"])

    def test_a_cache_that_is_written_to_stays_in_one_graph(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            given = {"q": self.tensor(2, 1, 4, 64), "k": self.tensor(2, 1, 2, 64), "v": self.tensor(2, 1, 2, 64),
                     "k_cache": self.tensor(7, 16, 2, 64), "v_cache": self.tensor(7, 16, 2, 64),
                     "rotary_cos": self.tensor(99, 32), "rotary_sin": self.tensor(99, 32),
                     "cache_seqlens": self.tensor(2, dtype=torch.int32),
                     "block_table": self.tensor(2, 3, dtype=torch.int32)}
            self.assertEqual(self.traced(fa.flash_attn_with_kvcache, **given), ["append", "paged_attention"])
            offsets = self.tensor(3, dtype=torch.int32)
            ragged = {**given, **{name: given[name][:, 0] for name in "qkv"}, "cu_seqlens_q": offsets,
                      "cu_seqlens_k_new": offsets}
            self.assertEqual(self.traced(lambda **words: fa.flash_attn_with_kvcache(causal=True, **words), **ragged),
                             ["append", "paged_attention"])


if __name__ == "__main__":
    unittest.main()

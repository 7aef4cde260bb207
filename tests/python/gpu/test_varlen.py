"""varlen_attention() and paged_attention() in all of their forms against an fp64 reference."""

import unittest

from gpu_support import DEVICE, GpuTest, lengths, nan, offsets, reference, torch

import attnsmith


class Varlen(GpuTest):
    Q_LENS, KV_LENS = [17, 1, 0, 40], [17, 60, 5, 33]

    def check(self, index_dtype=None, q_lens=None, kv_lens=None, bounds=True, dtype=None, **options):
        q_lens, kv_lens = q_lens or self.Q_LENS, kv_lens or self.KV_LENS
        q = self.randn(sum(q_lens), 4, 64, dtype=dtype)
        k, v = (self.randn(sum(kv_lens), 2, 64, dtype=dtype) for _ in range(2))
        limits = {"max_q_len": max(q_lens), "max_kv_len": max(kv_lens)} if bounds else {}
        o, lse = attnsmith.varlen_attention(
            q, k, v, offsets(q_lens, index_dtype), offsets(kv_lens, index_dtype), return_lse=True,
            out=nan(*q.shape, dtype=q.dtype), **limits, **options)
        wanted = [reference(a, b, c, **options) for a, b, c in
                  zip(q.split(q_lens), k.split(kv_lens), v.split(kv_lens))]
        self.assert_sequences(o, lse, wanted)

    def test_options(self):
        for options in ({}, {"causal": True}, {"window": (8, 0)}, {"softcap": 2.0, "causal": True},
                        {"causal": True, "attention_chunk": 20},
                        {"sinks": self.randn(4, dtype=torch.float32)}):
            with self.subTest(words=sorted(options)):
                self.check(**options)

    def test_dtypes(self):
        self.check(dtype=torch.float16, causal=True)
        self.check(index_dtype=torch.int64, causal=True)

    def test_without_bounds(self):
        self.check(bounds=False, causal=True)

    def test_no_tokens(self):
        self.check(q_lens=[0, 0], kv_lens=[0, 3])

    def test_one_long_sequence_among_short_ones(self):
        self.check(q_lens=[1, 1, 1], kv_lens=[5, 7000, 1], causal=True)


class Paged(GpuTest):
    KV_LENS = [37, 1, 0, 64]

    def make(self, order="NHD", page_size=16, kv_lens=None, dtype=None, heads=2, dim=64):
        """Caches whose unused memory is NaN, the padded table (garbage past each end), and each sequence's keys."""
        kv_lens = kv_lens or self.KV_LENS
        counts = [-(-length // page_size) for length in kv_lens]
        pages = sum(counts) + 3
        ids = torch.randperm(pages)[:sum(counts)].tolist()
        cache = nan(pages, 2, page_size, heads, dim, dtype=dtype or torch.bfloat16)
        table = torch.full((len(kv_lens), max(counts) + 1), 2**31 - 7, dtype=torch.int64)
        sequences, at = [], 0
        for b, length in enumerate(kv_lens):
            both = self.randn(2, length, heads, dim, dtype=dtype)
            for page in range(counts[b]):
                part = both[:, page * page_size:(page + 1) * page_size].transpose(0, 1)
                cache[ids[at], :, :part.shape[0]] = part.transpose(0, 1)
                table[b, page] = ids[at]
                at += 1
            sequences.append(both)
        if order == "HND":
            cache = cache.transpose(2, 3).contiguous()
        return cache, table, ids, counts, sequences

    def compressed(self, ids, counts, page_size, kv_lens):
        last = [length - (count - 1) * page_size if count else 0 for length, count in zip(kv_lens, counts)]
        return {"page_indptr": offsets(counts), "page_indices": lengths(ids),
                "last_page_len": lengths(last)}

    def test_decode(self):
        """One query each, without and with an axis for it; both page orders, sizes and index dtypes."""
        for order, page_size, index_dtype in (("NHD", 16, torch.int32), ("HND", 16, torch.int32),
                                              ("NHD", 1, torch.int64), ("HND", 5, torch.int32)):
            cache, table, _, _, sequences = self.make(order, page_size)
            table = table.to(index_dtype).to(DEVICE)
            q = self.randn(4, 8, 64)
            wanted = [reference(q[b:b + 1], *sequences[b]) for b in range(4)]
            kv_lens = lengths(self.KV_LENS, index_dtype)
            for caches in (cache, (cache[:, 0], cache[:, 1]), [cache[:, 0].contiguous(), cache[:, 1].contiguous()]):
                with self.subTest(order=order, page_size=page_size, one=torch.is_tensor(caches)):
                    o, lse = attnsmith.paged_attention(q, caches, table, kv_lens, page_order=order, return_lse=True,
                                                       out=nan(*q.shape, dtype=q.dtype))
                    self.assertEqual((tuple(o.shape), tuple(lse.shape)), ((4, 8, 64), (4, 8)))
                    self.assert_sequences(o, lse, wanted)
                    o = attnsmith.paged_attention(q[:, None], caches, table, kv_lens, page_order=order, causal=True,
                                                  max_kv_len=64)
                    self.assertEqual(tuple(o.shape), (4, 1, 8, 64))
                    self.assert_sequences(o[:, 0], None, wanted)

    def test_compressed_tables(self):
        for dtype in (torch.float16, torch.bfloat16):
            kv_lens = [37, 1, 16, 64]
            cache, _, ids, counts, sequences = self.make(kv_lens=kv_lens, dtype=dtype)
            q = self.randn(4, 8, 64, dtype=dtype)
            o, lse = attnsmith.paged_attention(q, cache, **self.compressed(ids, counts, 16, kv_lens), return_lse=True)
            self.assert_sequences(o, lse, [reference(q[b:b + 1], *sequences[b]) for b in range(4)], str(dtype))

    def test_chunked_prefill(self):
        q_lens, kv_lens = [9, 1, 0, 20], [37, 1, 12, 64]
        cache, table, ids, counts, sequences = self.make(kv_lens=kv_lens)
        q = self.randn(sum(q_lens), 4, 64)
        options = {"causal": True, "window": (30, 0), "sinks": self.randn(4, dtype=torch.float32)}
        wanted = [reference(part, *sequence, **options) for part, sequence in zip(q.split(q_lens), sequences)]
        forms = ({"page_table": table.int().to(DEVICE), "kv_lens": lengths(kv_lens)},
                 self.compressed(ids, counts, 16, kv_lens))
        for form in forms:
            o, lse = attnsmith.paged_attention(q, cache, q_indptr=offsets(q_lens), max_q_len=20, return_lse=True,
                                               **form, **options)
            self.assert_sequences(o, lse, wanted)

    def test_dense_queries_with_lengths(self):
        kv_lens, q_lens = [37, 12, 5, 64], [6, 1, 5, 0]
        cache, table, _, _, sequences = self.make(kv_lens=kv_lens)
        q = self.randn(4, 6, 4, 64)
        o = attnsmith.paged_attention(q, cache, table.int().to(DEVICE), lengths(kv_lens), q_lens=lengths(q_lens),
                                      causal=True)
        for b in range(4):
            self.assert_near(o[b, :q_lens[b]], reference(q[b, :q_lens[b]], *sequences[b], causal=True)[0])

    def test_a_table_with_strided_rows(self):
        cache, table, _, _, sequences = self.make()
        wide = torch.full((4, 3 * table.shape[1]), -1, dtype=torch.int32, device=DEVICE)
        wide[:, 2:2 + table.shape[1]] = table.to(DEVICE)
        q = self.randn(4, 4, 64)
        o = attnsmith.paged_attention(q, cache, wide[:, 2:2 + table.shape[1]], lengths(self.KV_LENS))
        self.assert_sequences(o, None, [reference(q[b:b + 1], *sequences[b]) for b in range(4)])

    def test_rows_of_a_larger_table(self):
        cache, table, _, _, sequences = self.make()
        rows = [5, 0, 6, 3]
        larger = torch.full((8, table.shape[1]), 10**6, dtype=torch.int32, device=DEVICE)
        larger[rows] = table.int().to(DEVICE)
        q = self.randn(4, 4, 64)
        for order in ([0, 1, 2, 3], [2, 0, 3, 1]):  # the same table for a batch in another order
            o = attnsmith.paged_attention(q, cache, larger, lengths([self.KV_LENS[b] for b in order]),
                                          table_rows=lengths([rows[b] for b in order]))
            self.assert_sequences(o, None, [reference(q[i:i + 1], *sequences[b]) for i, b in enumerate(order)])
        _, status = attnsmith.paged_attention(q, cache, larger, lengths(self.KV_LENS),
                                              table_rows=lengths([5, 8, 6, -1]), return_status=True)
        self.assertTrue(attnsmith.CallStatus(status).page_out_of_range)

    def test_long_decode_is_divided(self):
        kv_lens = [9000, 3]
        cache, table, _, _, sequences = self.make(kv_lens=kv_lens, heads=1, dim=128)
        q = self.randn(2, 4, 128)
        o = attnsmith.paged_attention(q, cache, table.int().to(DEVICE), lengths(kv_lens))
        self.assert_sequences(o, None, [reference(q[b:b + 1], *sequences[b]) for b in range(2)])

    def test_status_names_a_wrong_page(self):
        cache, table, _, _, _ = self.make()
        table[0, 0] = 10**6
        q, o = self.randn(4, 1, 4, 64), nan(4, 1, 4, 64, dtype=torch.bfloat16)
        kernel = attnsmith.default_runtime().prepare(head_dim=64, q_heads=4, kv_heads=2, kv="paged", page_size=16,
                                                     batch=4, kv_len=64)
        call = kernel.bind(q, cache[:, 0], cache[:, 1], o, page_table=table.int().to(DEVICE),
                           kv_lens=lengths(self.KV_LENS))
        self.assertFalse(call.status())
        call.launch()
        self.assertTrue(call.status().page_out_of_range)
        call.clear_status()
        self.assertFalse(call.status())


if __name__ == "__main__":
    unittest.main()

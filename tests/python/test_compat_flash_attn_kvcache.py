"""attnsmith.compat.flash_attn: the caches, pages and new keys of flash_attn_with_kvcache, by the plain functions' stand-in."""

import math
import unittest

from flash_attn_cases import FlashTest, batched, flash, rotated
from support import attnsmith

try:
    import torch
except ImportError:
    torch = None
else:
    import attnsmith.compat.flash_attn as fa


class Cached(FlashTest):
    """flash_attn_with_kvcache. Slots that no key was written to are NaN."""

    LENS = (4, 0, 9)

    def setUp(self):
        super().setUp()
        self.lens = self.integers(*self.LENS)
        self.history = [[self.randn(n, 2, 8) for n in self.LENS] for _ in range(2)]
        self.caches = [self.filled(history, 16) for history in self.history]
        self.cos, self.sin = self.randn(24, 3), self.randn(24, 3)

    def filled(self, history, length, order=(0, 1, 2), rows=3):
        cache = torch.full((rows, length, 2, 8), math.nan, dtype=torch.float64)
        for row, one in zip(order, history):
            cache[row, :len(one)] = one
        return cache

    def paged(self, page_size=5):
        """The same history in pages, and the table."""
        table = torch.randperm(12, dtype=torch.int32).view(3, 4)
        caches = []
        for history in self.history:
            cache = torch.full((12, page_size, 2, 8), math.nan, dtype=torch.float64)
            for rows, one in zip(table, history):
                for place, key in enumerate(one):
                    cache[rows[place // page_size], place % page_size] = key
            caches.append(cache)
        return caches, table

    def unpaged(self, cache, table):
        return torch.stack([cache[rows.long()].flatten(0, 1) for rows in table])

    def wanted(self, q, new=None, **words):
        """By the history of each sequence, and the new keys and values behind it."""
        each = []
        for b in range(3):
            k, v = (history[b] for history in self.history)
            if new is not None:
                k, v = torch.cat((k, new[0][b])), torch.cat((v, new[1][b]))
            each.append(flash(q[b], k, v, **words))
        return torch.stack([out for out, _ in each]), torch.stack([lse for _, lse in each])

    def assert_written(self, cache, history, new):
        for b, n in enumerate(self.LENS):
            self.assert_same(cache[b, :n + len(new[b])], torch.cat((history[b], new[b])))
            self.assertTrue(cache[b, n + len(new[b]):].isnan().all(), "nothing else was written")

    def check(self, q, wanted, *caches, **words):
        out, lse = fa.flash_attn_with_kvcache(q, *caches, return_softmax_lse=True, **words)
        self.assert_same(out, wanted[0])
        self.assert_same(lse, wanted[1])
        self.assertTrue(lse.is_contiguous())

    def test_rows_that_begin_behind_padding(self):
        """Keys before cache_leftpad are NaN. New keys go behind cache_seqlens, which counts the padding."""
        padding, q = (2, 0, 5), self.randn(3, 2, 4, 8)
        caches = [torch.full((4, 16, 2, 8), math.nan, dtype=torch.float64) for _ in range(2)]
        for cache, history in zip(caches, self.history):
            for b, (pad, one) in enumerate(zip(padding, history)):
                cache[b, pad:pad + len(one)] = one
        lens = self.lens + self.integers(*padding)
        given = {"cache_seqlens": lens, "cache_leftpad": self.integers(*padding)}
        sinks = torch.randn(4)
        for words in ({}, {"causal": True}, {"window_size": (3, 1)}, {"attention_chunk": 4}, {"sinks": sinks}):
            with self.subTest(**words):
                self.check(q, self.wanted(q, **words), *caches, **given, **words)
        strided = [torch.full((4, 2, 16, 8), math.nan, dtype=torch.float64).transpose(1, 2).copy_(cache) for cache in caches]
        self.check(q, self.wanted(q, causal=True), *strided, causal=True, **given)
        out = torch.empty_like(q)
        self.assertIs(fa.flash_attn_with_kvcache(q, *caches, out=out, **given), out)
        self.assert_same(out, self.wanted(q)[0])
        new = self.randn(3, 2, 2, 8), self.randn(3, 2, 2, 8)
        self.check(q, self.wanted(q, new, causal=True), *(cache.clone() for cache in caches), k=new[0], v=new[1], causal=True,
                   **given)
        written = [cache.clone() for cache in caches]
        fa.flash_attn_with_kvcache(q, *written, *new, **given)
        for cache, one in zip(written, new):
            for b, n in enumerate(lens):
                self.assert_same(cache[b, n:n + 2], one[b])
        whole = [self.randn(3, 6, 2, 8) for _ in range(2)]
        each = [flash(q[b], whole[0][b, pad:], whole[1][b, pad:])[0] for b, pad in enumerate(padding)]
        self.assert_same(fa.flash_attn_with_kvcache(q, *whole, cache_leftpad=self.integers(*padding)), torch.stack(each))

    def test_lengths_and_padding_beyond_a_row_are_its_end(self):
        """No sequence sees the keys of another row. A length with new keys that had no room is such a one."""
        q, caches = self.randn(3, 2, 4, 8), [self.randn(3, 6, 2, 8) for _ in range(2)]
        for lens, padding, spans in (((9, 6, 7), (2, 0, 5), ((2, 6), (0, 6), (5, 6))),
                                     ((6, 6, 6), (6, 8, 20), ((6, 6), (6, 6), (6, 6))),
                                     ((3, -2, 6), (-1, 0, -9), ((0, 3), (0, 0), (0, 6)))):
            with self.subTest(lens=lens, padding=padding):
                each = [flash(q[b], *(cache[b, begin:end] for cache in caches), causal=True)[0]
                        for b, (begin, end) in enumerate(spans)]
                got = fa.flash_attn_with_kvcache(q, *caches, cache_seqlens=self.integers(*lens), causal=True,
                                                 cache_leftpad=self.integers(*padding))
                self.assert_same(got, torch.stack(each))

    def test_padding_beside_what_it_cannot_have_is_refused(self):
        q, new = self.randn(3, 1, 4, 8), self.randn(3, 1, 2, 8)
        padding, table = self.integers(1, 0, 2), self.integers(0, 1, 2)[:, None]
        for words in ({"block_table": table}, {"page_table": table}, {"cache_batch_idx": self.integers(2, 1, 0)},
                      {"cu_seqlens_q": self.integers(0, 1, 2, 3), "max_seqlen_q": 1},
                      {"k": new, "v": new, "rotary_cos": self.cos, "rotary_sin": self.sin}):
            error = self.assert_refused("cache_leftpad", attnsmith.Unsupported, fa.flash_attn_with_kvcache, q, *self.caches,
                                        cache_seqlens=self.lens, cache_leftpad=padding, **words)
            self.assertIn("not supported", str(error))
        self.assert_refused("cache_leftpad.shape", attnsmith.InvalidRequest, fa.flash_attn_with_kvcache, q, *self.caches,
                            cache_seqlens=self.lens, cache_leftpad=padding[:2])

    def test_words_without_new_keys(self):
        sinks, slopes = torch.randn(4), torch.rand(4)
        q = self.randn(3, 2, 4, 8)
        (k_pages, v_pages), table = self.paged()
        for words in ({}, {"causal": True}, {"window_size": (3, 1)}, {"softmax_scale": 0.2, "softcap": 3.0},
                      {"attention_chunk": 4}, {"alibi_slopes": slopes, "causal": True}, {"sinks": sinks}):
            with self.subTest(**words):
                wanted = self.wanted(q, **words)
                self.check(q, wanted, *self.caches, cache_seqlens=self.lens, **words)
                self.check(q, wanted, k_pages, v_pages, cache_seqlens=self.lens, block_table=table, **words)
                self.check(q, wanted, k_pages, v_pages, cache_seqlens=self.lens, page_table=table, **words)
        self.check(q, self.wanted(q, sinks=sinks), *self.caches, cache_seqlens=self.lens, s_aux=sinks)
        one = q[:, :1]
        self.check(one, self.wanted(one, alibi_slopes=slopes), *self.caches, cache_seqlens=self.lens,
                   alibi_slopes=slopes)

    def test_an_integer_is_the_length_of_all(self):
        q, k, v = self.dense(2, 6)
        k_pages, v_pages = (tensor.view(6, 2, 2, 8) for tensor in (k, v))
        table = torch.arange(6, dtype=torch.int64).view(2, 3)
        for length in (0, 4, 6, None):
            with self.subTest(length=length):
                wanted = batched(q, k, v, kv_lens=None if length is None else (length, length), causal=True)
                self.check(q, wanted, k, v, cache_seqlens=length, causal=True)
                self.check(q, wanted, k_pages, v_pages, cache_seqlens=length, block_table=table, causal=True)
                self.assertEqual(self.calls[-1][2]["kv_lens"].dtype, table.dtype, "all of a call are of one dtype")

    def test_a_cache_may_have_more_rows_than_the_batch(self):
        q = self.randn(3, 2, 4, 8)
        caches = [torch.cat((cache, cache)) for cache in self.caches]
        self.check(q, self.wanted(q), *caches, cache_seqlens=self.lens)
        self.assertEqual([cache.shape[0] for cache in self.calls[-1][1][1:]], [3, 3])

    def test_new_keys_are_written_in_place_and_seen(self):
        for new_len, q_len in ((1, 1), (3, 3), (2, 4)):
            for paged in (False, True):
                with self.subTest(new=new_len, q=q_len, paged=paged):
                    q = self.randn(3, q_len, 4, 8)
                    new = [self.randn(3, new_len, 2, 8) for _ in range(2)]
                    caches, table = self.paged() if paged else ([cache.clone() for cache in self.caches], None)
                    self.check(q, self.wanted(q, new, causal=True), *caches, k=new[0], v=new[1],
                               cache_seqlens=self.lens, causal=True, block_table=table)
                    self.assertEqual(self.lens.tolist(), list(self.LENS), "lengths are the caller's")
                    for cache, history, one in zip(caches, self.history, new):
                        self.assert_written(self.unpaged(cache, table) if paged else cache, history, one)

    def test_an_integer_length_before_new_keys(self):
        q, k, v = self.dense(2, 2)
        caches = [torch.full((2, 8, 2, 8), math.nan, dtype=torch.float64) for _ in range(2)]
        self.check(q, batched(q, k, v, causal=True), *caches, k=k, v=v, cache_seqlens=0, causal=True)
        self.assert_same(caches[0][:, :2], k)

    def test_rows_of_the_cache_by_index(self):
        q, order = self.randn(3, 2, 4, 8), (4, 1, 3)
        new = [self.randn(3, 2, 2, 8) for _ in range(2)]
        caches = [self.filled(history, 16, order, rows=5) for history in self.history]
        index = self.integers(*order)
        self.check(q, self.wanted(q), *caches, cache_seqlens=self.lens, cache_batch_idx=index)
        self.check(q, self.wanted(q, new, causal=True), *caches, k=new[0], v=new[1], cache_seqlens=self.lens,
                   causal=True, cache_batch_idx=index)
        for cache, history, one in zip(caches, self.history, new):
            self.assert_written(cache[index.long()], history, one)
            self.assertTrue(cache[[0, 2]].isnan().all())

    def test_rows_of_the_block_table_by_index(self):
        q, new = self.randn(3, 1, 4, 8), [self.randn(3, 1, 2, 8) for _ in range(2)]
        caches, table = self.paged()
        rows = torch.cat((table[1:], table[:1]))
        self.check(q, self.wanted(q, new), *caches, k=new[0], v=new[1], cache_seqlens=self.lens, block_table=rows,
                   cache_batch_idx=self.integers(2, 0, 1))

    def positions(self, start, lengths, moves=True):
        return [[begin + i * moves for i in range(n)] for begin, n in zip(start, lengths)]

    def turned(self, rows, positions, interleaved):
        return [rotated(one, self.cos, self.sin, where, interleaved) for one, where in zip(rows, positions)]

    def test_rotation_of_new_keys_and_queries(self):
        """Queries move on with causal, a window or chunks; without these all are where the cache ends."""
        starts = self.integers(7, 2, 5)
        for words in ({"causal": True}, {"window_size": (4, 1)}, {"attention_chunk": 5}, {}):
            for q_len, new_len in ((1, 1), (3, 3), (4, 2)):
                for interleaved in (True, False):
                    for given in (None, starts):
                        for paged in (False, True):
                            with self.subTest(q=q_len, new=new_len, interleaved=interleaved, paged=paged,
                                              starts=given, **words):
                                self.check_rotation(q_len, new_len, interleaved, given, paged, words)

    def check_rotation(self, q_len, new_len, interleaved, starts, paged, words):
        q, new = self.randn(3, q_len, 4, 8), [self.randn(3, new_len, 2, 8) for _ in range(2)]
        begin = self.LENS if starts is None else starts.tolist()
        turned_q = self.turned(q, self.positions(begin, [q_len] * 3, bool(words)), interleaved)
        turned_new = self.turned(new[0], self.positions(begin, [new_len] * 3), interleaved), new[1]
        caches, table = self.paged() if paged else ([cache.clone() for cache in self.caches], None)
        unturned = q.clone()
        self.check(q, self.wanted(turned_q, turned_new, **words), *caches, k=new[0], v=new[1], rotary_cos=self.cos,
                   rotary_sin=self.sin, rotary_interleaved=interleaved, rotary_seqlens=starts, cache_seqlens=self.lens,
                   block_table=table, **words)
        self.assert_same(q, unturned, "q is the caller's")
        for cache, history, one in zip(caches, self.history, turned_new):
            self.assert_written(self.unpaged(cache, table) if paged else cache, history, one)

    def test_one_append_rotates_both_where_each_query_has_a_key(self):
        q, new = self.randn(3, 2, 4, 8), [self.randn(3, 2, 2, 8) for _ in range(2)]
        table = torch.cat((self.cos, self.sin), 1)
        for halves in (table.chunk(2, 1), (self.cos, self.sin)):
            self.calls.clear()
            fa.flash_attn_with_kvcache(q, *self.caches, *new, *halves, self.lens, causal=True)
            (name, _, words), _ = self.calls
            self.assertEqual(name, "append")
            self.assertNotIn("positions", words, "which lengths say")
            self.assertEqual(words["rope_table"].data_ptr() == table.data_ptr(), halves[0] is not self.cos,
                             "the halves of a table are not copied")
            torch.testing.assert_close(words["rope_table"], table)

    def test_ragged_queries_and_new_keys(self):
        q_lens, new_lens = (2, 0, 3), (2, 1, 0)
        q, new = self.randn(5, 4, 8), [self.randn(3, 2, 8) for _ in range(2)]
        q_offsets, new_offsets = self.integers(0, 2, 2, 5), self.integers(0, 2, 3, 3)
        split = [one.split(new_lens) for one in new]
        for paged in (False, True):
            for interleaved in (None, True, False):  # None: not rotated
                with self.subTest(paged=paged, interleaved=interleaved):
                    turned_q, turned_k, rotation = q.split(q_lens), split[0], {}
                    if interleaved is not None:
                        turned_q = self.turned(turned_q, self.positions(self.LENS, q_lens), interleaved)
                        turned_k = self.turned(turned_k, self.positions(self.LENS, new_lens), interleaved)
                        rotation = {"rotary_cos": self.cos, "rotary_sin": self.sin, "rotary_interleaved": interleaved}
                    caches, table = self.paged() if paged else ([cache.clone() for cache in self.caches], None)
                    parts = zip(turned_q, self.history[0], turned_k, self.history[1], split[1])
                    each = [flash(one, torch.cat((k, new_k)), torch.cat((v, new_v)), causal=True)
                            for one, k, new_k, v, new_v in parts]
                    wanted = torch.cat([out for out, _ in each]), torch.cat([lse for _, lse in each], 1)
                    self.check(q, wanted, *caches, k=new[0], v=new[1], cache_seqlens=self.lens, causal=True,
                               cu_seqlens_q=q_offsets, cu_seqlens_k_new=new_offsets, max_seqlen_q=3, page_table=table,
                               **rotation)
                    for cache, history, one in zip(caches, self.history, (turned_k, split[1])):
                        self.assert_written(self.unpaged(cache, table) if paged else cache, history, one)

    def test_ragged_queries_that_are_not_causal_are_rotated_to_one_position(self):
        q_lens, new = (2, 0, 3), [self.randn(3, 2, 2, 8) for _ in range(2)]
        q = self.randn(6, 4, 8)  # one more than the sequences have
        turned_q = self.turned(q.split((*q_lens, 1)), self.positions(self.LENS, q_lens, moves=False), True)
        turned_k = self.turned(new[0], self.positions(self.LENS, (2, 2, 2)), True)
        out = fa.flash_attn_with_kvcache(q, *self.caches, *new, self.cos, self.sin, self.lens,
                                         cu_seqlens_q=self.integers(0, 2, 2, 5), max_seqlen_q=3)
        each = [flash(one, torch.cat((k, new_k)), torch.cat((v, new_v)))[0] for one, k, new_k, v, new_v
                in zip(turned_q, self.history[0], turned_k, self.history[1], new[1])]
        self.assert_same(out[:5], torch.cat(each))

    def test_queries_and_keys_of_the_same_offsets_are_one_append(self):
        offsets, new = self.integers(0, 2, 2, 5), [self.randn(5, 2, 8) for _ in range(2)]
        fa.flash_attn_with_kvcache(self.randn(5, 4, 8), *self.caches, *new, self.cos, self.sin, self.lens, causal=True,
                                   cu_seqlens_q=offsets, cu_seqlens_k_new=offsets, max_seqlen_q=3)
        self.assertEqual([name for name, _, _ in self.calls], ["append", "paged_attention"])

    def test_new_keys_are_rounded_to_a_cache_of_8_bits(self):
        q, k, v = (tensor.bfloat16() for tensor in self.dense(1, 1))
        scale = torch.tensor([0.5, 0.25])
        caches = [torch.zeros(2, 4, 2, 8).to(torch.float8_e4m3fn) for _ in range(2)]
        out = fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=0, k_descale=scale.expand(2, 2),
                                         v_descale=scale.expand(2, 2))
        stored = [(tensor.double() / scale.double()[:, None]).to(torch.float8_e4m3fn).double() for tensor in (k, v)]
        for cache, one in zip(caches, stored):
            self.assert_same(cache[:, :1].double(), one)
        wanted, _ = batched(q, *(one * scale[:, None] for one in stored))
        torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-2)

    def test_copies_where_the_last_stride_is_not_1(self):
        q, new = self.randn(3, 8, 4, 2).transpose(1, 3), [self.randn(3, 8, 2, 2).transpose(1, 3) for _ in range(2)]
        self.check(q, self.wanted(q, new), *self.caches, k=new[0], v=new[1], cache_seqlens=self.lens)
        self.assertTrue(all(self.calls[0][2][name].stride(-1) == 1 for name in ("k", "v")))

    def test_the_result_is_written_to_out(self):
        q, out = self.randn(3, 2, 4, 8), torch.empty(3, 2, 4, 8, dtype=torch.float64)
        self.assertIs(fa.flash_attn_with_kvcache(q, *self.caches, cache_seqlens=self.lens, out=out), out)
        self.assert_same(out, self.wanted(q)[0])


if __name__ == "__main__":
    unittest.main()

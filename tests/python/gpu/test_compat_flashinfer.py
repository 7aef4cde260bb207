"""attnsmith.compat.flashinfer on a GPU against fp64, in captured graphs whose plans change, and in the uses that
FlashInfer's documentation shows."""

import itertools
import math

from gpu_support import DEVICE, GpuTest, lengths, nan, offsets, reference, torch

import attnsmith

if torch is not None:
    import attnsmith.compat.flashinfer as flashinfer

Q_HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16


def base_2(states):
    """o and lse of sequences, one behind the other, with the lse as FlashInfer has it."""
    return [(o, lse * math.log2(math.e)) for o, lse in states]


class FlashInferTest(GpuTest):
    def setUp(self):
        super().setUp()
        self.workspace = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)

    def pages(self, kv_lens, layout="NHD", dtype=None, page_size=PAGE, room=None):
        """Keys and values of each sequence, and (indptr, indices, last_page_len) and the pair of caches that have them
        in shuffled pages. What no sequence has is NaN."""
        counts = [-(-length // page_size) for length in kv_lens]
        room = room or sum(counts) + 3
        indices = torch.randperm(room)[:sum(counts)].tolist()
        rows = [[self.randn(length, KV_HEADS, DIM, dtype=dtype) for length in kv_lens] for _ in range(2)]
        caches = [nan(room, page_size, KV_HEADS, DIM, dtype=one[0].dtype) for one in rows]
        for cache, one in zip(caches, rows):
            left = iter(indices)
            for sequence in one:
                for part in sequence.split(page_size) if len(sequence) else ():
                    cache[next(left), :len(part)] = part
        last = lengths((length - 1) % page_size + 1 if length else 0 for length in kv_lens)
        if layout == "HND":
            caches = [cache.transpose(1, 2).contiguous() for cache in caches]
        return (*rows, (offsets(counts), lengths(indices), last), tuple(caches))

    def wanted(self, q, q_lens, keys, values, **words):
        return base_2([reference(*one, **words) for one in zip(q.split(q_lens), keys, values)])


class Single(FlashInferTest):
    def test_decode_and_prefill(self):
        for layout, words in itertools.product(("NHD", "HND"), ({}, {"window_left": 5}, {"logits_soft_cap": 3.0},
                                                                {"sm_scale": 0.05})):
            with self.subTest(layout=layout, words=words):
                q, k, v = self.randn(33, Q_HEADS, DIM), self.randn(70, KV_HEADS, DIM), self.randn(70, KV_HEADS, DIM)
                named = {"window": (words.get("window_left"), None), "softcap": words.get("logits_soft_cap"),
                         "scale": words.get("sm_scale")}
                given = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
                o, lse = flashinfer.single_prefill_with_kv_cache(q, *given, causal=True, kv_layout=layout,
                                                                 return_lse=True, **words)
                self.assert_sequences(o, lse, self.wanted(q, [33], [k], [v], causal=True, **named))
                o, lse = flashinfer.single_decode_with_kv_cache(q[0], *given, layout, return_lse=True, **words)
                self.assert_sequences(o[None], lse[None], self.wanted(q[:1], [1], [k], [v], **named))

    def test_alibi(self):
        q, k, v = self.randn(9, 12, DIM), self.randn(40, 12, DIM), self.randn(40, 12, DIM)
        slopes = [2.0 ** -i for i in range(1, 9)] + [2.0 ** -i for i in (0.5, 1.5, 2.5, 3.5)]
        o = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, pos_encoding_mode="ALIBI")
        slopes = torch.tensor(slopes, dtype=torch.float64, device=DEVICE)
        self.assert_near(o, reference(q, k, v, causal=True, alibi_slopes=slopes)[0])


class Batches(FlashInferTest):
    def test_decode(self):
        kv_lens = [1, 100, 0, 37]
        for layout, dtype, several in itertools.product(("NHD", "HND"), (torch.float16, torch.bfloat16), (False, True)):
            with self.subTest(layout=layout, dtype=dtype, several=several):
                keys, values, lists, cache = self.pages(kv_lens, layout, dtype)
                count = 3 if several else 1
                q = self.randn(4 * count, Q_HEADS, DIM, dtype=dtype)
                wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, layout, use_tensor_cores=True)
                wrapper.plan(*lists, Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type=dtype, q_len_per_req=count)
                wanted = self.wanted(q, [count] * 4, keys, values, causal=several)
                self.assert_sequences(*wrapper.run(q, cache, return_lse=True), wanted)
                self.assert_near(wrapper.run(q, torch.stack(cache, 1)), torch.cat([o for o, _ in wanted]))

    def test_lists_of_the_host(self):
        keys, values, lists, cache = self.pages([20, 3])
        q, sinks = self.randn(2, Q_HEADS, DIM), torch.randn(Q_HEADS, device=DEVICE)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace)
        wrapper.plan(*(one.cpu() for one in lists), Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type=q.dtype)
        out, lse = torch.empty_like(q), torch.empty(2, Q_HEADS, device=DEVICE)
        got = wrapper.run(q, cache, q_scale=2.0, k_scale=0.5, sinks=sinks, out=out, lse=lse, return_lse=True)
        self.assertIs(got[0], out)
        self.assertIs(got[1], lse)
        self.assert_sequences(out, lse, self.wanted(q, [1, 1], keys, values, sinks=sinks))

    def test_pages_of_8_bits(self):
        keys, values, lists, cache = self.pages([20, 65], dtype=torch.float16)
        cache = tuple(one.to(torch.float8_e4m3fn) for one in cache)
        keys, values = ([one.to(torch.float8_e4m3fn).double() for one in rows] for rows in (keys, values))
        q = self.randn(2, Q_HEADS, DIM)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace)
        wrapper.plan(*lists, Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type=q.dtype, kv_data_type=torch.float8_e4m3fn)
        wanted = self.wanted(q, [1, 1], [0.5 * one for one in keys], [2 * one for one in values])
        for scales in ((0.5, 2.0), (torch.full((1,), 0.5, device=DEVICE), torch.full((1,), 2.0, device=DEVICE))):
            o, lse = wrapper.run(q, cache, k_scale=scales[0], v_scale=scales[1], return_lse=True)
            self.assert_near(lse, torch.cat([one for _, one in wanted]))
            difference = (o.double() - torch.cat([one for one, _ in wanted])).abs().max().item()
            self.assertLess(difference, 0.1)

    def test_prefill(self):
        q_lens, kv_lens = [5, 0, 64, 1, 3], [30, 7, 64, 100, 0]
        for layout, words in itertools.product(("NHD", "HND"), ({}, {"causal": True},
                                                                {"causal": True, "window_left": 6})):
            with self.subTest(layout=layout, words=words):
                keys, values, lists, cache = self.pages(kv_lens, layout)
                q = self.randn(sum(q_lens), Q_HEADS, DIM)
                wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, layout)
                wrapper.plan(offsets(q_lens), *lists, Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type=q.dtype, **words)
                wanted = self.wanted(q, q_lens, keys, values, causal=words.get("causal", False),
                                     window=(words.get("window_left"), None))
                self.assert_sequences(*wrapper.run(q, cache, return_lse=True), wanted)
                _, lse = wrapper.run(q, cache, return_lse=True, lse_base="ln", lse_layout="HN")
                self.assert_near(lse, torch.cat([one for _, one in wanted]).T * math.log(2))
                again = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self.workspace)
                again.plan(offsets(q_lens), offsets(kv_lens), Q_HEADS, KV_HEADS, DIM, q_data_type=q.dtype, **words)
                self.assert_sequences(*again.run(q, torch.cat(keys), torch.cat(values), return_lse=True), wanted)

    def test_levels(self):
        """A prefix that two sequences share, and the rest of each."""
        keys, values, (indptr, indices, last), cache = self.pages([48, 20, 5])
        q = self.randn(2, Q_HEADS, DIM)
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, self.workspace)
        wrapper.plan([offsets([2]), offsets([1, 1])], [indptr[:2], indptr[1:] - 3], [indices[:3], indices[3:]],
                     [last[:1], last[1:]], Q_HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type=q.dtype)
        wanted = self.wanted(q, [1, 1], *([torch.cat([one[0], own]) for own in one[1:]] for one in (keys, values)))
        self.assert_near(wrapper.run(q, cache), torch.cat([o for o, _ in wanted]))

    def test_merging(self):
        q, k, v = self.randn(9, Q_HEADS, DIM), self.randn(60, Q_HEADS, DIM), self.randn(60, Q_HEADS, DIM)
        states = base_2([reference(q, *one) for one in zip(k.split([50, 10]), v.split([50, 10]))])
        wanted = base_2([reference(q, k, v)])
        (v_a, s_a), (v_b, s_b) = ((o.to(q.dtype), lse.float().contiguous()) for o, lse in states)
        self.assert_sequences(*flashinfer.merge_state(v_a, s_a, v_b, s_b), wanted)
        self.assert_sequences(*flashinfer.merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1)), wanted)
        flashinfer.merge_state_in_place(v_a, s_a, v_b, s_b)
        self.assert_sequences(v_a, s_a, wanted)


class Latents(FlashInferTest):
    CKV, KPE, HEADS = 512, 64, 16

    def batch(self, kv_lens, room):
        """Latents in the pages of a list, which is shuffled, and the same of each sequence."""
        counts = [-(-length // PAGE) for length in kv_lens]
        indices = torch.randperm(room)[:sum(counts)].tolist()
        rows = [self.randn(length, 1, self.CKV + self.KPE) for length in kv_lens]
        cache, left = nan(room, PAGE, self.CKV + self.KPE, dtype=torch.bfloat16), iter(indices)
        for sequence in rows:
            for part in sequence.split(PAGE) if len(sequence) else ():
                cache[next(left), :len(part)] = part[:, 0]
        return rows, cache, (offsets(counts), lengths(indices), lengths(kv_lens))

    def wanted_latents(self, q, q_lens, rows):
        return self.wanted(q, q_lens, rows, [one[..., :self.CKV] for one in rows], causal=True, scale=0.1)

    def test_lists_then_a_graph_with_other_plans(self):
        buffers = (lengths([0] * 3), lengths([0] * 3), lengths([0] * 64), lengths([0] * 2))
        graphs = flashinfer.mla.BatchMLAPagedAttentionWrapper(self.workspace, True, *buffers)
        plain = flashinfer.mla.BatchMLAPagedAttentionWrapper(self.workspace)
        rest = (self.HEADS, self.CKV, self.KPE, PAGE, True, 0.1, torch.bfloat16, torch.bfloat16)
        q = self.randn(3, self.HEADS, self.CKV + self.KPE)
        cache, out, graph = nan(64, PAGE, self.CKV + self.KPE, dtype=torch.bfloat16), None, torch.cuda.CUDAGraph()
        for q_lens, kv_lens in (([2, 1], [30, 4]), ([1, 2], [100, 300])):
            rows, filled, lists = self.batch(kv_lens, 64)
            cache.copy_(filled)
            wanted = self.wanted_latents(q, q_lens, rows)
            parts = q[..., :self.CKV], q[..., self.CKV:], cache[..., :self.CKV], cache[..., self.CKV:]
            plain.plan(offsets(q_lens), *lists, *rest)
            self.assert_sequences(*plain.run(*parts, return_lse=True), wanted)
            graphs.plan(offsets(q_lens), *lists, *rest)
            if out is None:
                graphs.run(*parts, return_lse=True)
                with torch.cuda.graph(graph):
                    out, lse = graphs.run(*parts, return_lse=True)
            graph.replay()
            self.assert_sequences(out, lse, wanted)


class Graphs(FlashInferTest):
    def test_decode_and_prefill_with_other_plans(self):
        """What a captured graph reads is what the last plan said, with longer sequences than those of the capture."""
        room = 64
        buffers = [lengths([0] * count) for count in (4, room, 3)]
        decode = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(self.workspace, *buffers)
        more = [lengths([0] * count) for count in (4, 4, room, 3)]
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD", True, *more)
        q, queries = self.randn(3, Q_HEADS, DIM), self.randn(12, Q_HEADS, DIM)
        cache = tuple(nan(room, PAGE, KV_HEADS, DIM, dtype=q.dtype) for _ in range(2))
        graph, captured = torch.cuda.CUDAGraph(), None
        for q_lens, kv_lens in (([4, 4, 4], [20, 4, 9]), ([1, 9, 2], [300, 0, 77]), ([0, 12, 0], [0, 40, 500])):
            keys, values, lists, filled = self.pages(kv_lens, room=room)
            for one, other in zip(cache, filled):
                one.copy_(other)
            decode.plan(*lists, Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type=q.dtype)
            prefill.plan(offsets(q_lens), *lists, Q_HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type=q.dtype)
            if captured is None:
                decode.run(q, cache, return_lse=True)
                prefill.run(queries, cache, return_lse=True)
                with torch.cuda.graph(graph):
                    captured = decode.run(q, cache, return_lse=True), prefill.run(queries, cache, return_lse=True)
            graph.replay()
            self.assert_sequences(*captured[0], self.wanted(q, [1] * 3, keys, values))
            self.assert_sequences(*captured[1], self.wanted(queries, q_lens, keys, values, causal=True))
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "qo_indptr"):
            prefill.plan(offsets([5, 5, 5]), *lists, Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type=q.dtype)


class Pages(FlashInferTest):
    def test_appending(self):
        new = [45, 8, 0, 25, 22]
        for layout, dtype in itertools.product(("NHD", "HND"), (torch.bfloat16, torch.float8_e4m3fn)):
            with self.subTest(layout=layout, dtype=dtype):
                keys, values, (indptr, indices, last), pair = self.pages([45, 9, 3, 40, 22], layout, torch.bfloat16)
                cache = torch.zeros_like(torch.stack(pair, 1)).to(dtype)
                k, v = (torch.cat([rows[len(rows) - count:] for rows, count in zip(one, new)]).to(dtype)
                        for one in (keys, values))
                places = flashinfer.get_batch_indices_positions(
                    offsets(new), flashinfer.get_seq_lens(indptr, last, PAGE), sum(new))
                flashinfer.append_paged_kv_cache(k, v, *places, cache, indices, indptr, last, layout)
                wide = cache.float() if layout == "NHD" else cache.float().transpose(2, 3)
                for b, count in enumerate(new):
                    length = len(keys[b])
                    listed = indices[indptr[b]:indptr[b + 1]].long()
                    for part, one in enumerate((keys, values)):
                        rows = wide[listed, part].flatten(0, 1)
                        added = one[b][length - count:].to(dtype).float()
                        self.assertTrue(torch.equal(rows[length - count:length], added))
                        self.assertEqual(rows[:length - count].abs().sum().item(), 0)

    def test_appending_latents(self):
        ckv, kpe = self.randn(3, 512), self.randn(3, 64)
        ckv_cache, kpe_cache = (torch.zeros(4, PAGE, columns, device=DEVICE, dtype=ckv.dtype) for columns in (512, 64))
        flashinfer.append_paged_mla_kv_cache(ckv, kpe, lengths([0, 0, 1]), lengths([15, 16, 2]), ckv_cache, kpe_cache,
                                             lengths([3, 0, 2]), lengths([0, 2, 3]), lengths([1, 3]))
        for cache, rows in ((ckv_cache, ckv), (kpe_cache, kpe)):
            for place, row in zip(((3, 15), (0, 0), (2, 2)), rows):
                self.assertTrue(torch.equal(cache[place], row))
            self.assertEqual(torch.count_nonzero(cache.abs().sum(-1)).item(), 3)


    def test_pages_of_e5m2_keep_every_bit(self):
        """In a captured graph too, which is replayed with other places."""
        every = torch.arange(256, dtype=torch.uint8, device=DEVICE).repeat(4 * KV_HEADS * DIM // 256)
        keys, values = (every[torch.randperm(len(every), device=DEVICE)].view(4, KV_HEADS, DIM).view(torch.float8_e5m2)
                        for _ in range(2))
        pair = tuple(torch.zeros(3, PAGE, KV_HEADS, DIM, dtype=torch.uint8, device=DEVICE).view(torch.float8_e5m2)
                     for _ in range(2))
        batch, places = lengths([0, -1, 0, -1]), lengths([3, 0, 17, 0])
        lists = lengths([2, 0]), lengths([0, 2]), lengths([2])
        flashinfer.append_paged_kv_cache(keys, values, batch, places, pair, *lists)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            flashinfer.append_paged_kv_cache(keys, values, batch, places, pair, *lists)
        places.copy_(lengths([4, 0, 18, 0]))
        graph.replay()
        for cache, rows in zip(pair, (keys, values)):
            got, wanted = cache.view(torch.uint8), rows.view(torch.uint8)
            for place, token in (((2, 3), 0), ((2, 4), 0), ((0, 1), 2), ((0, 2), 2)):
                self.assertTrue(torch.equal(got[place], wanted[token]))
            self.assertEqual(int((got != 0).flatten(2).any(-1).sum()), 4)


class NewWrappers(FlashInferTest):
    def test_sinks(self):
        keys, values, lists, pair = self.pages([40, 17])
        q, sink = self.randn(12, Q_HEADS, DIM), torch.randn(Q_HEADS, device=DEVICE)
        wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(self.workspace, window_left=9)
        wrapper.plan(offsets([7, 5]), *lists, Q_HEADS, KV_HEADS, DIM, PAGE, causal=True, window_left=9,
                     q_data_type=torch.bfloat16)
        o, lse = wrapper.run(q, pair, sink, 0.07, return_lse=True)
        self.assert_sequences(o, lse, self.wanted(q, [7, 5], keys, values, causal=True, window=(9, None), sinks=sink,
                                                  scale=0.07))

    def test_shared_prefixes(self):
        keys, values, lists, pair = self.pages([40, 0, 17])
        k, v = self.randn(50, KV_HEADS, DIM), self.randn(50, KV_HEADS, DIM)
        q = self.randn(3, Q_HEADS, DIM)
        decode = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(self.workspace)
        decode.begin_forward(*lists, Q_HEADS, KV_HEADS, DIM, PAGE, data_type="bfloat16")
        wanted = self.wanted(q, [1] * 3, [torch.cat((k, one)) for one in keys], [torch.cat((v, one)) for one in values])
        self.assert_near(decode.forward(q, k, v, pair), torch.cat([o for o, _ in wanted]))

    def test_last_pages_without_tokens_and_one_scale(self):
        keys, values, (_, indices, _), pair = self.pages([2 * PAGE, PAGE])
        indices = torch.cat((indices[:2], indices.new_tensor([1 << 20]), indices[2:]))
        low = tuple(one.to(torch.float8_e4m3fn) for one in pair)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace)
        flashinfer.fast_decode_plan(wrapper, lengths([0, 3, 4]), indices, lengths([0, PAGE]), Q_HEADS, KV_HEADS, DIM, PAGE,
                                    q_data_type=torch.bfloat16, kv_data_type=torch.float8_e4m3fn)
        q = self.randn(2, Q_HEADS, DIM)
        o = wrapper.run(q, low, k_scale=torch.tensor([0.5], device=DEVICE))
        keys, values = ([rows.to(torch.float8_e4m3fn).float() for rows in one] for one in (keys, values))
        wanted = self.wanted(q, [1, 1], keys, values, scale=0.5 * DIM ** -0.5)
        self.assert_near(o, torch.cat([one for one, _ in wanted]))

    def test_offsets_of_latents_that_go_on(self):
        q, rows = self.randn(2, 16, 576), self.randn(3, PAGE, 576)
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(self.workspace)
        wrapper.plan(offsets([1, 1]), lengths([0, 2, 3, 5, 9]), lengths([0, 1, 2]), lengths([20, 3]), 16, 512, 64, PAGE, True,
                     0.07, q.dtype, rows.dtype)
        o = wrapper.run(query=q, kv_cache=rows)
        each = rows.flatten(0, 1)[:20, None], rows[2, :3, None]
        wanted = self.wanted(q, [1, 1], each, [one[..., :512] for one in each], scale=0.07)
        self.assert_near(o, torch.cat([one for one, _ in wanted]))


class Documentation(FlashInferTest):
    """The uses that FlashInfer's documentation has as examples, written anew."""

    def test_append_then_decode_by_layer(self):
        page_lists = lengths([0, 17, 29, 44, 48, 66, 100, 128]), torch.arange(128, device=DEVICE).int(), \
            lengths([1, 7, 14, 4, 3, 1, 16])
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD")
        wrapper.plan(*page_lists, 32, 8, 128, PAGE, pos_encoding_mode="NONE", data_type=torch.float16)
        for _ in range(2):
            q = self.randn(7, 32, 128, dtype=torch.float16)
            cache = self.randn(128, 2, PAGE, 8, 128, dtype=torch.float16)
            o = wrapper.run(q, cache)
            self.assertEqual(tuple(o.shape), (7, 32, 128))
            for b, length in enumerate(flashinfer.get_seq_lens(page_lists[0], page_lists[2], PAGE).tolist()):
                k, v = (cache[page_lists[0][b]:page_lists[0][b + 1], part].flatten(0, 1)[:length] for part in range(2))
                self.assert_near(o[b:b + 1], reference(q[b:b + 1], k, v)[0])

    def test_prefill_of_a_batch(self):
        starts = lengths([0, 33, 44, 55, 66, 77, 88, 100])
        q, k, v = (self.randn(100, heads, 128, dtype=torch.float16) for heads in (32, 8, 8))
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self.workspace, "NHD")
        wrapper.plan(starts, starts, 32, 8, 128, causal=True)
        counts = starts.diff().tolist()
        wanted = self.wanted(q, counts, k.split(counts), v.split(counts), causal=True)
        self.assert_sequences(*wrapper.run_return_lse(q, k, v), wanted)

    def test_latents_of_pages_of_one_token(self):
        q_nope, q_pe = self.randn(4, 128, 512), self.randn(4, 128, 64)
        ckv, kpe = self.randn(4 * 99, 1, 512), self.randn(4 * 99, 1, 64)
        starts = torch.arange(5, device=DEVICE).int()
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(self.workspace, backend="fa2")
        scale = 1 / (128 + 64) ** 0.5
        wrapper.plan(starts, starts * 99, torch.arange(4 * 99, device=DEVICE).int(), lengths([99] * 4), 128, 512, 64, 1,
                     False, scale, q_nope.dtype, ckv.dtype)
        o = wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=False)
        q, rows = torch.cat([q_nope, q_pe], -1), torch.cat([ckv, kpe], -1).split(99)
        wanted = self.wanted(q, [1] * 4, rows, [one[..., :512] for one in rows], scale=scale)
        self.assert_near(o, torch.cat([one for one, _ in wanted]))


if __name__ == "__main__":
    import unittest

    unittest.main()

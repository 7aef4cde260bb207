"""attnsmith.compat.flashinfer: single requests, cascades and pages, on the CPU by the stand-in of the plain functions."""

import itertools
import math
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    torch = None
from flashinfer_cases import (DIM, FlashInferTest, KV_HEADS, Latents, PAGE, Pages, Q_HEADS, concatenated, expected, ints,
                              offsets, randn, workspace)

if torch is not None:
    import attnsmith.compat.flashinfer as flashinfer


class Single(FlashInferTest):
    def test_decode_in_both_layouts(self):
        q, k, v = randn(Q_HEADS, DIM), randn(11, KV_HEADS, DIM), randn(11, KV_HEADS, 8)
        for words in ({}, {"window_left": 3}, {"window_left": 0}, {"logits_soft_cap": 1.5}, {"sm_scale": 0.7}):
            with self.subTest(words=words):
                named = {"cap" if name == "logits_soft_cap" else "scale" if name == "sm_scale" else name: value
                         for name, value in words.items()}
                o, lse = expected(q[None], k, v, **named)
                self.assert_near(flashinfer.single_decode_with_kv_cache(q, k, v, **words), o[0])
                k_hnd, v_hnd = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
                got = flashinfer.single_decode_with_kv_cache(q, k_hnd, v_hnd, "HND", return_lse=True, **words)
                self.assert_state(got, (o[0], lse[0]))

    def test_prefill_in_both_layouts(self):
        for (q_len, kv_len), words in itertools.product(((5, 11), (7, 7), (6, 3), (3, 0)), (
                {}, {"causal": True}, {"causal": True, "window_left": 2}, {"window_left": 4}, {"logits_soft_cap": 2.0},
                {"sm_scale": 0.5, "causal": True})):
            with self.subTest(q_len=q_len, kv_len=kv_len, words=words):
                q, k, v = randn(q_len, Q_HEADS, DIM), randn(kv_len, KV_HEADS, DIM), randn(kv_len, KV_HEADS, DIM)
                named = {"cap" if name == "logits_soft_cap" else "scale" if name == "sm_scale" else name: value
                         for name, value in words.items()}
                wanted = expected(q, k, v, **named)
                self.assert_near(flashinfer.single_prefill_with_kv_cache(q, k, v, **words), wanted[0])
                got = flashinfer.single_prefill_with_kv_cache_return_lse(q, k.transpose(0, 1), v.transpose(0, 1),
                                                                         kv_layout="HND", **words)
                self.assert_state(got, wanted)

    def test_outputs_of_float32(self):
        q, k, v = randn(3, Q_HEADS, DIM), randn(5, KV_HEADS, DIM), randn(5, KV_HEADS, DIM)
        o = flashinfer.single_prefill_with_kv_cache(q, k, v, o_dtype=torch.float32)
        self.assertEqual(o.dtype, torch.float32)
        self.assert_near(o, expected(q, k, v)[0], 1e-5)
        self.refused("o_dtype", flashinfer.single_prefill_with_kv_cache, q, k, v, o_dtype=torch.bfloat16)

    def test_scales_of_keys_and_values(self):
        q, k, v = randn(3, Q_HEADS, DIM), randn(5, KV_HEADS, DIM), randn(5, KV_HEADS, DIM)
        o, lse = expected(q, k, v, scale=DIM ** -0.5 * 0.5)
        self.assert_state(flashinfer.single_prefill_with_kv_cache(q, k, v, k_scale=0.5, v_scale=3.0, return_lse=True),
                          (3 * o, lse))
        o, lse = expected(q[:1], k, v, scale=0.3 * 0.5 * 2)
        got = flashinfer.single_decode_with_kv_cache(q[0], k, v, q_scale=2, k_scale=0.5, v_scale=3.0, sm_scale=0.3,
                                                     return_lse=True)
        self.assert_state(got, (3 * o[0], lse[0]))

    def test_keys_and_values_of_8_bits_with_scales_as_numbers_and_tensors(self):
        q = randn(3, Q_HEADS, DIM)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            k, v = randn(5, KV_HEADS, DIM).to(dtype), randn(5, KV_HEADS, DIM).to(dtype)
            o, lse = expected(q, k.double(), v.double(), scale=DIM ** -0.5 * 0.5)
            for k_scale, v_scale in ((0.5, 3.0), (torch.tensor(0.5), torch.tensor([3.0])), (torch.tensor([0.5]), 3.0),
                                     (0.5, torch.tensor([3.0]))):
                with self.subTest(dtype=dtype, k_scale=k_scale):
                    self.assert_state(flashinfer.single_prefill_with_kv_cache(q, k, v, k_scale=k_scale, v_scale=v_scale,
                                                                              return_lse=True), (3 * o, lse), 1e-2)
            self.assert_state(flashinfer.single_prefill_with_kv_cache(q, k, v, k_scale=torch.tensor(0.5), return_lse=True),
                              (o, lse), 1e-2)
            self.assert_near(flashinfer.single_decode_with_kv_cache(q[0], k, v, v_scale=torch.tensor([3.0])),
                             3 * expected(q[:1], k.double(), v.double())[0][0], 1e-2)
        self.refused("k_scale", flashinfer.single_prefill_with_kv_cache, q, k, v, k_scale=torch.ones(2))
        self.refused("q_scale", flashinfer.single_decode_with_kv_cache, q[0], k, v, q_scale=torch.ones(1))

    def test_alibi_by_the_slopes_of_flashinfer(self):
        call = flashinfer.single_prefill_with_kv_cache
        for heads, slopes in ((2, [2 ** -4, 2 ** -8]), (4, [0.25, 0.0625, 2 ** -6, 2 ** -8]),
                              (6, [0.25, 0.0625, 2 ** -6, 2 ** -8, 0.5, 0.125])):
            with self.subTest(heads=heads):
                q, k, v = randn(3, heads, DIM), randn(7, heads // 2, DIM), randn(7, heads // 2, DIM)
                wanted = expected(q, k, v, causal=True, slopes=torch.tensor(slopes, dtype=torch.float64))
                self.assert_near(call(q, k, v, causal=True, pos_encoding_mode="ALIBI"), wanted[0])
        self.refused("return_lse", call, q, k, v, pos_encoding_mode="ALIBI", return_lse=True)
        self.refused("logits_soft_cap", call, q, k, v, pos_encoding_mode="ALIBI", logits_soft_cap=2.0)

    def test_words_that_are_none(self):
        q, k, v = randn(3, Q_HEADS, DIM), randn(5, KV_HEADS, DIM), randn(5, KV_HEADS, DIM)
        for name, value in (("kv_layout", "HDN"), ("kv_layout", None), ("pos_encoding_mode", "ROPE_LLAMA"),
                            ("pos_encoding_mode", "ROPE"), ("backend", "fa7"), ("backend", "prims-ts"),
                            ("window_left", 1.5), ("window_left", None), ("logits_soft_cap", "30"), ("sm_scale", "1"),
                            ("causal", 1), ("return_lse", 1), ("v_scale", math.nan)):
            with self.subTest(name=name, value=value):
                self.refused(name, flashinfer.single_prefill_with_kv_cache, q, k, v, **{name: value})
        self.assertEqual(self.calls, [])


class SharedPrefix(FlashInferTest):
    """Keys that all sequences share are in one tensor, those of their own in pages."""

    def expected(self, pages, q, q_lens, k, v, **words):
        """Attention to the shared keys, all of which each query sees, and to a sequence's own."""
        pages.keys, pages.values = ([torch.cat((shared, rows)) for rows in one]
                                    for shared, one in ((k, pages.keys), (v, pages.values)))
        return pages.expected(q, q_lens, **words)[0]

    def test_decode(self):
        for layout, dtype in itertools.product(("NHD", "HND"), (torch.float16, torch.bfloat16)):
            with self.subTest(layout=layout, dtype=dtype):
                pages, q = Pages([9, 0, 4], layout, dtype=dtype), randn(3, Q_HEADS, DIM, dtype=dtype)
                k, v = randn(7, KV_HEADS, DIM, dtype=dtype), randn(7, KV_HEADS, DIM, dtype=dtype)
                wrapper = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(workspace(), layout)
                wrapper.begin_forward(*pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, data_type=dtype)
                shared = (k, v) if layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
                got = wrapper.forward(q, *shared, pages.both)
                self.assert_near(got, self.expected(pages, q, [1] * 3, k, v), 4e-3 if dtype == torch.float16 else 3e-2)
        self.refused("data_type", wrapper.begin_forward, *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, data_type="half-ish")

    def test_prefill(self):
        q_lens = [3, 0, 2]
        for layout, words in itertools.product(("NHD", "HND"), ({}, {"causal": True}, {"causal": True, "sm_scale": 0.4})):
            with self.subTest(layout=layout, words=words):
                pages, q = Pages([9, 5, 4], layout), randn(5, Q_HEADS, DIM)
                k, v = randn(7, KV_HEADS, DIM), randn(7, KV_HEADS, DIM)
                wrapper = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(workspace(), layout)
                wrapper.begin_forward(offsets(q_lens), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE)
                wrapper.reset_workspace_buffer(workspace(), workspace())
                shared = (k, v) if layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
                named = {"scale" if name == "sm_scale" else name: value for name, value in words.items()}
                self.assert_near(wrapper.forward(q, *shared, pages.both, **words),
                                 self.expected(pages, q, q_lens, k, v, **named))


class Cascade(FlashInferTest):
    def states(self, count=3, tokens=5):
        """States of parts of the keys, in base 2, and the whole."""
        q = randn(tokens, Q_HEADS, DIM)
        parts = [(randn(length, KV_HEADS, DIM), randn(length, KV_HEADS, DIM)) for length in (4, 0, 7)[:count]]
        made = [expected(q, k, v) for k, v in parts]
        whole = expected(q, *(torch.cat(tensors) for tensors in zip(*parts)))
        return [o.half() for o, _ in made], [lse.float() for _, lse in made], whole

    def test_merging_two_states(self):
        o, lse, wanted = self.states(2)
        self.assert_state(flashinfer.merge_state(o[0], lse[0], o[1], lse[1]), wanted)
        o, lse, _ = self.states()
        self.assert_state(flashinfer.cascade.merge_state(o[0], lse[0], o[2], lse[2].double()),
                          merged((o[0], lse[0]), (o[2], lse[2])))

    def test_merging_in_place_where_the_mask_says(self):
        for mask in (None, torch.tensor([True, False, True, True, False]), ints(1, 0, 1, 1, 0)):
            o, lse, _ = self.states()
            wanted_o, wanted_lse = merged((o[0], lse[0]), (o[2], lse[2]))
            if mask is not None:
                wanted_o = torch.where(mask.bool()[:, None, None], wanted_o, o[0].double())
                wanted_lse = torch.where(mask.bool()[:, None], wanted_lse, lse[0].double())
            v, s = o[0].clone(), lse[0].clone()
            self.assertIsNone(flashinfer.merge_state_in_place(v, s, o[2], lse[2], mask))
            self.assert_state((v, s), (wanted_o, wanted_lse))
        self.refused("s.dtype", flashinfer.merge_state_in_place, v, s.double(), o[2], lse[2])

    def test_merging_several_states(self):
        o, lse, wanted = self.states()
        self.assert_state(flashinfer.merge_states(torch.stack(o, 1), torch.stack(lse, 1)), wanted)

    def test_levels(self):
        """A prefix of all sequences, and what each has of its own."""
        for layout, causal in itertools.product(("NHD", "HND"), (False, True)):
            q_lens, own = [3, 2], [5, 2]
            pages = Pages([8, *own], layout)
            q = randn(5, Q_HEADS, DIM)
            wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(), layout)
            self.assertFalse(wrapper.is_cuda_graph_enabled)
            wrapper.reset_workspace_buffer(workspace(), [workspace()] * 2)
            arguments = ([ints(0, 5), offsets(q_lens)], [pages.indptr[:2], pages.indptr[1:] - 2],
                         [pages.indices[:2], pages.indices[2:]], [pages.last[:1], pages.last[1:]],
                         Q_HEADS, KV_HEADS, DIM, PAGE)
            wrapper.plan(*arguments, causal=causal, sm_scale=0.4, logits_soft_cap=3.0)
            states = []
            for rows, k, v in zip(q.split(q_lens), pages.keys[1:], pages.values[1:]):
                prefix = expected(rows, pages.keys[0], pages.values[0], scale=0.4, cap=3.0)
                states.append(merged(prefix, expected(rows, k, v, causal=causal, scale=0.4, cap=3.0)))
            for run in (wrapper.run, wrapper.forward):
                self.assert_near(run(q, pages.both), concatenated(states)[0])
            self.assertEqual(self.calls[-1][0], "merge_states")

    def test_levels_in_graph_mode(self):
        buffers = [[ints(0, 0), ints(0, 0, 0)], [ints(0, 0), ints(0, 0, 0)], [ints(*[0] * 6), ints(*[0] * 6)],
                   [ints(0), ints(0, 0)]]
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(), "NHD", True, *buffers)
        self.assertTrue(wrapper.is_cuda_graph_enabled)
        pages, q = Pages([8, 5, 2]), randn(5, Q_HEADS, DIM)
        wrapper.plan([ints(0, 5), offsets([3, 2])], [pages.indptr[:2], pages.indptr[1:] - 2],
                     [pages.indices[:2], pages.indices[2:]], [pages.last[:1], pages.last[1:]],
                     Q_HEADS, KV_HEADS, DIM, PAGE)
        wrapper.run(q, pages.both)
        self.assertTrue(torch.equal(buffers[0][1], offsets([3, 2])))
        self.assertIs(self.calls[0][2]["page_indptr"], buffers[1][0])
        self.refused("paged_kv_indices_buf_arr", flashinfer.MultiLevelCascadeAttentionWrapper, 2, workspace(), "NHD",
                     True, buffers[0], buffers[1], buffers[2][:1], buffers[3])
        self.refused("qo_indptr_arr", wrapper.plan, [ints(0, 5)], [], [], [], Q_HEADS, KV_HEADS, DIM, PAGE)


def merged(a, b):
    """Two states in base 2, in fp64."""
    (o_a, lse_a), (o_b, lse_b) = ((o.double(), lse.double()) for o, lse in (a, b))
    top = torch.maximum(lse_a, lse_b)
    a, b = torch.exp2(lse_a - top), torch.exp2(lse_b - top)
    return (o_a * a[..., None] + o_b * b[..., None]) / (a + b)[..., None], top + torch.log2(a + b)


class Page(FlashInferTest):
    def test_lengths(self):
        self.assertEqual(flashinfer.get_seq_lens(ints(0, 3, 3, 4), ints(2, 1, 4), 4).tolist(), [10, 1, 4])

    def test_sequences_and_places_of_new_tokens(self):
        """The example of FlashInfer's documentation, and one with empty sequences and too many places."""
        batch, places = flashinfer.get_batch_indices_positions(ints(0, 1, 3, 6, 10), ints(5, 5, 5, 5), 10)
        self.assertEqual((batch.dtype, places.dtype), (torch.int32, torch.int32))
        self.assertEqual(batch.tolist(), [0, 1, 1, 2, 2, 2, 3, 3, 3, 3])
        self.assertEqual(places.tolist(), [4, 3, 4, 2, 3, 4, 1, 2, 3, 4])
        lists = ints(0, 2, 2, 3).long(), torch.tensor([7, 3, 1]), 5
        batch, places = flashinfer.get_batch_indices_positions(*lists)
        self.assertEqual((batch.tolist(), places.tolist()), ([0, 0, 2, -1, -1], [5, 6, 0, 0, 0]))
        given = ints(*[9] * 5), ints(*[9] * 5)
        got = flashinfer.get_batch_indices_positions(*lists, *given)
        self.assertIs(got[0], given[0])
        self.assertIs(got[1], given[1])
        self.assertEqual((given[0].tolist(), given[1].tolist()), ([0, 0, 2, -1, -1], [5, 6, 0, 9, 9]))
        self.refused("batch_indices.shape", flashinfer.get_batch_indices_positions, *lists, ints(0))
        self.refused("positions.dtype", flashinfer.get_batch_indices_positions, *lists, None, ints(*[0] * 5).long())

    def appended(self, layout, dtype, whole):
        """The caches after an append of the last tokens of each sequence, and after all at once; and what was said."""
        pages = Pages([9, 4, 6], layout, dtype=dtype)
        count = [3, 0, 2]
        keys, values = ([rows[len(rows) - new:] for rows, new in zip(one, count)] for one in (pages.keys, pages.values))
        batch, places = flashinfer.get_batch_indices_positions(offsets(count), ints(9, 4, 6), 6)  # of which one is none
        cache = tuple(torch.zeros_like(one) for one in pages.pair)
        given = torch.stack(cache, 1) if whole else cache
        spare = torch.zeros(1, KV_HEADS, DIM, dtype=dtype)
        flashinfer.append_paged_kv_cache(torch.cat([*keys, spare]), torch.cat([*values, spare]), batch, places, given,
                                         pages.indices, pages.indptr, pages.last, layout)
        for part, rows in enumerate((keys, values)):
            wanted = torch.zeros_like(cache[part])
            for b, new in enumerate(rows):
                for i, row in enumerate(new):
                    place = [9, 4, 6][b] - len(new) + i
                    page = int(pages.indices[pages.indptr[b] + place // PAGE])
                    wanted[(page, place % PAGE) if layout == "NHD" else (page, slice(None), place % PAGE)] = row
            got = given[:, part] if whole else given[part]
            self.assertTrue(torch.equal(got.view(torch.uint8), wanted.view(torch.uint8)))

    def test_appending(self):
        for layout, whole in itertools.product(("NHD", "HND"), (False, True)):
            for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
                with self.subTest(layout=layout, whole=whole, dtype=dtype):
                    self.appended(layout, dtype, whole)

    def test_pages_of_e5m2_keep_every_bit(self):
        """Infinities and NaN of any payload as well, and what no token is written to."""
        every = torch.arange(256, dtype=torch.uint8)
        rows = every.repeat(2)[torch.randperm(512)].view(4, KV_HEADS, -1)[..., :DIM].contiguous().view(torch.float8_e5m2)
        special = torch.tensor([0x7c, 0xfc, 0x7d, 0xfd, 0x7e, 0xfe, 0x7f, 0xff, 0x80, 0x01] * 2, dtype=torch.uint8)[:DIM]
        rows[1] = special.view(torch.float8_e5m2)
        pages = Pages([9, 4], dtype=torch.float8_e5m2)
        for layout in ("NHD", "HND"):
            for batch, places, written in ((ints(0, -1, 1, -1), ints(8, 0, 3, 5), {0: (0, 8), 2: (1, 3)}),
                                           (ints(-1, 0, 0, 1), ints(2, 0, 7, 1), {1: (0, 0), 2: (0, 7), 3: (1, 1)}),
                                           (ints(-1, -1, -1, -1), ints(0, 0, 0, 0), {})):
                with self.subTest(layout=layout, written=written):
                    before = [torch.randint(0, 256, pages.pair[0].shape, dtype=torch.uint8) for _ in range(2)]
                    wanted = [one.clone() for one in before]
                    for token, (b, place) in written.items():
                        page = int(pages.indices[pages.indptr[b] + place // PAGE])
                        for one, shift in zip(wanted, (0, 1)):
                            one[page, place % PAGE] = rows.view(torch.uint8).roll(shift, 0)[token]
                    stored = [(one if layout == "NHD" else one.transpose(1, 2).contiguous()).view(torch.float8_e5m2)
                              for one in before]
                    values = rows.view(torch.uint8).roll(1, 0).view(torch.float8_e5m2)
                    flashinfer.append_paged_kv_cache(rows, values, batch, places, tuple(stored), pages.indices,
                                                     pages.indptr, pages.last, layout)
                    for got, one in zip(stored, wanted):
                        got = got.view(torch.uint8)
                        self.assertTrue(torch.equal(got if layout == "NHD" else got.transpose(1, 2), one))
        cache = torch.zeros(3, PAGE, DIM, dtype=torch.float8_e5m2), torch.zeros(3, PAGE, 8, dtype=torch.float8_e5m2)
        flashinfer.append_paged_mla_kv_cache(rows[:2, 0], rows[:2, 1, :8], ints(0, 0), ints(5, 1), *cache, ints(2, 0, 1),
                                             ints(0, 3), ints(1))
        for got, columns in zip(cache, (rows[:2, 0], rows[:2, 1, :8])):
            self.assertTrue(torch.equal(got.view(torch.uint8)[[0, 2], 1], columns.view(torch.uint8)))
            self.assertEqual(int((got.view(torch.uint8) != 0).any(-1).sum()), 2)
        self.refused("append_key.shape", flashinfer.append_paged_kv_cache, rows[:, :1], rows, ints(0, 0, 0, 0),
                     ints(0, 1, 2, 3), pages.pair, pages.indices, pages.indptr, pages.last)

    def test_appending_what_does_not_fit(self):
        pages, rows = Pages([4]), randn(2, KV_HEADS, DIM)
        rest = ints(0, 0), ints(2, 3), pages.pair, *pages.lists[1::-1], pages.last
        call = flashinfer.append_paged_kv_cache
        self.refused("append_key", call, rows.bfloat16(), rows, *rest)
        self.refused("append_value", call, rows, rows.to(torch.float8_e4m3fn), *rest)
        self.refused("kv_layout", call, rows, rows, *rest, kv_layout="HDN")
        self.refused("paged_kv_cache", call, rows, rows, *rest[:2], pages.pair[0], *rest[3:])
        before = len(self.calls)
        call(rows[:0], rows[:0], *rest)
        self.assertEqual(len(self.calls), before)

    def test_appending_latents(self):
        """The stand-in has no latents of append: what reaches it is looked at here."""
        batch = Latents([1, 1], [9, 4])
        ckv, kpe = randn(3, batch.CKV), randn(3, batch.KPE)
        places, lists = (ints(0, 1, -1), ints(8, 3, 0)), (batch.indices, batch.indptr, ints(1, 4))
        call = flashinfer.append_paged_mla_kv_cache
        with unittest.mock.patch("attnsmith.functions.append") as append:
            call(ckv, kpe, *places, *batch.tensors[2:], *lists)
            call(ckv[:0], kpe[:0], *places, *batch.tensors[2:], *lists)
        append.assert_called_once()
        (k, v, cache), words = append.call_args
        self.assertIs(k, ckv)
        self.assertIsNone(v)
        self.assertIs(cache, batch.tensors[2])
        slots = [int(batch.indices[2]) * PAGE, int(batch.indices[3]) * PAGE + 3, -1]
        self.assertEqual(words.pop("slot_mapping").tolist(), slots)
        self.assertIs(words.pop("kpe"), kpe)
        self.assertIs(words.pop("kpe_cache"), batch.tensors[3])
        self.assertEqual(words, {"head_dim_ckv": batch.CKV, "page_order": "NHD"})
        self.refused("ckv_cache", call, ckv, kpe, *places, None, batch.tensors[3], *lists)
        self.refused("append_kpe", call, ckv, kpe.bfloat16(), *places, *batch.tensors[2:], *lists)


if __name__ == "__main__":
    unittest.main()

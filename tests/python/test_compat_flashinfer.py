"""attnsmith.compat.flashinfer: FlashInfer's layouts and results, on the CPU by the stand-in of the plain functions."""

import functools
import itertools
import math
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    torch = None
from flashinfer_cases import (CASCADE, DECODE, DIM, FlashInferTest, GRAPH, KV_HEADS, Latents, MLA, PAGE, PREFILL, Pages,
                              Q_HEADS, RAGGED, concatenated, expected, ints, offsets, randn, workspace)

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


class Decode(FlashInferTest):
    LENGTHS = [9, 0, 4, 1]  # the second has no pages

    def planned(self, pages, layout="NHD", **words):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), layout)
        wrapper.plan(*pages.lists, Q_HEADS, KV_HEADS, DIM, pages.pair[0].shape[1 if layout == "NHD" else 2], **words)
        return wrapper

    def test_layouts_and_caches(self):
        for layout, page_size in itertools.product(("NHD", "HND"), (1, 4)):
            pages = Pages(self.LENGTHS, layout, page_size)
            q = randn(4, Q_HEADS, DIM)
            wanted = pages.expected(q, [1] * 4)
            wrapper = self.planned(pages, layout)
            for cache in (pages.pair, list(pages.pair), pages.both):
                with self.subTest(layout=layout, page_size=page_size, cache=type(cache)):
                    self.assert_near(wrapper.run(q, cache), wanted[0])
                    self.assert_state(wrapper.run_return_lse(q, cache), wanted)
            if page_size == 1:  # whose axis may be left out
                axis = 1 if layout == "NHD" else 2
                self.assert_near(wrapper.run(q, tuple(cache.squeeze(axis) for cache in pages.pair)), wanted[0])
                self.assert_near(wrapper.run(q, pages.both.squeeze(axis + 1)), wanted[0])

    def test_what_plan_says_of_scores(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        for words, named in (({"window_left": 2}, {"window_left": 2}), ({"window_left": -5}, {}),
                             ({"logits_soft_cap": 1.0}, {"cap": 1.0}), ({"logits_soft_cap": 0}, {}),
                             ({"logits_soft_cap": -1.0}, {}), ({"sm_scale": 0.4}, {"scale": 0.4})):
            with self.subTest(words=words):
                self.assert_state(self.planned(pages, **words).run(q, pages.both, return_lse=True),
                                  pages.expected(q, [1] * 4, **named))
        slopes = torch.tensor([0.25, 0.0625, 2 ** -6, 2 ** -8], dtype=torch.float64)
        wrapper = self.planned(pages, pos_encoding_mode="ALIBI")
        self.assert_near(wrapper.run(q, pages.both), pages.expected(q, [1] * 4, slopes=slopes)[0])
        self.refused_with_lse("pos_encoding_mode", wrapper.run, q, pages.both)
        self.refused("sinks", wrapper.run, q, pages.both, sinks=torch.randn(Q_HEADS))

    def test_optional_arguments_by_position(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace())
        wrapper.plan(*pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, "NONE", 2, 1.0)
        self.assert_near(wrapper.run(q, pages.both), pages.expected(q, [1] * 4, window_left=2, cap=1.0)[0])

    def test_several_queries_of_each_sequence(self):
        pages, q = Pages([9, 4, 3]), randn(9, Q_HEADS, DIM)
        wrapper = self.planned(pages, q_len_per_req=3, is_causal=True)
        out = torch.empty_like(q)
        got = wrapper.run(q, pages.both, return_lse=True, q_len_per_req=3, out=out)
        self.assertIs(got[0], out)
        self.assert_state(got, pages.expected(q, [3] * 3, causal=True))
        self.refused("q_len_per_req", wrapper.run, q, pages.both, q_len_per_req=1)
        self.refused("is_causal", self.planned, pages, q_len_per_req=3, is_causal=False)
        self.refused("is_causal", self.planned, pages, is_causal=True)
        self.refused("q_len_per_req", self.planned, pages, q_len_per_req=0)

    def test_what_run_says(self):
        pages, q, sinks = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM), torch.randn(Q_HEADS)
        wrapper = self.planned(pages, sm_scale=0.4)
        for words, factor, named in (
                ({"q_scale": 2.0, "k_scale": 0.5, "v_scale": 3}, 3, {}), ({"k_scale": 0.5}, 1, {"scale": 0.2}),
                ({"window_left": 1}, 1, {"window_left": 1}), ({"sinks": sinks}, 1, {"sinks": sinks})):
            with self.subTest(words=words):
                o, lse = pages.expected(q, [1] * 4, **{"scale": 0.4, **named})
                self.assert_state(wrapper.run(q, pages.both, return_lse=True, **words), (factor * o, lse), 1e-2)

    def test_outputs_of_the_caller(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        wanted, wrapper = pages.expected(q, [1] * 4), self.planned(pages)
        out, lse = torch.empty_like(q), torch.empty(4, Q_HEADS)
        got = wrapper.run(q, pages.both, out=out, lse=lse, return_lse=True)
        self.assertIs(got[0], out)
        self.assertIs(got[1], lse)
        self.assert_state(got, wanted)
        lse.zero_()
        self.assertTrue(torch.is_tensor(wrapper.run(q, pages.both, lse=lse)))
        self.assert_near(lse, wanted[1])
        self.refused("out.shape", wrapper.run, q, pages.both, out=torch.empty(4, Q_HEADS, 8, dtype=q.dtype))
        self.refused("out.dtype", wrapper.run, q, pages.both, out=torch.empty_like(q, dtype=torch.float32))
        self.refused("lse.shape", wrapper.run, q, pages.both, lse=torch.empty(3, Q_HEADS))
        self.refused("lse.dtype", wrapper.run, q, pages.both, lse=lse.half())

    def test_dtypes_that_were_planned(self):
        pages = Pages(self.LENGTHS, dtype=torch.bfloat16)
        q = randn(4, Q_HEADS, DIM, dtype=torch.bfloat16)
        wanted = pages.expected(q, [1] * 4)[0]
        for words in ({"q_data_type": torch.bfloat16}, {"q_data_type": "bfloat16", "o_data_type": "float32"},
                      {"q_data_type": None, "data_type": "bfloat16"}):
            o = self.planned(pages, **words).run(q, pages.both)
            self.assertEqual(o.dtype, torch.float32 if "o_data_type" in words else torch.bfloat16)
            self.assert_near(o, wanted, 2e-2)
        self.refused("q.dtype", self.planned(pages).run, q, pages.both)
        wrapper = self.planned(pages, q_data_type="bfloat16", kv_data_type=torch.float8_e4m3fn)
        self.refused("k_cache.dtype", wrapper.run, q, pages.both)
        cache = tuple(tensor.to(torch.float8_e4m3fn) for tensor in pages.pair)
        pages.keys, pages.values = ([rows.to(torch.float8_e4m3fn).double() for rows in one]
                                    for one in (pages.keys, pages.values))
        o, _ = pages.expected(q, [1] * 4, scale=DIM ** -0.5 * 0.25)
        for scales in ((0.25, 2.0), (torch.tensor([0.25]), torch.tensor([2.0]))):
            self.assert_near(wrapper.run(q, cache, k_scale=scales[0], v_scale=scales[1]), 2 * o, 2e-2)
        for words in ({"q_data_type": torch.float8_e4m3fn}, {"q_data_type": "float17"}, {"kv_data_type": "bfloat16"},
                      {"kv_data_type": torch.uint8}, {"o_data_type": torch.bfloat16}):
            with self.subTest(words=words):
                self.refused(next(iter(words)), self.planned, pages, **words)

    def test_shapes_that_were_planned(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        wrapper = self.planned(pages)
        self.refused("number of queries", wrapper.run, q[:3], pages.both)
        self.refused("num_qo_heads", wrapper.run, q[:, :2], pages.both)
        self.refused("head dim", wrapper.run, q[..., :8], pages.both)
        self.refused("page_size", wrapper.run, q, tuple(cache[:, :2] for cache in pages.pair))
        self.refused("num_kv_heads", wrapper.run, q, tuple(cache[:, :, :1] for cache in pages.pair))
        self.refused("paged_kv_cache", wrapper.run, q, pages.pair[0])
        self.refused("paged_kv_cache", wrapper.run, q, (*pages.pair, pages.pair[0]))
        self.refused("paged_kv_cache", wrapper.run, q, None)
        self.refused("plan", flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace()).run, q, pages.both)

    def test_lists_that_do_not_fit(self):
        pages = Pages([9, 4])
        plan = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace()).plan
        rest = (Q_HEADS, KV_HEADS, DIM, PAGE)
        indptr, indices, last = pages.lists
        self.refused("indptr", plan, ints(0, 3, 2), indices, last, *rest)
        self.refused("indptr", plan, indptr[None], indices, last, *rest)
        self.refused("indices", plan, indptr, indices[:2], last, *rest)
        self.refused("last_page_len", plan, indptr, indices, last[:1], *rest)
        self.refused("last_page_len", plan, indptr, indices, ints(1, PAGE + 1), *rest)
        self.refused("last_page_len", plan, indptr, indices, ints(-1, 1), *rest)
        self.refused("seq_lens", plan, *pages.lists, *rest, seq_lens=ints(9, 5))
        plan(*pages.lists, *rest, seq_lens=ints(9, 4))

    def test_last_pages_without_tokens(self):
        """As FlashInfer counts them: the pages before are full. In graph mode the buffers are to have the pages that count."""
        pages, q = Pages([8, 4, 3, 0]), randn(4, Q_HEADS, DIM)
        more = torch.cat([part for b, part in enumerate(pages.indices.split([2, 1, 1, 0]))
                          for part in ((part, ints(99)) if b != 2 else (part,))])
        lists = ints(0, 3, 5, 6, 7), more, ints(0, 0, 3, 0)
        self.assertEqual(flashinfer.get_seq_lens(lists[0], lists[2], PAGE).tolist(), [8, 4, 3, 0])
        wanted = pages.expected(q, [1] * 4)
        buffers = ints(*[0] * 5), ints(*[0] * 9), ints(*[0] * 4)
        for wrapper in (flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace()),
                        flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace(), *buffers)):
            wrapper.plan(*lists, Q_HEADS, KV_HEADS, DIM, PAGE)
            self.assert_state(wrapper.run(q, pages.both, return_lse=True), wanted)
        self.assertEqual((buffers[0].tolist(), buffers[2].tolist()[:3]), ([0, 2, 3, 4, 4], [4, 4, 3]))
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace())
        prefill.plan(ints(0, 1, 2, 3, 4), *lists, Q_HEADS, KV_HEADS, DIM, PAGE, causal=True)
        self.assert_near(prefill.run(q, pages.both), wanted[0])

    def test_fast_decode_plan(self):
        """Called with the wrapper, and in the place of its own plan(), as engines do."""
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        wanted = pages.expected(q, [1] * 4, window_left=3, cap=1.0, scale=0.4)
        words = {"window_left": 3, "logits_soft_cap": 1.0, "sm_scale": 0.4}
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace())
        flashinfer.fast_decode_plan(wrapper, *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, **words)
        self.assert_state(wrapper.run(q, pages.both, return_lse=True), wanted)
        wrapper = self.planned(pages, o_data_type=torch.float32)
        wrapper.plan = wrapper.begin_forward = functools.partial(flashinfer.decode.fast_decode_plan, wrapper)
        wrong = torch.zeros_like(pages.indptr)  # that of the device is not looked at
        wrapper.begin_forward(wrong, *pages.lists[1:], Q_HEADS, KV_HEADS, DIM, PAGE, q_data_type="float16",
                              global_override_indptr_cpu=pages.indptr, **words)
        o = wrapper.run(q, pages.both)
        self.assertEqual(o.dtype, torch.float32, "that of the plan before")
        self.assert_near(o, wanted[0], 1e-5)
        wide = Pages(self.LENGTHS, dtype=torch.bfloat16)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace())
        flashinfer.fast_decode_plan(wrapper, *wide.lists, Q_HEADS, KV_HEADS, DIM, PAGE, data_type="bfloat16")
        self.assert_near(wrapper.run(q.bfloat16(), wide.both), wide.expected(q.bfloat16(), [1] * 4)[0], 2e-2)

    def test_the_bounds_that_the_host_knows(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        self.planned(pages).run(q, pages.both)
        self.assertEqual((self.calls[-1][2]["max_q_len"], self.calls[-1][2]["max_kv_len"]), (1, 9))

    def test_a_plan_keeps_its_own_lists(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        wanted, wrapper = pages.expected(q, [1] * 4)[0], self.planned(pages)
        for tensor in pages.lists:
            tensor.zero_()
        self.assert_near(wrapper.run(q, pages.both), wanted)
        indptr = wrapper._arrays["page_indptr"]
        self.assertEqual((indptr.dtype, indptr.device), (torch.int32, wrapper.device))

    def test_rows_that_do_not_depend_on_the_batch(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        for words, wanted in (({}, "default"), ({"fixed_split_size": -1}, "default"),
                              ({"fixed_split_size": 4}, "bitwise"), ({"disable_split_kv": True}, "bitwise")):
            self.planned(pages, **words).run(q, pages.both)
            self.assertEqual(self.calls[-1][2]["consistency"], wanted)

    def test_forward_says_again_what_plan_said(self):
        pages, q = Pages(self.LENGTHS), randn(4, Q_HEADS, DIM)
        wrapper = self.planned(pages, window_left=3, sm_scale=0.9)
        wanted = pages.expected(q, [1] * 4, window_left=1, cap=2.0, scale=0.4)
        got = wrapper.forward(q, pages.both, window_left=1, logits_soft_cap=2.0, sm_scale=0.2, q_scale=2.0)
        self.assert_near(got, wanted[0])
        self.assert_state(wrapper.run_return_lse(q, pages.both, q_scale=2.0), wanted)
        self.assert_state(wrapper.forward_return_lse(q, pages.both, v_scale=2.0),
                          (2 * pages.expected(q, [1] * 4)[0], pages.expected(q, [1] * 4)[1]), 1e-2)

    def test_aliases_and_properties(self):
        kind = flashinfer.BatchDecodeWithPagedKVCacheWrapper
        self.assertIs(kind.begin_forward, kind.plan)
        wrapper = kind(workspace(), use_tensor_cores=True, backend="trtllm-gen")
        self.assertTrue(wrapper.use_tensor_cores)
        self.assertFalse(wrapper.is_cuda_graph_enabled)
        wrapper.reset_workspace_buffer(workspace(), workspace())
        self.assertIsNone(wrapper.end_forward())

    def test_the_integer_workspace_that_programs_share(self):
        """mini-sglang reads it of one wrapper, and assigns it to others."""
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace())
        for kind in (DECODE, PREFILL, RAGGED, MLA):
            other = getattr(flashinfer, kind)(workspace())
            self.assertEqual((other._int_workspace_buffer.dtype, other._int_workspace_buffer.device),
                             (torch.uint8, other.device))
            other._int_workspace_buffer = wrapper._int_workspace_buffer


class Graphs(FlashInferTest):
    """What a graph would replay: a wrapper whose plans write into the caller's buffers."""

    def test_decode(self):
        buffers = ints(*[0] * 4), ints(*[0] * 12), ints(*[0] * 3)
        wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace(), *buffers)
        self.assertTrue(wrapper.is_cuda_graph_enabled)
        for lengths in ([1, 0, 4], [30, 5, 7], [0, 0, 2]):
            pages, q = Pages(lengths), randn(3, Q_HEADS, DIM)
            wrapper.plan(*pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE)
            self.assertTrue(torch.equal(buffers[0], pages.indptr))
            self.assertTrue(torch.equal(buffers[1][:len(pages.indices)], pages.indices))
            self.assertTrue(torch.equal(buffers[2], pages.last))
            self.assert_state(wrapper.run(q, pages.both, return_lse=True), pages.expected(q, [1] * 3))
            words = self.calls[-1][2]
            for name, buffer in zip(("page_indptr", "page_indices", "last_page_len"), buffers):
                self.assertIs(words[name], buffer)
            # No bound that a longer plan would break is captured: kernels take that of the buffer of pages.
            self.assertIsNone(words["max_kv_len"])
        self.refused("q_len_per_req", wrapper.plan, *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, q_len_per_req=2)
        before = [buffer.clone() for buffer in buffers]
        self.refused("indptr_buffer", wrapper.plan, *Pages([1, 2]).lists, Q_HEADS, KV_HEADS, DIM, PAGE)
        self.refused("indices_buffer", wrapper.plan, *Pages([40, 4, 5]).lists, Q_HEADS, KV_HEADS, DIM, PAGE)
        for buffer, was in zip(buffers, before):
            self.assertTrue(torch.equal(buffer, was))

    def test_prefill(self):
        buffers = ints(0, 0, 0), ints(0, 0, 0), ints(*[0] * 12), ints(0, 0)
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", True, *buffers)
        for q_lens, lengths in (([3, 4], [9, 4]), ([1, 2], [30, 5]), ([0, 7], [0, 8])):
            pages, q = Pages(lengths), randn(sum(q_lens), Q_HEADS, DIM)
            wrapper.plan(offsets(q_lens), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, causal=True)
            self.assertTrue(torch.equal(buffers[0], offsets(q_lens)))
            self.assert_state(wrapper.run(q, pages.both, return_lse=True), pages.expected(q, q_lens, causal=True))
            words = self.calls[-1][2]
            self.assertIs(words["q_indptr"], buffers[0])
            self.assertEqual((words["max_q_len"], words["max_kv_len"]), (None, None))
        self.refused("qo_indptr", wrapper.plan, offsets([4, 4]), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE)

    def test_ragged(self):
        buffers = ints(0, 0, 0), ints(0, 0, 0)
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", True, *buffers)
        for q_lens, kv_lens in (([3, 4], [9, 4]), ([1, 2], [0, 30])):
            wrapper.plan(offsets(q_lens), offsets(kv_lens), Q_HEADS, KV_HEADS, DIM)
            q, k, v = randn(sum(q_lens), Q_HEADS, DIM), randn(30, KV_HEADS, DIM), randn(30, KV_HEADS, DIM)
            wrapper.run(q, k, v)
            self.assertIs(self.calls[-1][1][3], buffers[0])
            self.assertTrue(torch.equal(buffers[1], offsets(kv_lens)))
            self.assertEqual((self.calls[-1][2]["max_q_len"], self.calls[-1][2]["max_kv_len"]), (None, None))

    def test_latents(self):
        buffers = ints(0, 0, 0), ints(0, 0, 0), ints(*[0] * 12), ints(0, 0)
        wrapper = flashinfer.BatchMLAPagedAttentionWrapper(workspace(), True, *buffers)
        kept = None
        for q_lens, lengths in (([2, 1], [9, 4]), ([1, 1], [30, 5])):
            batch = Latents(q_lens, lengths)
            wrapper.plan(*batch.lists, *batch.rest)
            self.assert_state(wrapper.run(*batch.tensors, return_lse=True), batch.expected())
            words = self.calls[-1][2]
            self.assertIs(words["page_indices"], buffers[2])
            self.assertTrue(torch.equal(buffers[3], ints(*lengths)))
            kept = words["last_page_len"] if kept is None else kept
            self.assertIs(words["last_page_len"], kept)
            self.assertIsNone(words["max_kv_len"])

    def test_what_was_captured_bounds_later_plans(self):
        """The tensors of a captured run have so many rows, also where the first plan had more."""
        buffers = ints(0, 0, 0), ints(0, 0, 0)
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD", True, *buffers)
        wrapper.plan(offsets([4, 4]), offsets([4, 4]), Q_HEADS, KV_HEADS, DIM)
        wrapper.plan(offsets([2, 2]), offsets([4, 4]), Q_HEADS, KV_HEADS, DIM)
        with unittest.mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
            for what, rows in (("q", 4), ("k", 9)):
                wrapper._seen(what, unittest.mock.Mock(is_cuda=True, __len__=lambda _, rows=rows: rows,
                                                       spec=["is_cuda", "__len__"]))
        self.refused("qo_indptr", wrapper.plan, offsets([2, 3]), offsets([4, 4]), Q_HEADS, KV_HEADS, DIM)
        self.refused("kv_indptr", wrapper.plan, offsets([2, 2]), offsets([5, 5]), Q_HEADS, KV_HEADS, DIM)
        wrapper.plan(offsets([2, 2]), offsets([5, 4]), Q_HEADS, KV_HEADS, DIM)

    def test_buffers_that_are_missing_or_of_another_dtype(self):
        kind = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
        for wrong in names:
            buffers = {name: ints(0, 0) for name in names}
            with self.subTest(wrong=wrong):
                self.refused(wrong, kind, workspace(), use_cuda_graph=True, **{**buffers, wrong: None})
                self.refused(wrong, kind, workspace(), use_cuda_graph=True, **{**buffers, wrong: buffers[wrong].long()})


class Prefill(FlashInferTest):
    Q_LENS, LENGTHS = [3, 0, 5, 2, 4], [9, 4, 5, 0, 2]  # no queries, no keys, and fewer keys than queries

    def planned(self, pages, layout="NHD", q_lens=None, **words):
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), layout)
        wrapper.plan(offsets(q_lens or self.Q_LENS), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, **words)
        return wrapper

    def test_layouts_masks_and_caches(self):
        for layout in ("NHD", "HND"):
            pages, q = Pages(self.LENGTHS, layout), randn(sum(self.Q_LENS), Q_HEADS, DIM)
            for words, named in (({}, {}), ({"causal": True}, {"causal": True}),
                                 ({"causal": True, "window_left": 2}, {"causal": True, "window_left": 2}),
                                 ({"logits_soft_cap": 1.5, "sm_scale": 0.5}, {"cap": 1.5, "scale": 0.5})):
                wanted = pages.expected(q, self.Q_LENS, **named)
                wrapper = self.planned(pages, layout, **words)
                for cache in (pages.pair, pages.both):
                    with self.subTest(layout=layout, words=words, cache=type(cache)):
                        self.assert_near(wrapper.run(q, cache), wanted[0])
                        self.assert_state(wrapper.run_return_lse(q, cache), wanted)

    def test_values_of_other_head_dims(self):
        pages, q = Pages(self.LENGTHS, dims=(DIM, 8)), randn(sum(self.Q_LENS), Q_HEADS, DIM)
        wrapper = self.planned(pages, head_dim_vo=8)
        self.assert_near(wrapper.run(q, pages.pair), pages.expected(q, self.Q_LENS)[0])
        self.refused("head dim", self.planned(pages).run, q, pages.pair)

    def test_the_lse_in_either_base_and_layout(self):
        pages, q = Pages(self.LENGTHS), randn(sum(self.Q_LENS), Q_HEADS, DIM)
        wanted, wrapper = pages.expected(q, self.Q_LENS)[1], self.planned(pages)
        for base, factor in (("log2", 1), ("ln", math.log(2))):
            for layout, shaped in (("NH", wanted), ("HN", wanted.T)):
                given = torch.empty(shaped.shape)
                for lse in (None, given):
                    with self.subTest(base=base, layout=layout, given=lse is not None):
                        got = wrapper.run(q, pages.both, return_lse=True, lse_base=base, lse_layout=layout, lse=lse)[1]
                        self.assert_near(got, shaped * factor)
                        self.assertTrue(got.is_contiguous())
                        self.assertTrue(lse is None or got is lse)
        self.refused("lse_base", wrapper.run, q, pages.both, lse_base="log10")
        self.refused("lse_layout", wrapper.run, q, pages.both, lse_layout="HNN")
        self.refused("lse.shape", wrapper.run, q, pages.both, lse=torch.empty(wanted.shape), lse_layout="HN")

    def test_what_run_says(self):
        pages, q = Pages(self.LENGTHS), randn(sum(self.Q_LENS), Q_HEADS, DIM)
        sinks, out = torch.randn(Q_HEADS), torch.empty_like(q)
        wrapper = self.planned(pages, causal=True)
        o, lse = pages.expected(q, self.Q_LENS, causal=True, window_left=2, sinks=sinks, scale=DIM ** -0.5)
        got = wrapper.run(q, pages.both, q_scale=2.0, k_scale=0.5, v_scale=2.0, window_left=2, sinks=sinks, out=out,
                          return_lse=True)
        self.assertIs(got[0], out)
        self.assert_state(got, (2 * o, lse), 1e-2)

    def test_what_else_plan_says(self):
        pages, q = Pages(self.LENGTHS), randn(sum(self.Q_LENS), Q_HEADS, DIM)
        wanted = pages.expected(q, self.Q_LENS)[0]
        o = self.planned(pages, o_data_type="float32", fixed_split_size=2, non_blocking=False).run(q, pages.both)
        self.assertEqual((o.dtype, self.calls[-1][2]["consistency"]), (torch.float32, "bitwise"))
        self.assert_near(o, wanted, 1e-5)
        slopes = torch.tensor([0.25, 0.0625, 2 ** -6, 2 ** -8], dtype=torch.float64)
        wrapper = self.planned(pages, pos_encoding_mode="ALIBI")
        self.assert_near(wrapper.run(q, pages.both), pages.expected(q, self.Q_LENS, slopes=slopes)[0])
        self.refused_with_lse("pos_encoding_mode", wrapper.run, q, pages.both)
        self.refused("sinks", wrapper.run, q, pages.both, sinks=torch.randn(Q_HEADS))
        low = tuple(one.to(torch.float8_e5m2) for one in pages.pair)
        pages.keys, pages.values = ([rows.to(torch.float8_e5m2).double() for rows in one]
                                    for one in (pages.keys, pages.values))
        o = self.planned(pages, kv_data_type="float8_e5m2").run(q, low, k_scale=torch.tensor([0.5]), v_scale=2.0)
        self.assert_near(o, 2 * pages.expected(q, self.Q_LENS, scale=0.5 * DIM ** -0.5)[0], 1e-2)

    def test_the_bounds_that_the_host_knows(self):
        pages, q = Pages(self.LENGTHS), randn(sum(self.Q_LENS), Q_HEADS, DIM)
        self.planned(pages).run(q, pages.both)
        self.assertEqual((self.calls[-1][2]["max_q_len"], self.calls[-1][2]["max_kv_len"]), (5, 9))

    def test_lengths_that_are_said_again(self):
        pages = Pages(self.LENGTHS)
        self.planned(pages, seq_lens=ints(*self.LENGTHS), seq_lens_q=ints(*self.Q_LENS))
        self.planned(pages, seq_lens=flashinfer.get_seq_lens(pages.indptr, pages.last, PAGE).view(-1, 1, 1, 1))
        self.refused("seq_lens", self.planned, pages, seq_lens=ints(9, 4, 5, 0, 3))
        self.refused("seq_lens_q", self.planned, pages, seq_lens_q=ints(3, 0, 5, 2, 3))
        self.refused("paged_kv_indptr", self.planned, pages, q_lens=[3])

    def test_forward_says_again_what_plan_said(self):
        pages, q = Pages(self.LENGTHS), randn(sum(self.Q_LENS), Q_HEADS, DIM)
        wrapper = self.planned(pages, window_left=3)
        wanted = pages.expected(q, self.Q_LENS, causal=True, scale=0.3)
        self.assert_near(wrapper.forward(q, pages.both, causal=True, sm_scale=0.6, k_scale=0.5), wanted[0])
        self.assert_state(wrapper.forward_return_lse(q, pages.both, True, sm_scale=0.3), wanted)

    def test_aliases(self):
        for kind in (flashinfer.BatchPrefillWithPagedKVCacheWrapper, flashinfer.BatchPrefillWithRaggedKVCacheWrapper):
            self.assertIs(kind.begin_forward, kind.plan)
        for module, name in (("decode", DECODE), ("decode", GRAPH), ("prefill", PREFILL), ("prefill", RAGGED),
                             ("mla", MLA), ("cascade", CASCADE), ("cascade", "merge_state"),
                             ("page", "append_paged_kv_cache")):
            self.assertIs(getattr(getattr(flashinfer, module), name), getattr(flashinfer, name))


class Ragged(FlashInferTest):
    Q_LENS, KV_LENS = [3, 0, 5, 2, 4], [9, 4, 5, 0, 2]

    def tensors(self, v_dim=DIM, dtype=None):
        return (randn(sum(self.Q_LENS), Q_HEADS, DIM), randn(sum(self.KV_LENS), KV_HEADS, DIM, dtype=dtype),
                randn(sum(self.KV_LENS), KV_HEADS, v_dim, dtype=dtype))

    def planned(self, layout="NHD", **words):
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout)
        wrapper.plan(offsets(self.Q_LENS), offsets(self.KV_LENS), Q_HEADS, KV_HEADS, DIM, **words)
        return wrapper

    def wanted(self, q, k, v, **words):
        return concatenated([expected(*rows, **words) for rows in zip(q.split(self.Q_LENS), k.split(self.KV_LENS),
                                                                      v.split(self.KV_LENS))])

    def test_layouts_and_masks(self):
        q, k, v = self.tensors(8)
        for words, named in (({}, {}), ({"causal": True}, {"causal": True}), ({"window_left": 1}, {"window_left": 1}),
                             ({"logits_soft_cap": 1.5, "sm_scale": 0.5}, {"cap": 1.5, "scale": 0.5})):
            with self.subTest(words=words):
                wanted = self.wanted(q, k, v, **named)
                self.assert_state(self.planned(head_dim_vo=8, **words).run(q, k, v, return_lse=True), wanted)
                got = self.planned("HND", head_dim_vo=8, **words).run(q, k.transpose(0, 1), v.transpose(0, 1))
                self.assert_near(got, wanted[0])
        self.assertEqual((self.calls[-1][2]["max_q_len"], self.calls[-1][2]["max_kv_len"]), (5, 9))

    def test_scales_of_8_bits_alone(self):
        q, k, v = self.tensors(dtype=torch.float8_e4m3fn)
        o, lse = self.wanted(q, k.double(), v.double(), scale=0.5 * DIM ** -0.5)
        wrapper = self.planned(kv_data_type="float8_e4m3fn")
        got = wrapper.run(q, k, v, k_scale=0.5, v_scale=2.0, q_scale=1.0, o_scale=1, return_lse=True)
        self.assert_state(got, (2 * o, lse), 1e-2)
        q, k, v = self.tensors()
        self.planned().run(q, k, v, k_scale=1.0, v_scale=1.0)
        for name in ("k_scale", "v_scale"):
            self.refused(name, self.planned().run, q, k, v, **{name: 0.5})

    def test_outputs_and_forward(self):
        q, k, v = self.tensors()
        self.planned(seq_lens_q=ints(*self.Q_LENS), non_blocking=False, disable_split_kv=True).run(q, k, v)
        self.assertEqual(self.calls[-1][2]["consistency"], "bitwise")
        self.refused("seq_lens_q", self.planned, seq_lens_q=ints(3, 0, 5, 2, 3))
        slopes = torch.tensor([0.25, 0.0625, 2 ** -6, 2 ** -8], dtype=torch.float64)
        wrapper = self.planned(pos_encoding_mode="ALIBI")
        self.assert_near(wrapper.run(q, k, v), self.wanted(q, k, v, slopes=slopes)[0])
        self.refused_with_lse("pos_encoding_mode", wrapper.run, q, k, v)
        wrapper, out, lse = self.planned(o_data_type="float32"), torch.empty(q.shape), torch.empty(Q_HEADS, len(q))
        got = wrapper.run(q, k, v, out=out, lse=lse, lse_layout="HN", lse_base="ln", return_lse=True)
        wanted = self.wanted(q, k, v)
        self.assertIs(got[0], out)
        self.assert_near(out, wanted[0], 1e-5)
        self.assert_near(lse, wanted[1].T * math.log(2))
        wanted = self.wanted(q, k, v, causal=True, window_left=1)
        self.assert_near(wrapper.forward(q, k, v, True, window_left=1), wanted[0])
        self.assert_state(wrapper.forward_return_lse(q, k, v, True, window_left=1), wanted)

    def test_tensors_that_do_not_fit(self):
        q, k, v = self.tensors()
        wrapper = self.planned()
        self.refused("k.shape", wrapper.run, q, k[:-1], v)
        self.refused("v.shape", wrapper.run, q, k, v[:-1])
        self.refused("num_kv_heads", wrapper.run, q, k[:, :1], v)
        self.refused("kv_data_type", wrapper.run, q, k.bfloat16(), v)
        self.refused("number of queries", wrapper.run, q[1:], k, v)
        self.refused("kv_indptr", wrapper.plan, offsets([1]), offsets([1, 2]), Q_HEADS, KV_HEADS, DIM)
        self.refused("seq_lens", self.planned, seq_lens=ints(9, 4, 5, 0, 1))


class Mla(FlashInferTest):
    def planned(self, batch, *lists, **words):
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(), backend="fa2")
        wrapper.plan(*lists, **{**batch.named, **words})
        return wrapper

    def test_lists_and_tables(self):
        metadata = flashinfer.mla.MLAPlanMetadata
        for spare in (0, 2):  # pages that sequences have beyond those that they use
            batch = Latents([2, 0, 3, 1], [9, 4, 8, 0], spare=spare)
            wanted = batch.expected()
            width = max(batch.indptr.diff())
            table = torch.zeros(4, width, dtype=torch.int32)
            for b, (begin, end) in enumerate(zip(batch.indptr, batch.indptr[1:])):
                table[b, :end - begin] = batch.indices[begin:end]
            dense = batch.lists[0], table, batch.lists[3]
            names = ("cum_seq_lens_q", "block_tables", "seq_lens")
            for what, wrapper in (("lists", self.planned(batch, *batch.lists)),
                                  ("csr", self.planned(batch, metadata=metadata.csr(*batch.lists))),
                                  ("dense", self.planned(batch, metadata=metadata.dense(*dense, max_q_len=3))),
                                  ("table", self.planned(batch, **dict(zip(names, dense))))):
                with self.subTest(spare=spare, what=what):
                    self.assert_near(wrapper.run(*batch.tensors), wanted[0])
                    self.assert_state(wrapper.run(query=batch.q, kv_cache=batch.cache, return_lse=True), wanted)
                    self.assertEqual((self.calls[-1][2]["max_q_len"], self.calls[-1][2]["max_kv_len"]), (3, 9))

    def test_offsets_that_go_on_behind_the_lengths(self):
        """As FlashInfer's own test of sequences of several lengths has them: those of one sequence more for each length."""
        batch = Latents([2, 1, 3], [9, 0, 4])
        q_indptr, indptr, indices, lens = batch.lists
        longer = torch.cat((indptr, indptr[-1] + ints(5, 9)))
        o = self.planned(batch, q_indptr, longer, indices, lens).run(*batch.tensors)
        self.assert_near(o, batch.expected()[0])
        buffers = [tensor.clone() for tensor in batch.lists]
        graph = flashinfer.BatchMLAPagedAttentionWrapper(workspace(), True, *buffers)
        graph.plan(q_indptr, longer, indices, lens, **batch.named)
        self.assert_near(graph.run(*batch.tensors), batch.expected()[0])
        self.refused("kv_len_arr", self.planned, batch, q_indptr, indptr[:2], indices, lens)

    def test_packed_and_split_tensors(self):
        batch = Latents([2, 1], [9, 4])
        wrapper, wanted = self.planned(batch, *batch.lists), batch.expected()[0]
        self.assert_near(wrapper.run(query=batch.tensors[:2], kv_cache=batch.cache), wanted)
        self.assert_near(wrapper.run(query=batch.q, kv_cache=batch.tensors[2:]), wanted)
        self.refused("query", wrapper.run, batch.tensors[0], query=batch.q, kv_cache=batch.cache)
        self.refused("q_pe", wrapper.run, batch.tensors[0], kv_cache=batch.cache)
        self.refused("q_nope", wrapper.run, kv_cache=batch.cache)
        self.refused("kpe_cache", wrapper.run, query=batch.q, ckv_cache=batch.cache)
        self.refused("kv_cache", wrapper.run, query=batch.q, kv_cache=(batch.cache,))
        self.refused("head_dim_kpe", wrapper.run, query=batch.q[..., 1:], kv_cache=batch.cache)
        self.refused("num_heads", wrapper.run, query=batch.q[:, 1:], kv_cache=batch.cache)
        self.refused("page_size", wrapper.run, query=batch.q, kv_cache=batch.cache[:, 1:])
        self.refused("q_data_type", wrapper.run, query=batch.q.bfloat16(), kv_cache=batch.cache)
        self.refused("kv_data_type", wrapper.run, query=batch.q, kv_cache=batch.cache.bfloat16())

    def test_full_attention_another_scale_and_outputs(self):
        batch = Latents([2, 1], [9, 4])
        wrapper = self.planned(batch, *batch.lists, causal=False, sm_scale=0.7, output_dtype=torch.float32)
        out, lse = torch.empty(3, Q_HEADS, batch.CKV), torch.empty(3, Q_HEADS)
        got = wrapper.run(*batch.tensors, out, lse, True, return_lse_base_on_e=True)
        wanted = batch.expected(causal=False, scale=0.7)
        self.assertIs(got[0], out)
        self.assertIs(got[1], lse)
        self.assert_state(got, (wanted[0], wanted[1] * math.log(2)), 1e-5)

    def test_the_base_that_was_planned(self):
        batch = Latents([2, 1], [9, 4])
        for mode, on_e in (("base2", False), ("basee", True)):
            wrapper = self.planned(batch, *batch.lists, lse_mode=mode)
            wrapper.run(*batch.tensors, return_lse=True, return_lse_base_on_e=on_e)
            self.refused("lse_mode", wrapper.run, *batch.tensors, return_lse=True, return_lse_base_on_e=not on_e)
        self.refused("lse_mode", self.planned, batch, *batch.lists, lse_mode="base10")

    def test_latents_of_8_bits(self):
        batch = Latents([2, 1], [9, 4], torch.float8_e4m3fn)
        wrapper = self.planned(batch, *batch.lists, scale_mode="kv-per-tensor")
        # The stand-in joins columns, which torch does not of 8 bits on the CPU.
        with unittest.mock.patch.object(torch, "cat", widening(torch.cat)):
            got = wrapper.run(*batch.tensors, ckv_scale=0.5, kpe_scale=0.5, return_lse=True)
        o, lse = batch.expected(scale=0.15)
        self.assert_state(got, (0.5 * o, lse), 1e-2)
        self.refused("kpe_scale", wrapper.run, *batch.tensors, ckv_scale=0.5, kpe_scale=0.25)
        self.refused("kpe_scale", wrapper.run, *batch.tensors, ckv_scale=0.5)
        wide = Latents([2, 1], [9, 4])
        self.refused("ckv_scale", self.planned(wide, *wide.lists).run, *wide.tensors, ckv_scale=0.5, kpe_scale=0.5)
        for mode in ("bmm-scalar", "bmm-tensor", "other"):
            self.refused("scale_mode", self.planned, batch, *batch.lists, scale_mode=mode)

    def test_lists_that_do_not_fit(self):
        batch = Latents([2, 1], [9, 4])
        q_indptr, indptr, indices, lens = batch.lists
        self.refused("kv_len_arr", self.planned, batch, q_indptr, indptr, indices, lens + 4)
        self.refused("kv_len_arr", self.planned, batch, q_indptr, indptr, indices, lens[:1])
        self.refused("kv_indices", self.planned, batch, q_indptr, indptr, indices[:2], lens)
        self.refused("kv_indices", self.planned, batch, q_indptr, indptr, None, lens)
        self.refused("block_tables", self.planned, batch, cum_seq_lens_q=q_indptr, seq_lens=lens)
        self.refused("block_tables", self.planned, batch, cum_seq_lens_q=q_indptr, seq_lens=lens, block_tables=indices)
        self.refused("qo_indptr", self.planned, batch, q_indptr, cum_seq_lens_q=q_indptr, seq_lens=lens,
                     block_tables=indices[None])
        both = flashinfer.mla.MLAPlanMetadata.csr(*batch.lists)
        self.refused("metadata", self.planned, batch, q_indptr, metadata=both)
        self.refused("metadata", self.planned, batch, metadata="csr")
        buffers = [tensor.clone() for tensor in batch.lists]
        graph = flashinfer.BatchMLAPagedAttentionWrapper(workspace(), True, *buffers)
        self.refused("block_tables", graph.plan, cum_seq_lens_q=q_indptr, seq_lens=lens,
                     block_tables=ints(0, 1, 2)[None].expand(2, -1), **batch.named)
        for name in batch.named:
            self.refused(name, self.planned, batch, *batch.lists, **{name: None})
        self.refused("query_layout", self.planned, batch, *batch.lists, query_layout="joined")
        self.refused("plan", flashinfer.BatchMLAPagedAttentionWrapper(workspace()).run, *batch.tensors)
        self.refused("backend", flashinfer.BatchMLAPagedAttentionWrapper, workspace(), backend="fa7")


def widening(cat):
    return lambda tensors, dim=0: cat([one.half() if one.dtype.itemsize == 1 else one for one in tensors], dim)


class Sinks(FlashInferTest):
    """BatchAttentionWithAttentionSinkWrapper, whose run() takes sinks and scale behind the cache."""

    def planned(self, pages, window_left=-1, **words):
        wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(workspace(), window_left=window_left)
        wrapper.plan(ints(0, 3, 5), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, causal=True, window_left=window_left, **words)
        return wrapper

    def test_sinks_and_scale(self):
        pages, q, sink = Pages([9, 4]), randn(5, Q_HEADS, DIM), torch.randn(Q_HEADS)
        for window_left in (-1, 2):
            wanted = pages.expected(q, [3, 2], causal=True, window_left=window_left, scale=0.3, sinks=sink)
            wrapper, out = self.planned(pages, window_left, sm_scale=0.9), torch.empty_like(q)
            self.assert_near(wrapper.run(q, pages.both, sink, 0.3), wanted[0])
            got = wrapper.run(q, pages.both, sink, 0.3, out=out, return_lse=True)
            self.assertIs(got[0], out)
            self.assert_state(got, wanted)
        self.assertIsInstance(wrapper, flashinfer.BatchPrefillWithPagedKVCacheWrapper)
        self.assertIs(flashinfer.attention.BatchAttentionWithAttentionSinkWrapper, type(wrapper))

    def test_what_is_refused(self):
        pages, q, sink = Pages([9, 4]), randn(5, Q_HEADS, DIM), torch.randn(Q_HEADS)
        wrapper = self.planned(pages)
        self.refused("args", wrapper.run, q, pages.both)
        self.refused("args", wrapper.run, q, pages.both, sink)
        self.refused("args", wrapper.forward, q, pages.both)
        self.refused("args", wrapper.run, q, pages.both, sink, 0.3, sinks=sink)
        self.refused("sm_scale", wrapper.run, q, pages.both, sink, None)
        self.refused("sm_scale", wrapper.run, q, pages.both, sink, "0.3")
        wrapper.plan(ints(0, 3, 5), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, window_left=2)
        self.refused("window_left", wrapper.run, q, pages.both, sink, 0.3)
        wrapper.plan(ints(0, 3, 5), *pages.lists, Q_HEADS, KV_HEADS, DIM, PAGE, pos_encoding_mode="ALIBI")
        self.refused("pos_encoding_mode", wrapper.run, q, pages.both, sink, 0.3)

    def test_positions_are_said_where_the_wrapper_is_made(self):
        """FlashInfer compiles them into the kernel there, and reads none of plan()."""
        for mode in ("ROPE_LLAMA", "ALIBI", "nonsense", None):
            self.refused("pos_encoding_mode", flashinfer.BatchAttentionWithAttentionSinkWrapper, workspace(),
                         pos_encoding_mode=mode)


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

"""attnsmith.compat.flashinfer: the wrappers of decode, prefill and MLA, on the CPU by the stand-in of the plain functions."""

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
        for words, wanted in (({}, "standard"), ({"fixed_split_size": -1}, "standard"),
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


if __name__ == "__main__":
    unittest.main()

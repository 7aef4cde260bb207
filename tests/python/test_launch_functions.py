"""What the plain functions launch, which kernels and layouts they keep, and what lives until a launch is done."""

import ctypes
import gc
import threading
import unittest
from unittest import mock

from launch_case import LaunchTest
from support import attnsmith


class Plain(LaunchTest):
    def test_attention(self):
        q, k = self.array(2, 8, 4, 64), self.array(2, 16, 2, 64)
        count, o = self.launched(attnsmith.attention, q, k, k, causal=True)
        self.assertEqual((count, type(o), o.shape, o.dtype), (1, attnsmith.Array, (2, 8, 4, 64), "bf16"))
        _, (o, lse) = self.launched(attnsmith.attention, q, k, k, return_lse=True)
        heads_first = self.launched(attnsmith.attention, q, k, k, return_lse=True, lse_order="HND")[1][1]
        self.assertEqual(heads_first.shape, (*lse.shape[:-2], lse.shape[-1], lse.shape[-2]))
        self.assertNotIsInstance(self.launched(attnsmith.attention, q, k, k, lse_order="HND")[1], tuple)
        self.assertEqual((lse.shape, lse.dtype), ((2, 8, 4), "fp32"))
        out = self.array(2, 8, 4, 64)
        self.assertIs(attnsmith.attention(q, k, k, out=out), out)
        lens = self.array(2, dtype="int64", values=[3, 16])
        self.assertEqual(self.launched(attnsmith.attention, q, k, k, kv_lens=lens, q_lens=lens)[0], 1)

    def test_kernels_are_reused_as_sequences_grow(self):
        q = self.array(1, 1, 4, 64)
        entries = set()
        for kv_len in (33, 40, 64):
            k = self.array(1, kv_len, 2, 64)
            attnsmith.attention(q, k, k)
            entries.add(len(attnsmith._calls.dispatch.dispatch_now().prepared))
        self.assertEqual(entries, {1})

    def launched_pointers(self):
        return self.launched_at("q", "k", "v", "o")

    def test_layouts_are_kept_from_the_second_time_on(self):
        """Calls with a layout that is known launch with their own pointers, stream and options."""
        self.state.param_bytes = 64
        recipes = attnsmith._calls.dispatch.dispatch_now().recipes
        stream = self.stream()
        for kept in (0, 1, 1, 1):
            q, k, v, out = (self.array(1, n, heads, 64) for n, heads in ((8, 4), (16, 2), (16, 2), (8, 4)))
            attnsmith.attention(q, k, v, out=out, stream=stream)
            self.assertEqual(len(recipes), kept)
            self.assertEqual(self.launched_pointers(), [one.data for one in (q, k, v, out)])
            self.assertEqual(self.state.last_launch.stream, stream)
        for offset, kept in ((2, 1), (2, 2), (0, 2)):  # another alignment is another kernel
            q = self.array(1, 8, 4, 64, offset=offset)
            attnsmith.attention(q, k, v, out=out)
            self.assertEqual((len(recipes), self.launched_pointers()[0]), (kept, q.data))
        for _ in range(3):
            made = attnsmith.attention(q, k, v)
            self.assertEqual(self.launched_pointers()[3], made.data)
            o, lse = attnsmith.attention(q, k, v, return_lse=True)
            self.assertEqual(self.launched_pointers()[3], o.data)
            self.assert_refused("k", attnsmith.attention, q, None, v)
            self.assert_refused("o", attnsmith.attention, q, k, v, out=q)
            self.assert_refused("k.shape[3]", attnsmith.attention, q, self.array(1, 16, 2, 32), v)

    def test_pages_in_one_tensor_when_they_are_known(self):
        self.state.param_bytes = 64
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        for _ in range(4):
            q, cache = self.array(2, 4, 64), self.array(4, 2, 16, 2, 64)
            o = attnsmith.paged_attention(q, cache, table, lens)
            v = cache.data + cache.strides[1] * 2
            self.assertEqual(self.launched_pointers(), [q.data, cache.data, v, o.data])

    def test_how_many_layouts_are_kept(self):
        limits = {"_MOST_RECIPES": 3, "_MOST_SEEN": 5}
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        with mock.patch.multiple(attnsmith._calls.dispatch, **limits):
            for kv_len in range(1, 10):
                k = self.array(1, kv_len, 2, 64)
                for _ in range(3):
                    attnsmith.attention(self.array(1, 1, 4, 64), k, k)
                self.assertLessEqual(len(dispatch.recipes), 3)
                self.assertLessEqual(len(dispatch.seen), 5)

    def test_nothing_is_allocated_on_the_way(self):
        q, k, out = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        attnsmith.attention(q, k, k, out=out)
        before = self.state.allocations
        for _ in range(10):
            attnsmith.attention(q, k, k, out=out)
        self.assertEqual(self.state.allocations, before)

    def test_a_decode_is_one_launch_whose_workspace_does_not_grow(self):
        """The first call of a bound allocates its workspace; a longer or larger one of the same kind goes on with it."""
        for batch, kv_len in ((1, 4096), (1, 65536), (4, 65536)):
            q, k = self.array(batch, 1, 4, 40), self.array(batch, kv_len, 2, 40)
            self.assertEqual(self.launched(attnsmith.attention, q, k, k)[0], 1, "no merge follows")
            kernel = self.rt.prepare(head_dim=40, q_heads=4, kv_heads=2, batch=batch, kv_len=kv_len)
            self.assertEqual(kernel.plan()["split_kv"]["policy"], "shares")
            sizes = {kernel.workspace_bytes(batch=batch, q_tokens=batch, max_kv_len=kv_len)
                     for batch, kv_len in ((1, 65536), (4, 65536), (256, 1 << 20))}
            self.assertEqual(len(sizes), 1)

    def test_a_workspace_begins_with_zeros(self):
        """All that kernels count in: the stub's memory is full of something else."""
        q, k = self.array(1, 1, 4, 40), self.array(1, 4096, 2, 40)
        attnsmith.attention(q, k, k)
        workspace = attnsmith._calls.dispatch.dispatch_now().workspaces.of(0, 0)
        self.assertEqual(ctypes.string_at(workspace.data, 8192), bytes(8192))

    def test_alignment_follows_the_tensors(self):
        k, out = self.array(1, 16, 2, 64), self.array(1, 8, 4, 64)
        for offset, alignment in ((0, 16), (8, 8), (4, 4), (2, 2)):
            attnsmith.attention(self.array(1, 8, 4, 64, offset=offset), k, k, out=out)
            keys = list(attnsmith._calls.dispatch.dispatch_now().prepared)
            self.assertIn(alignment, keys[-1])

    def test_which_tensors_count_for_the_alignment(self):
        """Those that a kernel loads by it, whichever others are given or left out, and in layouts that are known too."""
        q, k, o, pages = (("bf16", shape) for shape in ((2, 8, 4, 64), (2, 16, 2, 64), (2, 8, 4, 64), (4, 16, 2, 64)))
        rows, keys, q_pe, ckv, kpe = (("bf16", shape) for shape in ((16, 4, 64), (32, 2, 64), (2, 8, 4, 8), (4, 16, 64),
                                                                    (4, 16, 8)))
        lens, ends, table, sinks = ("int32", (2,)), ("int32", (3,)), ("int32", (2, 2)), ("fp32", (4,))
        lie = {"page_table": table, "kv_lens": lens}
        for function, words, others in (
                (attnsmith.attention, {"q": q, "k": k, "v": k}, {"out": o, "sinks": sinks, "q_lens": lens, "kv_lens": lens}),
                (attnsmith.varlen_attention, {"q": rows, "k": keys, "v": keys, "q_indptr": ends, "kv_indptr": ends},
                 {"out": rows, "sinks": sinks}),
                (attnsmith.paged_attention, {"q": q, "k_cache": pages, "v_cache": pages, **lie},
                 {"out": o, "sinks": sinks, "q_lens": lens}),
                (attnsmith.mla_attention, {"q": q, "ckv": ckv, "q_pe": q_pe, "kpe": kpe, **lie}, {"out": o, "q_lens": lens})):
            for given in (words, {**words, **others}):
                for odd in (None, None, *given):  # known from the second call on
                    with self.subTest(function=function.__name__, odd=odd, out="out" in given):
                        tensors = {name: self.array(*shape, dtype=dtype, offset=8 if name == odd else 0)
                                   for name, (dtype, shape) in given.items()}
                        counts = odd is not None and given[odd][0] == "bf16"
                        self.assertEqual(self.kernel_taken(function, tensors)["alignment"], 8 if counts else 16)

    def kernel_taken(self, function, words):
        """The normalised request of the kernel that a call with these tensors launches."""
        if "k_cache" in words:
            words["kv_cache"] = words.pop("k_cache"), words.pop("v_cache")
        if function is attnsmith.mla_attention:
            words["scale"] = 0.1
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        run, taken = dispatch.run, []

        def seen(kernel, *rest):
            taken.append(kernel.value)
            return run(kernel, *rest)
        with mock.patch.object(dispatch, "run", seen):
            function(**words)
        (spec,) = [entry.kernel.spec for entry in dispatch.prepared.values() if [entry.pointer.value] == taken]
        return spec

    def test_empty(self):
        for batch, q_len, kv_len in ((0, 2, 2), (2, 0, 2)):
            count, o = self.launched(attnsmith.attention, self.array(batch, q_len, 4, 64),
                                     *[self.array(batch, kv_len, 2, 64)] * 2)
            self.assertEqual((count, o.shape), (0, (batch, q_len, 4, 64)))

    def test_varlen(self):
        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        for limits in ({}, {"max_q_len": 15, "max_kv_len": 30}):
            count, (o, lse) = self.launched(attnsmith.varlen_attention, q, k, k, offsets, offsets, return_lse=True,
                                            **limits)
            self.assertEqual((count, o.shape, lse.shape), (1, (20, 4, 64), (20, 4)))
        self.assert_refused("q.shape", attnsmith.varlen_attention, self.array(1, 20, 4, 64), k, k, offsets, offsets)
        self.assert_refused("q_indptr", attnsmith.varlen_attention, q, k, k, [0, 5, 20], offsets)

    def test_paged(self):
        lens = self.array(2, dtype="int32", values=[20, 3])
        table = self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        compressed = {"page_indptr": self.array(3, dtype="int32", values=[0, 2, 3]),
                      "page_indices": self.array(3, dtype="int32", values=[0, 1, 2]), "last_page_len": lens}
        for order, cache in (("NHD", self.array(4, 2, 16, 2, 64)), ("HND", self.array(4, 2, 2, 16, 64))):
            parts = [attnsmith.Array((cache.data + i * cache.strides[1] * 2, cache.shape[:1] + cache.shape[2:],
                                      cache.strides[:1] + cache.strides[2:], *cache._view[3:]), cache._buffer)
                     for i in range(2)]
            for kv_cache in (cache, tuple(parts)):
                for form in ({"page_table": table, "kv_lens": lens}, compressed):
                    with self.subTest(order=order, form=sorted(form), one=kv_cache is cache):
                        options = {"page_order": order, "return_lse": True, **form}
                        o, lse = attnsmith.paged_attention(self.array(2, 4, 64), kv_cache, **options)
                        self.assertEqual((o.shape, lse.shape), ((2, 4, 64), (2, 4)))
                        o, lse = attnsmith.paged_attention(self.array(2, 3, 4, 64), kv_cache, **options)
                        self.assertEqual((o.shape, lse.shape), ((2, 3, 4, 64), (2, 3, 4)))
                        count, (o, lse) = self.launched(
                            attnsmith.paged_attention, self.array(7, 4, 64), kv_cache, **options,
                            q_indptr=self.array(3, dtype="int32", values=[0, 5, 7]))
                        self.assertEqual((count, o.shape, lse.shape), (1, (7, 4, 64), (7, 4)))
        rows = {"page_table": self.array(7, 2, dtype="int32", values=[0] * 14), "kv_lens": lens,
                "table_rows": self.array(2, dtype="int32", values=[6, 0]), "page_order": "HND"}
        count, o = self.launched(attnsmith.paged_attention, self.array(2, 4, 64), cache, **rows)
        self.assertEqual((count, o.shape), (1, (2, 4, 64)))
        for name in ("table_rows", "page_table"):
            with self.assertRaises(attnsmith.InvalidRequest):
                attnsmith.paged_attention(self.array(2, 4, 64), cache, **{**rows, name: None})
        with self.assertRaises(attnsmith.InvalidRequest):
            attnsmith.paged_attention(self.array(2, 4, 64), cache)
        self.assert_refused("page_order", attnsmith.paged_attention, self.array(2, 4, 64), cache, table, lens,
                            page_order="nhd")
        self.assert_refused("kv_cache", attnsmith.paged_attention, self.array(2, 4, 64), (cache,), table, lens)
        self.assert_refused("kv_cache.shape", attnsmith.paged_attention, self.array(2, 4, 64), lens, table, lens)

    def test_merge(self):
        o, lse = [self.array(5, 4, 64) for _ in range(3)], [self.array(5, 4, dtype="fp32") for _ in range(3)]
        if "op:merge" not in attnsmith.features():
            with self.assertRaises(attnsmith.Error):
                attnsmith.merge_states(o, lse)
            self.skipTest("this library has no op merge")
        count, (merged, total) = self.launched(attnsmith.merge_states, o, lse)
        self.assertEqual((count, merged.shape, total.shape), (1, (5, 4, 64), (5, 4)))
        stacked = self.array(5, 3, 4, 64), self.array(5, 3, 4, dtype="fp32")
        self.assertEqual(self.launched(attnsmith.merge_states, *stacked, return_lse=False)[1].shape, (5, 4, 64))
        self.assertEqual(self.launched(attnsmith.merge_states, o * 20, lse * 20)[0], 3, "60 states in two steps")
        kernel = self.rt.prepare(op="merge", head_dim=64, q_heads=4, lse=True)
        call = kernel.bind_merge(o, lse, self.array(5, 4, 64), self.array(5, 4, dtype="fp32"))
        self.assertEqual(self.launched(call.launch)[0], 1)

    def test_merges_that_differ_take_different_kernels(self):
        """A kernel is made for these facts, so a merge does not take the kernel of an earlier one that differs in a fact."""
        facts = {"dtype": "bf16", "q_heads": 4, "head_dim_vo": 64, "lse": True, "alignment": 16}
        cases = [({}, {}), ({"offset": 8}, {"alignment": 8}), ({"offset": 2}, {"alignment": 2}),
                 ({"out_offset": 4}, {"alignment": 4}), ({"heads": 2}, {"q_heads": 2}), ({"head_dim": 40}, {"head_dim_vo": 40}),
                 ({"dtype": "fp16"}, {"dtype": "fp16"}), ({"return_lse": False}, {"lse": False})]
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        run, taken = dispatch.run_merge, []

        def seen(kernel, *rest):
            taken.append(kernel.value)
            return run(kernel, *rest)
        dispatch.run_merge = seen

        def merge(heads=4, head_dim=64, dtype="bf16", offset=0, out_offset=None, return_lse=True):
            o = [self.array(5, heads, head_dim, dtype=dtype), self.array(5, heads, head_dim, dtype=dtype, offset=offset)]
            out = None if out_offset is None else self.array(5, heads, head_dim, dtype=dtype, offset=out_offset)
            attnsmith.merge_states(o, [self.array(5, heads, dtype="fp32")] * 2, out=out, return_lse=return_lse)
        for order in (cases, cases[::-1]):
            dispatch.prepared.clear()
            for words, changed in order:
                with self.subTest(first=order is cases, **words):
                    merge(**words)
                    (spec,) = [entry.kernel.spec for entry in dispatch.prepared.values() if entry.pointer.value == taken[-1]]
                    wanted = {**facts, **changed}
                    self.assertEqual({name: spec[name] for name in wanted}, wanted)

    def test_merges_that_make_no_sense(self):
        o, lse = self.array(5, 4, 64), self.array(5, 4, dtype="fp32")
        for o_states, lse_states in (([], []), ([o, o], [lse]), ([o], lse), (o, lse)):
            with self.assertRaises(attnsmith.InvalidRequest):
                attnsmith.merge_states(o_states, lse_states)

    def test_refusals(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        self.assert_refused("q.shape", attnsmith.attention, self.array(8, 4, 64), k, k)
        with self.assertRaises(attnsmith.Unsupported) as caught:
            attnsmith.attention(self.array(1, 8, 4, 64, dtype="fp32"), k, k)
        self.assertIn("fp32", str(caught.exception))
        self.assert_refused("window", attnsmith.attention, q, k, k, window=7)
        self.assert_refused("window_left", attnsmith.attention, q, k, k, window=(-5, 0))
        self.assert_refused("precision", attnsmith.attention, q, k, k, precision="best")
        self.assert_refused("o", attnsmith.attention, q, k, k, out=q)
        self.assert_refused("k.device", attnsmith.attention, q, self.array(1, 8, 2, 64, device=1), k)
        with self.assertRaises(attnsmith.Unsupported):
            attnsmith.attention(q, k, k, consistency="bitwise", precision="high")

    def test_a_failed_launch_leaves_all_in_order(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        attnsmith.attention(q, k, k)
        self.state.fail_launch = 700
        for _ in range(3):
            with self.assertRaises(attnsmith.DriverError):
                attnsmith.attention(q, k, k)
        self.state.fail_launch = 0
        attnsmith.attention(q, k, k)

    def test_streams_and_devices(self):
        stream = self.stream(device=1)
        q, k = self.array(1, 8, 4, 64, device=1), self.array(1, 8, 2, 64, device=1)
        o = attnsmith.attention(q, k, k, stream=stream)
        self.assertEqual((self.state.last_launch.stream, o.device), (stream, 1))
        attnsmith.attention(q, k, k)
        self.assertIsNone(self.state.last_launch.stream)
        self.assert_refused("stream", attnsmith.attention, q, k, k, stream="default")

    def test_foreign_tensors_are_given_back_after_the_launch(self):
        array = self.array(1, 8, 4, 64)

        class Foreign:
            def __dlpack_device__(self):
                return array.__dlpack_device__()

            def __dlpack__(self, stream=None):
                return array.__dlpack__()

        from attnsmith._tensors import dlpack
        before = len(dlpack._lent)
        count, o = self.launched(attnsmith.attention, Foreign(), Foreign(), Foreign())
        gc.collect()
        self.assertEqual((count, type(o), len(dlpack._lent)), (1, attnsmith.Array, before))

    def calls_with(self, change):
        """Right calls, one for each tensor of each function: the tensor's name, the function, and its words with change()
        applied to that tensor."""
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        pages = [self.array(4, 16, 2, 64) for _ in range(2)]
        new = {name: self.array(4, 2, 64) for name in ("k", "v")}
        states, lse = [self.array(5, 4, 64) for _ in range(2)], [self.array(5, 4, dtype="fp32") for _ in range(2)]
        for function, words in (
                (attnsmith.attention, {"q": self.array(2, 8, 4, 64), "k": self.array(2, 24, 2, 64),
                                       "v": self.array(2, 24, 2, 64), "kv_lens": lens}),
                (attnsmith.varlen_attention, {"q": self.array(20, 4, 64), "k": self.array(30, 2, 64),
                                              "v": self.array(30, 2, 64), "q_indptr": offsets, "kv_indptr": offsets}),
                (attnsmith.paged_attention, {"q": self.array(2, 4, 64), "kv_cache": pages, "page_table": table,
                                             "kv_lens": lens}),
                (attnsmith.mla_attention, {"q": self.array(2, 4, 72), "ckv": self.array(4, 16, 72), "page_table": table,
                                           "kv_lens": lens, "head_dim_ckv": 64, "scale": 0.1}),
                (attnsmith.merge_states, {"o_states": states, "lse_states": lse}),
                (attnsmith.append, {**new, "k_cache": pages[0], "v_cache": pages[1], "page_order": "NHD",
                                    "slot_mapping": self.array(4, dtype="int64")})):
            for name, given in words.items():
                if isinstance(given, list):
                    yield f"{name}[1]", function, {**words, name: [given[0], change(given[1])]}
                elif isinstance(given, attnsmith.Array):
                    yield name, function, {**words, name: change(given)}

    def test_foreign_tensors_live_until_the_launch_is_done(self):
        """A framework may use their memory again at once, so a call with one waits for its stream before it lets go of it.
        A call with attnsmith's own arrays does not wait."""
        from attnsmith._tensors import dlpack

        class Foreign:
            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, stream=None):
                return self.array.__dlpack__()

        stream, release, done = self.stream(), dlpack.Borrowed.release, []

        def released(borrowed):
            done.append((self.state.launches, self.state.stream_waits))
            release(borrowed)
        for change in (Foreign, lambda array: array):
            for name, function, words in self.calls_with(change):
                with self.subTest(function=function.__name__, tensor=name, foreign=change is Foreign):
                    done.clear()
                    function(**words)  # what a first call makes is there
                    launches, waits = self.state.launches, self.state.stream_waits
                    with mock.patch.object(dlpack.Borrowed, "release", released):
                        function(**words, stream=stream)
                        gc.collect()
                    self.assertEqual(self.state.launches, launches + 1)
                    if change is Foreign:
                        self.assertEqual(done[0], (launches + 1, waits + 1))
                        self.assertEqual(self.state.last_launch.stream, stream)
                    else:
                        self.assertEqual((done, self.state.stream_waits), ([], waits))

    def test_threads(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 16, 2, 64)
        attnsmith.attention(q, k, k)
        failures = []

        def work():
            try:
                for _ in range(50):
                    attnsmith.attention(q, k, k, out=self.array(1, 8, 4, 64))
            except BaseException as failure:
                failures.append(failure)
        before = self.state.launches
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failures, self.state.launches - before), ([], 400))


if __name__ == "__main__":
    unittest.main()

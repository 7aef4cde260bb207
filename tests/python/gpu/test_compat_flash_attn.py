"""attnsmith.compat.flash_attn against fp64: each storage, and caches that grow in place, in a CUDA graph too."""

import unittest

from gpu_support import DEVICE, GpuTest, lengths, nan, offsets, reference, torch

import attnsmith

if torch is not None:
    import attnsmith.compat.flash_attn as fa


def rotated(rows, cos, sin, positions, interleaved=False):
    """rows [tokens, heads, columns] in fp64: pairs of columns are complex numbers that are turned."""
    half = cos.shape[1]
    turn = torch.complex(cos.double(), sin.double())[positions][:, None]
    result = rows.double()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else \
        (slice(0, half), slice(half, 2 * half))
    turned = torch.complex(result[..., first], result[..., second]) * turn
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


class Calls(GpuTest):
    def dense(self, batch=2, q_len=17, k_len=33, heads=8, kv_heads=2, columns=64):
        return (self.randn(batch, q_len, heads, columns), self.randn(batch, k_len, kv_heads, columns),
                self.randn(batch, k_len, kv_heads, columns))

    def wanted(self, q, k, v, **words):
        """out and the LSE, [batch, heads, seqlen_q]."""
        each = [reference(*one, **words) for one in zip(q, k, v)]
        return torch.stack([o for o, _ in each]), torch.stack([lse.transpose(0, 1) for _, lse in each])

    def assert_both(self, got, wanted, what=""):
        self.assert_near(got[0], wanted[0], f"{what} out")
        self.assert_near(got[1], wanted[1], f"{what} lse")

    def test_words(self):
        sinks, slopes = torch.randn(8, device=DEVICE), torch.rand(8, device=DEVICE)
        for words, as_reference in (
                ({}, {}), ({"causal": True}, {"causal": True}), ({"window_size": (5, 2)}, {"window": (5, 2)}),
                ({"window_size": (5, -1), "causal": True}, {"window": (5, None), "causal": True}),
                ({"softmax_scale": 0.2, "softcap": 2.0}, {"scale": 0.2, "softcap": 2.0}),
                ({"attention_chunk": 7, "causal": True}, {"attention_chunk": 7, "causal": True}),
                ({"alibi_slopes": slopes.expand(2, 8), "causal": True}, {"alibi_slopes": slopes, "causal": True}),
                ({"s_aux": sinks.bfloat16()}, {"sinks": sinks.bfloat16()})):
            with self.subTest(**words):
                q, k, v = self.dense()
                got = fa.flash_attn_func(q, k, v, return_attn_probs=True, **words)
                self.assert_both(got, self.wanted(q, k, v, **as_reference))
                self.assertTrue(got[1].is_contiguous())

    def test_causal_aligns_the_last_query_with_the_last_key(self):
        for q_len, k_len in ((2, 5), (5, 2)):
            q, k, v = self.dense(q_len=q_len, k_len=k_len)
            got = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
            self.assert_both(got, self.wanted(q, k, v, causal=True), f"{q_len} and {k_len}")

    def test_alibi_of_each_sequence(self):
        q, k, v = self.dense()
        slopes = torch.rand(2, 8, device=DEVICE)
        each = [self.wanted(q[b:b + 1], k[b:b + 1], v[b:b + 1], causal=True, alibi_slopes=slopes[b]) for b in range(2)]
        self.assert_both(fa.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, return_attn_probs=True),
                         tuple(torch.cat(parts) for parts in zip(*each)))

    def test_tokens_that_are_not_in_use(self):
        """Queries that are not get 0, and keys that are not are NaN; in a captured graph, which sees other lengths."""
        q_lens, k_lens, used_q, used_k = (9, 0, 30, 1), (20, 5, 30, 7), (4, 0, 30, 0), (11, 5, 0, 3)
        q, k, v = self.randn(40, 8, 64), self.randn(62, 2, 64), self.randn(62, 2, 64)
        for tensor in (k, v):
            for rows, n in zip(tensor.split(k_lens), used_k):
                rows[n:] = float("nan")

        def wanted(used_q, used_k):
            each = []
            for one, keys, values, m, n in zip(q.split(q_lens), k.split(k_lens), v.split(k_lens), used_q, used_k):
                o, lse = reference(one[:m], keys[:n], values[:n], causal=True)
                each.append((torch.cat((o, o.new_zeros(len(one) - m, 8, 64))),
                             torch.cat((lse, lse.new_full((len(one) - m, 8), float("-inf"))))))
            return torch.cat([o for o, _ in each]), torch.cat([lse for _, lse in each]).transpose(0, 1)

        given = [lengths(used_q), lengths(used_k)]

        def call():
            return fa.flash_attn_varlen_func(q, k, v, offsets(q_lens), offsets(k_lens), 30, 30, causal=True,
                                             seqused_q=given[0], seqused_k=given[1], return_softmax_lse=True)

        self.assert_both(call(), wanted(used_q, used_k))
        q_ends, k_ends = offsets(q_lens), offsets(k_lens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = fa.flash_attn_varlen_func(q, k, v, q_ends, k_ends, 30, 30, causal=True, seqused_q=given[0],
                                            seqused_k=given[1], return_softmax_lse=True)
        given[0].copy_(lengths((9, 0, 2, 1)))
        given[1].copy_(lengths((3, 1, 0, 2)))
        graph.replay()
        self.assert_both(got, wanted((9, 0, 2, 1), (3, 1, 0, 2)))

    def test_rows_that_begin_behind_padding(self):
        padding, lens, q = (3, 0, 21), (20, 40, 33), self.randn(3, 4, 8, 64)
        caches = [nan(3, 48, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
        for cache in caches:
            for b in range(3):
                cache[b, padding[b]:lens[b]] = self.randn(lens[b] - padding[b], 2, 64)
        new = self.randn(3, 4, 2, 64), self.randn(3, 4, 2, 64)
        got = fa.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=lengths(lens), cache_leftpad=lengths(padding),
                                         causal=True, return_softmax_lse=True)
        keys, values = ([cache[b, padding[b]:lens[b] + 4] for b in range(3)] for cache in caches)
        for one, added in zip((keys, values), new):
            for rows, last in zip(one, added):
                self.assertTrue(torch.equal(rows[-4:], last))
        self.assert_both(got, self.wanted(q, keys, values, causal=True))

    def test_packed_and_strided_tensors(self):
        qkv = self.randn(2, 19, 3, 4, 64)
        wanted, _ = self.wanted(*qkv.unbind(2), causal=True)
        self.assert_near(fa.flash_attn_qkvpacked_func(qkv, causal=True), wanted)
        self.assert_near(fa.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), wanted)
        inner = [tensor.transpose(1, 3).contiguous().transpose(1, 3) for tensor in qkv.unbind(2)]
        self.assert_near(fa.flash_attn_func(*inner, causal=True), wanted)

    def test_sequences_of_different_lengths(self):
        q_lens, k_lens = (9, 0, 30, 1), (20, 5, 30, 0)
        q, k, v = self.randn(40, 8, 64), self.randn(55, 2, 64), self.randn(55, 2, 64)
        each = [reference(*one, causal=True) for one in zip(q.split(q_lens), k.split(k_lens), v.split(k_lens))]
        wanted = torch.cat([o for o, _ in each]), torch.cat([lse for _, lse in each]).transpose(0, 1)
        sizes = offsets(q_lens), offsets(k_lens), 30, 30
        self.assert_both(fa.flash_attn_varlen_func(q, k, v, *sizes, causal=True, return_softmax_lse=True), wanted)
        self.assert_near(fa.flash_attn_varlen_kvpacked_func(q, torch.stack((k, v), 1), *sizes, causal=True), wanted[0])
        out = torch.full_like(q, float("nan"))
        self.assertIs(fa.flash_attn_varlen_func(q, k, v, *sizes, causal=True, out=out), out)
        self.assert_near(out, wanted[0])

    def test_scales_of_keys_and_values_of_8_bits(self):
        q, k, v = self.dense()
        k, v = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
        scale, heads = torch.tensor(0.5, device=DEVICE), torch.tensor([0.5, 2.0], device=DEVICE)
        for given, factor in ((scale.expand(2, 2), scale), (heads.expand(2, 2), heads[:, None])):
            wanted, _ = self.wanted(q, k.double() * factor, v.double() * factor)
            self.assert_near(fa.flash_attn_func(q, k, v, k_descale=given, v_descale=given), wanted)

    def test_queries_of_the_latent(self):
        q, qv = self.randn(2, 3, 16, 64), self.randn(2, 3, 16, 512)
        k, v = self.randn(2, 40, 1, 64), self.randn(2, 40, 1, 512)
        wanted = self.wanted(torch.cat((q, qv), -1), torch.cat((k, v), -1), v, causal=True)
        got = fa.flash_attn_with_kvcache(q, k, v, qv=qv, causal=True, cache_seqlens=40, return_softmax_lse=True)
        self.assert_both(got, wanted)

    def test_a_gradient_is_refused_by_the_argument_that_has_it(self):
        q, k, v = self.dense()
        kv, qkv = torch.stack((k, v), 2), torch.stack((k, k, v), 2)
        for name, place, function, tensors in (("q", 0, fa.flash_attn_func, [q, k, v]),
                                               ("v", 2, fa.flash_attn_func, [q, k, v]),
                                               ("kv", 1, fa.flash_attn_kvpacked_func, [q, kv]),
                                               ("qkv", 0, fa.flash_attn_qkvpacked_func, [qkv])):
            tensors[place] = tensors[place].clone().requires_grad_()
            with self.subTest(name), torch.enable_grad():
                with self.assertRaisesRegex(attnsmith.InvalidRequest, rf"^{name}\.requires_grad.*{name}\.detach\(\)"):
                    function(*tensors)
            function(*tensors)  # without gradients

    def test_one_graph_under_torch_compile(self):
        q, k, v = self.dense()
        torch._dynamo.reset()
        compiled = torch.compile(lambda q, k, v: fa.flash_attn_func(q, k, v, causal=True, window_size=(9, 0)) * 2,
                                 fullgraph=True)
        torch.testing.assert_close(compiled(q, k, v), fa.flash_attn_func(q, k, v, causal=True, window_size=(9, 0)) * 2,
                                   rtol=0, atol=0)


class Cached(GpuTest):
    """A cache of 3 sequences, dense or in pages; slots that nothing was written to are NaN."""

    CAPACITY, PAGE_SIZE, KV_HEADS, HEADS, COLUMNS = 512, 16, 2, 8, 64

    def setUp(self):
        super().setUp()
        angles = torch.rand(self.CAPACITY, self.COLUMNS // 2, device=DEVICE) * 6
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        self.history = [[self.randn(0, self.KV_HEADS, self.COLUMNS).double() for _ in range(3)] for _ in range(2)]

    def caches(self, paged):
        if not paged:
            return [nan(3, self.CAPACITY, self.KV_HEADS, self.COLUMNS, dtype=torch.bfloat16) for _ in range(2)], None
        pages = self.CAPACITY // self.PAGE_SIZE
        table = torch.randperm(3 * pages, device=DEVICE).int().view(3, pages)
        shape = (3 * pages, self.PAGE_SIZE, self.KV_HEADS, self.COLUMNS)
        return [nan(*shape, dtype=torch.bfloat16) for _ in range(2)], table

    def step(self, q, k, v, lens, interleaved, **words):
        """What the queries give: the new keys are rotated and rounded, and joined to the history."""
        each = []
        for b, held in enumerate(lens):
            new = torch.arange(held, held + k.shape[1], device=DEVICE)
            turned = rotated(k[b], self.cos, self.sin, new, interleaved).bfloat16().double()
            for history, one in zip(self.history, (turned, v[b].double())):
                history[b] = torch.cat((history[b][:held], one))
            query = rotated(q[b], self.cos, self.sin, new, interleaved).bfloat16()
            each.append(reference(query, self.history[0][b], self.history[1][b], **words))
        return torch.stack([o for o, _ in each]), torch.stack([lse.transpose(0, 1) for _, lse in each])

    def new(self, length):
        return (self.randn(3, length, self.HEADS, self.COLUMNS), self.randn(3, length, self.KV_HEADS, self.COLUMNS),
                self.randn(3, length, self.KV_HEADS, self.COLUMNS))

    def test_a_prompt_and_the_tokens_after_it(self):
        for paged in (False, True):
            for interleaved in (False, True):
                caches, table = self.caches(paged)
                lens = [0, 0, 0]
                for length in (40, 1, 1, 3):
                    with self.subTest(paged=paged, interleaved=interleaved, held=lens[0]):
                        q, k, v = self.new(length)
                        got = fa.flash_attn_with_kvcache(
                            q, *caches, k, v, self.cos, self.sin, lengths(lens), block_table=table, causal=True,
                            rotary_interleaved=interleaved, return_softmax_lse=True)
                        wanted = self.step(q, k, v, lens, interleaved, causal=True)
                        self.assert_near(got[0], wanted[0], "out")
                        self.assert_near(got[1], wanted[1], "lse")
                    lens = [held + length for held in lens]

    def test_a_graph_as_lengths_and_tables_change(self):
        """The append in place, its rotation and the attention, replayed; the caller moves the lengths on."""
        for paged in (False, True):
            caches, table = self.caches(paged)
            q, k, v = self.new(1)
            lens = lengths((0, 0, 0))

            def decode():
                return fa.flash_attn_with_kvcache(q, *caches, k, v, self.cos, self.sin, lens, block_table=table,
                                                  causal=True, rotary_interleaved=False)

            decode()  # loads the kernels
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = decode()
            held = [0, 0, 0]
            for n in range(40):
                for tensor in (q, k, v):
                    tensor.normal_()
                lens.copy_(lengths(held))
                graph.replay()
                with self.subTest(paged=paged, step=n):
                    self.assert_near(out, self.step(q, k, v, held, False, causal=True)[0])
                # The second sequence begins anew now and then.
                held = [held[0] + 1, 0 if n % 7 == 6 else held[1] + 1, held[2] + 1]
                if paged and n == 20:
                    self.move_pages(caches, table)

    def move_pages(self, caches, table):
        """Other pages with the same keys, written to the memory that the graph reads."""
        order = torch.randperm(table.numel(), device=DEVICE)
        for cache in caches:
            cache[order] = cache.clone()
        table.copy_(order[table.long()])

    def test_rows_of_the_cache_by_index(self):
        rows, held = lengths((4, 0, 3)), (7, 0, 30)
        caches = [nan(5, self.CAPACITY, self.KV_HEADS, self.COLUMNS, dtype=torch.bfloat16) for _ in range(2)]
        for row, n, b in zip(rows.tolist(), held, range(3)):
            for cache, history in zip(caches, self.history):
                cache[row, :n] = torch.randn(n, self.KV_HEADS, self.COLUMNS, device=DEVICE)
                history[b] = cache[row, :n].double()
        q, k, v = self.new(2)
        out = fa.flash_attn_with_kvcache(q, *caches, k, v, self.cos, self.sin, lengths(held), rows, causal=True)
        self.assert_near(out, self.step(q, k, v, held, True, causal=True)[0])

    def test_ragged_queries_and_new_keys(self):
        new_lens, caches = (5, 0, 2), self.caches(True)
        (k_cache, v_cache), table = caches
        q, k, v = (self.randn(7, heads, self.COLUMNS) for heads in (self.HEADS, self.KV_HEADS, self.KV_HEADS))
        for given in (offsets(new_lens), None):  # one launch for both, or two
            out, lse = fa.flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, cache_seqlens=lengths((0, 0, 0)), page_table=table, causal=True,
                cu_seqlens_q=offsets(new_lens) if given is None else given,
                cu_seqlens_k_new=offsets(new_lens) if given is None else given, max_seqlen_q=5, rotary_cos=self.cos,
                rotary_sin=self.sin, return_softmax_lse=True)
            each = []
            for one in zip(q.split(new_lens), k.split(new_lens), v.split(new_lens)):
                places = torch.arange(one[0].shape[0], device=DEVICE)
                turned = [rotated(rows, self.cos, self.sin, places, True).bfloat16() for rows in one[:2]]
                each.append(reference(*turned, one[2], causal=True))
            self.assert_near(out, torch.cat([o for o, _ in each]))
            self.assert_near(lse, torch.cat([lse for _, lse in each]).transpose(0, 1))

    def test_a_step_is_one_graph_under_torch_compile(self):
        torch._dynamo.reset()
        caches, table = self.caches(True)
        compiled = torch.compile(lambda *tensors: fa.flash_attn_with_kvcache(*tensors, block_table=table, causal=True),
                                 fullgraph=True)
        for held in range(3):
            q, k, v = self.new(1)
            out = compiled(q, *caches, k, v, self.cos, self.sin, lengths([held] * 3))
            self.assert_near(out, self.step(q, k, v, [held] * 3, True, causal=True)[0], f"{held} held")

    def test_new_keys_that_the_cache_has_no_room_for_are_not_written(self):
        for paged in (False, True):
            caches, table = self.caches(paged)
            q, k, v = self.new(2)
            fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=lengths((self.CAPACITY - 1, 4, -2)),
                                       block_table=table)
            for cache, new in zip(caches, (k, v)):
                rows = cache if table is None else torch.stack([cache[one.long()].flatten(0, 1) for one in table])
                self.assertTrue(torch.equal(rows[1, 4:6], new[1]))
                self.assertEqual(int((~rows.isnan()).sum()), new[1].numel())


class Examples(GpuTest):
    """What FlashAttention's page shows, written anew: the masks that it draws, and a layer that decodes."""

    def test_the_masks_that_the_page_draws(self):
        for q_len, k_len, drawn in ((2, 5, ("11110", "11111")), (5, 2, ("00", "00", "00", "10", "11"))):
            seen = torch.tensor([[digit == "1" for digit in row] for row in drawn], device=DEVICE)
            q, k, v = self.randn(1, q_len, 6, 64), self.randn(1, k_len, 2, 64), self.randn(1, k_len, 2, 64)
            keys, values = (tensor[0].double().repeat_interleave(3, 1) for tensor in (k, v))  # of 6 heads and 2
            logits = torch.einsum("qhd,khd->hqk", q[0].double(), keys) / 8
            weights = logits.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num()
            out = fa.flash_attn_func(q, k, v, causal=True)
            self.assert_near(out[0], torch.einsum("hqk,khd->qhd", weights, values), f"{q_len} and {k_len}")

    def test_a_layer_that_decodes_as_it_attends(self):
        """Token by token with a cache gives what all tokens at once do."""
        hidden, heads, columns, length = 256, 4, 64, 12
        weight = self.randn(3 * hidden, hidden) / 16
        qkv = (self.randn(2, length, hidden) @ weight.T).unflatten(-1, (3, heads, columns))
        at_once = fa.flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=True)
        k_cache, v_cache = (torch.zeros(2, 64, heads, columns, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        steps = []
        for i in range(length):
            q, k, v = qkv[:, i:i + 1].unbind(2)
            steps.append(fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=i, causal=True))
        self.assert_near(torch.cat(steps, 1), at_once.double())
        self.assertTrue(torch.equal(k_cache[:, :length], qkv[:, :, 1]))


if __name__ == "__main__":
    unittest.main()

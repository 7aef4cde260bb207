"""mla_attention() in all of its forms against an fp64 reference: joined and apart, in pages, dense and ragged."""

import itertools
import unittest

from gpu_support import DEVICE, GpuTest, lengths, nan, offsets, reference, torch

import attnsmith

CKV, KPE = 512, 64  # columns of the latent and of the position
SCALE = (128 + 64) ** -0.5  # of the keys that the latents are expanded into, as DeepSeek-V2 has them
PAGE = 64


def expected(q, latents, ckv=CKV, **options):
    """One sequence: q [q_len, heads, 576] and latents [kv_len, 576], which all heads share -> o and lse in fp64. Some
    heads at a time, since the reference has keys for each."""
    keys = latents[:, None]
    parts = [reference(part, keys, keys[..., :ckv], scale=SCALE, **options) for part in q.split(16, dim=1)]
    return torch.cat([o for o, _ in parts], 1), torch.cat([lse for _, lse in parts], 1)


def queries(q):
    """As one tensor, as two, and as two that are views of one."""
    yield {"q": q}
    yield {"q": q[..., :CKV].contiguous(), "q_pe": q[..., CKV:].contiguous()}
    yield {"q": q[..., :CKV], "q_pe": q[..., CKV:]}


def latents(cache):
    """Likewise, each as vLLM and FlashInfer have it, and with FlashMLA's axis of one head."""
    for parts in ({"ckv": cache}, {"ckv": cache[..., :CKV].contiguous(), "kpe": cache[..., CKV:].contiguous()},
                  {"ckv": cache[..., :CKV], "kpe": cache[..., CKV:]}):
        yield parts
        yield {name: part.unsqueeze(-2) for name, part in parts.items()}


class MlaTest(GpuTest):
    def call(self, given, **options):
        """o, in poisoned memory, and lse."""
        q = given["q"]
        out = nan(*q.shape[:-1], CKV, dtype=q.dtype)
        o, lse = attnsmith.mla_attention(**given, scale=SCALE, out=out, return_lse=True, **options)
        self.assertEqual((o.data_ptr(), lse.dtype), (out.data_ptr(), torch.float32))
        self.assertEqual(tuple(lse.shape), tuple(q.shape[:-1]))
        return o, lse

    def assert_rows(self, o, lse, wanted, what=""):
        """Of dense queries: o [batch, q_len, heads, 512], or without q_len."""
        shape = (-1, *o.shape[-2:])
        self.assert_sequences(o.reshape(shape), lse.reshape(shape[:-1]), wanted, what)


class Pages(MlaTest):
    KV_LENS = [300, 64, 1, 129, 65]

    def make(self, kv_lens, dtype=None, page_size=PAGE):
        """A cache whose unused memory is NaN, the padded table (garbage past each end), the compressed one, and each
        sequence's latents."""
        counts = [-(-length // page_size) for length in kv_lens]
        pages = sum(counts) + 3
        ids = torch.randperm(pages)[:sum(counts)].tolist()
        cache = nan(pages, page_size, CKV + KPE, dtype=dtype or torch.bfloat16)
        table = torch.full((len(kv_lens), max(counts) + 1), 2**31 - 7, dtype=torch.int32)
        sequences, rest = [], iter(ids)
        for b, length in enumerate(kv_lens):
            sequence = self.randn(length, CKV + KPE, dtype=dtype)
            for page, part in enumerate(sequence.split(page_size) if length else ()):
                table[b, page] = next(rest)
                cache[table[b, page], :part.shape[0]] = part
            sequences.append(sequence)
        padded = {"page_table": table.to(DEVICE), "kv_lens": lengths(kv_lens)}
        compressed = {"page_indptr": offsets(counts), "page_indices": lengths(ids),
                      "last_page_len": lengths((length - 1) % page_size + 1 for length in kv_lens)}
        return cache, padded, compressed, sequences

    def test_decode(self):
        """One query each, without and with an axis for it."""
        for dtype, heads in itertools.product((torch.bfloat16, torch.float16), (16, 128)):
            cache, padded, compressed, sequences = self.make(self.KV_LENS, dtype)
            q = self.randn(len(sequences), heads, CKV + KPE, dtype=dtype)
            wanted = [expected(q[b:b + 1], sequence) for b, sequence in enumerate(sequences)]
            for lie, asked, kept in itertools.product((padded, compressed), queries(q), latents(cache)):
                with self.subTest(dtype=dtype, heads=heads, given=sorted({**lie, **asked, **kept}),
                                  cache=tuple(kept["ckv"].shape)):
                    self.assert_rows(*self.call({**asked, **kept, **lie}), wanted)
            o, lse = self.call({"q": q[:, None], "ckv": cache, **padded}, causal=True, max_kv_len=max(self.KV_LENS))
            self.assertEqual(tuple(o.shape), (len(sequences), 1, heads, CKV))
            self.assert_rows(o, lse, wanted)

    def test_several_queries_under_a_causal_mask(self):
        """As speculative decoding asks; the first of three sees nothing of one key, nor does any of none."""
        kv_lens = [*self.KV_LENS, 0]
        for dtype, heads in itertools.product((torch.bfloat16, torch.float16), (16, 128)):
            cache, padded, _, sequences = self.make(kv_lens, dtype)
            q = self.randn(len(sequences), 3, heads, CKV + KPE, dtype=dtype)
            wanted = [expected(q[b], sequence, causal=True) for b, sequence in enumerate(sequences)]
            for asked, kept in zip(queries(q), latents(cache)):
                with self.subTest(dtype=dtype, heads=heads, given=sorted({**asked, **kept})):
                    self.assert_rows(*self.call({**asked, **kept, **padded}, causal=True), wanted)

    def test_ragged_queries(self):
        kv_lens, q_lens = [300, 64, 1, 129], [40, 1, 0, 7]
        for heads in (16, 128):
            cache, padded, compressed, sequences = self.make(kv_lens)
            q = self.randn(sum(q_lens), heads, CKV + KPE)
            wanted = [expected(part, sequence, causal=True) for part, sequence in zip(q.split(q_lens), sequences)]
            for lie, asked in itertools.product((padded, compressed), queries(q)):
                with self.subTest(heads=heads, given=sorted({**lie, **asked})):
                    o, lse = self.call({**asked, "ckv": cache, **lie}, q_indptr=offsets(q_lens), causal=True,
                                       max_q_len=max(q_lens))
                    self.assert_sequences(o, lse, wanted)

    def test_page_sizes(self):
        for page_size in (1, 16):
            cache, padded, _, sequences = self.make([70, 3], page_size=page_size)
            q = self.randn(2, 16, CKV + KPE)
            self.assert_rows(*self.call({"q": q, "ckv": cache, **padded}),
                             [expected(q[b:b + 1], sequence) for b, sequence in enumerate(sequences)])

    def test_rows_of_a_larger_table(self):
        cache, padded, _, sequences = self.make([70, 3])
        larger = torch.full((5, padded["page_table"].shape[1]), 10**6, dtype=torch.int32, device=DEVICE)
        larger[[4, 1]] = padded["page_table"]
        q = self.randn(2, 16, CKV + KPE)
        self.assert_rows(*self.call({"q": q, "ckv": cache, **padded, "page_table": larger,
                                     "table_rows": lengths([4, 1])}),
                         [expected(q[b:b + 1], sequence) for b, sequence in enumerate(sequences)])

    def test_long_decode_is_divided(self):
        for heads in (16, 128):
            cache, padded, _, sequences = self.make([9000, 3])
            q = self.randn(2, heads, CKV + KPE)
            for asked, kept in zip(queries(q), latents(cache)):
                self.assert_rows(*self.call({**asked, **kept, **padded}),
                                 [expected(q[b:b + 1], sequence) for b, sequence in enumerate(sequences)])

    def test_layers_of_one_call(self):
        """A call that was bound once, launched with each layer's tensors."""
        kernel = attnsmith.default_runtime().prepare(op="mla", head_dim_ckv=CKV, head_dim_kpe=KPE, q_heads=16,
                                                     scale=SCALE, kv="paged", page_size=PAGE, batch=5, kv_len=300)
        cache, padded, _, sequences = self.make(self.KV_LENS)
        q, o = self.randn(5, 1, 16, CKV + KPE), nan(5, 1, 16, CKV, dtype=torch.bfloat16)
        apart = {"k": cache[..., :CKV].contiguous(), "kpe": cache[..., CKV:].contiguous()}
        call = kernel.bind(q[..., :CKV], o=o, q_pe=q[..., CKV:], **apart, **padded)
        call.launch()
        self.assertFalse(call.status())
        self.assert_near(o[:, 0], torch.cat([expected(q[b], sequence)[0] for b, sequence in enumerate(sequences)]))
        layer = {name: -tensor for name, tensor in apart.items()}  # the next one's latents, in the same pages
        call.launch(**layer)
        self.assert_near(o[:, 0], torch.cat([expected(q[b], -sequence)[0] for b, sequence in enumerate(sequences)]))


class Rows(MlaTest):
    """Latents that lie one after the other."""

    def test_dense(self):
        for dtype, heads in itertools.product((torch.bfloat16, torch.float16), (16, 128)):
            q, cache = (self.randn(*shape, CKV + KPE, dtype=dtype) for shape in ((2, 3, heads), (2, 150)))
            for causal, asked, kept in itertools.product((False, True), queries(q), latents(cache)):
                with self.subTest(dtype=dtype, heads=heads, causal=causal, given=sorted({**asked, **kept})):
                    wanted = [expected(q[b], cache[b], causal=causal) for b in range(2)]
                    self.assert_rows(*self.call({**asked, **kept}, causal=causal), wanted)

    def test_lengths_on_the_device(self):
        for index_dtype in (torch.int32, torch.int64):
            q, cache = self.randn(3, 2, 16, CKV + KPE), self.randn(3, 150, CKV + KPE)
            kv_lens, q_lens = [150, 0, 70], [2, 2, 1]
            for b, length in enumerate(kv_lens):  # unused memory changes nothing
                cache[b, length:] = float("nan")
            for asked, kept in zip(queries(q), latents(cache)):
                o, lse = self.call({**asked, **kept}, kv_lens=lengths(kv_lens, index_dtype),
                                   q_lens=lengths(q_lens, index_dtype))
                for b in range(3):
                    wanted = expected(q[b, :q_lens[b]], cache[b, :kv_lens[b]])
                    self.assert_near(o[b, :q_lens[b]], wanted[0], f"o of sequence {b}")
                    self.assert_near(lse[b, :q_lens[b]], wanted[1], f"lse of sequence {b}")

    def test_ragged(self):
        q_lens, kv_lens = [17, 1, 0, 3], [17, 200, 5, 33]
        for dtype, heads in itertools.product((torch.bfloat16, torch.float16), (16, 128)):
            q = self.randn(sum(q_lens), heads, CKV + KPE, dtype=dtype)
            cache = self.randn(sum(kv_lens), CKV + KPE, dtype=dtype)
            wanted = [expected(part, sequence, causal=True)
                      for part, sequence in zip(q.split(q_lens), cache.split(kv_lens))]
            for asked, kept in itertools.product(queries(q), latents(cache)):
                with self.subTest(dtype=dtype, heads=heads, given=sorted({**asked, **kept})):
                    o, lse = self.call({**asked, **kept}, q_indptr=offsets(q_lens), kv_indptr=offsets(kv_lens),
                                       max_q_len=max(q_lens), max_kv_len=max(kv_lens), causal=True)
                    self.assert_sequences(o, lse, wanted)

    def test_heads_that_fill_no_tile(self):
        for heads in (1, 5, 24):
            q, cache = self.randn(2, 1, heads, CKV + KPE), self.randn(2, 90, CKV + KPE)
            self.assert_rows(*self.call({"q": q, "ckv": cache}), [expected(q[b], cache[b]) for b in range(2)])

    def test_latents_without_a_position(self):
        q, cache = self.randn(2, 16, CKV), self.randn(2, 90, CKV)
        self.assert_rows(*self.call({"q": q, "ckv": cache}), [expected(q[b:b + 1], cache[b]) for b in range(2)])

    def test_latents_of_other_models(self):
        """256 columns and 32 of the position, as MiniCPM3 has: where they are joined the call has to say so."""
        q, cache = self.randn(2, 40, 256 + 32), self.randn(2, 90, 256 + 32)
        wanted = [expected(q[b:b + 1], cache[b], ckv=256) for b in range(2)]
        for given in ({"q": q, "ckv": cache, "head_dim_ckv": 256},
                      {"q": q[..., :256], "q_pe": q[..., 256:], "ckv": cache},
                      {"q": q, "ckv": cache[..., :256], "kpe": cache[..., 256:]}):
            with self.subTest(given=sorted(given)):
                self.assert_rows(*attnsmith.mla_attention(**given, scale=SCALE, return_lse=True), wanted)

    def test_queries_as_they_come_from_a_product(self):
        """The heads of q_nope are outermost in memory where W_UK is absorbed by a batched product."""
        q, cache = self.randn(4, 16, CKV + KPE), self.randn(4, 90, CKV + KPE)
        nope = q[..., :CKV].transpose(0, 1).contiguous().transpose(0, 1)
        self.assert_rows(*self.call({"q": nope, "q_pe": q[..., CKV:], "ckv": cache}),
                         [expected(q[b:b + 1], cache[b]) for b in range(4)])

    def test_alignment_classes(self):
        """Memory that is aligned to 8, 4 and 2 bytes alone."""
        for odd in (4, 2, 1):
            with self.subTest(elements=odd):
                q, cache = self.randn(2, 16, CKV + KPE + odd)[..., odd:], self.randn(2, 90, CKV + KPE + odd)[..., odd:]
                self.assert_rows(*self.call({"q": q, "ckv": cache}), [expected(q[b:b + 1], cache[b]) for b in range(2)])

    def test_outputs_of_fp32(self):
        for dtype in (torch.bfloat16, torch.float16):
            q, cache = self.randn(2, 16, CKV + KPE, dtype=dtype), self.randn(2, 700, CKV + KPE, dtype=dtype)
            rounded = attnsmith.mla_attention(q, cache, scale=SCALE)
            self.assertEqual((rounded.dtype, tuple(rounded.shape)), (dtype, (2, 16, CKV)))
            o = attnsmith.mla_attention(q, cache, scale=SCALE, o_dtype="fp32")
            self.assertEqual(o.dtype, torch.float32)
            self.assertTrue(torch.equal(o.to(dtype), rounded), "o is not what the rounded one was rounded from")

    def test_bits_that_depend_on_no_batch(self):
        q, cache = self.randn(3, 5, 16, CKV + KPE), self.randn(3, 700, CKV + KPE)
        words = {"scale": SCALE, "causal": True, "consistency": "bitwise"}
        together = attnsmith.mla_attention(q, cache, **words)
        for b in range(3):
            self.assert_near(together[b], expected(q[b], cache[b], causal=True)[0])
            alone = attnsmith.mla_attention(q[b:b + 1], cache[b:b + 1], **words)
            self.assertTrue(torch.equal(alone[0], together[b]))
            step = attnsmith.mla_attention(q[b:b + 1, 2:3], cache[b:b + 1, :698], **words)
            self.assertTrue(torch.equal(step[0, 0], together[b, 2]))


class Refusals(MlaTest):
    def test_by_name(self):
        q, cache = self.randn(2, 16, CKV + KPE), self.randn(2, 90, CKV + KPE)
        apart = {"q": q[..., :CKV], "q_pe": q[..., CKV:], "ckv": cache[..., :CKV], "kpe": cache[..., CKV:],
                 "scale": SCALE}
        for field, wrong in (("scale", {"scale": None}), ("q_pe.device", {"q_pe": apart["q_pe"].cpu()}),
                             ("kpe.device", {"kpe": apart["kpe"].cpu()}), ("ckv.dtype", {"ckv": apart["ckv"].half()}),
                             ("kpe.dtype", {"kpe": apart["kpe"].half()}), ("ckv.shape", {"ckv": cache}),
                             ("q_pe.shape", {"q_pe": apart["q_pe"][:, :8]}), ("q.shape", {"q_pe": None}),
                             ("head_dim_ckv", {"head_dim_ckv": 0}), ("ckv.shape", {"kpe": None})):
            with self.subTest(field=field), self.assertRaises(attnsmith.InvalidRequest) as caught:
                attnsmith.mla_attention(**{**apart, **wrong})
            self.assertEqual(caught.exception.field, field)
        with torch.enable_grad(), self.assertRaisesRegex(attnsmith.InvalidRequest, r"kpe.detach\(\)"):
            attnsmith.mla_attention(**{**apart, "kpe": apart["kpe"].clone().requires_grad_()})


if __name__ == "__main__":
    unittest.main()

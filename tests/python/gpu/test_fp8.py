"""Keys and values of 8 bits, as torch has them, against an fp64 reference of what is stored times its scale."""

import unittest

from gpu_support import DEVICE, GpuTest, lengths, offsets, reference, torch

import attnsmith

WORDS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


class Fp8(GpuTest):
    def setUp(self):
        super().setUp()
        if not all(hasattr(torch, name) for name in WORDS):
            self.skipTest(f"torch {torch.__version__} has no floats of 8 bits")

    def stored(self, *shape, dtype, scales):
        """Numbers N(0, 1) as they are stored, and those in fp64 that they stand for. `scales`: of the heads, which are
        the axis before the last; None: 1."""
        numbers = self.randn(*shape, dtype=torch.float32)
        factors = torch.ones(1, device=DEVICE) if scales is None else scales
        held = (numbers / factors[:, None]).to(getattr(torch, dtype))
        return held, held.double() * factors.double()[:, None]

    def scales(self, heads):
        """Of keys and of values: none, one, and one of each head, all different."""
        yield None, None
        yield torch.tensor([0.05], device=DEVICE), torch.tensor([1.7], device=DEVICE)
        yield 0.03 + torch.arange(heads, device=DEVICE) / 2, 2.5 - torch.arange(heads, device=DEVICE) / 3

    def test_dense(self):
        for dtype, word in WORDS.items():
            for q_dtype in (torch.bfloat16, torch.float16):
                for k_scale, v_scale in self.scales(2):
                    for as_bytes in (False, True):
                        with self.subTest(dtype=word, q=q_dtype, scales=k_scale, as_bytes=as_bytes):
                            q = self.randn(2, 33, 8, 128, dtype=q_dtype)
                            k, keys = self.stored(2, 70, 2, 128, dtype=dtype, scales=k_scale)
                            v, values = self.stored(2, 70, 2, 128, dtype=dtype, scales=v_scale)
                            options = {"k_scale": k_scale, "v_scale": v_scale}
                            if as_bytes:
                                k, v, options["kv_dtype"] = k.view(torch.uint8), v.view(torch.uint8), word
                            o, lse, status = attnsmith.attention(q, k, v, causal=True, return_lse=True,
                                                                 return_status=True, **options)
                            self.assertFalse(attnsmith.CallStatus(status))
                            for b in range(2):
                                wanted = reference(q[b], keys[b], values[b], causal=True)
                                self.assert_near(o[b], wanted[0], "o")
                                self.assert_near(lse[b], wanted[1], "lse")

    def test_varlen(self):
        q_lens, kv_lens = [17, 1, 0, 40], [17, 600, 5, 33]
        for dtype in WORDS:
            for k_scale, v_scale in self.scales(2):
                with self.subTest(dtype=dtype, scales=k_scale):
                    q = self.randn(sum(q_lens), 4, 64)
                    k, keys = self.stored(sum(kv_lens), 2, 64, dtype=dtype, scales=k_scale)
                    v, values = self.stored(sum(kv_lens), 2, 64, dtype=dtype, scales=v_scale)
                    o, lse = attnsmith.varlen_attention(q, k, v, offsets(q_lens), offsets(kv_lens), max_q_len=40,
                                                        max_kv_len=600, causal=True, return_lse=True, k_scale=k_scale,
                                                        v_scale=v_scale)
                    wanted = [reference(a, b, c, causal=True) for a, b, c in
                              zip(q.split(q_lens), keys.split(kv_lens), values.split(kv_lens))]
                    self.assert_sequences(o, lse, wanted)

    def test_paged(self):
        """One page after the other, in a pair of caches and in one tensor of both."""
        kv_lens, page_size, pages = [37, 1, 64], 16, 4
        for dtype in WORDS:
            for k_scale, v_scale in self.scales(2):
                q = self.randn(3, 8, 128)
                k, keys = self.stored(3 * pages, page_size, 2, 128, dtype=dtype, scales=k_scale)
                v, values = self.stored(3 * pages, page_size, 2, 128, dtype=dtype, scales=v_scale)
                table = torch.arange(3 * pages, dtype=torch.int32, device=DEVICE).view(3, pages)
                both = torch.stack([k.view(torch.uint8), v.view(torch.uint8)], 1)
                for cache in ((k, v), both.view(getattr(torch, dtype))):
                    with self.subTest(dtype=dtype, scales=k_scale, pair=isinstance(cache, tuple)):
                        o = attnsmith.paged_attention(q, cache, table, lengths(kv_lens), k_scale=k_scale, v_scale=v_scale)
                        for b, length in enumerate(kv_lens):
                            here = slice(b * pages, (b + 1) * pages)
                            wanted, _ = reference(q[b:b + 1], keys[here].flatten(0, 1)[:length],
                                                  values[here].flatten(0, 1)[:length])
                            self.assert_near(o[b:b + 1], wanted, f"o of sequence {b}")

    def token_scales(self, *shape):
        """One for each head of each token, spread over two orders."""
        return torch.exp(torch.empty(*shape, device=DEVICE).uniform_(-4, 1))

    def stored_by_tokens(self, *shape, dtype="float8_e4m3fn"):
        """Numbers N(0, 1) as they are stored, their scales, and those in fp64 that they stand for."""
        scales = self.token_scales(*shape[:-1])
        held = (self.randn(*shape, dtype=torch.float32) / scales[..., None]).to(getattr(torch, dtype))
        return held, scales, held.double() * scales.double()[..., None]

    def test_scales_of_tokens(self):
        for dtype in WORDS:
            q = self.randn(2, 33, 8, 128)
            k, k_scale, keys = self.stored_by_tokens(2, 70, 2, 128, dtype=dtype)
            v, v_scale, values = self.stored_by_tokens(2, 70, 2, 128, dtype=dtype)
            for last in (0, 1):  # and of the one block of their columns
                scales = [scale.unsqueeze(-1) if last else scale for scale in (k_scale, v_scale)]
                o, lse = attnsmith.attention(q, k, v, causal=True, return_lse=True, k_scale=scales[0], v_scale=scales[1])
                for b in range(2):
                    wanted = reference(q[b], keys[b], values[b], causal=True)
                    self.assert_near(o[b], wanted[0], "o")
                    self.assert_near(lse[b], wanted[1], "lse")

    def test_scales_behind_the_columns_of_pages(self):
        """Views of caches of bytes, of which each head's row is 128 columns and a float."""
        kv_lens, page_size, pages = [37, 1, 64], 16, 4
        table = torch.arange(3 * pages, dtype=torch.int32, device=DEVICE).view(3, pages)
        views, numbers = [], []
        for _ in range(2):
            held, scales, meant = self.stored_by_tokens(3 * pages, page_size, 2, 128)
            cache = torch.cat((held.view(torch.uint8), scales[..., None].contiguous().view(torch.uint8)), -1)
            self.assertEqual(cache.shape[-1], 132)
            views.append((cache[..., :128], cache[..., 128:].view(torch.float32)[..., 0]))
            numbers.append(meant)
        q = self.randn(3, 8, 128)
        (k, k_scale), (v, v_scale) = views
        o = attnsmith.paged_attention(q, (k, v), table, lengths(kv_lens), k_scale=k_scale, v_scale=v_scale, kv_dtype="e4m3")
        for b, length in enumerate(kv_lens):
            here = slice(b * pages, (b + 1) * pages)
            wanted, _ = reference(q[b:b + 1], numbers[0][here].flatten(0, 1)[:length],
                                  numbers[1][here].flatten(0, 1)[:length])
            self.assert_near(o[b:b + 1], wanted, f"o of sequence {b}")

    def test_bad_scales_of_tokens(self):
        q = self.randn(1, 9, 8, 64)
        k, good, _ = self.stored_by_tokens(1, 300, 2, 64)
        wanted = attnsmith.attention(q, k, k, causal=True, k_scale=good, v_scale=good)
        bad = good.clone()
        bad[0, 296, 1] = 0  # the last four queries see it
        for scales in ((bad, good), (good, bad)):
            o, status = attnsmith.attention(q, k, k, causal=True, k_scale=scales[0], v_scale=scales[1], return_status=True)
            self.assertTrue(attnsmith.CallStatus(status).scale_not_positive)
            self.assertTrue(torch.equal(o[:, :, :4], wanted[:, :, :4]))
            self.assertTrue(torch.equal(o[:, :5, 4:], wanted[:, :5, 4:]))
            self.assertTrue(o[:, 5:, 4:].isnan().all())

    def test_latents_in_rows_of_656_bytes(self):
        latents, k_scale, numbers = self.stored_by_tokens(2, 90, 4, 128)
        kpe = self.randn(2, 90, 64)
        rows = torch.cat((latents.flatten(-2).view(torch.uint8), k_scale.view(torch.uint8), kpe.view(torch.uint8)), -1)
        self.assertEqual(rows.shape[-1], 656)
        q = self.randn(2, 3, 16, 576) / 4
        o = attnsmith.mla_attention(q, rows[..., :512], kpe=rows[..., 528:].view(kpe.dtype), scale=0.1, causal=True,
                                    k_scale=rows[..., 512:528].view(torch.float32), kv_dtype="e4m3")
        for b in range(2):
            values = numbers[b].flatten(-2)[:, None]
            keys = torch.cat((values, kpe[b].double()[:, None]), -1)
            self.assert_near(o[b], reference(q[b], keys, values, scale=0.1, causal=True)[0], f"o of sequence {b}")

    def test_a_scale_without_axes(self):
        """As vLLM keeps them."""
        q = self.randn(1, 5, 4, 64)
        k, keys = self.stored(1, 40, 2, 64, dtype="float8_e4m3fn", scales=torch.tensor([0.1], device=DEVICE))
        scale = torch.tensor(0.1, device=DEVICE)
        o = attnsmith.attention(q, k, k, k_scale=scale, v_scale=scale)
        self.assert_near(o[0], reference(q[0], keys[0], keys[0])[0])

    def test_bad_scales(self):
        """The rows of a head whose scale is none are NaN, the others as ever, and the status says so."""
        q = self.randn(2, 9, 8, 64)
        good = torch.tensor([0.5, 0.25], device=DEVICE)
        k, _ = self.stored(2, 300, 2, 64, dtype="float8_e4m3fn", scales=good)
        wanted = attnsmith.attention(q, k, k, k_scale=good, v_scale=good)
        for number in (0.0, -1.0, float("nan"), float("inf")):
            bad = torch.tensor([0.5, number], device=DEVICE)
            for scales in ((bad, good), (good, bad)):
                with self.subTest(scale=number, of_keys=scales[0] is bad):
                    o, status = attnsmith.attention(q, k, k, k_scale=scales[0], v_scale=scales[1], return_status=True)
                    self.assertTrue(attnsmith.CallStatus(status).scale_not_positive)
                    self.assertTrue(torch.equal(o[:, :, :4], wanted[:, :, :4]))
                    self.assertTrue(o[:, :, 4:].isnan().all())

    def test_a_call_for_layers_with_scales_of_their_own(self):
        kernel = attnsmith.default_runtime().prepare(head_dim=128, q_heads=8, kv_heads=2, kv_dtype="e4m3", kv_scale="head", q_len=3,
                                   kv_len=100)
        q, o = self.randn(1, 3, 8, 128), self.randn(1, 3, 8, 128)
        layers = []
        for factor in (0.02, 0.3, 2.0):
            scales = [factor * torch.tensor(pair, device=DEVICE) for pair in ((1.0, 3.0), (2.0, 0.5))]
            tensors = [self.stored(1, 100, 2, 128, dtype="float8_e4m3fn", scales=scale) for scale in scales]
            layers.append((tensors, scales))
        (first, scales) = layers[0]
        call = kernel.bind(q, first[0][0], first[1][0], o, k_scale=scales[0], v_scale=scales[1])
        for (keys, values), (k_scale, v_scale) in layers:
            call.launch(k=keys[0], v=values[0], k_scale=k_scale, v_scale=v_scale)
            self.assert_near(o[0], reference(q[0], keys[1][0], values[1][0])[0])
        self.assertFalse(call.status())

    def test_latents(self):
        for dtype, word in WORDS.items():
            scale = torch.tensor([0.1], device=DEVICE)
            q = self.randn(2, 3, 16, 576) / 4
            latents, numbers = self.stored(2, 90, 1, 576, dtype=dtype, scales=scale)
            for cache, said in ((latents, {}), (latents.view(torch.uint8), {"kv_dtype": word})):
                o = attnsmith.mla_attention(q, cache, scale=0.1, causal=True, k_scale=scale, **said)
                for b in range(2):
                    wanted, _ = reference(q[b], numbers[b], numbers[b, :, :, :512], scale=0.1, causal=True)
                    self.assert_near(o[b], wanted, f"o of sequence {b}")


if __name__ == "__main__":
    unittest.main()

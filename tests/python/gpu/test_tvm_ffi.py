"""attnsmith.tvm_ffi with torch tensors on a GPU, against the fp64 reference."""

import math
import unittest

from gpu_support import DEVICE, GpuTest, lengths, nan, offsets, reference, torch

import attnsmith

try:
    import tvm_ffi
except ImportError:
    tvm_ffi = None


class TvmFfi(GpuTest):
    def setUp(self):
        super().setUp()
        if tvm_ffi is None:
            self.skipTest("apache-tvm-ffi is not installed")
        try:
            self.module = attnsmith.tvm_ffi.load()
        except attnsmith.LibraryMissing as error:
            self.skipTest(str(error))

    def outputs(self, q, columns=None, dtype=None):
        return (nan(*q.shape[:-1], columns or q.shape[-1], dtype=dtype or q.dtype),
                nan(*q.shape[:-1], dtype=torch.float32))

    def test_dense(self):
        for dtype in (torch.float16, torch.bfloat16):
            q, k, v = (self.randn(2, tokens, heads, 64, dtype=dtype) for tokens, heads in ((33, 4), (70, 2), (70, 2)))
            for causal, scale in ((True, 0.0), (False, 0.3)):
                out, lse = self.outputs(q)
                for _ in range(3):  # the first prepares, the second binds, the third launches alone
                    out.fill_(math.nan), lse.fill_(math.nan)
                    self.module.attention(q, k, v, out, lse, causal, scale)
                    for b in range(2):
                        wanted = reference(q[b], k[b], v[b], causal=causal, scale=scale or None)
                        self.assert_near(out[b], wanted[0])
                        self.assert_near(lse[b], wanted[1])

    def test_options(self):
        q, k, v = (self.randn(2, tokens, heads, 64) for tokens, heads in ((33, 4), (70, 2), (70, 2)))
        sinks, slopes = self.randn(4, dtype=torch.float32), self.randn(4, dtype=torch.float32).abs() / 4
        for window, chunk, softcap, given in (((9, 0), 0, 0.0, {}), ((-1, -1), 16, 0.0, {}), ((-1, -1), 0, 3.0, {}),
                                              ((-1, -1), 0, 0.0, {"sinks": sinks}), ((5, 3), 0, 0.0, {"alibi_slopes": slopes})):
            with self.subTest(window=window, chunk=chunk, softcap=softcap, given=list(given)):
                out, _ = self.outputs(q)
                self.module.attention(q, k, v, out, None, False, 0.0, None, None, *window, chunk, softcap,
                                      given.get("sinks"), given.get("alibi_slopes"))
                for b in range(2):
                    self.assert_near(out[b], reference(q[b], k[b], v[b], window=window, attention_chunk=chunk,
                                                       softcap=softcap, **given)[0])

    def test_ragged(self):
        q_lens, kv_lens = [17, 1, 0, 40], [17, 60, 5, 33]
        q = self.randn(sum(q_lens), 4, 64)
        k, v = (self.randn(sum(kv_lens), 2, 64) for _ in "kv")
        out, lse = self.outputs(q)
        self.module.varlen_attention(q, k, v, offsets(q_lens), offsets(kv_lens), out, lse, True)
        self.assert_sequences(out, lse, [reference(*one, causal=True) for one in
                                         zip(q.split(q_lens), k.split(kv_lens), v.split(kv_lens))])

    def test_pages(self):
        kv_lens, page_size = [37, 1, 64], 16
        k, v = (self.randn(3, 64, 2, 64) for _ in "kv")
        table = torch.randperm(12).view(3, 4).to(DEVICE, torch.int32)
        caches = [nan(12, page_size, 2, 64, dtype=k.dtype) for _ in "kv"]
        for cache, rows in zip(caches, (k, v)):
            cache[table.flatten().long()] = rows.reshape(12, page_size, 2, 64)
        q = self.randn(3, 4, 64)
        out, lse = self.outputs(q)
        wanted = [reference(q[b:b + 1], k[b, :length], v[b, :length]) for b, length in enumerate(kv_lens)]
        self.module.paged_attention(q, *caches, table, lengths(kv_lens), out, lse)
        self.assert_sequences(out, lse, wanted)
        heads_first = [cache.transpose(1, 2).contiguous() for cache in caches]
        self.module.paged_attention(q, *heads_first, table, lengths(kv_lens), out, lse, False, 0.0, "HND")
        self.assert_sequences(out, lse, wanted)

    def test_latents(self):
        q, latents = self.randn(2, 16, 576), self.randn(2, 64, 576)
        table = torch.tensor([[1], [0]], device=DEVICE, dtype=torch.int32)
        out, lse = self.outputs(q, 512)
        self.module.mla_attention(q, latents.flip(0).contiguous(), table, lengths([64, 33]), out, 0.07, lse)
        keys = [latents[b, :length, None] for b, length in enumerate((64, 33))]
        self.assert_sequences(out, lse, [reference(q[b:b + 1], one, one[..., :512], scale=0.07) for b, one in enumerate(keys)])

    def test_states(self):
        q, k, v = self.randn(21, 4, 64), self.randn(30, 4, 64), self.randn(30, 4, 64)
        parts = [reference(q, *both) for both in zip(k.split([10, 20]), v.split([10, 20]))]
        out, lse = self.outputs(q)
        self.module.merge_states(torch.stack([o.to(q.dtype) for o, _ in parts], 1),
                                 torch.stack([one.float() for _, one in parts], 1), out, lse)
        self.assert_sequences(out, lse, [reference(q, k, v)])

    def test_streams(self):
        """On torch's current stream, after its earlier work."""
        q, k, v = (self.randn(1, 1, heads, 128) for heads in (8, 2, 2))
        k, v = (self.randn(1, 9000, 2, 128) for _ in "kv")
        wanted = reference(q[0], k[0], v[0])[0]
        for _ in range(3):
            stream, late, out = torch.cuda.Stream(), torch.zeros_like(q), nan(*q.shape, dtype=q.dtype)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(10_000_000)
                late.copy_(q)
                self.module.attention(late, k, v, out)
            stream.synchronize()
            self.assert_near(out[0], wanted)

    def test_graphs(self):
        """One that was captured is right as tensors and lengths change, also after the workspace has grown."""
        q, (k, v) = self.randn(2, 1, 8, 128), (self.randn(2, 3000, 2, 128) for _ in "kv")
        out, lens, stream = nan(*q.shape, dtype=q.dtype), lengths([3000, 17]), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        call = lambda: self.module.attention(q, k, v, out, None, False, 0.0, None, lens)  # noqa: E731
        with torch.cuda.stream(stream):
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        with torch.cuda.stream(stream):
            large = [self.randn(16, 20000, 2, 128) for _ in "kv"]
            many = self.randn(16, 1, 32, 128)
            self.module.attention(many, *large, torch.empty_like(many))
        stream.synchronize()
        for kv_lens in ([3000, 17], [5, 2999]):
            q.copy_(self.randn(*q.shape)), lens.copy_(lengths(kv_lens)), out.fill_(math.nan)
            graph.replay()
            torch.cuda.synchronize()
            for b, length in enumerate(kv_lens):
                self.assert_near(out[b], reference(q[b], k[b, :length], v[b, :length])[0])

    def test_a_capture_without_a_workspace_is_refused(self):
        q, (k, v) = self.randn(1, 1, 8, 128), (self.randn(1, 64, 2, 128) for _ in "kv")
        out = nan(*q.shape, dtype=q.dtype)
        self.module.attention(q, k, v, out)
        torch.cuda.synchronize()
        with self.assertRaisesRegex(RuntimeError, "before the capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
                self.module.attention(q, k, v, out)

    def test_errors(self):
        q, k, v = self.randn(1, 4, 4, 64), self.randn(1, 8, 2, 64), self.randn(1, 8, 2, 64)
        for kind, message, given in ((TypeError, "3 arguments are not accepted", (q, k, v)),
                                     (ValueError, "q.device", (q.cpu(), k, v, q)),
                                     (ValueError, "k.dtype", (q, k.half(), v, torch.empty_like(q))),
                                     (NotImplementedError, "fp32", (q.float(), k.float(), v.float(), q.float()))):
            with self.assertRaisesRegex(kind, message):
                self.module.attention(*given)

    def test_global_functions(self):
        q, k, v = self.randn(1, 4, 4, 64), self.randn(1, 8, 2, 64), self.randn(1, 8, 2, 64)
        out, _ = self.outputs(q)
        tvm_ffi.get_global_func("attnsmith.attention")(q, k, v, out, None, True)
        self.assert_near(out[0], reference(q[0], k[0], v[0], causal=True)[0])


if __name__ == "__main__":
    unittest.main()

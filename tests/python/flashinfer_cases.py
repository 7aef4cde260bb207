"""What the tests of attnsmith.compat.flashinfer share: batches in pages, the stand-in of the plain functions, and what is
expected, computed in fp64 by what FlashInfer documents: explicit masks, and an lse in base 2.
"""

import itertools
import math
import re
import unittest

try:
    import torch
except ImportError:
    torch = None
else:
    from stand_in import standing_in
from support import attnsmith

NEEDS_TORCH = unittest.skipIf(torch is None, "PyTorch is not installed")
REFUSALS = (attnsmith.InvalidRequest, attnsmith.Unsupported)
DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
RAGGED, MLA, CASCADE = ("BatchPrefillWithRaggedKVCacheWrapper", "BatchMLAPagedAttentionWrapper",
                        "MultiLevelCascadeAttentionWrapper")
GRAPH = "CUDAGraphBatchDecodeWithPagedKVCacheWrapper"
SINKS = "BatchAttentionWithAttentionSinkWrapper"
SHARED_DECODE, SHARED_PREFILL = ("BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
                                 "BatchPrefillWithSharedPrefixPagedKVCacheWrapper")

Q_HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4


def expected(q, k, v, *, causal=False, window_left=-1, cap=None, scale=None, sinks=None, slopes=None):
    """One sequence of FlashInfer's attention in fp64: q [q_len, heads, d], k and v [kv_len, kv_heads, d]. The lse is in
    base 2."""
    q_len, kv_len = len(q), len(k)
    k, v = (tensor.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q.double(), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    for i, j in itertools.product(range(q_len), range(kv_len)):
        if slopes is not None:
            logits[:, i, j] += slopes * (j - i)
    if cap:
        logits = cap * torch.tanh(logits / cap)
    for i, j in itertools.product(range(q_len), range(kv_len)):
        behind = causal and j > kv_len - q_len + i
        before = window_left >= 0 and j < kv_len - q_len + i - window_left
        if behind or before:
            logits[:, i, j] = -math.inf
    weights = torch.exp2(logits * math.log2(math.e))
    total = weights.sum(-1)
    if sinks is not None:
        total = total + sinks.double().exp()[:, None]
    o = torch.einsum("hqk,khd->qhd", weights / torch.where(total == 0, 1.0, total)[..., None], v)
    return o, torch.log2(total).T


def concatenated(states):
    return torch.cat([o for o, _ in states]), torch.cat([lse for _, lse in states])


def randn(*shape, dtype=None):
    return torch.randn(shape).to(dtype or torch.float16)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def offsets(lengths):
    return ints(0, *itertools.accumulate(lengths))


class Pages:
    """Keys and values of sequences of these lengths, and the same in shuffled pages. What no sequence has is NaN."""

    def __init__(self, lengths, layout="NHD", page_size=PAGE, dims=(DIM, DIM), dtype=None, spare=2):
        self.keys, self.values = ([randn(length, KV_HEADS, dim, dtype=dtype) for length in lengths] for dim in dims)
        counts = [-(-length // page_size) for length in lengths]
        self.indices = torch.randperm(sum(counts) + spare)[:sum(counts)].int()
        self.indptr = offsets(counts)
        self.last = ints(*((length - 1) % page_size + 1 if length else 0 for length in lengths))
        caches = [torch.full((sum(counts) + spare, page_size, KV_HEADS, dim), math.nan).to(rows[0].dtype)
                  for dim, rows in zip(dims, (self.keys, self.values))]
        for b, length in enumerate(lengths):
            pages = self.indices[self.indptr[b]:self.indptr[b + 1]].tolist()
            for token in range(length):
                for cache, rows in zip(caches, (self.keys[b], self.values[b])):
                    cache[pages[token // page_size], token % page_size] = rows[token]
        self.pair = tuple(cache.transpose(1, 2).contiguous() if layout == "HND" else cache for cache in caches)

    @property
    def lists(self):
        return self.indptr, self.indices, self.last

    @property
    def both(self):
        """One tensor [pages, 2, ...]."""
        return torch.stack(self.pair, 1)

    def expected(self, q, q_lens, **words):
        return concatenated([expected(rows, k, v, **words)
                             for rows, k, v in zip(q.split(q_lens), self.keys, self.values)])


def workspace():
    return torch.empty(16, dtype=torch.uint8)


@NEEDS_TORCH
class FlashInferTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(sum(self.id().encode()))
        stand_in = standing_in()
        self.calls = stand_in.__enter__()
        self.addCleanup(stand_in.__exit__, None, None, None)

    def assert_near(self, got, wanted, tolerance=4e-3):
        self.assertEqual(tuple(got.shape), tuple(wanted.shape))
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)

    def assert_state(self, got, wanted, tolerance=4e-3):
        self.assertIsInstance(got, tuple)
        self.assertEqual(got[1].dtype, torch.float32)
        self.assert_near(got[0], wanted[0], tolerance)
        self.assert_near(got[1], wanted[1])

    def refused(self, name, call, *arguments, **words):
        with self.assertRaises(REFUSALS) as caught:
            call(*arguments, **words)
        self.assertRegex(str(caught.exception), rf"\b{re.escape(name)}\b")
        return caught.exception

    def refused_with_lse(self, name, run, q, *tensors):
        """In each of the ways to ask for an lse. A tensor for it is not written."""
        for words in ({"return_lse": True}, {"lse": torch.full(q.shape[:-1], 7.0)},
                      {"return_lse": True, "lse": torch.full(q.shape[:-1], 7.0)}):
            error = self.refused(name, run, q, *tensors, **words)
            for word in words:
                self.assertRegex(str(error), rf"\b{word}\b")
            self.assertTrue((words.get("lse", torch.full((), 7.0)) == 7).all())


class Latents:
    """A batch of latents in shuffled pages: 16 columns and 8 of the position."""

    CKV, KPE = 16, 8

    def __init__(self, q_lens, lengths, dtype=None, spare=0):
        self.q_lens, self.lengths = q_lens, lengths
        counts = [-(-length // PAGE) + spare for length in lengths]
        self.q = randn(sum(q_lens), Q_HEADS, self.CKV + self.KPE)
        self.rows = [randn(length, 1, self.CKV + self.KPE, dtype=dtype) for length in lengths]
        self.indices, self.indptr = torch.randperm(sum(counts)).int(), offsets(counts)
        self.cache = torch.full((sum(counts), PAGE, self.CKV + self.KPE), math.nan).to(self.rows[0].dtype)
        for b, rows in enumerate(self.rows):
            for token, row in enumerate(rows):
                self.cache[int(self.indices[self.indptr[b] + token // PAGE]), token % PAGE] = row[0]
        self.lists = offsets(q_lens), self.indptr, self.indices, ints(*lengths)
        self.rest = (Q_HEADS, self.CKV, self.KPE, PAGE, True, 0.3, torch.float16, self.cache.dtype)
        self.tensors = (self.q[..., :self.CKV], self.q[..., self.CKV:],
                        self.cache[..., :self.CKV], self.cache[..., self.CKV:])

    @property
    def named(self):
        return dict(zip(("num_heads", "head_dim_ckv", "head_dim_kpe", "page_size", "causal", "sm_scale", "q_data_type",
                         "kv_data_type"), self.rest))

    def expected(self, causal=True, scale=0.3):
        return concatenated([expected(q, rows.double(), rows[..., :self.CKV].double(), causal=causal, scale=scale)
                             for q, rows in zip(self.q.split(self.q_lens), self.rows)])

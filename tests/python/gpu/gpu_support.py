"""What the GPU tests share: random tensors, an fp64 reference that shares no code with the kernels, and comparison."""

import importlib.metadata
import math
import unittest

try:
    import torch
except ImportError:
    torch = None

DEVICE = "cuda"


def version_of(package):
    """That of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def why_not():
    """Why these tests cannot run here, or None."""
    if torch is None:
        return "torch is not installed"
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return "no GPU"
    return None


def nan(*shape, dtype):
    """Poison: what a kernel leaves out, or reads without need, shows."""
    return torch.full(shape, math.nan, dtype=dtype, device=DEVICE)


def lengths(values, dtype=None):
    return torch.tensor(list(values), dtype=dtype or torch.int32, device=DEVICE)


def offsets(values, dtype=None):
    """[batch + 1] from the lengths of the sequences."""
    total, result = 0, [0]
    for value in values:
        total += value
        result.append(total)
    return lengths(result, dtype)


def reference(q, k, v, *, causal=False, window=None, attention_chunk=None, softcap=None, sinks=None, scale=None, alibi_slopes=None):
    """One sequence: q [q_len, q_heads, d], k and v [kv_len, kv_heads, d] -> o and lse in fp64."""
    q_len, kv_len, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    q64, k64, v64 = q.double(), k.double(), v.double()
    k64, v64 = k64.repeat_interleave(group, 1), v64.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q64, k64) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(q_len, device=q.device)[:, None] + kv_len - q_len
    j = torch.arange(kv_len, device=q.device)[None, :]
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.double()[:, None, None] * (j - i)
    left, right = window or (None, None)
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device)
    if causal:
        seen &= j <= i
    if left is not None and left >= 0:
        seen &= j >= i - left
    if right is not None and right >= 0:
        seen &= j <= i + right
    if attention_chunk:
        seen &= torch.div(i, attention_chunk, rounding_mode="floor") == j // attention_chunk
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, q_len, 1)], -1)
    if scores.shape[-1] == 0:
        return (torch.zeros(q_len, q.shape[1], v.shape[-1], dtype=torch.float64, device=q.device),
                torch.full((q_len, q.shape[1]), -math.inf, dtype=torch.float64, device=q.device))
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - torch.where(lse == -math.inf, torch.zeros_like(lse), lse)[..., None])
    o = torch.einsum("hqk,khd->qhd", p[..., :kv_len], v64)
    return o, lse.transpose(0, 1)


class GpuTest(unittest.TestCase):
    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        torch.manual_seed(sum(self.id().encode()))
        self.no_grad = torch.no_grad()
        self.no_grad.__enter__()
        self.addCleanup(self.no_grad.__exit__, None, None, None)

    def randn(self, *shape, dtype=None):
        return torch.randn(shape, device=DEVICE, dtype=torch.float32).to(dtype or torch.bfloat16)

    def assert_near(self, got, wanted, what=""):
        """Within the tolerance of its dtype: |got - wanted| <= t + t |wanted|; infinities in the same places."""
        tolerance = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-2}[got.dtype]
        self.assertEqual(tuple(got.shape), tuple(wanted.shape), what)
        got = got.double()
        infinite = torch.isinf(wanted)
        self.assertTrue(torch.equal(torch.isinf(got), infinite), f"{what}: infinities")
        difference = torch.where(infinite, torch.zeros_like(wanted), got - wanted).abs()
        limit = tolerance + tolerance * torch.where(infinite, torch.zeros_like(wanted), wanted).abs()
        if difference.numel():
            worst = (difference / limit).max().item()
            self.assertLessEqual(worst, 1, f"{what}: {worst} times the tolerance")  # False for NaN

    def assert_within(self, tolerance, got, wanted, what=""):
        """Each element of an fp32 tensor: |got - wanted| <= tolerance + tolerance |wanted|; all of them finite."""
        self.assertEqual((got.dtype, tuple(got.shape)), (torch.float32, tuple(wanted.shape)), what)
        worst = ((got.double() - wanted).abs() / (tolerance + tolerance * wanted.abs())).max().item()
        self.assertLessEqual(worst, 1, f"{what}: {worst} times the tolerance")  # False for NaN

    def assert_sequences(self, o, lse, wanted, what=""):
        """o [tokens, heads, d] and lse, one sequence after the other."""
        self.assert_near(o, torch.cat([one[0] for one in wanted]), f"{what} o")
        if lse is not None:
            self.assert_near(lse, torch.cat([one[1] for one in wanted]), f"{what} lse")

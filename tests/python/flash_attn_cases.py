"""What the tests of attnsmith.compat.flash_attn share: an fp64 implementation of FlashAttention's documentation, and the
stand-in of the plain functions. Inputs are of fp64 as well, so that nothing is rounded on the way but the LSE, which is fp32.
"""

import math
import unittest

try:
    import torch
except ImportError:
    torch = None
else:
    from stand_in import standing_in

NOTHING = (-1, -1)


def flash(q, k, v, *, softmax_scale=None, causal=False, window_size=NOTHING, softcap=0.0, alibi_slopes=None, sinks=None,
          attention_chunk=0):
    """One sequence, as FlashAttention documents it: q [seqlen_q, heads, d], k and v [seqlen_k, kv_heads, d]. Gives out
    and the LSE [heads, seqlen_q]."""
    (q_len, heads, columns), (k_len, kv_heads) = q.shape, k.shape[:2]
    scale = softmax_scale or 1 / math.sqrt(columns)
    out = torch.zeros(q_len, heads, v.shape[-1], dtype=torch.float64)
    lse = torch.full((heads, q_len), -math.inf, dtype=torch.float64)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        for i in range(q_len):
            position = i + k_len - q_len
            logits, seen = [], []
            for j in range(k_len):
                if causal and j > position:
                    continue
                if window_size[0] is not None and window_size[0] >= 0 and j < position - window_size[0]:
                    continue
                if window_size[1] is not None and window_size[1] >= 0 and j > position + window_size[1]:
                    continue
                if attention_chunk and j // attention_chunk != position // attention_chunk:
                    continue
                logit = float(q[i, head].double() @ k[j, kv_head].double()) * scale
                if softcap > 0:
                    logit = softcap * math.tanh(logit / softcap)
                if alibi_slopes is not None:
                    logit -= float(alibi_slopes[head]) * abs(position - j)
                logits.append(logit)
                seen.append(j)
            total = math.fsum(map(math.exp, logits))
            if sinks is not None:
                total += math.exp(float(sinks[head]))
            if total:
                lse[head, i] = math.log(total)
                for logit, j in zip(logits, seen):
                    out[i, head] += math.exp(logit) / total * v[j, kv_head].double()
    return out, lse


def batched(q, k, v, kv_lens=None, **words):
    """[batch, len, heads, d], of which kv_lens keys count. Gives out and the LSE [batch, heads, seqlen_q]."""
    each = [flash(q[b], k[b][:None if kv_lens is None else kv_lens[b]], v[b][:None if kv_lens is None else kv_lens[b]],
                  **words) for b in range(q.shape[0])]
    return torch.stack([out for out, _ in each]), torch.stack([lse for _, lse in each])


def rotated(rows, cos, sin, positions, interleaved):
    """rows [tokens, heads, columns], of which pairs of columns are complex numbers that are turned."""
    half = cos.shape[1]
    turn = torch.complex(cos, sin)[positions][:, None]
    result = rows.clone()
    if interleaved:
        turned = torch.complex(rows[..., 0:2 * half:2], rows[..., 1:2 * half:2]) * turn
        result[..., 0:2 * half:2], result[..., 1:2 * half:2] = turned.real, turned.imag
    else:
        turned = torch.complex(rows[..., :half], rows[..., half:2 * half]) * turn
        result[..., :half], result[..., half:2 * half] = turned.real, turned.imag
    return result


@unittest.skipIf(torch is None, "PyTorch is not installed")
class FlashTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        torch.manual_seed(sum(self.id().encode()))
        stand_in = standing_in(torch.float64)
        self.calls = stand_in.__enter__()
        self.addCleanup(stand_in.__exit__, None, None, None)

    def randn(self, *shape):
        return torch.randn(shape, dtype=torch.float64)

    def integers(self, *values):
        return torch.tensor(values, dtype=torch.int32)

    def dense(self, q_len=5, k_len=7, heads=4, kv_heads=2, columns=8, value_columns=8, batch=2):
        return (self.randn(batch, q_len, heads, columns), self.randn(batch, k_len, kv_heads, columns),
                self.randn(batch, k_len, kv_heads, value_columns))

    def assert_same(self, got, wanted, what=""):
        self.assertEqual(tuple(got.shape), tuple(wanted.shape), what)
        tolerance = 1e-6 if got.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)

    def assert_refused(self, name, error, function, *arguments, **words):
        """By this error, whose message says the name first."""
        with self.assertRaises(error) as caught:
            function(*arguments, **words)
        self.assertRegex(str(caught.exception), rf"^{name}(?!\w)")
        return caught.exception

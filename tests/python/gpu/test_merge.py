"""merge_states() against attention over all keys at once."""

import math
import unittest

from gpu_support import DEVICE, GpuTest, nan, reference, torch

import attnsmith


class Merge(GpuTest):
    def states(self, parts, dtype=None, tokens=21, heads=4, dim=64):
        """Attention over each part of the keys, and over all of them in fp64."""
        dtype = dtype or torch.bfloat16
        q = self.randn(tokens, heads, dim, dtype=dtype)
        k, v = (self.randn(sum(parts), heads, dim, dtype=dtype) for _ in range(2))
        partial = [reference(q, a, b) for a, b in zip(k.split(parts), v.split(parts))]
        return [o.to(dtype) for o, _ in partial], [lse.float() for _, lse in partial], reference(q, k, v)

    def test_states_in_a_list(self):
        for dtype in (torch.float16, torch.bfloat16):
            for parts in ([50], [50, 3], [1, 2, 3, 4, 5], [7, 0, 9], [2] * 40):  # 40 are merged in steps
                with self.subTest(dtype=dtype, parts=parts):
                    o_states, lse_states, wanted = self.states(parts, dtype)
                    o, lse = attnsmith.merge_states(o_states, lse_states, out=nan(21, 4, 64, dtype=dtype))
                    self.assert_sequences(o, lse, [wanted])
                    self.assert_near(attnsmith.merge_states(o_states, lse_states, return_lse=False), wanted[0])

    def test_stacked_states(self):
        o_states, lse_states, wanted = self.states([5, 6, 7])
        o, lse = attnsmith.merge_states(torch.stack(o_states, 1), torch.stack(lse_states, 1))
        self.assert_sequences(o, lse, [wanted])

    def test_strided_states(self):
        o_states, lse_states, wanted = self.states([5, 6])
        strided = [o.transpose(0, 1).contiguous().transpose(0, 1) for o in o_states]
        logs = [lse.t().contiguous().t() for lse in lse_states]
        o, lse = attnsmith.merge_states(strided, logs)
        self.assert_sequences(o, lse, [wanted])

    def test_empty_states(self):
        o, lse = attnsmith.merge_states([torch.zeros(3, 2, 64, device=DEVICE, dtype=torch.float16)] * 2,
                                        [torch.full((3, 2), -math.inf, device=DEVICE)] * 2)
        self.assertTrue((o == 0).all() and (lse == -math.inf).all())

    def test_parts_of_attention(self):
        """What it is for: a shared prefix and the rest, merged."""
        q, k, v = self.randn(1, 30, 4, 64), self.randn(1, 90, 2, 64), self.randn(1, 90, 2, 64)
        prefix = attnsmith.attention(q, k[:, :60], v[:, :60], return_lse=True)
        rest = attnsmith.attention(q, k[:, 60:], v[:, 60:], causal=True, return_lse=True)
        o, lse = attnsmith.merge_states([prefix[0][0], rest[0][0]], [prefix[1][0], rest[1][0]])
        self.assert_sequences(o, lse, [reference(q[0], k[0], v[0], causal=True)])

    def test_wrong_states(self):
        o_states, lse_states, _ = self.states([5, 6])
        for o, lse in ((o_states, lse_states[:1]), ([], []), (o_states, torch.stack(lse_states, 1)),
                       (o_states, [one.half() for one in lse_states])):
            with self.assertRaises(attnsmith.InvalidRequest):
                attnsmith.merge_states(o, lse)


if __name__ == "__main__":
    unittest.main()

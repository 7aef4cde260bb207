"""top_k() against torch's own, and against a sort that knows ties and NaN."""

import unittest

from gpu_support import DEVICE, GpuTest, torch

import attnsmith


def selected(scores, k, starts=None, ends=None):
    """Of equal scores the lower column first, NaN last; then in ascending order of the columns."""
    rows, columns = scores.shape
    column = torch.arange(columns, device=DEVICE)
    inside = torch.ones(rows, columns, dtype=torch.bool, device=DEVICE)
    if starts is not None:
        inside &= column >= starts[:, None]
    if ends is not None:
        inside &= column < ends[:, None]
    order = torch.where(scores.isnan(), torch.full_like(scores, -torch.inf), scores) + 0.0  # -0 and 0 are equal
    by_score = torch.argsort(order, dim=1, descending=True, stable=True)
    # Stable sorts by what counts more: whether it is a number, and before that whether it is inside.
    for last in (scores.isnan(), ~inside):
        by_score = by_score.gather(1, torch.argsort(last.gather(1, by_score).int(), dim=1, stable=True))
    wanted = torch.full((rows, k), columns, device=DEVICE)
    count = min(k, columns)
    first = by_score[:, :count]
    wanted[:, :count] = torch.where(inside.gather(1, first), first, columns)
    wanted = wanted.sort(dim=1).values
    return torch.where(wanted == columns, -1, wanted).int()


class TopK(GpuTest):
    def test_columns(self):
        for rows, columns, k in ((1, 1, 1), (3, 5, 9), (64, 4096, 2048), (7, 30011, 512), (2, 100, 0), (0, 10, 3)):
            with self.subTest(rows=rows, columns=columns, k=k):
                scores = torch.randn(rows, columns, device=DEVICE)
                indices = attnsmith.top_k(scores, k)
                self.assertTrue(torch.equal(indices, selected(scores, k)))
                if 0 < k <= columns and rows:
                    self.assertTrue(torch.equal(indices, scores.topk(k).indices.sort().values.int()))

    def test_ties_and_numbers_that_are_none(self):
        scores = torch.randint(-2, 3, (20, 1000), device=DEVICE).float()
        scores[::2, ::7] = torch.nan
        scores[1::3, ::5] = -torch.inf
        scores[:, 3::11] *= -0.0
        for k in (1, 300, 1000):
            self.assertTrue(torch.equal(attnsmith.top_k(scores, k), selected(scores, k)))

    def test_bounds_of_rows(self):
        scores = torch.randn(50, 3000, device=DEVICE)
        for dtype in (torch.int32, torch.int64):
            starts = torch.randint(0, 1500, (50,), device=DEVICE, dtype=dtype)
            ends = starts + torch.randint(0, 1500, (50,), device=DEVICE, dtype=dtype)
            out = torch.full((50, 256), 7, device=DEVICE, dtype=torch.int32)
            indices, status = attnsmith.top_k(scores, 256, row_starts=starts, row_ends=ends, out=out, return_status=True)
            self.assertIs(indices, out)
            self.assertTrue(torch.equal(indices, selected(scores, 256, starts, ends)))
            self.assertFalse(attnsmith.CallStatus(status))
            _, status = attnsmith.top_k(scores, 256, row_ends=ends + 3000, return_status=True)
            self.assertTrue(attnsmith.CallStatus(status).kv_len_clamped)

    def test_slices_and_graphs(self):
        scores = torch.randn(9, 4000, device=DEVICE)[:, 100:3100]
        ends = torch.full((9,), 3000, device=DEVICE, dtype=torch.int32)
        out = torch.empty(9, 1024, device=DEVICE, dtype=torch.int32)
        attnsmith.top_k(scores, 1024, row_ends=ends, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            attnsmith.top_k(scores, 1024, row_ends=ends, out=out)
        for end in (3000, 1500, 20):
            scores.normal_()
            ends.fill_(end)
            graph.replay()
            self.assertTrue(torch.equal(out, selected(scores, 1024, ends=ends)))


if __name__ == "__main__":
    unittest.main()

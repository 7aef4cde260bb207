"""top_k() and Kernel.bind_op() with a stub of the CUDA driver: what is launched, and what is refused."""

import unittest

from launch_case import LaunchTest
from support import attnsmith


class TopK(LaunchTest):
    def test_a_launch_and_its_result(self):
        scores, ends = self.array(5, 300, dtype="fp32"), self.array(5, dtype="int64")
        count, indices = self.launched(attnsmith.top_k, scores, 64, row_ends=ends)
        self.assertEqual((count, indices.shape, indices.dtype), (1, (5, 64), "int32"))
        out = self.array(5, 64, dtype="int32")
        count, (indices, status) = self.launched(attnsmith.top_k, scores, k=64, out=out, return_status=True)
        self.assertIs(indices, out)
        self.assertEqual((count, status.shape), (1, ()))
        self.assertEqual(attnsmith.top_k(self.array(0, 300, dtype="fp32"), 7).shape, (0, 7))

    def test_kernels_are_found_again(self):
        before = self.state.library_loads
        for k in (1, 64, 2048):
            attnsmith.top_k(self.array(2, 100, dtype="fp32"), k)
        self.assertLessEqual(self.state.library_loads - before, 1)

    def test_what_is_refused(self):
        scores = self.array(5, 300, dtype="fp32")
        for field, words in (("scores.dtype", {"scores": self.array(5, 300)}), ("scores.shape", {"scores": self.array(5, dtype="fp32")}),
                             ("k", {"k": -1}), ("k", {"k": 2.5}), ("k", {"k": None}),
                             ("row_ends.dtype", {"row_ends": self.array(5, dtype="fp32")}),
                             ("row_ends.dtype", {"row_starts": self.array(5, dtype="int32"), "row_ends": self.array(5, dtype="int64")}),
                             ("row_ends.shape[0]", {"row_ends": self.array(4, dtype="int32")}),
                             ("out", {"out": self.array(5, 63, dtype="int32")}), ("out", {"out": self.array(5, 64, dtype="int64")}),
                             ("return_status", {"return_status": 1}), ("window", {"window": 3})):
            with self.subTest(field), self.assertRaises(attnsmith.InvalidRequest) as caught:
                attnsmith.top_k(**{"scores": scores, "k": 64, **words})
            self.assertEqual(caught.exception.field, field)

    def test_a_kernel_binds_tensors_by_name(self):
        kernel = self.rt.prepare(op="top_k")
        tensors = {"scores": self.array(5, 300, dtype="fp32"), "indices": self.array(5, 64, dtype="int32")}
        self.assertEqual(self.launched(kernel.bind_op(**tensors).launch)[0], 1)
        workspace = self.rt.allocate(8192)
        self.assertEqual(self.launched(kernel.bind_op(workspace=workspace, **tensors).launch)[0], 1)
        for field, words in (("scores", {"scores": None}), ("q", {"q": tensors["scores"]}), ("kv_lens", {"kv_lens": self.array(
                5, dtype="int32")}), ("indices.shape[0]", {"indices": self.array(4, 64, dtype="int32")})):
            with self.subTest(field), self.assertRaises(attnsmith.InvalidRequest) as caught:
                kernel.bind_op(**{**tensors, **words})
            self.assertEqual(caught.exception.field, field)
        attention = self.rt.prepare(head_dim=64, q_heads=2)
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            attention.bind_op(**tensors)
        self.assertEqual(caught.exception.field, "op")


if __name__ == "__main__":
    unittest.main()

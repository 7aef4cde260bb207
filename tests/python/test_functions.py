"""What the plain functions make of other libraries' words and of bounds, and the status that they can give."""

import ctypes
import unittest
from unittest import mock

from support import attnsmith
from test_launch import LaunchTest


class Spellings(LaunchTest):
    """What FlashAttention and FlashInfer write for "none", and what bounds of 0 are."""

    def spec(self, function, *arguments, **options):
        """The normalised request of the kernel that a call takes."""
        attnsmith.set_default_runtime(self.rt)
        attnsmith._attend._current = None  # what earlier calls found is not looked at
        self.assertEqual(self.launched(function, *arguments, **options)[0], 1)
        (entry,) = attnsmith._attend.dispatch_now().prepared.values()
        return entry.kernel.spec

    def test_none_of_it(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        plain = self.spec(attnsmith.attention, q, k, k)
        self.assertEqual((plain["softcap"], plain["window_left"], plain["window_right"]), (None, None, None))
        for words in ({"softcap": 0.0}, {"softcap": 0}, {"window": (-1, -1)}, {"window": [-1, None]}):
            with self.subTest(**words):
                self.assertEqual(self.spec(attnsmith.attention, q, k, k, **words), plain)

    def test_a_window_that_looks_ahead_under_a_causal_mask(self):
        q, k = self.array(1, 8, 4, 64), self.array(1, 8, 2, 64)
        for window in ((3, 5), (3, 0), (3, -1)):
            with self.subTest(window=window):
                spec = self.spec(attnsmith.attention, q, k, k, causal=True, window=window)
                self.assertEqual((spec["mask"], spec["window_left"], spec["window_right"]), ("causal", 3, None))

    def test_bounds(self):
        """0 is no bound: it is what the longest of no sequences comes to."""
        q, k = self.array(20, 4, 64), self.array(30, 2, 64)
        offsets = self.array(3, dtype="int32", values=[0, 5, 20])
        lens, table = self.array(2, dtype="int32", values=[20, 3]), self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        pages = self.array(4, 2, 16, 2, 64)
        calls = ((attnsmith.varlen_attention, (q, k, k, offsets, offsets), (20, 30)),
                 (attnsmith.paged_attention, (self.array(2, 4, 64), pages, table, lens), (1, 32)))
        for function, tensors, shapes in calls:
            for given, wanted in ((None, shapes), (0, shapes), (1, (1, 1)), (10**12, shapes)):
                with self.subTest(function=function.__name__, bounds=given):
                    attnsmith._attend._current = None
                    seen = []
                    fill = attnsmith._blocks.AttentionBlock.fill

                    def filled(block, views, max_q_len, max_kv_len, *rest):
                        seen.append((max_q_len, max_kv_len))
                        fill(block, views, max_q_len, max_kv_len, *rest)
                    with mock.patch.object(attnsmith._blocks.AttentionBlock, "fill", filled):
                        self.assertEqual(self.launched(function, *tensors, max_q_len=given, max_kv_len=given)[0], 1)
                    self.assertEqual(seen, [wanted])
            for name in ("max_q_len", "max_kv_len"):
                for bad in (-1, 2.5, "16", object()):
                    self.assert_refused(name, function, *tensors, **{name: bad})


class Statuses(LaunchTest):
    """return_status=True: what one call found wrong in lengths on the GPU."""

    def setUp(self):
        super().setUp()
        self.found = 0
        functions = self.rt._library.functions
        launch = functions.attnsmith_launch

        def launched(call, stream, error):
            """Sets the bits, as the kernel would that the stub does not run."""
            code = launch(call, stream, error)
            workspace = attnsmith._attend.dispatch_now().workspaces.of(0, self.stream_number)
            ctypes.c_uint32.from_address(workspace.data).value |= self.found
            return code
        self.stream_number = 0
        patch = mock.patch.object(functions, "attnsmith_launch", launched)
        patch.start()
        self.addCleanup(patch.stop)
        self.q, self.k = self.array(2, 8, 4, 64), self.array(2, 16, 2, 64)
        self.lens = self.array(2, dtype="int32", values=[3, 99])

    def status(self, **options):
        count, results = self.launched(attnsmith.attention, self.q, self.k, self.k, kv_lens=self.lens,
                                       return_status=True, **options)
        self.assertEqual(count, 1)
        return results

    def test_of_one_call(self):
        for found in (0, 2, 5, 0):  # none is left of the call before
            with self.subTest(found=found):
                self.found = found
                o, status = self.status()
                self.assertEqual((o.shape, status.shape, status.dtype), ((2, 8, 4, 64), (), "int32"))
                said = attnsmith.CallStatus(status)
                self.assertEqual((int(status), bool(said)), (found, found != 0))
                self.assertEqual((said.kv_len_clamped, said.q_len_clamped), (found == 2, found == 5))

    def test_beside_lse_out_and_on_a_stream(self):
        self.found, self.stream_number = 2, self.stream()
        out = self.array(2, 8, 4, 64)
        o, lse, status = self.status(return_lse=True, out=out, stream=self.stream_number)
        self.assertIs(o, out)
        self.assertEqual((lse.shape, int(status)), ((2, 8, 4), 2))
        self.assertEqual(self.state.last_launch.stream, self.stream_number)

    def test_of_ragged_and_paged(self):
        self.found = 4
        q, k, offsets = self.array(20, 4, 64), self.array(30, 2, 64), self.array(3, dtype="int32", values=[0, 5, 20])
        _, status = attnsmith.varlen_attention(q, k, k, offsets, offsets, return_status=True)
        self.assertTrue(attnsmith.CallStatus(status).page_out_of_range)
        table = self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])
        _, status = attnsmith.paged_attention(self.array(2, 4, 64), self.array(4, 2, 16, 2, 64), table, self.lens,
                                              return_status=True)
        self.assertEqual(int(status), 4)

    def test_failures(self):
        self.state.fail_launch = 700
        with self.assertRaises(attnsmith.DriverError):
            self.status()
        self.state.fail_launch = 0
        self.assert_refused("o", attnsmith.attention, self.q, self.k, self.k, out=self.q, return_status=True)
        self.assertEqual(int(self.status()[1]), 0)

    def test_calls_without_it_make_none(self):
        functions = self.rt._library.functions
        out = self.array(2, 8, 4, 64)
        attnsmith.attention(self.q, self.k, self.k, out=out)
        before = self.state.allocations
        with mock.patch.object(functions, "attnsmith_call_copy_status", side_effect=AssertionError):
            attnsmith.attention(self.q, self.k, self.k, out=out)
        self.assertEqual(self.state.allocations, before)

    def test_integers_of_arrays(self):
        self.assertEqual(int(self.array(1, dtype="int64", values=[-7])), -7)
        for array in (self.array(2, dtype="int32"), self.array(1, dtype="fp32")):
            with self.assertRaises(TypeError):
                int(array)


if __name__ == "__main__":
    unittest.main()

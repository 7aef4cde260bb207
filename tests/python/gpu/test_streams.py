"""CUDA graphs, streams, devices and threads."""

import threading
import unittest

from gpu_support import DEVICE, GpuTest, lengths, nan, reference, torch

import attnsmith


class Streams(GpuTest):
    def inputs(self, kv_lens=(40, 9), capacity=3000, heads=8):
        """A padded page table over all the pages of each sequence, with the keys in order."""
        batch, pages = len(kv_lens), -(-capacity // 16)
        cache = self.randn(batch * pages, 2, 16, 2, 64)
        table = torch.arange(batch * pages, dtype=torch.int32, device=DEVICE).view(batch, pages)
        return self.randn(batch, heads, 64), cache, table, lengths(kv_lens)

    def wanted(self, q, cache, table, kv_lens):
        outputs = []
        for b in range(q.shape[0]):
            both = cache[table[b].long()].transpose(0, 1).flatten(1, 2)[:, :int(kv_lens[b])]
            outputs.append(reference(q[b:b + 1], *both)[0])
        return torch.cat(outputs)

    def test_graph_with_lengths_that_change(self):
        """The plain function, whose keys are divided, and its workspace in one graph, replayed with other lengths."""
        q, cache, table, kv_lens = self.inputs()
        o = nan(*q.shape, dtype=q.dtype)
        attnsmith.paged_attention(q, cache, table, kv_lens, out=o)  # loads the kernels
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = attnsmith.paged_attention(q, cache, table, kv_lens)
            attnsmith.paged_attention(q, cache, table, kv_lens, out=o)
        for new in ((3000, 1), (5, 2999), (0, 17), (40, 9)):
            kv_lens.copy_(lengths(new))
            q.normal_()
            o.fill_(float("nan"))
            made.fill_(float("nan"))
            graph.replay()
            wanted = self.wanted(q, cache, table, kv_lens)
            self.assert_near(o, wanted, f"lengths {new}")
            self.assert_near(made, wanted, f"lengths {new}, output of the graph's pool")

    def test_one_call_for_all_layers(self):
        q, cache, table, kv_lens = self.inputs((700, 33))
        layers = [self.randn(*cache.shape) for _ in range(3)]
        outputs = [nan(2, 1, 8, 64, dtype=q.dtype) for _ in layers]
        kernels = attnsmith.default_runtime().prepare_set(head_dim=64, q_heads=8, kv_heads=2, kv="paged", page_size=16)
        call = kernels.pick(batch=2, kv_len=3000).bind(q[:, None], cache[:, 0], cache[:, 1], outputs[0],
                                                       page_table=table, kv_lens=kv_lens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer, o in zip(layers, outputs):
                call.launch(k=layer[:, 0], v=layer[:, 1], o=o)
        graph.replay()
        for layer, o in zip(layers, outputs):
            self.assert_near(o[:, 0], self.wanted(q, layer, table, kv_lens))
        self.assertFalse(call.status())

    def test_graph_of_a_call(self):
        q, cache, table, kv_lens = self.inputs()
        o = nan(2, 1, 8, 64, dtype=q.dtype)
        kernel = attnsmith.default_runtime().prepare(
            head_dim=64, q_heads=8, kv_heads=2, kv="paged", page_size=16, batch=2, kv_len=3000)
        call = kernel.bind(q[:, None], cache[:, 0], cache[:, 1], o, page_table=table, kv_lens=kv_lens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call.launch()
        for new in ((3000, 1), (5, 2999)):
            kv_lens.copy_(lengths(new))
            o.fill_(float("nan"))
            graph.replay()
            self.assert_near(o[:, 0], self.wanted(q, cache, table, kv_lens), f"lengths {new}")
        self.assertFalse(call.status())

    def test_status_of_lengths_beyond_the_bounds(self):
        """Each call has a status of its own, and so has each replay of a graph."""
        q, cache, table, kv_lens = self.inputs()
        capacity = table.shape[1] * 16
        cases = (((40, 9), False), ((capacity + 1, 9), True), ((40, capacity), False), ((1, 10**6), True))
        for new, clamped in cases:
            kv_lens.copy_(lengths(new))
            o, lse, status = attnsmith.paged_attention(q, cache, table, kv_lens, return_lse=True, return_status=True)
            self.assertEqual((status.device, status.dtype, tuple(status.shape)), (q.device, torch.int32, ()))
            found = attnsmith.CallStatus(status)
            self.assertEqual((found.kv_len_clamped, found.q_len_clamped, found.page_out_of_range),
                             (clamped, False, False))
            self.assert_near(o, self.wanted(q, cache, table, kv_lens), f"lengths {new}")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, status = attnsmith.paged_attention(q, cache, table, kv_lens, return_status=True)
        for new, clamped in cases:
            kv_lens.copy_(lengths(new))
            status.fill_(-1)
            graph.replay()
            self.assertEqual(attnsmith.CallStatus(status).kv_len_clamped, clamped, f"lengths {new}")
            self.assertEqual(int(status) & ~2, 0)
            self.assert_near(o, self.wanted(q, cache, table, kv_lens), f"lengths {new}")

    def test_workspace_of_a_graph_outlives_growth(self):
        """A larger problem after the capture replaces the plain functions' own workspace; the graph keeps its own."""
        q, cache, table, kv_lens = self.inputs(kv_lens=(3000, 3000))
        attnsmith.paged_attention(q, cache, table, kv_lens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attnsmith.paged_attention(q, cache, table, kv_lens)
        big_q, big_cache, big_table, big_lens = self.inputs(kv_lens=(9000,) * 8, capacity=9000, heads=32)
        for _ in range(3):
            attnsmith.paged_attention(big_q, big_cache, big_table, big_lens)
            o.fill_(float("nan"))
            graph.replay()
            self.assert_near(o, self.wanted(q, cache, table, kv_lens))

    def test_side_streams(self):
        """Work lands on the current stream, and on the one that is named: behind what keeps it busy."""
        q, cache, table, kv_lens = self.inputs()
        expected = self.wanted(q, cache, table, kv_lens)
        side = torch.cuda.Stream()
        busy = torch.randn(4096, 4096, device=DEVICE)

        def delayed():
            """Fills q only after much other work on the side stream."""
            late = torch.zeros_like(q)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(20):
                    busy @ busy
                late.copy_(q)
            return late

        late = delayed()
        with torch.cuda.stream(side):
            current = attnsmith.paged_attention(late, cache, table, kv_lens)
        late = delayed()
        named = [attnsmith.paged_attention(late, cache, table, kv_lens, stream=stream)
                 for stream in (side, side.cuda_stream)]
        torch.cuda.current_stream().wait_stream(side)
        for o in (current, *named):
            self.assert_near(o, expected)

    def test_other_device_than_the_current(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("one GPU")
        q, cache, table, kv_lens = self.inputs()
        expected = self.wanted(q, cache, table, kv_lens)
        there = [tensor.to("cuda:1") for tensor in (q, cache, table, kv_lens)]
        o = attnsmith.paged_attention(*there)
        self.assertEqual((o.device.index, torch.cuda.current_device()), (1, 0))
        self.assert_near(o.to(DEVICE), expected)
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "device"):
            attnsmith.paged_attention(q, there[1], table, kv_lens)

    def test_threads(self):
        """Each thread its own problem, on one stream and on streams of their own: launches that divide keys do not mix."""
        problems = [self.inputs(kv_lens=(2000 + 7 * i, 100 + i)) for i in range(4)]
        expected = [self.wanted(*problem) for problem in problems]
        failures = []

        def work(i, stream):
            try:
                with torch.no_grad(), torch.cuda.stream(stream):
                    for _ in range(100):
                        o = attnsmith.paged_attention(*problems[i])
                        stream.synchronize()
                        self.assert_near(o, expected[i], f"thread {i}")
            except BaseException as failure:
                failures.append(failure)

        torch.cuda.synchronize()
        for own in (False, True):
            streams = [torch.cuda.Stream() if own else torch.cuda.current_stream() for _ in problems]
            threads = [threading.Thread(target=work, args=(i, streams[i])) for i in range(len(problems))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])

    def test_same_bits_every_time(self):
        q, cache, table, kv_lens = self.inputs(kv_lens=(3000, 777))
        first = attnsmith.paged_attention(q, cache, table, kv_lens)
        for _ in range(20):
            self.assertTrue(torch.equal(first, attnsmith.paged_attention(q, cache, table, kv_lens)))


if __name__ == "__main__":
    unittest.main()

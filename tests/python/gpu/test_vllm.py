"""The attention backend of vLLM with its kernels: on the vLLM that is installed, and on a stand-in of the newest release that
has a table. Each class runs in a process of its own, so that the two do not meet."""

import contextlib
import dataclasses
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

from gpu_support import DEVICE, GpuTest, torch, version_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # last, since files there have names of files here

import attnsmith
import attnsmith_vllm

if torch is not None:
    import vllm_cases
    from vllm_release import OURS, no_group
    from vllm_stand_in import load, releases, stand_in


def installed():
    """The release of the vLLM that is installed, or None."""
    return version_of("vllm")


@contextlib.contextmanager
def backends(of_newest, batch_invariant=False):
    """The dense backend and the latent one. of_newest: of the stand-in, whatever is installed."""
    if installed() is not None and not of_newest:
        import vllm.envs
        attnsmith_vllm.register()
        with unittest.mock.patch.object(vllm.envs, "VLLM_BATCH_INVARIANT", batch_invariant):
            yield imported()
        return
    answers = {"VLLM_BATCH_INVARIANT": batch_invariant, "get_current_vllm_config_or_none": lambda: None,
               "get_kv_cache_layout": lambda: "NHD", "get_dcp_group": no_group}
    with stand_in(load(releases()[-1]), answers, fresh=OURS):
        attnsmith_vllm.register()
        yield imported()


def imported():
    from attnsmith.vllm._dense import AttnsmithDenseBackend
    from attnsmith.vllm._mla import AttnsmithMLABackend
    return AttnsmithDenseBackend, AttnsmithMLABackend


def config_of_full_graphs():
    mode = types.SimpleNamespace(mixed_mode=lambda: types.SimpleNamespace(name="FULL"))
    return types.SimpleNamespace(compilation_config=types.SimpleNamespace(cudagraph_mode=mode))


class BackendTest(GpuTest):
    of_newest = False

    def backends(self, **words):
        return backends(self.of_newest, **words)


class Layers(BackendTest):
    def test_every_case(self):
        with self.backends() as (dense, _):
            for case in vllm_cases.DENSE:
                with self.subTest(case.name):
                    driven = vllm_cases.drive(dense, case, DEVICE)
                    self.assertLessEqual(vllm_cases.worst(driven, case), 1)
                    past = driven.output[sum(case.queries):]
                    self.assertTrue((past == vllm_cases.UNWRITTEN).all(), "rows of no request")

    def test_latents(self):
        with self.backends() as (_, latent):
            for dtype in ("auto", "fp8"):
                with self.subTest(dtype):
                    self.assertLessEqual(vllm_cases.drive_latent(latent, dtype, DEVICE), 1)

    def test_prefill_of_latents(self):
        with self.backends():
            for by_index in (True, False):
                with self.subTest(by_index=by_index):
                    self.assertLessEqual(vllm_cases.drive_latent_prefill(DEVICE, by_index), 1)

    def test_context_parallelism(self):
        case = dataclasses.replace(vllm_cases.DENSE[0], queries=(2, 1, 40), contexts=(90, 61, 0), heads=4, kv_heads=1)
        with self.backends() as (dense, _):
            got, wanted = vllm_cases.drive_context_parallel(dense, case, unittest.mock.patch, DEVICE)
        self.assert_near(got, wanted)


#: Lengths of keys and of queries that vLLM tests its own backends with.
LENGTHS = (((32, 40), (1, 1)), ((32, 40), (8, 8)), ((32, 40, 48, 56), (1, 1, 5, 5)),
           ((128, 256, 512, 1024) * 2, (1,) * 8), ((256, 512, 1024, 2048), (16,) * 4),
           ((512, 1024, 2048) * 2, (1, 1, 1, 7, 7, 7)), ((2048,) * 32, (1,) * 32), ((4096,) * 8, (32,) * 8),
           ((1024, 2048, 4096) * 2, (1, 1, 1, 32, 32, 32)), ((1024,), (1,)), ((1024,), (64,)))
OF_ENCODERS = ((32, 64, 128, 256), (256, 512, 1024, 2048))
#: Heads of Llama 3 8B on 1, 2, 4 and 8 GPUs, and of one with many queries to a KV head.
HEADS = ((32, 8), (16, 4), (8, 2), (4, 1), (32, 2))


class Grid(BackendTest):
    def compare(self, dense, case):
        with self.subTest(case.name):
            self.assertLessEqual(vllm_cases.worst(vllm_cases.drive(dense, case, DEVICE), case), 1)

    def test_lengths_of_vllm(self):
        with self.backends() as (dense, _):
            for keys, queries in LENGTHS:
                contexts = tuple(one - other for one, other in zip(keys, queries))
                for heads, kv_heads in HEADS:
                    for words in ({}, {"window": 1000}, {"kv_cache_dtype": "fp8"}):
                        self.compare(dense, vllm_cases.Case(f"{keys} {queries} {heads}/{kv_heads} {words}", heads, kv_heads, 128,
                                                            queries=queries, contexts=contexts, **words))

    def test_encoders_of_vllm(self):
        with self.backends() as (dense, _):
            for lengths in OF_ENCODERS:
                for window in (None, 100):
                    self.compare(dense, vllm_cases.Case(f"{lengths} {window}", 12, 12, 64, attn_type="encoder_only", window=window,
                                                        queries=lengths, contexts=(0,) * 4))


class Captured(BackendTest):
    """One graph of the cache's update and the attention, for other lengths than those of its capture."""

    CASE = dict(queries=(4, 4, 4), contexts=(40, 3, 90))
    # The last one trims drafts on the device: the host still says four queries each.
    STEPS = (((4, 4, 4), (40, 3, 90)), ((1, 4, 0), (40, 3, 0)), ((4, 2, 1), (8, 0, 90)), ((4, 1, 1), (40, 3, 90)))

    def step_of(self, case, keys, values, cache, table, layer, impl, metadata, tensors):
        """Writes the inputs of a step with the case's lengths into the tensors of the graph."""
        starts = [sum(case.queries[:row]) for row in range(len(case.queries) + 1)]
        tensors["query_start_loc"].copy_(torch.tensor(starts, dtype=torch.int32))
        tensors["seq_lens"].copy_(torch.tensor(case.ends, dtype=torch.int32))
        tensors["slots"].fill_(-1)
        for row, (context, end) in enumerate(zip(case.contexts, case.ends)):
            own = slice(starts[row], starts[row] + end - context)
            tensors["slots"][own] = vllm_cases.slots_of(table, row, context, end, case.block_size).to(DEVICE)
            tensors["key"][own], tensors["value"][own] = keys[row][context:end], values[row][context:end]
        tensors["query"].copy_(torch.randn_like(tensors["query"]))
        return starts

    def test_lengths_change_within_one_graph(self):
        for name, words in (("16 bits", {}), ("fp8", {"kv_cache_dtype": "fp8"}), ("window", {"window": 20})):
            with self.subTest(name), self.backends() as (dense, _):
                self.replay(dense, dataclasses.replace(vllm_cases.DENSE[0], **self.CASE, **words))

    def test_a_graph_of_single_tokens_is_replayed_with_prefills(self):
        """The captured metadata says one query a request, as some releases do."""
        with self.backends() as (dense, _):
            case = dataclasses.replace(vllm_cases.DENSE[0], queries=(1,) * 12, contexts=(20,) * 12)
            self.replay(dense, case, steps=(((9, 2, 1) + (0,) * 9, (4, 0, 19) + (0,) * 9), ((12,) + (0,) * 11, (0,) * 12)))

    def replay(self, dense, largest, steps=STEPS):
        impl, layer = vllm_cases.impl_of(dense, largest, DEVICE), vllm_cases.layer_of(largest, DEVICE)
        cache, table = vllm_cases.cache_of(largest, 2 * largest.head_size, DEVICE)
        total = sum(largest.queries)
        keys, values = ([self.randn(end, largest.kv_heads, largest.head_size) for end in largest.ends] for _ in "kv")
        for row, count in enumerate(largest.contexts):
            slots = vllm_cases.slots_of(table, row, 0, count, 16).to(DEVICE)
            impl.do_kv_cache_update(layer, keys[row][:count], values[row][:count], cache, slots)
        tensors = {"key": self.randn(total, largest.kv_heads, largest.head_size), "query": self.randn(
            total, largest.heads, largest.head_size), "slots": torch.full((total,), -1, device=DEVICE)}
        tensors["value"], output = torch.zeros_like(tensors["key"]), torch.zeros_like(tensors["query"])
        builder = vllm_cases.builder_of(dense, vllm_config=config_of_full_graphs())
        metadata = builder.build_for_cudagraph_capture(vllm_cases.common_of(largest, table, tensors["slots"]))
        tensors.update(query_start_loc=metadata.query_start_loc, seq_lens=metadata.seq_lens)

        def step():
            impl.do_kv_cache_update(layer, tensors["key"], tensors["value"], cache, metadata.slot_mapping)
            impl.forward(layer, tensors["query"], tensors["key"], tensors["value"], cache, metadata, output)

        self.step_of(largest, keys, values, cache, table, layer, impl, metadata, tensors)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as vLLM does: the step runs once before, and is captured on a stream of torch's own
            step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            graph.replay()
            torch.cuda.synchronize()
        names = [event.key for event in profiler.key_averages() if event.self_device_time_total > 0]
        self.assertFalse([name for name in names if "emset" in name or "at::native" in name], "memory is zeroed in each replay")
        for queries, contexts in steps:
            case = dataclasses.replace(largest, queries=queries, contexts=contexts)
            starts = self.step_of(case, keys, values, cache, table, layer, impl, metadata, tensors)
            graph.replay()
            stored = vllm_cases.stored(case, layer, cache, table, [one[:end] for one, end in zip(keys, case.ends)],
                                       [one[:end] for one, end in zip(values, case.ends)])
            for row, (begin, end) in enumerate(zip(starts, starts[1:])):
                wanted = vllm_cases.expected(case, impl, tensors["query"][begin:end], stored[0][row], stored[1][row])
                self.assert_near(output[begin:end], wanted, f"{queries}, request {row}")


class BatchInvariance(BackendTest):
    def test_a_request_has_the_same_bits_in_every_batch(self):
        with self.backends(batch_invariant=True) as (dense, _):
            case = dataclasses.replace(vllm_cases.DENSE[0], queries=(1, 40, 7, 1), contexts=(700, 100, 0, 33))
            driven = vllm_cases.drive(dense, case, DEVICE)
            query, key, value, cache, table, slots = driven.inputs
            begin = 0
            for row, count in enumerate(case.queries):
                alone = dataclasses.replace(case, queries=(count,), contexts=(case.contexts[row],))
                rows = slice(begin, begin + count)
                common = vllm_cases.common_of(alone, table[row:row + 1], slots[rows])
                metadata = vllm_cases.builder_of(dense).build(0, common)
                output = torch.zeros_like(query[rows])
                driven.impl.forward(driven.layer, query[rows], key[rows], value[rows], cache, metadata, output)
                self.assertTrue(torch.equal(output, driven.output[rows]), f"request {row}")
                begin += count


class Fused(BackendTest):
    def setUp(self):
        super().setUp()
        self.case = dataclasses.replace(vllm_cases.DENSE[0], queries=(9,), contexts=(0,), head_size=128)
        angles = torch.arange(40, device=DEVICE)[:, None] * 0.1 ** (torch.arange(64, device=DEVICE) / 64)
        self.table = torch.cat([angles.cos(), angles.sin()], -1).to(torch.bfloat16)
        self.positions = torch.arange(9, device=DEVICE) + 20

    def rotated(self, rows):
        cos, sin = self.table[self.positions].double()[:, None].chunk(2, -1)
        x, y = rows.chunk(2, -1)
        return torch.cat([x * cos - y * sin, y * cos + x * sin], -1)

    def prepared(self, dense):
        cache, table = vllm_cases.cache_of(self.case, 256, DEVICE)
        slots = vllm_cases.slots_of(table, 0, 0, 9, 16).to(DEVICE)
        return vllm_cases.impl_of(dense, self.case, DEVICE), vllm_cases.layer_of(self.case, DEVICE), cache, slots

    def test_rotation(self):
        with self.backends() as (dense, _):
            impl, layer, cache, slots = self.prepared(dense)
            q, k, v = (self.randn(9, heads, 128) for heads in (8, 2, 2))
            wanted_q, wanted_k = self.rotated(q.double()), self.rotated(k.double())
            impl.do_rope_and_kv_cache_update(layer, q, k, v, self.positions, self.table, True, cache, slots)
        rows = cache[slots // 16, :, slots % 16]
        self.assert_near(q, wanted_q)
        self.assert_near(rows[..., :128], wanted_k)
        self.assertTrue(torch.equal(rows[..., 128:], v))

    def test_norms_and_rotation(self):
        with self.backends() as (dense, _):
            impl, layer, cache, slots = self.prepared(dense)
            qkv = self.randn(9, 12 * 128)
            q_out = torch.empty(9, 8 * 128, dtype=torch.bfloat16, device=DEVICE)
            q_weight, k_weight = self.randn(128), self.randn(128)
            impl.do_qk_norm_rope_kvcache_update(layer, qkv, q_out, qkv.new_empty(9, 2 * 128), self.positions, q_weight, k_weight,
                                                1e-5, self.table, True, cache, slots)
        q, k, v = qkv.view(9, -1, 128).double().split([8, 2, 2], 1)

        def normed(rows, weight):
            return rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

        rows = cache[slots // 16, :, slots % 16]
        self.assert_near(q_out.view(9, 8, 128), self.rotated(normed(q, q_weight)))
        self.assert_near(rows[..., :128], self.rotated(normed(k, k_weight)))
        self.assertTrue(torch.equal(rows[..., 128:].double(), v))


class Start(BackendTest):
    def test_no_kernel_is_missing_after_a_builder_was_made(self):
        """Another runtime over the same cache may not compile."""
        folder = tempfile.TemporaryDirectory(prefix="attnsmith-vllm-")
        self.addCleanup(folder.cleanup)
        spaces = types.SimpleNamespace
        config = spaces(model_config=spaces(dtype=torch.bfloat16, use_mla=False), attention_config=spaces(use_non_causal=False),
                        compilation_config=spaces(static_forward_context={}), scheduler_config=spaces(max_num_seqs=64),
                        parallel_config=spaces(cp_kv_cache_interleave_size=1))
        before = attnsmith.default_runtime()
        self.addCleanup(attnsmith.set_default_runtime, before)
        for case in (vllm_cases.DENSE[0], dataclasses.replace(vllm_cases.DENSE[0], window=9),
                     dataclasses.replace(vllm_cases.DENSE[0], kv_cache_dtype="fp8")):
            with self.subTest(case=case), self.backends() as (dense, _):
                attnsmith.set_default_runtime(attnsmith.Runtime(cache_dirs=folder.name))
                impl = vllm_cases.impl_of(dense, case, DEVICE)
                config.compilation_config.static_forward_context["layer"] = spaces(impl=impl)
                from attnsmith.vllm import _metadata
                builder = object.__new__(dense.get_builder_cls())
                with unittest.mock.patch.object(_metadata.AttentionMetadataBuilder, "__init__", lambda *_: None), \
                        unittest.mock.patch.object(_metadata, "part_of_context", lambda: (1, 0)):
                    builder.__init__(spaces(block_size=16), ["layer"], config, torch.device("cuda", 0))
                attnsmith.set_default_runtime(attnsmith.Runtime(cache_dirs=folder.name, on_miss="error"))
                for queries, contexts in (((1,) * 40, (100,) * 40), ((700,), (0,)), ((3, 1, 170), (5, 3000, 0))):
                    step = dataclasses.replace(case, queries=queries, contexts=contexts)
                    self.assertLessEqual(vllm_cases.worst(vllm_cases.drive(dense, step, DEVICE), step), 1)


if installed() is not None:  # else the classes above use the stand-in
    class LayersOfNewest(Layers):
        of_newest = True

    class CapturedOfNewest(Captured):
        of_newest = True

    class FusedOfNewest(Fused):
        of_newest = True


if __name__ == "__main__":
    unittest.main()

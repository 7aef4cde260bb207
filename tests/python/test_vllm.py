"""The attention backend of vLLM, on stand-ins of the releases that have a table, with torch in the place of the kernels."""

import concurrent.futures
import contextlib
import dataclasses
import gc
import sys
import types
import unittest
import unittest.mock
import weakref

from support import python
from vllm_release import NEWEST, OURS, config_of, release, resolved
from vllm_stand_in import load, releases, signature_problems, stand_in

try:
    import torch
except ImportError:
    torch = None
else:
    import vllm_cases
    from stand_in import standing_in

import attnsmith_vllm

SM_90 = types.SimpleNamespace(major=9, minor=0)


class Capability(tuple):
    """vLLM's DeviceCapability."""

    major = property(lambda self: self[0])
    minor = property(lambda self: self[1])


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Contract(unittest.TestCase):
    def each(self, test):
        """Runs the test with the release, its backend and its stand-in, for both kinds of attention."""
        for name in releases():
            for is_mla in (False, True):
                with self.subTest(name, mla=is_mla), release(name, config_of(use_mla=is_mla)) as (backend, vllm):
                    test(name, backend, vllm)

    def test_the_name_is_a_member_of_the_release(self):
        def test(name, backend, vllm):
            registered, = vllm.registered
            can_add = "register" in load(name)["classes"]["AttentionBackendEnum"]["methods"]
            self.assertEqual((backend.get_name(), registered), ("ATTNSMITH" if can_add else "CUSTOM",) * 2)
        self.each(test)

    def test_nothing_is_left_abstract_and_arguments_are_those_of_the_contract(self):
        def test(name, backend, _):
            for cls in (backend, backend.get_impl_cls(), backend.get_builder_cls()):
                self.assertFalse(getattr(cls, "__abstractmethods__", ()))
                self.assertEqual(signature_problems(cls, load(name)), [])
        self.each(test)

    def test_what_the_engine_calls_is_there(self):
        """Methods that are on no class of the contract, but that the engine calls and built-in backends add."""
        def test(name, backend, _):
            added = load(name)["backends"]["FlashAttnMLABackend" if backend.is_mla() else "FlashAttentionBackend"]
            for role, cls in (("backend", backend), ("impl", backend.get_impl_cls()), ("builder", backend.get_builder_cls())):
                for method in added[role]["adds"]:
                    self.assertTrue(hasattr(cls, method), method)
        self.each(test)

    def test_registering_twice_changes_nothing(self):
        def test(name, backend, vllm):
            before = dict(vllm.registered)
            attnsmith_vllm.register()
            self.assertEqual(vllm.registered, before)
        self.each(test)

    def test_another_plugin_keeps_its_name(self):
        with stand_in(load("0.26.0"), fresh=OURS) as vllm:
            from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
            register_backend(AttentionBackendEnum.CUSTOM, "another.plugin.Backend")
            with self.assertLogs("attnsmith.vllm", "WARNING") as logged:
                attnsmith_vllm.register()
            self.assertIn("VLLM_PLUGINS", logged.output[0])
            self.assertEqual(list(vllm.registered.values()), ["another.plugin.Backend"])

    def test_a_release_without_the_registry_is_no_error(self):
        with unittest.mock.patch.dict(sys.modules, {"vllm": types.ModuleType("vllm")}):
            with self.assertLogs("attnsmith.vllm", "WARNING"):
                attnsmith_vllm.register()

    def test_mla_models_get_the_latent_backend_and_its_prefill(self):
        for name in releases():
            config = config_of(use_mla=True)
            with self.subTest(name), release(name, config) as (backend, _):
                self.assertTrue(backend.is_mla())
                from attnsmith.vllm import _mla_prefill
                for _ in range(2):  # for each engine of a process
                    config.attention_config.mla_prefill_backend = None
                    _mla_prefill.choose()
                    self.assertEqual(config.attention_config.mla_prefill_backend.name, "CUSTOM")
                config.attention_config.mla_prefill_backend = "FLASHINFER"
                _mla_prefill.choose()
                self.assertEqual(config.attention_config.mla_prefill_backend, "FLASHINFER")
                made = resolved(_mla_prefill.PATH)
                self.assertEqual(signature_problems(made, load(name)), [])
                self.assertFalse(made.__abstractmethods__)


class Plugin(unittest.TestCase):
    def test_it_imports_nothing_of_attnsmith(self):
        result = python("import sys, attnsmith_vllm\nprint([name for name in sys.modules if name.split('.')[0] in "
                        "('attnsmith', 'torch', 'numpy')])")
        self.assertEqual((result.stdout.strip(), result.stderr), ("[]", ""))

    def test_without_vllm_it_only_warns(self):
        with unittest.mock.patch.dict(sys.modules, {"vllm": None}), self.assertLogs("attnsmith.vllm", "WARNING"):
            attnsmith_vllm.register()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Chosen(unittest.TestCase):
    """What vLLM asks before it chooses a backend."""

    def reasons(self, backend, **changed):
        asked = {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False,
                 "has_sink": False, "use_sparse": False, "use_mm_prefix": False, "device_capability": Capability((9, 0)),
                 **changed}
        return backend.supports_combination(**asked)

    def test_reasons_name_what_is_served(self):
        for name in releases():
            with self.subTest(name), release(name) as (backend, _):
                for words, reason in (({}, None), ({"kv_cache_dtype": "fp8"}, None), ({"has_sink": True}, None),
                                      ({"head_size": 512}, None), ({"kv_cache_dtype": "fp8_per_token_head"}, None),
                                      ({"kv_cache_dtype": "nvfp4"}, "attnsmith serves auto"),
                                      ({"kv_cache_dtype": "float16"}, "needs a model of that dtype"),
                                      ({"device_capability": Capability((9, 9))}, "9.9")):
                    found = self.reasons(backend, **words)
                    self.assertTrue(found is None if reason is None else reason in found, (words, found))

    def test_head_sizes_and_capabilities(self):
        with release(NEWEST) as (backend, _):
            self.assertEqual([size for size in (0, 4, 8, 40, 130, 256, 512, 520) if backend.supports_head_size(size)],
                             [8, 40, 256, 512])
            self.assertEqual([pair for pair in ((7, 5), (8, 0), (9, 0)) if backend.supports_compute_capability(Capability(pair))],
                             [(8, 0), (9, 0)])

    def test_arguments_of_other_backends_are_refused_by_name(self):
        with release(NEWEST) as (backend, _):
            impl = backend.get_impl_cls()
            for words, message in (({"chunk_lookback": 4}, "chunk_lookback"), ({"sinks": torch.zeros(3)}, "sinks")):
                with self.assertRaisesRegex(NotImplementedError, message):
                    impl(8, 64, 0.125, 2, None, None, "auto", None, "decoder", None, **words)
            impl(8, 64, 0.125, 2, None, None, "auto", None, "decoder", None, use_alibi_sqrt=False)
            with self.assertRaisesRegex(NotImplementedError, "chunk_lookback = 0"):
                impl(8, 64, 0.125, 2, None, None, "auto", None, "decoder", None, chunk_lookback=0)

    def test_latents_with_context_parallelism_have_one_token_a_decode(self):
        """A causal mask of several queries would be that of this rank's keys."""
        for name in releases():
            with self.subTest(name), release(name, config_of(use_mla=True)) as (backend, _):
                self.assertTrue(backend.get_impl_cls().supports_dcp)
                builder, config, asked = backend.get_builder_cls(), config_of(), []
                from attnsmith.vllm import _layers, _mla
                with unittest.mock.patch.object(_mla.MLACommonMetadataBuilder, "__init__", lambda *_, **words: asked.append(words)), \
                        unittest.mock.patch.object(_layers, "prepared", lambda *_: []):
                    builder(types.SimpleNamespace(block_size=16), [], config, torch.device("cpu"))
                self.assertIs(asked[0].get("supports_dcp_with_varlen"), False)
                self.assertEqual(builder.get_cudagraph_support(config, None).name, "UNIFORM_BATCH")
                config.parallel_config.decode_context_parallel_size = 2
                self.assertEqual(builder.get_cudagraph_support(config, None).name, "UNIFORM_SINGLE_TOKEN_DECODE")

    def test_latents_with_context_parallelism_and_guessed_lengths_are_refused(self):
        """Drafts are verified as prefills there, whose context has the length that the host guessed."""
        config = config_of(use_mla=True)
        config.parallel_config.decode_context_parallel_size = 2
        for name in releases():
            for speculative, is_async in ((None, True), ({"method": "mtp"}, False), ({"method": "mtp"}, True)):
                config.speculative_config, config.scheduler_config.async_scheduling = speculative, is_async
                with self.subTest(name, speculative=speculative, is_async=is_async), release(name, config) as (backend, _):
                    from attnsmith.vllm import _mla
                    if speculative and is_async:
                        with self.assertRaisesRegex(NotImplementedError, "--no-async-scheduling"):
                            backend.get_impl_cls()(4, 80, 0.1, 1, None, None, "auto", None, "decoder", None)
                    else:
                        _mla._refuse_guessed_lengths(config)

    def test_bitwise_latents_have_one_kind_of_prompts(self):
        """Whether a prompt of some tokens is a decode must not depend on the prompts before it."""
        for invariant, threshold in ((False, 128), (True, 1)):
            with release("0.26.0", config_of(use_mla=True), VLLM_BATCH_INVARIANT=invariant) as (backend, _):
                from attnsmith.vllm import _layers, _mla
                found = []
                with unittest.mock.patch.object(_mla.MLACommonMetadataBuilder, "__init__",
                                                lambda self, *_, **__: found.append(self.reorder_batch_threshold)), \
                        unittest.mock.patch.object(_layers, "prepared", lambda *_: []):
                    backend.get_builder_cls()(types.SimpleNamespace(block_size=16), [], config_of(), torch.device("cpu"))
                self.assertEqual(found, [threshold])

    def test_connectors_that_divide_a_cache_by_its_axes_are_refused(self):
        """Those of 0.24, which take the blocks of a cache of four axes for K and V."""
        name = "vllm.distributed.kv_transfer.kv_connector.utils"
        with release("0.24.0") as (backend, _):
            self.assertTrue(backend.supports_kv_connector())
            for topology, supported in ((type("TransferTopology", (), {"split_k_and_v": True}), False),
                                        (type("TransferTopology", (), {}), True)):
                modules = {".".join(name.split(".")[:depth]): types.ModuleType("module") for depth in (3, 4)}
                modules[name] = types.SimpleNamespace(TransferTopology=topology)
                with unittest.mock.patch.dict("sys.modules", modules):
                    self.assertEqual(backend.supports_kv_connector(), supported)

    def test_a_mask_that_is_causal_for_some_requests_is_refused(self):
        with release(NEWEST) as (backend, _):
            case = dataclasses.replace(vllm_cases.DENSE[0], causal=torch.tensor([True, False, True]))
            common = vllm_cases.common_of(case, torch.zeros(3, 1, dtype=torch.int32), torch.zeros(21, dtype=torch.int64))
            with self.assertRaisesRegex(NotImplementedError, "causal for some requests"):
                vllm_cases.builder_of(backend).build(0, common)

    def test_a_diffusion_model_is_refused_when_its_layers_are_made(self):
        with release(NEWEST, config_of(is_diffusion=True)) as (backend, _):
            with self.assertRaisesRegex(NotImplementedError, "causal for some requests"):
                vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Dense(unittest.TestCase):
    def test_every_case_in_every_release(self):
        for name in releases():
            with release(name) as (backend, _):
                for case in vllm_cases.DENSE if name == NEWEST else vllm_cases.DENSE[::5]:
                    with self.subTest(f"{name}: {case.name}"), standing_in():
                        torch.manual_seed(1)
                        self.assertLessEqual(vllm_cases.worst(vllm_cases.drive(backend, case, "cpu"), case), 1)

    def test_batch_invariance_is_bitwise(self):
        with release(NEWEST, VLLM_BATCH_INVARIANT=True) as (backend, _), standing_in() as calls:
            vllm_cases.drive(backend, vllm_cases.DENSE[0], "cpu")
        self.assertEqual({words["consistency"] for name, _, words in calls if name == "paged_attention"}, {"bitwise"})

    def test_a_run_that_measures_memory_gives_zeros(self):
        with release(NEWEST) as (backend, _), standing_in() as calls:
            impl = vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")
            output = torch.ones(3, 8, 64)
            impl.forward(None, output, None, None, torch.tensor([]), None, output)
        self.assertEqual((float(output.sum()), calls), (0, []))

    def test_views_of_a_cache_are_made_once(self):
        with release(NEWEST) as (backend, _), standing_in() as calls:
            for _ in range(2):
                driven = vllm_cases.drive(backend, vllm_cases.DENSE[0], "cpu")
                views = [words_or_tuple[1] for name, words_or_tuple, _ in calls if name == "paged_attention"]
            query, key, value, cache, _, _ = driven.inputs
            driven.impl.forward(driven.layer, query, key, value, cache, driven.metadata, driven.output)
            last = [arguments[1] for name, arguments, _ in calls if name == "paged_attention"]
        self.assertIs(last[-1][0], views[-1][0])

    def test_sinks_follow_weights_that_are_loaded_again(self):
        with release(NEWEST) as (backend, _):
            given = torch.ones(8, dtype=torch.bfloat16)
            impl = backend.get_impl_cls()(8, 64, 0.125, 2, sinks=given)
            impl.process_weights_after_loading(torch.bfloat16)
            first = impl.sinks
            given.fill_(3)
            impl.process_weights_after_loading(torch.bfloat16)
            self.assertIs(impl.sinks, first)
            self.assertEqual((first.dtype, first.tolist()), (torch.float32, [3.0] * 8))

    def test_sinks_that_are_written_without_a_word_are_seen_by_the_next_step(self):
        with release(NEWEST) as (backend, _):
            given = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16), requires_grad=False)
            impl = backend.get_impl_cls()(8, 64, 0.125, 2, sinks=given)
            self.assertIsNone(impl.sinks_and_copies)
            impl.process_weights_after_loading(torch.bfloat16)
            config, copy = config_of(), impl.sinks
            config.compilation_config.static_forward_context = {"layer": types.SimpleNamespace(impl=impl), "other": object()}
            builder = self.built(backend, config, ["layer", "other"])
            given.data.copy_(torch.full((8,), 5.0))
            common = vllm_cases.common_of(vllm_cases.DENSE[0], torch.zeros(3, 1, dtype=torch.int32), torch.zeros(21))
            metadata = builder.build(0, common)
            self.assertIs(impl.sinks, copy)
            self.assertEqual(copy.tolist(), [5.0] * 8)
            given.data.copy_(torch.full((8,), 7.0))  # of a KV cache group whose metadata is another's, changed
            builder.update_block_table(metadata, common.block_table_tensor, common.slot_mapping)
            self.assertEqual(copy.tolist(), [7.0] * 8)

    def built(self, backend, config, layers=(), parts=1, **spec):
        from attnsmith.vllm import _layers, _metadata
        patch = unittest.mock.patch.object
        with patch(_layers, "prepared", lambda *_: []), patch(_metadata, "part_of_context", lambda: (parts, 0)):
            spec = types.SimpleNamespace(block_size=16, **spec)
            return backend.get_builder_cls()(spec, list(layers), config, torch.device("cpu"))

    def test_what_a_builder_can_do_depends_on_the_configuration(self):
        with release(NEWEST) as (backend, _):
            plain = self.built(backend, config_of())
            self.assertTrue(plain.supports_update_block_table and plain.supports_draft_decode_metadata_update)
            self.assertFalse(self.built(backend, config_of(), parts=2).supports_draft_decode_metadata_update)
            self.assertTrue(self.built(backend, config_of(), parts=2, dcp_sharded=False).supports_draft_decode_metadata_update)
            config = config_of()
            config.parallel_config.use_ubatching = True
            self.assertFalse(self.built(backend, config).supports_update_block_table)

    def test_a_cache_that_vllm_throws_away_is_freed(self):
        """When the builders of another one are made."""
        with release(NEWEST) as (backend, _), standing_in():
            driven, config = vllm_cases.drive(backend, vllm_cases.DENSE[0], "cpu"), config_of()
            config.compilation_config.static_forward_context["layer"] = types.SimpleNamespace(impl=driven.impl)
            memory = weakref.ref(driven.inputs[3])
            driven.inputs = ()
            self.built(backend, config, ["layer"])
            gc.collect()
            self.assertIsNone(memory())

    def test_a_draft_without_a_causal_mask_is_prepared(self):
        """Its configuration says so, and the engine's, which the builder has, does not."""
        draft = config_of()
        draft.attention_config.use_non_causal = True
        for config, masks in ((None, ["causal"]), (draft, ["causal", "full"])):
            with release(NEWEST, config) as (backend, _):
                impl = vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")
                words = [words for _, words in impl.requests(16, config_of())]
                self.assertEqual([one["mask"] for one in words if one["op"] == "attention"], masks)

    def test_bounds_take_few_values(self):
        with release(NEWEST):
            from attnsmith.vllm._metadata import bound_of
            self.assertEqual([bound_of(n) for n in (1, 5, 16, 17, 32, 33, 1000, 4096)], [1, 5, 16, 32, 32, 64, 1024, 4096])
            self.assertEqual(bound_of(torch.tensor(17, dtype=torch.int32).numpy()[()]), 32)  # of local attention

    def test_a_graph_for_any_batch_is_bound_by_its_tokens(self):
        modes = {"FULL": 32, "PIECEWISE": 3}  # of batches with prefills
        for name, bound in modes.items():
            with self.subTest(name), release(NEWEST) as (backend, _):
                mode = types.SimpleNamespace(mixed_mode=lambda name=name: types.SimpleNamespace(name=name))
                config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(cudagraph_mode=mode))
                case = dataclasses.replace(vllm_cases.DENSE[0], queries=(3,) * 7, contexts=(9,) * 7)
                common = vllm_cases.common_of(case, torch.zeros(7, 1, dtype=torch.int32), torch.zeros(21, dtype=torch.int64))
                builder = vllm_cases.builder_of(backend, vllm_config=config)
                self.assertEqual(builder.build_for_cudagraph_capture(common).max_query_len, bound)

    def test_another_block_table_leaves_the_step_alone(self):
        with release(NEWEST) as (backend, _):
            case = vllm_cases.DENSE[0]
            builder = vllm_cases.builder_of(backend)
            first = builder.build(0, vllm_cases.common_of(case, torch.zeros(3, 1, dtype=torch.int32),
                                                          torch.zeros(21, dtype=torch.int64)))
            table, slots = torch.ones(3, 2, dtype=torch.int32), torch.ones(21, dtype=torch.int64)
            second = builder.update_block_table(first, table, slots)
            self.assertIs(second.block_table, table)
            self.assertIs(second.seq_lens, first.seq_lens)
            self.assertEqual(int(first.block_table.sum()), 0)



@unittest.skipIf(torch is None, "PyTorch is not installed")
class Fused(unittest.TestCase):
    """Norms, rotation and the cache's update in one call."""

    def setUp(self):
        torch.manual_seed(1)
        self.case = dataclasses.replace(vllm_cases.DENSE[0], queries=(9,), contexts=(0,))
        self.table = torch.cat([(torch.arange(40)[:, None] * 0.1 ** (torch.arange(32) / 32)).cos(),
                                (torch.arange(40)[:, None] * 0.1 ** (torch.arange(32) / 32)).sin()], -1).to(torch.bfloat16)
        self.positions = torch.arange(9) + 20

    def rotated(self, rows):
        cos, sin = self.table[self.positions].double()[:, None].chunk(2, -1)
        x, y = rows.double().chunk(2, -1)
        return torch.cat([x * cos - y * sin, y * cos + x * sin], -1)

    def cached(self, cache, table, slots):
        size = self.case.head_size
        rows = cache[slots // 16, :, slots % 16]
        return rows[..., :size], rows[..., size:]

    def test_rotation(self):
        with release(NEWEST) as (backend, _), standing_in():
            impl, layer = vllm_cases.impl_of(backend, self.case, "cpu"), vllm_cases.layer_of(self.case, "cpu")
            cache, table = vllm_cases.cache_of(self.case, 128, "cpu")
            slots = vllm_cases.slots_of(table, 0, 0, 9, 16)
            q, k, v = (torch.randn(9, heads, 64).to(torch.bfloat16) for heads in (8, 2, 2))
            wanted_q, wanted_k, given_k = self.rotated(q), self.rotated(k), k.clone()
            self.assertTrue(impl.fused_rope_kvcache_supported())
            impl.do_rope_and_kv_cache_update(layer, q, k, v, self.positions, self.table, True, cache, slots)
        keys, values = self.cached(cache, table, slots)
        torch.testing.assert_close(q.double(), wanted_q, rtol=0.01, atol=0.01)
        torch.testing.assert_close(keys.double(), wanted_k, rtol=0.01, atol=0.01)
        self.assertTrue(torch.equal(values, v) and torch.equal(k, given_k))

    def test_norms_and_rotation(self):
        with release(NEWEST) as (backend, _), standing_in() as calls:
            impl, layer = vllm_cases.impl_of(backend, self.case, "cpu"), vllm_cases.layer_of(self.case, "cpu")
            cache, table = vllm_cases.cache_of(self.case, 128, "cpu")
            slots = vllm_cases.slots_of(table, 0, 0, 9, 16)
            qkv = torch.randn(9, 12 * 64).to(torch.bfloat16)
            q_out, k_out = torch.zeros(9, 8 * 64, dtype=torch.bfloat16), torch.zeros(9, 2 * 64, dtype=torch.bfloat16)
            weights = torch.randn(2, 64).to(torch.bfloat16)
            with unittest.mock.patch("attnsmith.functions.append") as append:
                impl.do_qk_norm_rope_kvcache_update(layer, qkv, q_out, k_out, self.positions, weights[0], weights[1], 1e-5,
                                                    self.table, True, cache, slots)
        (k, v, k_cache, v_cache), words = append.call_args.args, append.call_args.kwargs
        wanted = {"q": qkv[:, :512], "k": qkv[:, 512:640], "v": qkv[:, 640:]}
        for name, got in (("q", words["q"]), ("k", k), ("v", v)):
            self.assertTrue(torch.equal(got.reshape(9, -1), wanted[name]), name)
        self.assertEqual(words["q_out"].data_ptr(), q_out.data_ptr())
        self.assertIs(words["q_norm_weight"].data_ptr() == weights[0].data_ptr(), True)
        self.assertEqual((words["norm_eps"], words["rope"], append.call_count), (1e-5, "half", 1))


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Latent(unittest.TestCase):
    def test_decodes_in_every_release(self):
        for name in releases():
            for dtype in ("auto", "fp8"):
                with self.subTest(name, dtype=dtype), release(name, config_of(use_mla=True)) as (backend, _), standing_in():
                    torch.manual_seed(1)
                    self.assertLessEqual(vllm_cases.drive_latent(backend, dtype, "cpu"), 1)

    def test_prefill_in_every_release(self):
        for name in releases():
            with self.subTest(name), release(name, config_of(use_mla=True)), standing_in():
                torch.manual_seed(1)
                self.assertLessEqual(vllm_cases.drive_latent_prefill("cpu", by_index=name in ("0.24.0", "0.26.0")), 1)

    def test_a_context_is_merged_in_any_order_of_the_requests(self):
        """vLLM 0.26 counts the tokens of the first requests, as many as have a context, and merges the context into these."""
        spaces = types.SimpleNamespace
        contexts, queries = torch.tensor([0, 70, 0, 40, 0]), torch.tensor([1, 2, 9, 10, 40, 50, 60])
        starts = torch.cat([torch.tensor([0]), queries.cumsum(0)]).to(torch.int32)
        for name in ("0.24.0", "0.26.0"):
            with self.subTest(name), release(name, config_of(use_mla=True)) as (backend, _):
                from attnsmith.vllm import _mla
                chunks = spaces(seq_lens=torch.stack([contexts.clamp(max=64), (contexts - 64).clamp(min=0)]),
                                prefill_tokens_with_context=int(starts[4] - starts[2]))
                built = spaces(num_decodes=2, prefill=spaces(chunked_context=chunks))
                builder = object.__new__(backend.get_builder_cls())
                with unittest.mock.patch.object(_mla.MLACommonMetadataBuilder, "build", lambda *_: built, create=True):
                    self.assertIs(builder.build(0, spaces(query_start_loc_cpu=starts)), built)
                    self.assertEqual(chunks.prefill_tokens_with_context, 9 + 10 + 40 + 50)
                    for other in (spaces(chunked_context=None), spaces(chunked_context=spaces(seq_lens=None)), None):
                        built.prefill = other  # no context; a release that counts by request; decodes alone
                        builder.build(0, spaces(query_start_loc_cpu=starts))

    def test_caches_that_latents_have_not_are_refused_by_what_is_served(self):
        with release(NEWEST, config_of(use_mla=True)) as (backend, _):
            for word in ("fp8_ds_mla", "fp8_per_token_head"):
                reason = backend.supports_combination(576, torch.bfloat16, word, 64, True, False, False, False, None)
                self.assertIn("attnsmith serves auto, float16, bfloat16, fp8", reason)
                self.assertNotIn("fp8_per_token_head", reason.partition("serves")[2])
            self.assertIsNone(backend.supports_combination(576, torch.bfloat16, "fp8", 64, True, False, False, False, None))

    def test_windows_and_softcap_are_refused_by_name(self):
        with release(NEWEST, config_of(use_mla=True)) as (backend, _):
            for at, name in ((4, "alibi_slopes"), (5, "sliding_window"), (7, "logits_soft_cap")):
                arguments = [4, 80, 0.1, 1, None, None, "auto", None, "decoder", None]
                arguments[at] = [1.0] if at == 4 else 5
                with self.assertRaisesRegex(NotImplementedError, name):
                    backend.get_impl_cls()(*arguments)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class ContextParallel(unittest.TestCase):
    """Two ranks, one after the other: each has every second token of the context, and half of the heads."""

    def test_two_ranks_give_what_one_does(self):
        torch.manual_seed(1)
        with release("0.26.0") as (backend, _), standing_in():
            case = dataclasses.replace(vllm_cases.DENSE[0], queries=(2, 1), contexts=(9, 6), heads=4, kv_heads=1)
            output, wanted = vllm_cases.drive_context_parallel(backend, case, unittest.mock.patch, "cpu")
        self.assertLessEqual(float(((output.double() - wanted).abs() / (0.01 * (1 + wanted.abs()))).max()), 1)

    def test_what_a_part_of_the_context_cannot_tell_is_refused(self):
        with release("0.26.0") as (backend, _):
            impl = backend.get_impl_cls()
            for words, name in (({"sliding_window": 5}, "sliding_window"), ({"alibi_slopes": [1.0] * 8}, "alibi_slopes"),
                                ({"sinks": torch.zeros(8)}, "sinks")):
                made = impl.__new__(impl)
                made.dcp_world_size = 2
                with self.assertRaisesRegex(NotImplementedError, f"{name} with decode context parallelism"):
                    made.__init__(8, 64, 0.125, 2, **words)


class LaunchesInTurn(unittest.TestCase):
    """All launches of an engine, and those that it captures, use one workspace."""

    def setUp(self):
        from attnsmith._calls.workspaces import Workspaces, in_turn
        self.in_turn, self.made = in_turn, []

        class Memory:
            data = 4096

            def upload(self, _):
                pass

        def allocate(nbytes, index):
            self.made.append(weakref.ref(memory := Memory()))
            return memory

        self.workspaces = Workspaces(allocate, lambda stream: None)

    def grow(self, nbytes, stream=7):
        workspace = self.workspaces.of(0, stream)
        with workspace.lock:
            self.workspaces.grow(workspace, nbytes, object(), 0, stream)
        return workspace

    def test_a_capture_uses_what_is_large_enough_on_any_stream(self):
        self.grow(1 << 20)
        with self.in_turn:
            self.assertFalse(self.workspaces.serves_capture(0, 7, 1), "a workspace of launches that are not in turn")
            workspace = self.grow(1 << 20)
            self.assertTrue(self.workspaces.serves_capture(0, 8, workspace.nbytes))
            self.assertIs(self.workspaces.of(0, 8), workspace)
            self.assertFalse(self.workspaces.serves_capture(0, 7, workspace.nbytes + 1))
            self.assertFalse(self.workspaces.serves_capture(1, 7, 1), "another GPU")
        self.assertFalse(self.workspaces.serves_capture(0, 7, 1))

    def test_memory_that_a_graph_may_use_is_never_given_back(self):
        self.grow(1 << 16)
        self.grow(1 << 20)
        with self.in_turn:
            self.grow(1 << 16)
            self.grow(1 << 20)
        gc.collect()
        self.assertEqual([memory() is not None for memory in self.made], [False, True, True, True])

    def test_another_thread_has_another_workspace(self):
        def ask():
            with self.in_turn:
                return self.workspaces.serves_capture(0, 7, 1)

        with self.in_turn, concurrent.futures.ThreadPoolExecutor(1) as pool:
            self.grow(1 << 16)
            self.assertFalse(pool.submit(self.workspaces.serves_capture, 0, 7, 1).result(), "not in turn there")
            self.assertFalse(pool.submit(ask).result())

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_every_call_of_the_backend_asks_for_it(self):
        from attnsmith import functions
        from attnsmith._calls import workspaces
        asked = []
        with release(NEWEST) as (backend, _), standing_in():
            with contextlib.ExitStack() as stack:
                for name in ("append", "paged_attention", "varlen_attention", "mla_attention"):
                    plain = getattr(functions, name)

                    def call(*arguments, plain=plain, name=name, **words):
                        asked.append((name, workspaces.in_turn.on))
                        return plain(*arguments, **words)

                    stack.enter_context(unittest.mock.patch.object(functions, name, call))
                for case in (vllm_cases.DENSE[0], next(case for case in vllm_cases.DENSE if case.name == "encoder")):
                    vllm_cases.drive(backend, case, "cpu")
                with release(NEWEST, config_of(use_mla=True)) as (latent, _):
                    vllm_cases.drive_latent(latent, "auto", "cpu")
        self.assertEqual(set(asked), {(name, True) for name in ("append", "paged_attention", "varlen_attention", "mla_attention")})
        self.assertFalse(workspaces.in_turn.on)


if __name__ == "__main__":
    unittest.main()

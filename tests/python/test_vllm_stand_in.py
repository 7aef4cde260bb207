"""The stand-in of vLLM's modules: for each release that has a table, a backend like a third party's is written against it."""

import dataclasses
import functools
import importlib
import inspect
import sys
import types
import unittest

from vllm_stand_in import Named, load, releases, signature_problems, stand_in

try:
    import torch
except ImportError:
    torch = None

NEEDS_PYTHON = unittest.skipIf(sys.version_info < (3, 10), "Python 3.10 is needed")
OLDEST, NEWEST = releases()[0], releases()[-1]
# Arguments of CommonAttentionMetadata that have no defaults in any release.
BATCH = {"query_start_loc": None, "query_start_loc_cpu": None, "seq_lens": types.SimpleNamespace(shape=(2,)), "num_reqs": 2,
         "num_actual_tokens": 2, "max_query_len": 1, "max_seq_len": 7, "block_table_tensor": None, "slot_mapping": None}


def third_party():
    """A backend as a package of a third party writes it: it imports vLLM's modules and derives from their classes."""
    from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata,
                                           AttentionMetadataBuilder, MultipleOf)

    @dataclasses.dataclass
    class Metadata(AttentionMetadata):
        tokens: int

    class Builder(AttentionMetadataBuilder[Metadata]):
        _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

        def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
            self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

        def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
            return Metadata(common_attn_metadata.num_actual_tokens)

    class Impl(AttentionImpl[Metadata]):
        def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                     kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder", kv_sharing_target_layer_name=None):
            self.num_heads, self.head_size, self.scale, self.kv_cache_dtype = num_heads, head_size, scale, kv_cache_dtype

        def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                    output_block_scale=None):
            return output

    class Backend(AttentionBackend):
        @staticmethod
        def get_name():
            return "THIRD"

        @staticmethod
        def get_impl_cls():
            return Impl

        @staticmethod
        def get_builder_cls():
            return Builder

        @staticmethod
        def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
            return (num_blocks, 2, block_size, num_kv_heads, head_size)

        @staticmethod
        def get_supported_kernel_block_sizes(kv_cache_spec=None):
            return [MultipleOf(16)]

    return Backend


def with_each_release(**options):
    """A decorator of a test(self, vllm, table): runs it with each release's modules installed."""
    def decorate(test):
        @functools.wraps(test)
        def run(self):
            for release in releases():
                table = load(release)
                with self.subTest(release=release), stand_in(table, **options) as vllm:
                    test(self, vllm, table)
        return run
    return decorate


@NEEDS_PYTHON
class EachRelease(unittest.TestCase):
    @with_each_release()
    def test_a_third_party_backend_is_driven(self, vllm, table):
        backend = third_party()
        self.assertEqual(vllm.__version__, table["release"])
        self.assertEqual(signature_problems(backend, table), [])
        impl = backend.get_impl_cls()(8, 128, 0.5, 2, None, None, "auto", None, "decoder", None)
        self.assertEqual((impl.dcp_world_size, impl.dcp_rank, impl.need_to_return_lse_for_decode), (1, 0, False))
        self.assertEqual(signature_problems(type(impl), table), [])
        self.assertEqual(impl.forward(None, None, None, None, None, None, output="o"), "o")
        self.assertFalse(impl.fused_output_quant_supported("fp8"))
        if "supports_dcp" in table["classes"]["AttentionBackend"]["methods"]:
            self.assertIs(backend.supports_dcp(), False)
            self.assertEqual((backend.customize_spec("spec"), impl.get_impl_variants()), ("spec", (impl,)))
        builder = backend.get_builder_cls()("spec", ["layer"], "config", "cuda")
        self.assertEqual((builder.kv_cache_spec, builder.layer_names, builder.reorder_batch_threshold), ("spec", ["layer"], 1))
        common = vllm.v1.attention.backend.CommonAttentionMetadata(**BATCH)
        self.assertEqual(builder.build_for_drafting(common, 0).tokens, 2)
        self.assertEqual(builder.build_for_cudagraph_capture(common.replace(num_actual_tokens=5)).tokens, 5)
        self.assertEqual(type(builder).get_cudagraph_support(None, None).name, "UNIFORM_BATCH")

    @with_each_release()
    def test_capability_bits_are_those_of_the_table(self, vllm, table):
        backend = third_party()
        methods = table["classes"]["AttentionBackend"]["methods"]
        bits = {name: facts["returns"] for name, facts in methods.items() if facts.get("returns") in ("True", "False")}
        self.assertGreater(len(bits), 8)
        for name, value in bits.items():
            arguments = [None] * len(methods[name]["arguments"])
            self.assertIs(getattr(backend, name)(*arguments), value == "True", name)
        self.assertTrue(backend.supports_kv_cache_dtype("auto") and backend.supports_head_size(77))
        self.assertFalse(backend.supports_kv_cache_dtype("fp8"))

    @with_each_release()
    def test_an_abstract_method_is_missed(self, vllm, table):
        classes = vllm.v1.attention.backend
        for name in ("AttentionBackend", "AttentionImpl", "AttentionMetadataBuilder", "MLAAttentionImpl"):
            made = getattr(classes, name)
            own = {method for method, facts in table["classes"][name]["methods"].items() if facts.get("abstract")}
            self.assertTrue(own and own <= made.__abstractmethods__, name)
            with self.assertRaises(TypeError):
                type("Partial", (made,), {})()

    @with_each_release()
    def test_signatures_are_those_of_the_table(self, vllm, table):
        combination = vllm.v1.attention.backend.AttentionBackend.supports_combination
        arguments = table["classes"]["AttentionBackend"]["methods"]["supports_combination"]["arguments"]
        self.assertEqual(list(inspect.signature(combination).parameters), arguments)
        with self.assertRaisesRegex(TypeError, "missing a required argument"):
            combination(1)
        with self.assertRaisesRegex(NotImplementedError, f"validate_configuration of the stand-in of vllm {table['release']}"):
            validate = vllm.v1.attention.backend.AttentionBackend.validate_configuration
            validate(*[None] * len(inspect.signature(validate).parameters))

    @with_each_release()
    def test_every_class_and_function_is_where_the_table_says(self, vllm, table):
        for section in ("classes", "functions"):
            for name, facts in table[section].items():
                found = importlib.import_module(facts["module"])
                for part in name.split("."):
                    found = getattr(found, part)
                self.assertEqual(found.__qualname__, name)
        for facts in table["backends"].values():
            for full in facts["imports"]:
                module, _, name = full.rpartition(".")
                self.assertTrue(hasattr(importlib.import_module(module), name), full)

    @with_each_release()
    def test_enums_and_fields(self, vllm, table):
        support = vllm.v1.attention.backend.AttentionCGSupport
        self.assertEqual({member.name: member.value for member in support},
                         {"ALWAYS": 3, "UNIFORM_BATCH": 2, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "NEVER": 0})
        self.assertEqual(vllm.v1.attention.backend.AttentionType.DECODER, "decoder")
        common = vllm.v1.attention.backend.CommonAttentionMetadata
        names = [text.partition("=")[0] for text in table["classes"]["CommonAttentionMetadata"]["fields"]]
        self.assertEqual([field.name for field in dataclasses.fields(common)], names)
        spec = vllm.v1.kv_cache_interface.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=None)
        self.assertEqual((spec.block_size, spec.kv_quant_mode.name), (16, "NONE"))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            spec.block_size = 32

    @with_each_release()
    def test_mla_classes_can_be_derived_from(self, vllm, table):
        mla = vllm.model_executor.layers.attention.mla_attention

        class Metadata(mla.MLACommonMetadata[mla.MLACommonDecodeMetadata]):
            pass

        class Builder(mla.MLACommonMetadataBuilder[Metadata]):
            query_len_support = mla.QueryLenSupport.VARLEN

        class Impl(mla.MLACommonImpl[Metadata]):
            def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
                return q, None

        words = dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim",
                               "v_head_dim", "kv_b_proj"), 64)
        impl = Impl(8, 576, 0.1, 1, None, None, "auto", None, "decoder", None, **words)
        self.assertEqual((impl.forward_mqa("q", None, None, None), impl.kv_lora_rank), (("q", None), 64))
        self.assertEqual(Builder("spec", [], "config", "cuda", Metadata).metadata_cls, Metadata)
        self.assertTrue(mla.MLACommonBackend.is_mla())

    @with_each_release()
    def test_registrations_are_recorded(self, vllm, table):
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
        custom = AttentionBackendEnum.CUSTOM
        with self.assertRaises(ValueError):
            custom.get_path()
        register_backend(custom, "decimal.Decimal")
        self.assertEqual(vllm.registered, {"CUSTOM": "decimal.Decimal"})
        self.assertEqual((custom.get_class().__name__, custom.is_overridden()), ("Decimal", True))
        custom.clear_override()
        self.assertFalse(custom.is_overridden())
        decorated = register_backend(AttentionBackendEnum.FLASH_ATTN)(third_party())
        self.assertEqual(vllm.registered["FLASH_ATTN"], f"{decorated.__module__}.{decorated.__qualname__}")
        with self.assertRaises(TypeError):
            register_backend(7, "a.B")

    @with_each_release()
    def test_unknown_names_say_the_release_and_the_name(self, vllm, table):
        release = table["release"]
        with self.assertRaisesRegex(AttributeError, f"vllm.v1.attention.backend of .* vllm {release} has no 'Nothing'"):
            vllm.v1.attention.backend.Nothing
        with self.assertRaisesRegex(ImportError, f"'Nothing'.*vllm {release}"):
            from vllm.v1.attention.backend import Nothing  # noqa: F401
        with self.assertRaisesRegex(ModuleNotFoundError, f"vllm {release} has no module 'vllm.nothing'"):
            importlib.import_module("vllm.nothing")
        self.assertFalse(hasattr(vllm, "Nothing"))

    @with_each_release(answers={
        "is_quantized_kv_cache": lambda kv_cache_dtype: kv_cache_dtype == "fp8", "current_platform": "a platform",
        "AttentionBackend.supports_block_size": lambda cls, block_size: cls.__name__, "a_name_of_no_release": None})
    def test_answers_of_the_test(self, vllm, table):
        self.assertIs(vllm.v1.kv_cache_interface.is_quantized_kv_cache("fp8"), True)
        self.assertEqual(third_party().supports_block_size(7), "Backend")
        self.assertEqual(vllm.platforms.current_platform, "a platform")

    @with_each_release()
    def test_a_value_without_an_answer_has_no_attributes(self, vllm, table):
        with self.assertRaisesRegex(AttributeError, f"current_platform of .* vllm {table['release']} has no 'is_cuda'"):
            vllm.platforms.current_platform.is_cuda

    @with_each_release()
    def test_dtypes_are_those_of_torch_where_it_is_installed(self, vllm, table):
        half, bfloat16 = vllm.v1.attention.backend.AttentionBackend.supported_dtypes
        if torch is None:
            self.assertEqual((type(half), repr(half)), (Named, "torch.float16"))
        else:
            self.assertEqual((half, bfloat16), (torch.float16, torch.bfloat16))
            self.assertFalse(third_party().supports_dtype(torch.float32))


@NEEDS_PYTHON
class Installing(unittest.TestCase):
    def test_modules_are_taken_out_again(self):
        before, finders = dict(sys.modules), list(sys.meta_path)
        with self.assertRaises(KeyError), stand_in(load(NEWEST)):
            raise KeyError
        self.assertEqual([name for name in sys.modules if name.startswith("vllm") and name not in before], [])
        self.assertEqual(sys.meta_path, finders)

    def test_what_was_there_comes_back(self):
        own = {name: types.ModuleType(name) for name in ("vllm", "vllm.config")}
        sys.modules.update(own)
        self.addCleanup(lambda: [sys.modules.pop(name) for name in own])
        with stand_in(load(NEWEST)) as vllm:
            self.assertIs(sys.modules["vllm"], vllm)
            self.assertIsNot(sys.modules["vllm.config"], own["vllm.config"])
        self.assertEqual({name: sys.modules[name] for name in own}, own)

    def test_a_fresh_module_is_imported_anew(self):
        module = types.ModuleType("an_adapter")
        sys.modules["an_adapter"] = module
        with stand_in(load(NEWEST), fresh=("an_adapter",)):
            self.assertNotIn("an_adapter", sys.modules)
            sys.modules["an_adapter"] = types.ModuleType("an_adapter")
        self.assertNotIn("an_adapter", sys.modules)


@NEEDS_PYTHON
class Overrides(unittest.TestCase):
    def problems(self, release, **methods):
        table = load(release)
        with stand_in(table):
            return signature_problems(type("Changed", (third_party(),), methods), table)

    def test_a_missing_argument_is_named(self):
        found = self.problems(NEWEST, get_supported_kernel_block_sizes=staticmethod(lambda: []))
        self.assertEqual(len(found), 1)
        self.assertIn("Changed.get_supported_kernel_block_sizes: expected (kv_cache_spec=None)", found[0])
        self.assertEqual(self.problems(OLDEST, get_supported_kernel_block_sizes=staticmethod(lambda: [])), [])

    def test_an_argument_of_another_name_is_named(self):
        found = self.problems(OLDEST, supports_head_size=classmethod(lambda cls, size: True))
        self.assertIn("Changed.supports_head_size: expected (head_size)", found[0])

    def test_an_argument_that_has_no_default_is_named(self):
        found = self.problems(NEWEST, get_supported_kernel_block_sizes=staticmethod(lambda kv_cache_spec: []))
        self.assertIn("Changed.get_supported_kernel_block_sizes", found[0])

    def test_another_kind_is_named(self):
        self.assertEqual(self.problems(OLDEST, is_mla=property(lambda self: True)),
                         ["Changed.is_mla: expected kind class, not property"])


if __name__ == "__main__":
    unittest.main()

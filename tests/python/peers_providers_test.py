"""The providers of tools/bench/peers.py, without a GPU: what they refuse, what they give to their libraries, and the inputs
and the reference, which need torch."""

import importlib.util
import sys
import types
import unittest
import unittest.mock as mock
from dataclasses import replace

from peers_support import EVERY, small

from peers import cases
from peers.cases import Case
from peers.providers import OURS, PROVIDERS
from peers.providers.base import Provider
from peers.reference import check, keys_and_values, make_reference, sample
from peers.tensors import Tensors, make_tensors, numbers_of, token_axes


class Providers(unittest.TestCase):
    def test_each_has_what_the_list_and_the_table_need(self):
        self.assertEqual(next(iter(PROVIDERS)), OURS)
        for name, provider in PROVIDERS.items():
            self.assertEqual(provider.name, name)
            self.assertTrue(provider.title and provider.install and provider.distributions, name)

    def test_a_missing_or_broken_package_is_a_reason(self):
        class Absent(Provider):
            install = "no-such-thing"
            modules = ("no_such_package_of_anyone.module",)

        self.assertTrue(Absent().available())
        self.assertIsNone(Absent().module_name())

    def test_known_refusals(self):
        refused = {name: {case.set for case in EVERY if provider.refuses(case)} for name, provider in PROVIDERS.items()}
        latents = {case.set for case in EVERY if case.shared_kv}
        of_8_bits = set(cases.FP8_SETS)
        self.assertEqual(refused["attnsmith"], set())
        self.assertEqual({case.set for case in EVERY if not PROVIDERS["attnsmith-bf16"].refuses(case)}, of_8_bits)
        self.assertEqual({case.set for case in EVERY if case.kv_dtype}, of_8_bits)
        for case in EVERY:
            if case.kv_dtype:
                for name in ("cudnn", "sdpa-fa2", "fa2", "fa4", "flashinfer-fa2", "flashmla"):
                    self.assertTrue(PROVIDERS[name].refuses(case), case.name)
                self.assertEqual(bool(PROVIDERS["fa3"].refuses(case)), case.shared_kv, case.name)
                self.assertEqual(bool(PROVIDERS["flashinfer-mla"].refuses(case)), not case.shared_kv, case.name)
        self.assertEqual(refused["cudnn"], {case.set for case in EVERY} - {"prefill", "dims"})
        dense = [case for case in EVERY if case.kv == "dense" and case.is_decode and not case.kv_dtype]
        self.assertFalse([case.name for case in dense if PROVIDERS["cudnn"].refuses(case)])
        reasons = {PROVIDERS["cudnn"].refuses(case) for case in cases.speculative()}
        self.assertEqual(reasons, {"SDPA takes dense tensors, no paged KV", "SDPA's causal mask is top-left aligned"})
        self.assertEqual(refused["fa3"], {"decode-fp8"})
        self.assertEqual(refused["flashinfer"], {"dims", "decode-small", "decode-fp8-all"} | latents)
        self.assertEqual({case.head_dims for case in EVERY if PROVIDERS["flashinfer"].refuses(case) and case.kv_scale != "head"},
                         {"80", "96", "112", "160"} | {case.head_dims for case in EVERY if case.shared_kv})
        self.assertEqual({case.set for case in EVERY} - {case.set for case in EVERY
                                                         if not PROVIDERS["flashinfer-fa2"].refuses(case)},
                         {case.set for case in EVERY} - {"steps"})
        served = {name: {case.set for case in EVERY if not PROVIDERS[name].refuses(case)}
                  for name in ("flashmla", "flashinfer-mla")}
        self.assertEqual(served, {"flashmla": {"mla"}, "flashinfer-mla": latents})


class FakeTensor:
    """What the providers ask of one: its shape, and who it came from."""

    device = "fake"

    def __init__(self, name, *shape):
        self.name, self.shape = name, shape

    def flatten(self, first, last):
        end = len(self.shape) + last + 1
        product = 1
        for size in self.shape[first:end]:
            product *= size
        return FakeTensor(self.name, *self.shape[:first], product, *self.shape[end:])

    def view(self, *shape):
        return FakeTensor(self.name, *shape)

    def squeeze(self, axis):
        assert self.shape[axis] == 1
        return FakeTensor(self.name, *self.shape[:axis], *self.shape[axis + 1:])

    def split(self, sizes, dim):
        assert dim == -1 and sum(sizes) == self.shape[-1]
        return tuple(FakeTensor("%s, part %d" % (self.name, part), *self.shape[:-1], size)
                     for part, size in enumerate(sizes))

    def new_full(self, shape, value):
        return FakeTensor("o", *shape)

    def expand(self, *shape):
        return FakeTensor(self.name, *shape)

    def __float__(self):
        assert self.shape == (1,)
        return 0.5


def fake_inputs(case):
    """Tensors of the shapes that make_tensors gives, with the names of their fields."""
    names = ("q_indptr", "kv_indptr", "kv_lens", "page_table", "page_indptr", "page_indices", "last_page_lens")
    of_q, of_kv = token_axes(case)
    scales = {}
    if case.kv_dtype:
        count = case.kv_heads if case.kv_scale == "head" else 1
        scales = dict(k_scale=FakeTensor("k_scale", count), v_scale=FakeTensor("v_scale", count),
                      q_rounded=FakeTensor("q_rounded", *of_q, case.q_heads, case.head_dim_qk),
                      q_scale=FakeTensor("q_scale", 1))
    return Tensors(FakeTensor("q", *of_q, case.q_heads, case.head_dim_qk),
                   FakeTensor("k", *of_kv, case.kv_heads, case.head_dim_qk),
                   FakeTensor("v", *of_kv, case.kv_heads, case.head_dim_vo), *names, **scales)


class Calls(unittest.TestCase):
    """What each provider gives to its library, of which there is none here: an attribute for each function."""

    mixed = Case("decode-mixed", "bf16", (1, 1, 1), (5, 100, 33), 8, 2, 128, 128, kv="paged", page_size=16, label="a")
    step = Case("steps", "bf16", (20, 1), (20, 50), 8, 2, 128, 128, causal=True, kv="paged", page_size=16, label="a")
    drafted = Case("speculative", "bf16", (4, 4), (50, 50), 8, 2, 128, 128, causal=True, kv="paged", page_size=16)
    torch = types.SimpleNamespace(
        bfloat16="bf16", float16="fp16", float8_e4m3fn="e4m3", uint8="u8", int32="i32", zeros=lambda *_, **more: "workspace",
        tensor=lambda values, **more: values, full=lambda shape, value, **more: [value],
        arange=lambda end, **more: list(range(end)))

    def given(self, name, case, **functions):
        """The library's mock after a call for the case."""
        library = mock.Mock(**functions)
        provider = type(PROVIDERS[name])()
        with mock.patch.dict(sys.modules, torch=self.torch), mock.patch.object(provider, "module", lambda: library), \
                mock.patch.object(provider, "module_name", lambda: "a"):
            self.assertIsNone(provider.refuses(case))
            provider.make(case, fake_inputs(case))()
        return library

    def test_attnsmith_has_a_table_and_lengths_and_offsets_where_queries_differ(self):
        for case, more in ((self.mixed, {}), (self.drafted, {}),
                           (self.step, {"q_indptr": "q_indptr", "max_q_len": 20})):
            library = self.given("attnsmith", case)
            prepare = library.Runtime.return_value.prepare
            self.assertEqual((prepare.call_args[1]["batch"], prepare.call_args[1]["q_len"],
                              prepare.call_args[1]["kv_len"], prepare.call_args[1]["page_size"]),
                             (case.batch, case.q_len, case.kv_len, 16))
            bound = dict(prepare.return_value.bind.call_args[1])
            shapes = {key: (bound[key].name, len(bound[key].shape)) for key in ("q", "k", "v", "o")}
            axes = 3 if more else 4
            self.assertEqual(shapes, {"q": ("q", axes), "k": ("k", 4), "v": ("v", 4), "o": ("o", axes)})
            self.assertEqual({key: bound[key] for key in set(bound) - set(shapes)},
                             dict(page_table="page_table", kv_lens="kv_lens", max_kv_len=case.kv_len, **more))

    def test_flash_attention_3_plans_for_what_it_launches(self):
        for case, more in ((self.mixed, {}), (self.drafted, {}), (self.step, {"cu_seqlens_q": "q_indptr"})):
            library = self.given("fa3", case)
            plan = library.get_scheduler_metadata.call_args
            longest = max(case.page_counts) * 16  # which the launch has from the table's columns
            self.assertEqual(plan[0], (case.batch, case.q_len, longest, 8, 2, 128, "kv_lens"))
            self.assertEqual({key: plan[1][key] for key in more}, more)
            self.assertEqual((plan[1]["page_size"], plan[1]["causal"]), (16, case.causal))
            launched = library.flash_attn_with_kvcache.call_args[1]
            expected = dict(more, cache_seqlens="kv_lens", page_table="page_table", causal=case.causal,
                            window_size=(-1, -1), scheduler_metadata=library.get_scheduler_metadata.return_value)
            if more:
                expected["max_seqlen_q"] = 20
            self.assertEqual(launched, expected)

    def test_flash_attention_3_splits_dense_keys_of_few_queries(self):
        case = Case("speculative", "bf16", (8,), (128,), 8, 2, 128, 128, causal=True)
        library = self.given("fa3", case)
        self.assertEqual(library.flash_attn_with_kvcache.call_args[1]["cache_seqlens"], "kv_lens")
        library.flash_attn_func.assert_not_called()
        library = self.given("fa3", small(causal=True))
        library.flash_attn_func.assert_called_once()

    def test_flashinfer_decodes_with_one_wrapper_and_does_the_rest_with_another(self):
        pages = ("page_indptr", "page_indices", "last_page_lens")
        decode = self.given("flashinfer", self.mixed).BatchDecodeWithPagedKVCacheWrapper
        self.assertTrue(decode.call_args[1]["use_tensor_cores"])
        self.assertEqual(decode.return_value.plan.call_args[0], pages + (8, 2, 128, 16))
        self.assertEqual(decode.return_value.run.call_args[0][0].shape, (3, 8, 128))
        for name, case, backend, tokens in (
                ("flashinfer", self.drafted, "fa2", 8), ("flashinfer", self.step, "auto", 21),
                ("flashinfer-fa2", self.step, "fa2", 21)):
            library = self.given(name, case)
            library.BatchDecodeWithPagedKVCacheWrapper.assert_not_called()
            wrapper = library.BatchPrefillWithPagedKVCacheWrapper
            self.assertEqual(wrapper.call_args[1]["backend"], backend)
            plan = wrapper.return_value.plan.call_args
            self.assertEqual(plan[0], ("q_indptr",) + pages + (8, 2, 128, 16))
            self.assertEqual((plan[1]["causal"], plan[1]["head_dim_vo"]), (True, 128))
            self.assertEqual(wrapper.return_value.run.call_args[0][0].shape, (tokens, 8, 128))

    def test_flashinfer_has_groups_under_4_on_cuda_cores_and_two_head_dims_in_the_other_wrapper(self):
        for case in cases.groups():
            decode = self.given("flashinfer", case).BatchDecodeWithPagedKVCacheWrapper
            self.assertEqual(decode.call_args[1]["use_tensor_cores"], case.group >= 4, case.name)
        case = next(case for case in cases.decode_small() if case.head_dims == "192/128" and case.kv == "paged")
        library = self.given("flashinfer", case)
        self.assertEqual(library.BatchPrefillWithPagedKVCacheWrapper.call_args[1]["backend"], "fa2")
        plan = library.BatchPrefillWithPagedKVCacheWrapper.return_value.plan.call_args
        self.assertEqual((plan[0][-2], plan[1]["head_dim_vo"]), (192, 128))

    def test_flashinfer_has_dense_keys_of_few_queries_as_pages_in_order(self):
        case = Case("speculative", "bf16", (8, 8), (128, 128), 8, 2, 128, 128, causal=True)
        wrapper = self.given("flashinfer", case).BatchPrefillWithPagedKVCacheWrapper
        plan = wrapper.return_value.plan.call_args
        self.assertEqual(plan[0], ("q_indptr", [0, 2, 4], [0, 1, 2, 3], [64], 8, 2, 128, 64))
        self.assertEqual([t.shape for t in wrapper.return_value.run.call_args[0][1]], [(4, 64, 2, 128)] * 2)

    def test_flashinfer_has_latents_in_four_tensors(self):
        case = Case("mla", "bf16", (2, 2), (50, 7), 16, 1, 576, 512, causal=True, kv="paged", page_size=16, shared_kv=True)
        wrapper = self.given("flashinfer-mla", case).mla.BatchMLAPagedAttentionWrapper
        self.assertEqual(wrapper.call_args[1], {"backend": "fa3"})
        self.assertEqual(wrapper.return_value.plan.call_args[0],
                         ("q_indptr", "page_indptr", "page_indices", "kv_lens", 16, 512, 64, 16, True, 1 / 24,
                          "bf16", "bf16"))
        given = [(t.name, t.shape) for t in wrapper.return_value.run.call_args[0]]
        self.assertEqual(given, [("q, part 0", (4, 16, 512)), ("q, part 1", (4, 16, 64)),
                                 ("k, part 0", (5, 16, 512)), ("k, part 1", (5, 16, 64))])

    def test_keys_of_8_bits_have_their_scales(self):
        for scale, count in (("tensor", 1), ("head", 2)):
            (case,) = cases.of_8_bits([self.drafted], "decode-fp8", scale)
            library = self.given("attnsmith", case)
            asked = library.Runtime.return_value.prepare.call_args[1]
            self.assertEqual((asked["dtype"], asked["kv_dtype"], asked["kv_scale"]), ("bf16", "e4m3", scale))
            bound = library.Runtime.return_value.prepare.return_value.bind.call_args[1]
            self.assertEqual([(bound[name].name, bound[name].shape) for name in ("q", "k_scale", "v_scale")],
                             [("q", (2, 4, 8, 128)), ("k_scale", (count,)), ("v_scale", (count,))])
            library = self.given("fa3", case)
            self.assertEqual(library.get_scheduler_metadata.call_args[1]["qkv_dtype"], "e4m3")
            launched = library.flash_attn_with_kvcache.call_args
            self.assertEqual(launched[0][0].name, "q_rounded")
            self.assertEqual([launched[1][name + "_descale"].shape for name in "qkv"], [(2, 2)] * 3)
        (case,) = cases.of_8_bits([self.mixed], "decode-fp8")
        wrapper = self.given("flashinfer", case).BatchDecodeWithPagedKVCacheWrapper.return_value
        self.assertEqual([wrapper.plan.call_args[1][name] for name in ("q_data_type", "kv_data_type")], ["bf16", "e4m3"])
        self.assertEqual(wrapper.run.call_args[1], {"k_scale": 0.5, "v_scale": 0.5})
        self.assertTrue(PROVIDERS["flashinfer"].refuses(cases.of_8_bits([self.mixed], "decode-fp8", "head")[0]))

    def test_a_prompt_of_8_bits_has_its_own_entries(self):
        (case,) = cases.of_8_bits([small(causal=True)], "prefill-fp8")
        launched = self.given("fa3", case).flash_attn_func.call_args
        self.assertEqual((launched[0][0].name, launched[1]["k_descale"].shape), ("q_rounded", (2, 2)))
        library = self.given("flashinfer", case)  # whose ragged wrapper takes no scales
        library.BatchPrefillWithRaggedKVCacheWrapper.assert_not_called()
        self.assertEqual(library.BatchPrefillWithPagedKVCacheWrapper.return_value.run.call_args[1],
                         {"k_scale": 0.5, "v_scale": 0.5})

    def test_latents_of_8_bits_have_one_scale_for_both_parts(self):
        latent = Case("mla", "bf16", (2, 2), (50, 7), 16, 1, 576, 512, causal=True, kv="paged", page_size=16, shared_kv=True)
        (case,) = cases.of_8_bits([latent], "decode-fp8")
        bound = self.given("attnsmith", case).Runtime.return_value.prepare.return_value.bind.call_args[1]
        self.assertEqual((bound["k_scale"].name, "v_scale" in bound, "v" in bound), ("k_scale", False, False))
        wrapper = self.given("flashinfer-mla", case).mla.BatchMLAPagedAttentionWrapper.return_value
        self.assertEqual(wrapper.plan.call_args[0][-2:], ("bf16", "e4m3"))
        self.assertEqual(wrapper.run.call_args[1], {"ckv_scale": 0.5, "kpe_scale": 0.5})

    def test_every_case_with_decode_is_served_by_whoever_does_not_refuse_it(self):
        for name in ("attnsmith", "fa3", "flashinfer", "flashinfer-fa2"):
            for case in EVERY:
                if case.set in {**cases.DECODE_SETS, **cases.FP8_SETS} and not PROVIDERS[name].refuses(case):
                    self.given(name, case)


class Sampled(unittest.TestCase):
    """Which rows are checked."""

    def test_of_mixes_the_longest_the_shortest_and_more_sequences(self):
        for case in cases.decode_mixed() + cases.steps():
            picked = sample(case)
            sequences = {sequence for sequence, _ in picked}
            self.assertEqual(len(sequences), 16, case.name)
            for length in (min(case.kv_lens), max(case.kv_lens)):
                self.assertIn(length, {case.kv_lens[sequence] for sequence in sequences}, case.name)
            self.assertIn(max(case.q_lens), {case.q_lens[sequence] for sequence in sequences}, case.name)

    def test_of_all_cases_queries_that_are_there_and_not_too_many(self):
        for case in EVERY:
            picked = sample(case)
            self.assertTrue(picked, case.name)
            self.assertLessEqual(sum(len(queries) for _, queries in picked), 128, case.name)
            for sequence, queries in picked:
                self.assertEqual((queries[0], queries[-1]), (0, case.q_lens[sequence] - 1))


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch makes the inputs")
class Inputs(unittest.TestCase):
    """Pages and the reference, on the CPU."""

    chosen = (
        Case("decode-mixed", "bf16", (1,) * 4, (5, 1, 48, 33), 4, 2, 32, 16, kv="paged", page_size=16, label="a"),
        Case("steps", "bf16", (1, 20, 1), (7, 20, 50), 4, 2, 32, 32, causal=True, kv="paged", page_size=16, label="a"),
        Case("speculative", "bf16", (3, 3), (40, 40), 4, 4, 32, 32, causal=True, kv="paged", page_size=8),
        Case("decode-small", "bf16", (1, 1), (40, 40), 4, 1, 32, 32),
    )

    def rows(self, case, tensors, sequence):
        """Queries, keys and values of a sequence, from the list of pages; the reference has them from the table."""
        q = tensors.q.reshape(-1, case.q_heads, case.head_dim_qk)
        first = sum(case.q_lens[:sequence])
        q = q[first:first + case.q_lens[sequence]].double()
        if case.kv == "dense":
            return q, tensors.k[sequence].double(), tensors.v[sequence].double()
        start, end = (int(tensors.page_indptr[sequence + i]) for i in (0, 1))
        length = (end - start - 1) * case.page_size + int(tensors.last_page_lens[sequence])
        self.assertEqual(length, case.kv_lens[sequence])
        every = tensors.page_indices[start:end].long()
        return q, *(t[every].flatten(0, 1)[:length].double() for t in (tensors.k, tensors.v))

    def test_the_table_and_the_list_name_the_same_pages_each_once(self):
        import torch

        for case in self.chosen[:3]:
            made = make_tensors(torch, case, 0, "cpu")
            self.assertEqual(made.k.shape[0], sum(case.page_counts))
            self.assertEqual(sorted(made.page_indices.tolist()), list(range(sum(case.page_counts))))
            self.assertEqual(tuple(made.page_table.shape), (case.batch, max(case.page_counts)))
            listed = [row[:count] for row, count in zip(made.page_table.tolist(), case.page_counts)]
            self.assertEqual(sum(listed, []), made.page_indices.tolist())
            self.assertEqual(made.page_table.dtype, torch.int32)

    def test_the_reference_is_that_of_each_sequence_alone(self):
        import torch

        for case in self.chosen:
            made = make_tensors(torch, case, 0, "cpu")
            expected = []
            for sequence in range(case.batch):
                q, k, v = self.rows(case, made, sequence)
                for query in range(case.q_lens[sequence]):
                    last = case.kv_lens[sequence] - (case.q_lens[sequence] - 1 - query if case.causal else 0)
                    heads = []
                    for head in range(case.q_heads):
                        at = head // case.group
                        weights = torch.softmax(k[:last, at] @ q[query, head] * case.head_dim_qk ** -0.5, 0)
                        heads.append(weights @ v[:last, at])
                    expected.append(torch.stack(heads))
            expected = torch.stack(expected)
            reference = make_reference(torch, case, made)
            self.assertLess(float((reference.values - expected[reference.rows]).abs().max()), 1e-12, case.name)
            self.assertTrue(check(torch, case, reference, expected).right)
            wrong = expected.clone()
            wrong[reference.rows[-1]] += 1
            self.assertFalse(check(torch, case, reference, wrong).right)

    of_8_bits = cases.of_8_bits(chosen, "decode-fp8") + cases.of_8_bits(chosen, "decode-fp8", "head") + cases.of_8_bits(
        [Case("mla", "bf16", (2, 2), (50, 7), 16, 1, 48, 32, kv="paged", page_size=16, shared_kv=True)], "decode-fp8")

    def in_16_bits(self, torch, case, made):
        """The same case and inputs, as numbers of fp64 that are stored as they are."""
        k = numbers_of(made.k, made.k_scale, torch.float64)
        v = k[..., :case.head_dim_vo] if case.shared_kv else numbers_of(made.v, made.v_scale, torch.float64)
        return replace(case, kv_dtype="", kv_scale=""), replace(made, k=k, v=v, k_scale=None, v_scale=None)

    def test_the_reference_takes_what_is_stored_times_its_scale(self):
        import torch

        for case in self.of_8_bits:
            made = make_tensors(torch, case, 0, "cpu")
            self.assertEqual((made.q.dtype, made.k.dtype, made.v.dtype, made.q_rounded.dtype),
                             (torch.bfloat16,) + (torch.float8_e4m3fn,) * 3)
            heads = case.kv_heads if case.kv_scale == "head" else 1
            self.assertEqual([tuple(scale.shape) for scale in (made.k_scale, made.v_scale, made.q_scale)],
                             [(heads,), (heads,), (1,)])
            self.assertTrue(bool((made.k.float().abs().flatten(0, -3).amax(dim=(0, 2)) <= 448).all()), case.name)
            numbers = numbers_of(made.k, made.k_scale, torch.float64)
            self.assertLess(abs(float(numbers.std()) - 1), 0.2, case.name)
            found = make_reference(torch, case, made)
            plain_case, plain = self.in_16_bits(torch, case, made)
            wanted = make_reference(torch, replace(plain_case, set=case.set), plain)
            # Rows are drawn by the case's name, which has the dtype in it.
            every, values = found.rows.tolist(), dict(zip(wanted.rows.tolist(), wanted.values))
            for row, value in zip(every, found.values):
                if row in values:
                    self.assertLess(float((value - values[row]).abs().max()), 1e-12, case.name)
            self.assertTrue(set(every) & set(values), case.name)
            self.assertIsNone(found.noise)

    def test_weights_of_8_bits_are_within_the_noise_and_zeros_are_not(self):
        """What rounds Q and the weights, as FlashAttention-3 does, made here of torch's own products."""
        import torch

        short = Case("decode-fp8", "bf16", (1,) * 8, (3,) * 8, 8, 2, 64, 64)
        for case in self.of_8_bits[:-1] + cases.of_8_bits([short], "decode-fp8"):
            made = make_tensors(torch, case, 0, "cpu")
            reference = make_reference(torch, case, made, rounded=True)
            out = torch.full((sum(case.q_lens), case.q_heads, case.head_dim_vo), 0.0, dtype=torch.float64)
            queries = numbers_of(made.q_rounded, made.q_scale, torch.float64).reshape(-1, case.q_heads, case.head_dim_qk)
            for sequence in range(case.batch):
                k, v = keys_and_values(torch, case, made, sequence)
                for i in range(case.q_lens[sequence]):
                    row = sum(case.q_lens[:sequence]) + i
                    last = case.kv_lens[sequence] - (case.q_lens[sequence] - 1 - i if case.causal else 0)
                    for head in range(case.q_heads):
                        scores = k[:last, head // case.group] @ queries[row, head] * case.head_dim_qk ** -0.5
                        weights = torch.exp(scores - scores.max())
                        rounded = (weights * 256).float().to(torch.float8_e4m3fn).double() / 256
                        out[row, head] = rounded @ v[:last, head // case.group] / weights.sum()
            self.assertTrue(check(torch, case, reference, out).right, case.name)
            self.assertFalse(check(torch, case, reference, torch.zeros_like(out)).right, case.name)

    def test_attnsmith_s_own_16_bits_have_the_same_numbers(self):
        import torch

        for case in self.of_8_bits:
            made = make_tensors(torch, case, 0, "cpu")
            library, provider = mock.Mock(), type(PROVIDERS["attnsmith-bf16"])()
            with mock.patch.object(provider, "module", lambda: library):
                provider.make(case, made)
            asked = library.Runtime.return_value.prepare.call_args[1]
            self.assertNotIn("kv_dtype", asked)
            bound = library.Runtime.return_value.prepare.return_value.bind.call_args[1]
            self.assertNotIn("k_scale", bound)
            numbers = numbers_of(made.k, made.k_scale, torch.float64)
            self.assertEqual((bound["k"].dtype, bound["k"].shape), (torch.bfloat16, made.k.shape))
            self.assertLess(float((bound["k"].double() - numbers).abs().max()), 2 ** -8 * float(numbers.abs().max()))


if __name__ == "__main__":
    unittest.main()

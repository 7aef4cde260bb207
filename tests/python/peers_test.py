"""tools/bench/peers.py without a GPU and without torch: its cases, its arithmetic, and a run on fake workers."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from peers_support import ENTRY, EVERY, REPOSITORY, small

from peers import cases, main, picture, plots, report, results, statistics, summary, svg
from peers.cases import Case, held_to, visible_pairs
from peers.pace import Pace
from peers.providers import OURS, OURS_BF16, PROVIDERS
from peers.runner import Runner, estimate_seconds, turns
from peers.tensors import how_many_sets
from peers.worker import Worker, WorkerDied


class Cases(unittest.TestCase):
    def test_names_tell_every_case_apart(self):
        names = [(case.set, case.name) for case in EVERY]
        self.assertEqual(len(names), len(set(names)))

    def test_the_prefill_grid_is_16k_tokens_of_width_2048_and_the_same_with_grouped_heads(self):
        grid = cases.prefill()
        self.assertEqual(len(grid), 2 * 3 * 6 * 2 * 2)
        for case in grid:
            self.assertEqual(sum(case.q_lens), 16384, case.name)
            self.assertEqual((case.q_heads, case.kv_heads) == (32, 8) or case.q_heads * case.head_dim_qk == 2048, True)
        every = {(case.head_dim_qk, case.group == 1, case.q_len, case.causal, case.dtype) for case in grid}
        self.assertEqual(len(every), len(grid))
        self.assertEqual({case.head_dim_qk for case in grid}, {64, 128, 256})
        self.assertEqual({case.q_len for case in grid}, {512, 1024, 2048, 4096, 8192, 16384})
        self.assertEqual({case.dtype for case in grid}, {"bf16", "fp16"})

    def test_the_other_sets_hold_what_they_are_for(self):
        dims = {case.head_dims for case in cases.dims()}
        self.assertEqual(dims, {"80", "96", "112", "128", "160", "192", "192/128", "256"})
        self.assertEqual({case.page_size for case in cases.paged()}, {0, 1, 8, 16, 64, 256})
        self.assertEqual({case.window for case in cases.window()}, {None, (1023, 0)})
        decode = cases.decode()
        self.assertEqual({(case.q_heads, case.kv_heads, case.head_dims) for case in decode}, {(32, 8, "128")})
        self.assertEqual({case.page_size for case in decode}, {0, 16})
        self.assertEqual({(case.batch, case.kv_len) for case in decode}, set(cases.DECODE_GRID))
        more = cases.decode_more()
        self.assertEqual({(case.q_heads, case.kv_heads) for case in more}, {(32, 8), (32, 32), (64, 8)})
        self.assertEqual(len(decode) + len(more), 3 * 3 * 5)

    def test_small_decodes_have_kv_under_256_mb_in_every_storage(self):
        small_ones = cases.decode_small()
        for case in small_ones:
            self.assertTrue(case.is_decode, case.name)
            self.assertLess(case.bytes, 256e6, case.name)
            self.assertEqual((case.q_heads, case.kv_heads), (32, 8))
        points = {}
        for case in small_ones:
            points.setdefault((case.head_dims, case.page_size), set()).add((case.batch, case.kv_len))
        few = {(1, 8192), (16, 1024)}
        self.assertEqual(points.pop(("128", 1)), few)
        self.assertEqual(points.pop(("128", 8)), few)
        for page_size in (0, 16, 64):
            self.assertEqual(points.pop(("128", page_size)), set(cases.SMALL_GRID))
        self.assertEqual(points, {(dims, page_size): few for dims in ("64", "96", "192/128", "256")
                                  for page_size in (0, 16)})

    def test_mixed_decodes_differ_a_lot_and_are_the_same_every_time(self):
        self.assertEqual(cases.decode_mixes(), cases.decode_mixes())
        mixes = {label: (len(lens), min(lens), max(lens)) for label, lens in cases.decode_mixes().items()}
        self.assertEqual(mixes, {
            "100 to 60000": (64, 100, 60000), "1 to 4096": (32, 1, 4096), "64 to 2048": (128, 64, 2048),
            "1x131072 and 63x1024": (64, 1024, 131072), "56x512 and 8x32768": (64, 512, 32768)})
        wide = cases.decode_mixes()["100 to 60000"]
        for least, most in ((100, 843), (843, 7113), (7113, 60000)):  # a third of the logarithms each
            self.assertGreater(sum(least <= length <= most for length in wide), 64 / 6)
        self.assertEqual(sum(length == 32768 for length in cases.decode_mixes()["56x512 and 8x32768"]), 8)
        mixed = cases.decode_mixed()
        self.assertEqual({case.label for case in mixed}, set(mixes))
        self.assertEqual({(case.q_heads, case.head_dims, case.page_size) for case in mixed if case.batch == 64
                          and case.label == "100 to 60000"}, {(32, "128", 16), (32, "128", 64), (64, "64", 16)})
        for case in mixed:
            self.assertTrue(case.is_decode and not case.ragged_q, case.name)
            self.assertEqual(case.kv_lens, cases.decode_mixes()[case.label])

    def test_the_sets_beside_plain_decode_hold_what_they_are_for(self):
        drafted = cases.speculative()
        self.assertEqual({(case.q_len, case.batch, case.kv_len) for case in drafted if case.kv == "paged"},
                         {(q_len, *point) for q_len in (2, 4, 8, 16) for point in ((8, 8192), (32, 2048), (1, 32768))})
        self.assertEqual([case.name for case in drafted if case.kv == "dense"], ["bf16 hd128 32/8 causal 8x8:8192"])
        self.assertTrue(all(case.causal and case.has_few_queries and not case.is_decode for case in drafted))
        groups = cases.groups()
        self.assertEqual([case.group for case in groups], [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 71])
        self.assertEqual({(case.batch, case.kv_len, case.kv_heads, case.head_dims) for case in groups},
                         {(64, 4096, 8, "128"), (64, 4096, 1, "64")})
        steps = {case.name: (sorted(set(zip(case.q_lens, case.kv_lens))), case.q_lens.count(1), case.batch)
                 for case in cases.steps()}
        named = "bf16 hd128 32/8 causal paged by 16 %s (%d sequences)"
        self.assertEqual(steps, {
            named % ("1x2048:2048 and 63x1:4096", 64): ([(1, 4096), (2048, 2048)], 63, 64),
            named % ("1x2048:16384 and 63x1:4096", 64): ([(1, 4096), (2048, 16384)], 63, 64),
            named % ("4x512:512 and 28x1:4096", 32): ([(1, 4096), (512, 512)], 28, 32),
            named % ("4x512:4096 and 28x1:4096", 32): ([(1, 4096), (512, 4096)], 28, 32)})
        self.assertTrue(all(case.ragged_q and not case.has_few_queries for case in cases.steps()))

    def test_the_sets_of_8_bits_hold_what_they_are_for(self):
        of_8_bits = cases.decode_fp8() + cases.prefill_fp8() + cases.decode_fp8_all()
        self.assertEqual({(case.dtype, case.kv_dtype) for case in of_8_bits}, {("bf16", "e4m3")})
        points = {}
        for case in cases.decode_fp8():
            if case.is_decode and not case.shared_kv and case.kv_heads == 8:
                points.setdefault((case.page_size, case.kv_scale), set()).add((case.batch, case.kv_len))
        every = {(64, 4096), (16, 8192), (1, 65536), (1, 1024), (4, 2048)}
        self.assertEqual(points, {(0, "tensor"): every, (16, "tensor"): every, (64, "tensor"): every,
                                  (16, "head"): set(cases.FP8_GRID)})
        others = {(case.q_heads, case.kv_heads, case.head_dims) for case in cases.decode_fp8() if case.kv_heads == 1}
        self.assertEqual(others, {(64, 1, "128"), (71, 1, "64"), (16, 1, "576/512"), (128, 1, "576/512")})
        self.assertEqual({case.q_len for case in cases.decode_fp8()}, {1, 16})
        chunks = {(case.q_len, case.kv_len) for case in cases.prefill_fp8()}
        self.assertEqual({q_len for q_len, kv_len in chunks if q_len == kv_len}, set(cases.LENGTHS))
        self.assertGreaterEqual(min(q_len for q_len, _ in chunks), 512)
        # Every decode of 16 bits there is, once.
        of_16 = {case.name for name, make in cases.DECODE_SETS.items() for case in make() if name != "steps"}
        self.assertEqual(len(cases.decode_fp8_all()), len(of_16))

    def test_bytes_of_8_bits_are_of_keys_and_values_alone(self):
        case = Case("decode", "bf16", (1,) * 3, (100,) * 3, 8, 2, 128, 64)
        (half,) = cases.of_8_bits([case], "decode-fp8")
        keys = 3 * 100 * 2 * (128 + 64)
        self.assertEqual(case.bytes - half.bytes, keys)
        self.assertEqual(half.flops, case.flops)
        self.assertNotEqual(half.name, case.name)

    def test_only_labelled_cases_have_lengths_that_differ_and_only_ragged_and_paged_ones(self):
        for case in EVERY:
            differ = len(set(zip(case.q_lens, case.kv_lens))) > 1
            self.assertTrue(bool(case.label) >= differ, case.name)
            self.assertTrue(case.kv != "dense" or not differ, case.name)

    def test_default_runs_have_no_more_than_they_had(self):
        self.assertEqual(cases.DEFAULT_SETS, ("prefill", "dims", "ragged", "paged", "window", "decode"))
        for case in cases.select(list(cases.DEFAULT_SETS), ["bf16", "fp16"], False):
            self.assertTrue(PROVIDERS["flashinfer-fa2"].refuses(case), case.name)

    def test_inputs_of_all_cases_fit_and_none_finds_its_own_in_l2(self):
        for case in EVERY:
            sets = how_many_sets(case)
            self.assertLess(sets * case.bytes, 20e9, case.name)
            self.assertGreaterEqual(sets * case.bytes, 256 << 20, case.name)

    def test_ragged_lengths_have_the_tokens_and_the_work_of_dense_ones(self):
        self.assertEqual(cases.mixed_lengths(2048), cases.mixed_lengths(2048))
        for tokens in (1024, 2048, 4096):
            for label, lens in cases.ragged_mixes(tokens).items():
                self.assertEqual(sum(lens), 16384)
                self.assertGreater(min(lens), 0)
                if label != "halving":
                    self.assertAlmostEqual(sum(n * n for n in lens) / (16384 * tokens), 1, delta=0.005)
                if label != "equal":
                    self.assertGreater(len(set(lens)), 6)

    def test_what_is_held_to_something_is_held_to_a_case_of_its_set(self):
        kinds = {}
        names = {(case.set, case.name): case for case in EVERY}
        for case in EVERY:
            for held in held_to(case):
                other = names[case.set, held.against]
                kinds.setdefault(held.kind, set()).add(held.target)
                self.assertEqual((other.dtype, other.q_heads, other.kv_heads, other.causal, sum(other.q_lens)),
                                 (case.dtype, case.q_heads, case.kv_heads, case.causal, sum(case.q_lens)))
                self.assertEqual((other.kv, other.window), ("dense", None))
                self.assertGreaterEqual(other.head_dim_qk, case.head_dim_qk)
        self.assertEqual({kind: targets for kind, targets in kinds.items() if kind.startswith("pages")}, {
            "pages of 1": {0.3}, "pages of 8": {0.1}, "pages of 16": {0.1}, "pages of 64": {0.05},
            "pages of 256": {0.05}})
        self.assertEqual(kinds["window 1024"], {0.2})
        self.assertEqual(kinds["ragged, mixed 2048"], {0.05})
        for kind in ("hd 80 against 96", "hd 96 against 128", "hd 112 against 128", "hd 160 against 192",
                     "hd 192 against 256", "hd 192/128 against 192", "hd 192/128 against 256"):
            self.assertEqual(kinds[kind], {None})

    def test_heads_divide_and_pages_fill(self):
        for case in EVERY:
            self.assertEqual(case.q_heads % case.kv_heads, 0, case.name)
            self.assertEqual(case.kv == "paged", case.page_size > 0, case.name)
            self.assertEqual(len(case.q_lens), len(case.kv_lens), case.name)

    def test_quick_touches_every_set(self):
        quick = cases.select(list(cases.SETS), ["bf16", "fp16"], True)
        self.assertEqual({case.set for case in quick}, set(cases.SETS))
        self.assertLess(len(quick), len(EVERY) / 8)

    def test_a_case_survives_json(self):
        for case in EVERY:
            self.assertEqual(Case.from_json(json.loads(json.dumps(case.to_json()))), case)

    def test_seeds_are_the_same_in_every_process(self):
        self.assertEqual(small().seed, small().seed)
        self.assertNotEqual(small().seed, small(causal=True).seed)


class Work(unittest.TestCase):
    @staticmethod
    def brute_force(q_len, kv_len, causal, window):
        pairs = 0
        for query in range(q_len):
            for key in range(kv_len):
                at = query + kv_len - q_len
                seen = not causal or key <= at
                if window is not None:
                    seen = seen and at - window[0] <= key <= at + window[1]
                pairs += seen
        return pairs

    def test_pairs_are_those_of_a_count_one_by_one(self):
        for lengths in ((1, 1), (1, 9), (7, 7), (5, 12), (12, 5), (0, 4), (4, 0)):
            for causal in (False, True):
                for window in (None, (0, 0), (3, 0), (2, 1), (100, 100)):
                    with self.subTest(lengths=lengths, causal=causal, window=window):
                        self.assertEqual(visible_pairs(*lengths, causal, window),
                                         self.brute_force(*lengths, causal, window))

    def test_flops_of_a_square_and_half_when_causal(self):
        full = 4.0 * 2 * 4 * 64 * 64 * 64  # 4*B*H*Sq*Skv*D
        self.assertEqual(small().flops, full)
        self.assertEqual(small(causal=True).flops, full / 2)

    def test_flops_of_two_head_dims_and_of_a_window(self):
        case = Case("dims", "bf16", (64,), (64,), 2, 2, 192, 128)
        self.assertEqual(case.flops, 2.0 * (192 + 128) * 2 * 64 * 64)
        case = small(causal=True, window=(15, 0))
        self.assertEqual(case.flops, 4.0 * 64 * 4 * 2 * self.brute_force(64, 64, True, (15, 0)))

    def test_flops_of_ragged_lengths_add_up(self):
        case = Case("ragged", "bf16", (8, 3), (8, 5), 2, 2, 64, 64, causal=True, kv="ragged", label="a")
        pairs = 8 * 8 / 2 + self.brute_force(3, 5, True, None)
        self.assertEqual(case.flops, 4.0 * 64 * 2 * pairs)

    def test_work_of_paged_lengths_that_differ_adds_up(self):
        case = Case("steps", "bf16", (8, 1, 3), (8, 33, 20), 4, 2, 64, 32, causal=True, kv="paged", page_size=16,
                    label="a")
        self.assertEqual(case.page_counts, (1, 3, 2))
        self.assertEqual(case.flops, 2.0 * (64 + 32) * 4 * (8 * 8 / 2 + 33 + self.brute_force(3, 20, True, None)))
        self.assertEqual(case.bytes, 2.0 * (12 * 4 * (64 + 32) + (8 + 33 + 20) * 2 * (64 + 32)))
        decode = Case("decode-mixed", "bf16", (1, 1), (1, 40), 4, 2, 64, 64, kv="paged", page_size=16, label="a")
        self.assertEqual(decode.flops, 4.0 * 64 * 4 * 41)

    def test_bytes_count_q_k_v_and_o_once(self):
        case = Case("decode", "bf16", (1,) * 3, (100,) * 3, 8, 2, 128, 64)
        self.assertEqual(case.bytes, 2.0 * 3 * (8 * (128 + 64) + 100 * 2 * (128 + 64)))
        (latent,) = [case for case in cases.mla() if case.kv_len == 65536]
        self.assertEqual(latent.bytes, 2.0 * (128 * (576 + 512) + 65536 * 576))


class Arithmetic(unittest.TestCase):
    def test_geomean(self):
        self.assertAlmostEqual(statistics.geomean([1.0, 4.0]), 2.0)
        self.assertAlmostEqual(statistics.geomean([2.0, None, 8.0]), 4.0)
        self.assertIsNone(statistics.geomean([None]))

    def test_spread_is_half_of_the_range(self):
        self.assertAlmostEqual(statistics.spread([0.9, 1.0, 1.1]), 0.1)

    def test_our_own_other_ways_are_no_peers(self):
        ms = {OURS: 2.0, OURS + "-bf16": 0.5, "a": 3.0}
        self.assertEqual(statistics.best_peer(ms, OURS), ("a", 3.0))
        self.assertEqual(statistics.ratio(ms, OURS), 1.5)
        self.assertEqual(statistics.ratio(ms, OURS, OURS + "-bf16"), 0.25)
        self.assertTrue(statistics.is_peer("a", OURS))

    def test_ratios_are_speeds_over_speeds(self):
        ms = {OURS: 2.0, "a": 3.0, "b": 1.0}
        self.assertEqual(statistics.best_peer(ms, OURS), ("b", 1.0))
        self.assertEqual(statistics.ratio(ms, OURS), 0.5)
        self.assertEqual(statistics.ratio(ms, OURS, "a"), 1.5)
        self.assertIsNone(statistics.ratio(ms, OURS, "absent"))
        self.assertIsNone(statistics.ratio({OURS: 1.0}, OURS))
        self.assertIsNone(statistics.ratio({"a": 1.0}, OURS))


class FakeWorker:
    """Answers as a GPU's worker would: times and failures by provider."""

    ms = {"attnsmith": 1.0, "cudnn": 2.0, "fa3": 0.5}
    started = 0

    def __init__(self):
        type(self).started += 1
        self.case = None

    def ask(self, op, timeout, **fields):
        if op == "describe":
            return {"device": "Fake", "torch": "0", "cuda": "0", "versions": {name: {} for name in fields["providers"]}}
        if op == "ceilings":
            return {"copy_tbps": 4.0, "matmul_bf16_tflops": 700.0}
        if op == "begin":
            self.case = Case.from_json(fields["case"])
            return {"sets": 2}
        if op == "end":
            return {}
        provider = fields["provider"]
        if provider == "fa2":
            raise WorkerDied("crashed", "ended by SIGSEGV")
        if provider == "fa4":
            return {"status": "failed", "reason": "does not compile"}
        if provider == "sdpa-fa2":
            return {"status": "wrong", "reason": "off", "max_error": 1.0}
        if op == "add":
            return {"status": "ok", "max_error": 1e-3, "method": "graph", "launches": 4, "sets": 2}
        return {"ms": self.ms[provider] * self.case.q_len / 1024}

    def close(self, at_once=False):
        pass


def fake_document(chosen, providers):
    runner = Runner(providers, ["fa3", "fa4"], 0.1, 3, 5.0, 2, lambda line: None, FakeWorker)
    runner.build(chosen)
    entries = [runner.run(case) for case in chosen]
    return {"schema": report.SCHEMA, "machine": {"device": "Fake"}, "ceilings": runner.ceilings(), "method": {},
            "measured": providers, "providers": {name: {"reason": None} for name in providers}, "cases": entries,
            "geomeans": report.geomeans(entries, providers)}


class Runs(unittest.TestCase):
    providers = ["attnsmith", "cudnn", "sdpa-fa2", "fa2", "fa3", "fa4"]

    def test_a_crash_a_wrong_answer_and_a_failed_build_end_nothing(self):
        document = fake_document([cases.square("prefill", "bf16", 128, (16, 16), 1024, True)], self.providers)
        entry = document["cases"][0]
        status = {name: result["status"] for name, result in entry["results"].items()}
        self.assertEqual(status, {"attnsmith": "ok", "cudnn": "ok", "sdpa-fa2": "wrong", "fa2": "crashed",
                                  "fa3": "ok", "fa4": "failed"})
        self.assertEqual(entry["results"]["attnsmith"]["ms"], [1.0, 1.0, 1.0])
        self.assertEqual((entry["best_peer"], entry["ratio"]), ("fa3", 0.5))
        self.assertAlmostEqual(entry["results"]["attnsmith"]["tflops"], entry["flops"] / 1e9)

    def test_who_crashed_gets_a_process_of_its_own(self):
        runner = Runner(self.providers, [], 0.1, 1, 5.0, 1, lambda line: None, FakeWorker)
        runner.run(small())
        self.assertEqual(runner.place("fa2"), "fa2")
        self.assertEqual(runner.place("attnsmith"), "shared")

    def test_what_is_known_to_be_refused_is_not_tried(self):
        entry = fake_document([cases.paged()[1]], ["attnsmith", "cudnn"])["cases"][0]
        self.assertEqual(entry["results"]["cudnn"]["status"], "refused")
        self.assertIn("dense", entry["results"]["cudnn"]["reason"])
        self.assertIsNone(entry["ratio"])

    def test_the_json_the_table_and_the_plots(self):
        chosen = [case for case in cases.prefill() if case.family == "bf16 hd128 16/16 causal"]
        chosen += [case for case in cases.decode() if case.family == "bf16 hd128 32/8 dense"]
        document = json.loads(json.dumps(fake_document(chosen, self.providers)))
        for field in ("schema", "machine", "ceilings", "providers", "cases", "geomeans"):
            self.assertIn(field, document)
        self.assertEqual(document["schema"], "attnsmith.peers/1")
        for entry in document["cases"]:
            self.assertEqual(set(entry["results"]), set(self.providers))
            for result in entry["results"].values():
                if result["status"] == "ok":
                    self.assertLessEqual(result["min_ms"], result["median_ms"])
                    self.assertLessEqual(result["median_ms"], result["max_ms"])
                else:
                    self.assertTrue(result["reason"])
        means = document["geomeans"]
        self.assertAlmostEqual(means["all"]["peers"]["cudnn"]["ratio"], 2.0)
        self.assertAlmostEqual(means["prefill"]["best_peer"], 0.5)
        text = report.text(document)
        for part in ("TFLOP/s", "GB/s", "WRONG", "crashed", "ratio", "geometric mean", "of a copy"):
            self.assertIn(part, text)
        made = plots.charts(document)
        self.assertEqual(sorted(made), ["decode-bf16-hd128-32-8-dense.svg", "prefill-bf16-hd128-16-16-causal.svg"])
        for content in made.values():
            xml.etree.ElementTree.fromstring(content)

    def test_few_queries_are_told_in_bytes_and_who_refuses_all_has_no_column(self):
        chosen = [case for case in cases.speculative() + cases.steps() + cases.decode_mixed() if case.batch >= 32]
        document = fake_document(chosen, ["attnsmith", "cudnn", "fa3"])
        text = report.text(document)
        heads = [line.split("|") for line in text.splitlines() if "| best peer |" in line.replace("  ", " ")]
        self.assertEqual([head[1].strip() for head in heads], ["GB/s", "TFLOP/s", "GB/s"])
        for head in heads:
            self.assertEqual([head[2].strip(), head[3].strip()], ["attnsmith", "fa3"])
        self.assertIn("cudnn, refused: SDPA takes dense tensors, no paged KV", text)
        brief = summary.text(document)
        for case in chosen:
            self.assertIn(case.name, brief)

    def test_what_makes_no_line_is_not_plotted(self):
        chosen = cases.decode_mixed() + cases.speculative() + cases.steps() + cases.decode_small()[:8]
        self.assertEqual(plots.charts(fake_document(chosen, ["attnsmith", "fa3"])), {})

    def test_the_estimate_grows_with_turns(self):
        self.assertLess(estimate_seconds(10, 0.15, 90), estimate_seconds(20, 0.15, 90))
        self.assertLess(estimate_seconds(10, 0.15, 0), estimate_seconds(10, 0.15, 90))

    def test_a_set_of_our_own_has_no_peers(self):
        runner = Runner(self.providers, [], 0.1, 1, 5.0, 1, lambda line: None, FakeWorker, own_sets=["window"])
        self.assertEqual(set(runner.run(cases.window()[0])["results"]), {OURS})
        self.assertEqual(set(runner.run(cases.prefill()[0])["results"]), set(self.providers))
        self.assertEqual(runner.turns_of(cases.window() + cases.prefill()[:2]), 8 + 2 * len(self.providers))

    def test_only_what_has_something_to_do_is_started(self):
        names = ["attnsmith", "fa3", "flashinfer-fa2", "flashmla"]
        for chosen, own, started in ((cases.decode(), [], {"fa3"}), (cases.decode(), ["decode"], set()),
                                     (cases.mla() + cases.steps(), [], {"fa3", "flashinfer-fa2", "flashmla"})):
            runner = Runner(names, names[1:], 0.1, 1, 5.0, 1, lambda line: None, FakeWorker, own_sets=own)
            runner.start(chosen)
            self.assertEqual(set(runner.workers), started | {"shared"})

    def test_each_is_first_last_and_after_each_neighbour_in_turn(self):
        self.assertEqual(turns([], 3), [])
        orders = [turns(["a", "b", "c"], number) for number in range(6)]
        for order in orders:
            self.assertEqual(sorted(order), ["a", "b", "c"])
        for place in (0, 1, 2):
            self.assertEqual(sorted(order[place] for order in orders), ["a", "a", "b", "b", "c", "c"])
        after = [pair for order in orders for pair in zip(order, order[1:])]
        self.assertEqual({after.count(pair) for pair in after}, {2})

    def test_kernels_are_built_once_each_and_a_failure_only_stops_its_own(self):
        chosen = [case for case in cases.prefill() if case.head_dim_qk == 128 and case.dtype == "bf16"]
        FakeWorker.started = 0
        runner = Runner(["attnsmith", "fa4"], ["fa4"], 0.1, 1, 5.0, 2, lambda line: None, FakeWorker)
        runner.build(chosen)
        self.assertEqual(len(runner.unbuilt), 4)  # two kinds of heads and two masks
        self.assertLessEqual(FakeWorker.started, 2)
        self.assertEqual({answer["status"] for answer in runner.unbuilt.values()}, {"failed"})


class Within(unittest.TestCase):
    """A limit on the whole run."""

    def test_without_a_limit_all_measure_as_long_as_asked(self):
        self.assertEqual(Pace(None, 0.15).seconds(1e9, 1000), 0.15)

    def test_what_is_left_is_shared_out(self):
        pace = Pace(100.0, 0.15)
        self.assertEqual(pace.seconds(0.0, 10), 0.15)
        self.assertAlmostEqual(pace.seconds(0.0, 400), 100 / 400 - 0.2)
        self.assertEqual(pace.seconds(0.0, 10000), 0.03)
        self.assertIsNone(pace.seconds(100.0, 1))

    def test_it_learns_what_a_turn_costs_but_not_from_the_first_case(self):
        pace = Pace(100.0, 0.15)
        pace.took(40.0, 2, 0.1)
        self.assertAlmostEqual(pace.seconds(40.0, 200), 60 / 200 - 0.2)
        for _ in range(3):
            pace.took(0.8, 4, 0.1)
        self.assertAlmostEqual(pace.seconds(60.0, 200), 40 / 200 - 0.1)

    def test_a_run_keeps_to_it(self):
        clock, left, pace = 10.0, [4] * 100, Pace(60.0, 0.15)
        measured = []
        while left:
            seconds = pace.seconds(clock, sum(left))
            if seconds is None:
                break
            wall = 4 * (seconds + 0.07)
            pace.took(wall, left.pop(), seconds)
            clock += wall
            measured.append(seconds)
        self.assertEqual(left, [])
        self.assertLess(clock, 60.5)
        self.assertGreater(clock, 55.0)
        self.assertGreater(min(measured[4:]), 0.04)  # from when it knows what a turn costs


class Summary(unittest.TestCase):
    """Made of times that are known."""

    @staticmethod
    def entry(case, **ms):
        results = {name: {"status": "ok", "median_ms": time, "tflops": case.flops / time / 1e9,
                          "tbps": case.bytes / time / 1e9} for name, time in ms.items()}
        best = statistics.best_peer(ms, OURS)
        return {"set": case.set, "name": case.name, "case": case.to_json(), "results": results,
                "best_peer": best[0] if best else None, "ratio": statistics.ratio(ms, OURS)}

    def test_prefill_has_means_over_each_and_the_best_and_names_what_is_below(self):
        chosen = [cases.square("prefill", "bf16", 128, (16, 16), tokens, True) for tokens in (512, 1024)]
        entries = [self.entry(chosen[0], attnsmith=1.0, cudnn=2.0, fa3=0.5),
                   self.entry(chosen[1], attnsmith=1.0, cudnn=2.0, fa3=4.0)]
        text = summary.prefill(entries, [OURS, "cudnn", "fa3"])
        row = next(line for line in text.splitlines() if line.startswith("| all"))
        self.assertEqual([cell.strip() for cell in row.strip("|").split("|")],
                         ["all", "2.000", "1.414", "1.000", "0.50", "1", "2"])
        self.assertIn("bf16 hd128 16/16 causal: 512 0.50 fa3", text)
        self.assertNotIn("1k 2.00", text)

    def test_a_head_dim_is_held_to_a_larger_one_by_work(self):
        at = {case.head_dims: case for case in cases.dims() if case.causal and case.q_len == 4096}
        # 192 times 192/256 is the work of 192; of (192, 128) it is 160/192 and 160/256.
        entries = [self.entry(at["192"], attnsmith=3.0), self.entry(at["256"], attnsmith=4.0),
                   self.entry(at["192/128"], attnsmith=3.0)]
        speeds = {row["kind"]: row["speed"] for row in summary.held(entries)}
        self.assertAlmostEqual(speeds["hd 192 against 256"], 1.0)
        self.assertAlmostEqual(speeds["hd 192/128 against 192"], 160 / 192)
        self.assertAlmostEqual(speeds["hd 192/128 against 256"], 160 / 256 * 4 / 3)

    def test_storage_is_time_over_the_dense_case_for_the_same_work(self):
        dense, window = cases.window()[:2]
        pages = [case for case in cases.paged() if case.kv_len == 1024]
        entries = [self.entry(dense, attnsmith=10.0),
                   self.entry(window, attnsmith=10.0 * window.flops / dense.flops * 1.1)]
        entries += [self.entry(case, attnsmith=1.2 if case.page_size else 1.0) for case in pages]
        rows = {row["kind"]: row for row in summary.held(entries)}
        self.assertAlmostEqual(rows["window 1024"]["extra_time"], 0.1)
        self.assertTrue(rows["window 1024"]["met"])
        self.assertAlmostEqual(rows["pages of 16"]["extra_time"], 0.2)
        self.assertFalse(rows["pages of 16"]["met"])
        self.assertTrue(rows["pages of 1"]["met"])
        text = summary.storage(list(rows.values()))
        self.assertIn("+10.0%", text)
        self.assertIn("Beyond the target:", text)
        self.assertIn("paged by 16 16x1024: +20.0%", text)

    def test_a_case_without_a_time_is_said_and_ends_nothing(self):
        chosen = cases.dims()[:3] + cases.window()[:2] + cases.prefill()[:1] + cases.decode()[:1]
        entries = [self.entry(case, cudnn=1.0) for case in chosen]
        text = summary.text({"cases": entries, "measured": [OURS, "cudnn"], "ceilings": {}, "left_out": ["last"]})
        self.assertIn("Without a time of attnsmith's: 7 cases", text)
        self.assertIn("No time was left for 1 cases, from last on.", text)

    def test_8_bits_are_compared_with_our_own_16_in_the_same_rounds(self):
        at = {case.name: case for case in cases.decode_fp8()}
        chosen = [at["bf16 hd128 32/8 kv e4m3 dense 64x4096"], at["bf16 hd576/512 128/1 kv e4m3 paged by 64 128x4096"],
                  cases.prefill_fp8()[0]]
        entries = [self.entry(chosen[0], **{OURS: 1.0, OURS_BF16: 1.7, "fa3": 1.5}),
                   self.entry(chosen[1], **{OURS: 1.0, OURS_BF16: 0.9}), self.entry(chosen[2], **{OURS: 1.0})]
        rows = summary.over_own_bf16(entries)
        self.assertEqual([(row["speed"], row["target"], row["met"]) for row in rows],
                         [(1.7, 1.75, False), (0.9, 0.85, True), (None, 0.95, None)])
        self.assertEqual([entry["best_peer"] for entry in entries], ["fa3", None, None])
        text = summary.eight_bits(entries[:2], [OURS, OURS_BF16, "fa3"])
        cells = [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")]
        self.assertEqual(cells[1:], ["64000", "1.70", "1.75", "1.50"])
        self.assertIn("dense 64x4096: 1.70", text)
        self.assertIn("least 0.90 of 2 cases, 1 met", text)
        everything = {"cases": entries, "measured": [OURS, OURS_BF16, "fa3"], "ceilings": {}, "left_out": []}
        self.assertIn("prefill-fp8", summary.text(everything))
        self.assertEqual(summary.over_own_bf16([self.entry(cases.decode()[0], **{OURS: 1.0})]), [])

    def test_decode_has_the_share_of_a_copy(self):
        case = cases.decode()[0]
        text = summary.decode([self.entry(case, attnsmith=case.bytes / 1e9, cudnn=2 * case.bytes / 1e9)],
                              [OURS, "cudnn"], 2.0)
        self.assertIn("1000 |", text)
        self.assertIn("50%", text)
        self.assertIn("2.00", text)


class Results(unittest.TestCase):
    """What the repository keeps of runs, and the README's picture of it."""

    def test_the_picture_is_drawn_from_the_committed_results(self):
        drawn = picture.draw(results.pictured(results.load()))
        xml.etree.ElementTree.fromstring(drawn)
        self.assertEqual((REPOSITORY / "docs/peers.svg").read_text(encoding="utf-8"), drawn,
                         "to draw it again: tools/bench/peers.py --publish")

    def test_the_page_has_the_table_of_the_committed_results(self):
        page = (REPOSITORY / "docs/performance.md").read_text(encoding="utf-8")
        self.assertEqual(results.with_table(page, results.table(results.load())), page,
                         "to write it again: tools/bench/peers.py --publish")
        for name, kind in results.load()["work"].items():
            self.assertTrue(kind["date"] and kind["device"] and kind["command"], name)

    def test_the_readme_shows_the_picture_and_has_its_numbers(self):
        readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
        self.assertIn("(docs/peers.svg)", readme)
        for name, kind in results.pictured(results.load())["work"].items():
            best, = (row for row in kind["rows"] if row["over"] == results.BEST)
            lines = [line for line in readme.splitlines() if line.startswith("| %s, relative to " % name)]
            self.assertEqual([[cell.strip() for cell in line.split("|")[2:4]] for line in lines],
                             [["%.2f" % best["ratio"], "`%s`" % kind["command"]]], name)

    def test_a_run_is_condensed_by_kind_of_work(self):
        entry = Summary.entry
        chosen = [cases.square("prefill", "bf16", 128, (16, 16), tokens, True) for tokens in (512, 1024)]
        entries = [entry(chosen[0], attnsmith=1.0, cudnn=2.0, fa3=0.5), entry(chosen[1], attnsmith=1.0, cudnn=8.0),
                   entry(cases.decode()[0], attnsmith=1.0, cudnn=1.5), entry(cases.decode_more()[0], attnsmith=1.0)]
        document = {"started": "2026-01-02T03:04:05Z", "machine": {"device": "Fake"}, "cases": entries,
                    "measured": [OURS, "cudnn", "fa3"],
                    "providers": {name: {"versions": {"torch": "3"}} for name in (OURS, "cudnn", "fa3")}}
        work = results.condense(json.loads(json.dumps(document)))
        self.assertEqual(work["prefill"]["rows"], [{"over": "cudnn", "ratio": 4.0, "least": 2.0, "cases": 2},
                                                   {"over": "fa3", "ratio": 0.5, "least": 0.5, "cases": 1},
                                                   {"over": "best", "ratio": 2.0, "least": 0.5, "cases": 2}])
        self.assertEqual(work["decode"]["rows"], [{"over": "cudnn", "ratio": 1.5, "least": 1.5, "cases": 1},
                                                  {"over": "best", "ratio": 1.5, "least": 1.5, "cases": 1}])
        self.assertEqual((work["decode"]["cases"], work["decode"]["date"]), (2, "2026-01-02"))
        self.assertEqual(work["prefill"]["versions"]["cudnn"], "torch 3")
        xml.etree.ElementTree.fromstring(picture.draw({"work": work}))


class Workers(unittest.TestCase):
    """The process at the other end of the pipe."""

    def start(self, program):
        worker = Worker([sys.executable, "-c", program])
        self.addCleanup(worker.close, at_once=True)
        return worker

    def test_an_answer(self):
        worker = self.start("import sys\nfor line in sys.stdin: print(line, end='', flush=True)")
        self.assertEqual(worker.ask("begin", 20, case=1), {"op": "begin", "case": 1})

    def test_a_crash_is_told_with_its_last_words(self):
        worker = self.start("import sys; sys.stdin.readline(); sys.exit('illegal memory access')")
        with self.assertRaisesRegex(WorkerDied, "illegal memory access") as caught:
            worker.ask("begin", 20)
        self.assertEqual(caught.exception.status, "crashed")

    def test_one_that_ended_before_it_is_asked_does_not_end_the_script(self):
        program = ("import sys\n"
                   "from launches import end_with_reader\n"
                   "from peers.worker import Worker, WorkerDied\n"
                   "def main():\n"
                   "    worker = Worker([sys.executable, '-c', 'raise SystemExit(5)'])\n"
                   "    worker._process.wait()\n"
                   "    try:\n"
                   "        worker.ask('begin', 20)\n"
                   "    except WorkerDied as error:\n"
                   "        print('told:', error)\n"
                   "    return 3\n"
                   "sys.exit(end_with_reader(main))")
        done = subprocess.run([sys.executable, "-c", program], cwd=str(ENTRY.parent), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (3, ""))
        self.assertRegex(done.stdout, "^told: .*ended with 5")

    def test_a_reader_that_stops_early_ends_the_script_without_a_traceback(self):
        script = subprocess.Popen([sys.executable, str(ENTRY), "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        script.stdout.close()
        self.assertEqual(script.stderr.read().decode(), "")
        script.stderr.close()
        self.assertEqual(script.wait(timeout=60), 128 + 13)

    def test_a_signal_is_named(self):
        worker = self.start("import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGSEGV)")
        with self.assertRaisesRegex(WorkerDied, "SIGSEGV"):
            worker.ask("begin", 20)

    def test_a_lost_context_ends_the_worker(self):
        worker = self.start("import sys; sys.stdin.readline(); print('{\"fatal\": \"lost\"}', flush=True); input()")
        with self.assertRaisesRegex(WorkerDied, "lost"):
            worker.ask("add", 20)

    def test_silence_ends_it_and_what_it_started(self):
        with tempfile.TemporaryDirectory() as folder:
            program = ("import os, pathlib, subprocess, sys, time\n"
                       "child = subprocess.Popen(['sleep', '100'], preexec_fn=os.setpgrp)\n"
                       "pathlib.Path(%r).write_text(str(child.pid))\n"
                       "print('{}', flush=True); time.sleep(100)" % (folder + "/pid"))
            worker = self.start(program)
            self.assertEqual(worker.ask("begin", 20), {})
            with self.assertRaises(WorkerDied) as caught:
                worker.ask("add", 0.2)
            self.assertEqual(caught.exception.status, "timeout")
            state = pathlib.Path("/proc") / pathlib.Path(folder + "/pid").read_text() / "stat"

            def ended():  # or dead and not yet collected
                try:
                    return state.read_text().rsplit(")", 1)[1].split()[0] in "ZX"
                except OSError:
                    return True

            deadline = time.monotonic() + 10
            while not ended() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertTrue(ended())


class Svg(unittest.TestCase):
    def chart(self, **more):
        lines = [svg.Line("a & <b>", [(512, 100.0), (16384, 700.0)], "#000000"),
                 svg.Line("c", [(1024, 3.0)], "#111111")]
        return svg.chart("title <1>", "tokens", "TFLOP/s", lines, **more)

    def test_it_is_well_formed_and_has_its_words(self):
        root = xml.etree.ElementTree.fromstring(self.chart(level=svg.Level("copy", 4.2)))
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        said = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        for word in ("title <1>", "tokens", "TFLOP/s", "a & <b>", "c", "512", "16k", "copy"):
            self.assertIn(word, said)
        self.assertEqual(len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))), 2)

    def test_all_points_lie_inside(self):
        root = xml.etree.ElementTree.fromstring(self.chart())
        circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
        self.assertEqual(len(circles), 3)
        for circle in circles:
            self.assertTrue(svg.LEFT <= float(circle.get("cx")) <= svg.WIDTH - svg.RIGHT)
            self.assertTrue(svg.TOP <= float(circle.get("cy")) <= svg.HEIGHT - svg.BOTTOM)

    def test_ticks_are_few_and_round(self):
        for top in (0.03, 1.0, 4.27, 99.0, 700.0, 1171.0):
            step = svg.nice_step(top)
            self.assertTrue(3 <= top / step <= 8, (top, step))


class Command(unittest.TestCase):
    def run_it(self, *arguments):
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        return subprocess.run([sys.executable, str(ENTRY)] + list(arguments), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, env=environment, timeout=120)

    def test_list_needs_no_gpu_and_no_torch(self):
        done = self.run_it("--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        for case in cases.select(list(cases.DEFAULT_SETS), ["bf16", "fp16"], False):
            self.assertIn(case.name, done.stdout)
        for name in PROVIDERS:
            self.assertIn("  " + name, done.stdout)

    def test_without_torch_or_a_gpu_it_says_so(self):
        done = self.run_it("--cases", "decode", "--quick")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "PyTorch|nothing to measure")

    def test_bad_words_are_refused_with_the_good_ones(self):
        for arguments in (("--cases", "prefil"), ("--provider", "fa5"), ("--dtype", "fp8"), ("--seconds", "0")):
            done = self.run_it(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(arguments[1], done.stderr)

    def test_an_alias_is_several_sets(self):
        options = main.parser().parse_args(["--cases", "storage,decode", "--own", "storage"])
        self.assertEqual(options.cases, ["ragged", "paged", "window", "decode"])
        self.assertEqual(options.own, ["ragged", "paged", "window"])

    def test_list_follows_the_selection(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main.main(["--list", "--cases", "decode-more", "--match", "paged by 64", "--provider", "fa3"])
        self.assertEqual(code, 0)
        self.assertNotIn("prefill", out.getvalue())
        self.assertNotIn("dense", out.getvalue())
        self.assertIn("fa3", out.getvalue())


if __name__ == "__main__":
    unittest.main()

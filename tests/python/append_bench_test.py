"""tools/bench/append.py without a GPU: what it counts, what it asks for, and its check of a launch, which needs torch."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import types
import unittest
from unittest import mock

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ENTRY = REPOSITORY / "tools/bench/append.py"
sys.path.insert(0, str(ENTRY.parent))

import append  # noqa: E402

L2 = 50 << 20


class Counting(unittest.TestCase):
    def test_bytes_are_what_a_launch_reads_and_writes(self):
        case = append.Case(64, 32, 8, 128, 16, "e4m3")
        token = 2 * 32 * 128 * 2 + 2 * 8 * 128 * (2 + 1) + 8 + 4 + 128 * 4
        self.assertEqual(case.bytes, 64 * token)
        wide = append.Case(64, 32, 8, 128, 16, "bf16")
        self.assertEqual(wide.bytes - case.bytes, 64 * 2 * 8 * 128)

    def test_copies_are_more_than_twice_l2_or_as_many_as_there_may_be(self):
        for case in append.cases():
            copies = case.copies(L2)
            self.assertTrue(2 * L2 < copies * case.bytes or copies == append.MOST_COPIES, case.name)
            self.assertLess(copies * case.bytes, 12e9, case.name)

    def test_every_sequence_has_as_many_tokens(self):
        for case in append.cases():
            self.assertEqual(case.sequences * case.new_tokens, case.tokens, case.name)
            self.assertGreaterEqual(case.pages_a_sequence * case.page_size, append.HELD_BEFORE + case.new_tokens)

    def test_tensors_are_bound_by_name(self):
        class Kernel:
            def bind_append(self, **tensors):
                return types.SimpleNamespace(launch=tensors)

        inputs = types.SimpleNamespace(parts=lambda: "qkv", case=append.Case(64, 32, 8, 128, 16, "e4m3"), k_cache="k cache",
                                       v_cache="v cache", slots="slots", positions="positions", table="table", scale="scale")
        (bound,) = append.own_calls(Kernel(), [inputs])
        self.assertEqual({name: bound[name] for name in ("q", "k", "v", "k_cache", "v_cache", "q_out")},
                         {"q": "q", "k": "k", "v": "v", "k_cache": "k cache", "v_cache": "v cache", "q_out": "q"})

    def test_cases_are_all_combinations(self):
        every = append.cases()
        self.assertEqual(len(every), len(append.TOKENS) * len(append.HEADS) * len(append.KV))
        self.assertEqual(len({case.name for case in every}), len(every))

    def test_large_ones_are_held_to_the_copy_and_64_tokens_to_a_bare_launch(self):
        large, small, other = (append.Case(tokens, 32, 8, 128, 16, "bf16") for tokens in (8192, 64, 1))
        for own, copied, met in ((100.0, 91.0, True), (100.0, 89.0, False)):
            row = append.row_of(large, 2, {"attnsmith": own, "copy": copied, "bare": 2.0}, {})
            self.assertEqual((row["met"], row["share_of_copy"]), (met, copied / own))
        for own, met in ((3.9, True), (4.1, False)):
            self.assertEqual(append.row_of(small, 64, {"attnsmith": own, "copy": 3.0, "bare": 2.0}, {})["met"], met)
        self.assertIsNone(append.row_of(other, 64, {"attnsmith": 9.0, "copy": 3.0, "bare": 2.0}, {})["met"])

    def test_the_table_has_each_case_and_says_what_went_wrong(self):
        rows = [append.row_of(append.Case(8192, 32, 8, 128, 16, "bf16"), 2,
                              {"attnsmith": 50.0, "copy": 48.0, "bare": 2.0, "flashinfer": 125.0, "warm": 40.0}, {}),
                append.row_of(append.Case(64, 32, 8, 128, 16, "e4m3"), 64, {"copy": 2.5, "bare": 2.0},
                              {"attnsmith": "k: 1% differ"})]
        text = append.table(rows)
        lines = text.splitlines()
        self.assertEqual([cell.strip() for cell in lines[2].strip("|").split("|")],
                         ["32/8 hd128 kv bf16, 8192 tokens", "205.62", "50.00", "4112", "4284", "0.96", "48.00", "40.00",
                          "125.00", "2.50", "-", "-", "met"])
        self.assertIn("attnsmith: k: 1% differ (1 cases", text)


class Command(unittest.TestCase):
    def run_it(self, *arguments):
        return subprocess.run([sys.executable, str(ENTRY), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=120, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))

    def test_list(self):
        done = self.run_it("--list", "--tokens", "64,128", "--heads", "40/8", "--kv", "e4m3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 2)

    def test_without_a_gpu_it_is_skipped(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("skipped", done.stdout)

    def test_bad_words_are_refused(self):
        for arguments in (("--tokens", "0"), ("--tokens", "65"), ("--heads", "32"), ("--heads", "7/2"), ("--kv", "fp4")):
            done = self.run_it(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(arguments[1], done.stderr)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch makes the inputs")
class Checks(unittest.TestCase):
    cases = [append.Case(tokens, 4, 2, 32, 16, kv) for tokens in (1, 8, 192) for kv in append.KV]

    def write(self, inputs):
        """What a launch has to do, token by token."""
        q, k, v = append.expected(inputs, inputs.qkv.clone(), inputs.case.tokens)
        inputs.parts()[0].copy_(q)
        for cache, new in ((inputs.k_cache, k), (inputs.v_cache, v)):
            for token, slot in enumerate(inputs.slots.tolist()):
                cache.view(-1, *cache.shape[2:])[slot].copy_(new[token])

    def test_a_right_launch_is_right_and_wrong_ones_are_not(self):
        import torch

        for case in self.cases:
            every = append.make_inputs(case, 2, "cpu")
            first, second = every
            self.assertIsNone(append.check(first, lambda: self.write(first), True), case.name)
            self.assertIsNone(append.check(second, lambda: self.write(second), False), case.name)
            self.assertRegex(append.check(first, lambda: None, True), "^q: ")

            def without_a_value():
                self.write(first)
                first.v_cache.view(-1, *first.v_cache.shape[2:])[first.slots[-1], 1, 3] = 77.0

            self.assertRegex(append.check(first, without_a_value, True), "^v: ")
            self.assertRegex(append.check(first, without_a_value, False), "^v: ")
            self.assertEqual(first.k_cache.data_ptr(), second.k_cache.data_ptr())
            slots = torch.cat((first.slots, second.slots)).tolist()
            self.assertEqual(len(set(slots)), len(slots))
            self.assertLess(max(slots), first.k_cache.shape[0] * case.page_size)

    def test_flashinfer_has_the_same_tokens_by_its_own_lists(self):
        import torch

        case = append.Case(8, 4, 2, 32, 16, "e4m3")
        every = append.make_inputs(case, 2, "cpu")
        library, inputs = mock.Mock(), every[0]
        append.flashinfer_calls(library, every)[0]()
        _, q, k, head_dim, _ = library.apply_rope_with_cos_sin_cache_inplace.call_args[0]
        self.assertEqual((tuple(q.shape), tuple(k.shape), head_dim), ((8, 4 * 32), (8, 2 * 32), 32))
        self.assertEqual((q.data_ptr(), k.data_ptr()), tuple(part.data_ptr() for part in inputs.parts()[:2]))
        given = library.append_paged_kv_cache.call_args[0]
        self.assertEqual([(part.dtype, tuple(part.shape)) for part in given[:2]], [(torch.float8_e4m3fn, (8, 2, 32))] * 2)
        self.assertTrue(torch.equal(given[1].float(), append.expected(inputs, inputs.qkv, 8)[2].float()))
        for got, wanted in zip(given[2:4] + given[4] + given[5:],
                               (inputs.sequence, inputs.place, inputs.k_cache, inputs.v_cache, inputs.page_indices,
                                inputs.page_indptr, inputs.last_page_len)):
            self.assertIs(got, wanted)
        append.fused_calls(library, every)[1]()
        fused = library.rope.rope_quantize_fp8_append_paged_kv_cache.call_args
        self.assertEqual([tuple(fused[0][at].shape) for at in (0, 1, 4)], [(8, 4, 32), (8, 2, 32), (8, 2, 32)])
        self.assertEqual((fused[1]["quant_scale_kv"], fused[1]["q_rope_out"].dtype), (2.0, torch.float8_e4m3fn))

    def test_lists_of_pages_say_the_same_as_slots(self):
        for case in self.cases:
            for inputs in append.make_inputs(case, 2, "cpu"):
                for token in range(case.tokens):
                    sequence, place = int(inputs.sequence[token]), int(inputs.place[token])
                    page = int(inputs.page_indices[int(inputs.page_indptr[sequence]) + place // case.page_size])
                    self.assertEqual(page * case.page_size + place % case.page_size, int(inputs.slots[token]))
                self.assertEqual(int(inputs.page_indptr[-1]), len(inputs.page_indices))
                held = (case.pages_a_sequence - 1) * case.page_size + int(inputs.last_page_len[0])
                self.assertEqual(held, int(inputs.place.max()) + 1)

    def test_rotation_keeps_lengths_and_turns_by_the_position(self):
        import torch

        table = append.rope_table(32, "cpu")
        x = torch.randn(5, 3, 32)
        positions = torch.tensor([0, 1, 2, 1000, 40000])
        turned = append.rotated(x, table, positions)
        self.assertTrue(torch.equal(turned[0], x[0]))
        self.assertLess(float((turned.norm(dim=-1) - x.norm(dim=-1)).abs().max()), 1e-4)
        angle = torch.tensor(1000.0, dtype=torch.float64)  # of the first pair, whose frequency is 1
        wanted = x[3, :, 0].double() * angle.cos() - x[3, :, 16].double() * angle.sin()
        self.assertLess(float((turned[3, :, 0].double() - wanted).abs().max()), 1e-5)


if __name__ == "__main__":
    unittest.main()

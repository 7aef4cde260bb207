"""tools/bench/scheme_errors.py without a GPU: its schemes, its fp64 attention and its errors, which need torch."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import types
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ENTRY = REPOSITORY / "tools/bench/scheme_errors.py"
sys.path.insert(0, str(ENTRY.parent))

import scheme_errors  # noqa: E402


class Command(unittest.TestCase):
    def run_it(self, *arguments):
        return subprocess.run([sys.executable, str(ENTRY), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=120, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))

    def test_list_needs_no_gpu_and_no_torch(self):
        done = self.run_it("--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        for scheme in scheme_errors.SCHEMES + scheme_errors.LATENT_SCHEMES:
            self.assertIn(scheme_errors.name_of(*scheme), done.stdout)

    def test_without_a_gpu_it_is_skipped(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("skipped", done.stdout)


class Table(unittest.TestCase):
    def test_a_scheme_without_a_word_is_named_once(self):
        rows = {"bf16": {"error": 0.0031, "numbers": 0.0, "why_not": None},
                "e4m3, scale token_head": {"error": None, "numbers": 0.04, "why_not": "no such word"}}
        text = scheme_errors.table("attention", {"normal": rows, "outliers": rows})
        self.assertIn("| bf16 | 0.31% (0%) | 0.31% (0%) |", text)
        self.assertIn("| e4m3, scale token_head | - (4%) | - (4%) |", text)
        self.assertEqual(text.count("no such word"), 1)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch makes the inputs")
class Schemes(unittest.TestCase):
    def setUp(self):
        import torch

        self.torch = torch
        torch.manual_seed(3)

    def test_the_largest_number_that_shares_a_scale_is_the_largest_of_the_dtype(self):
        x = self.torch.randn(2, 5, 3, 16).bfloat16() * self.torch.tensor([1.0, 1e-3, 1e3])[:, None]
        for kv_dtype, largest in scheme_errors.LARGEST.items():
            for kv_scale, shape, axes in (("tensor", (1,), (0, 1, 2, 3)), ("head", (3,), (0, 1, 3)),
                                          ("token_head", (2, 5, 3), (3,))):
                scale = scheme_errors.scales_of(x, kv_dtype, kv_scale)
                self.assertEqual((tuple(scale.shape), scale.dtype), (shape, self.torch.float32))
                stored = scheme_errors.store(x, kv_dtype, scale)
                most = stored.float().abs().amax(dim=axes)
                self.assertTrue(bool((most == largest).all()), (kv_dtype, kv_scale))

    def test_errors_fall_with_finer_scales_and_are_those_of_the_dtype(self):
        x = self.torch.randn(2, 64, 4, 128).bfloat16() * 40.0 ** -self.torch.arange(4.0)[:, None]
        off = {}
        for kv_dtype, kv_scale in scheme_errors.SCHEMES:
            scale = scheme_errors.scales_of(x, kv_dtype, kv_scale)
            numbers = scheme_errors.meant(scheme_errors.store(x, kv_dtype, scale), scale)
            off[kv_dtype, kv_scale] = scheme_errors.relative(numbers, x.double())
        self.assertEqual(off["bf16", "none"], 0)
        self.assertLess(off["e4m3", "head"], off["e4m3", "tensor"])
        for kv_dtype, step in (("e4m3", 2.0 ** -4), ("e5m2", 2.0 ** -3)):
            self.assertTrue(0.2 * step < off[kv_dtype, "token_head"] < 0.6 * step, off)

    def test_blocks_of_latents_have_a_scale_each_and_the_position_none(self):
        columns = scheme_errors.CKV + scheme_errors.KPE
        latents = self.torch.randn(1, 7, 1, columns).bfloat16()
        latents[..., :scheme_errors.BLOCK] *= 2.0 ** -14
        numbers = scheme_errors.in_blocks(latents)
        self.assertTrue(self.torch.equal(numbers[..., scheme_errors.CKV:], latents[..., scheme_errors.CKV:].double()))
        for block in range(0, scheme_errors.CKV, scheme_errors.BLOCK):
            part = slice(block, block + scheme_errors.BLOCK)
            off = (numbers[..., part] - latents[..., part].double()).norm() / latents[..., part].double().norm()
            self.assertTrue(0.01 < float(off) < 0.04, block)

    def test_rows_of_blocks_are_656_bytes_of_three_views(self):
        latents = self.torch.randn(2, 5, 1, scheme_errors.CKV + scheme_errors.KPE).bfloat16()
        stored, scale, kpe = scheme_errors.rows_of_blocks(latents)
        self.assertEqual([tuple(view.shape) for view in (stored, scale, kpe)], [(2, 5, 1, 512), (2, 5, 1, 4), (2, 5, 1, 64)])
        self.assertEqual([view.stride(1) * view.element_size() for view in (stored, scale, kpe)], 3 * [656])
        self.assertEqual(scale.data_ptr() - stored.data_ptr(), 512)
        self.assertEqual(kpe.data_ptr() - stored.data_ptr(), 528)
        blocks = stored.double().unflatten(-1, (4, 128)) * scale.double()[..., None]
        numbers = self.torch.cat((blocks.flatten(-2), kpe.double()), -1)
        self.assertTrue(self.torch.equal(numbers, scheme_errors.in_blocks(latents)))

    def test_attention_is_that_of_each_query_alone(self):
        q, k, v = (self.torch.randn(2, tokens, heads, 16).double() for tokens, heads in ((3, 4), (9, 2), (9, 2)))
        found = scheme_errors.attention(q, k, v, 0.3)
        for b in range(2):
            for i in range(3):
                for head in range(4):
                    last = 9 - 3 + i + 1
                    weights = self.torch.softmax(k[b, :last, head // 2] @ q[b, i, head] * 0.3, 0)
                    off = (found[b, i, head] - weights @ v[b, :last, head // 2]).abs().max()
                    self.assertLess(float(off), 1e-12)

    def test_a_head_of_small_values_counts_as_much_as_one_of_large_ones(self):
        wanted = self.torch.ones(1, 1, 2, 4).double()
        wanted[:, :, 1] *= 1e-3
        found = wanted.clone()
        found[:, :, 1] *= 1.1
        self.assertAlmostEqual(scheme_errors.relative(found, wanted), 0.1 / 2 ** 0.5)

    def test_a_peer_has_a_descale_of_each_sequence_and_head(self):
        seen = {}

        def flash_attn_func(q, k, v, **options):
            seen.update(options, q=q, k=k)
            return "out", "lse"

        tensors = [self.torch.randn(scheme_errors.BATCH, 8, heads, 16).bfloat16()
                   for heads in (scheme_errors.Q_HEADS, scheme_errors.KV_HEADS, scheme_errors.KV_HEADS)]
        out, numbers = scheme_errors.peer(types.SimpleNamespace(flash_attn_func=flash_attn_func), *tensors, "head")
        self.assertEqual((out, seen["q"].dtype), ("out", self.torch.float8_e4m3fn))
        for name in ("q_descale", "k_descale", "v_descale"):
            self.assertEqual(tuple(seen[name].shape), (scheme_errors.BATCH, scheme_errors.KV_HEADS))
        self.assertTrue(self.torch.equal(numbers[1], seen["k"].double() * seen["k_descale"].double()[:, None, :, None]))

    def test_outliers_are_where_every_query_sees_them(self):
        for inputs in scheme_errors.INPUTS:
            generator = self.torch.Generator().manual_seed(1)
            k, v = self.torch.ones(1, scheme_errors.QUERIES + 50, 8, 128), self.torch.ones(1, scheme_errors.QUERIES + 50, 8, 128)
            scheme_errors.spread(inputs, k, v, generator)
            self.assertEqual(bool((k == 1).all()), inputs == "normal")
            large = (v > 1).any(-1).any(-1)[0].nonzero().flatten().tolist()
            self.assertEqual(len(large), scheme_errors.TOKENS if "tokens" in inputs or "both" in inputs else 0)
            self.assertTrue(all(token < 50 for token in large), inputs)


if __name__ == "__main__":
    unittest.main()

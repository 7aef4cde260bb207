"""Programs for which `python -m attnsmith.compat.flash_attn` puts attnsmith in the place of flash_attn, on the GPU."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from gpu_support import GpuTest, reference, torch

import attnsmith

if torch is not None:
    import attnsmith.compat.flash_attn.flash_attn_3 as fa3
    from attnsmith.compat.flash_attn.layers.rotary import RotaryEmbedding

# What both programs begin with: the calls of attnsmith's functions are counted.
START = """
import json, sys
import torch
sys.path.append(sys.argv[1])
import attnsmith.functions
import attnsmith.compat.flash_attn.flash_attn_interface  # which reads the functions as they are
calls = []
for name in ("attention", "varlen_attention", "paged_attention"):
    def counted(*arguments, _name=name, _function=getattr(attnsmith.functions, name), **words):
        calls.append(_name)
        return _function(*arguments, **words)
    setattr(attnsmith.functions, name, counted)
torch.manual_seed(0)
"""

# For each architecture the errors of logits in bf16, eager and by flash_attention_2, and the calls.
TRANSFORMERS = START + """
import transformers
from models import ARCHITECTURES, model_of
told = {}
for architecture in ARCHITECTURES:
    model = model_of(architecture, "small", torch.bfloat16, "cuda")
    exact = model_of(architecture, "small", torch.float32, "cuda")
    exact.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    tokens = torch.randint(1, 1000, (3, 90), device="cuda")
    padded = torch.ones_like(tokens)
    padded[1, :20] = padded[2, :71] = 0
    told[architecture] = {}
    for kind, mask in (("padded", padded), ("whole", None)):
        seen = padded.bool() if mask is not None else torch.ones_like(padded).bool()
        with torch.no_grad():
            wanted = exact(tokens, attention_mask=mask).logits[seen]
            model.set_attn_implementation("eager")
            eager = (model(tokens, attention_mask=mask).logits[seen] - wanted).abs().max().item()
            try:
                model.set_attn_implementation("flash_attention_2")
                calls.clear()
                flash = (model(tokens, attention_mask=mask).logits[seen] - wanted).abs().max().item()
            except (ImportError, KeyError, ValueError) as error:  # of a kernel of the hub that is not there, or was not before
                told[architecture][kind] = str(error)
                continue
        told[architecture][kind] = [eager, flash, sorted(set(calls)), len(calls)]
print(json.dumps(told))
"""

DIFFUSERS = START + """
from diffusers import FluxTransformer2DModel, WanTransformer3DModel
def run(model, **inputs):
    model = model.to("cuda", torch.bfloat16).eval()
    results = []
    for backend in ("_native_math", "flash"):
        model.set_attention_backend(backend)
        calls.clear()
        with torch.no_grad():
            results.append(model(**inputs, return_dict=False)[0].float())
    return [(results[1] - results[0]).abs().max().item(), results[0].abs().max().item(), len(calls)]
r = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
flux = FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
                              num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))
wan = WanTransformer3DModel(patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4,
                            text_dim=32, freq_dim=64, ffn_dim=32, num_layers=2, rope_max_seq_len=32)
print(json.dumps({
    "Flux": run(flux, hidden_states=r(2, 16, 4), encoder_hidden_states=r(2, 7, 32), pooled_projections=r(2, 32),
                timestep=torch.tensor([1, 1], device="cuda"), img_ids=torch.zeros(16, 3, device="cuda"),
                txt_ids=torch.zeros(7, 3, device="cuda")),
    "Wan": run(wan, hidden_states=r(1, 4, 2, 16, 16), encoder_hidden_states=r(1, 12, 32),
               timestep=torch.tensor([1], device="cuda"))}))
"""


class Programs(GpuTest):
    def run_program(self, package, program):
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")
        paths = [str(pathlib.Path(attnsmith.__file__).resolve().parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        done = subprocess.run([sys.executable, "-m", "attnsmith.compat.flash_attn", "--replace", "-c", program,
                               str(pathlib.Path(__file__).resolve().parent)],
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}, capture_output=True, text=True,
                              timeout=900)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_transformers(self):
        served = 0
        for architecture, kinds in self.run_program("transformers", TRANSFORMERS).items():
            for kind, told in kinds.items():
                with self.subTest(architecture, kind=kind):
                    if isinstance(told, str):
                        self.assertEqual(architecture, "GptOss", told)  # whose class lists the kernels that it takes
                        continue
                    eager, flash, functions, calls = told
                    self.assertLessEqual(flash, 2 * eager)
                    self.assertEqual((functions, calls), (["varlen_attention" if kind == "padded" else "attention"], 2))
                    served += 1
        self.assertGreaterEqual(served, 10)

    def test_diffusers(self):
        for name, (error, largest, calls) in self.run_program("diffusers", DIFFUSERS).items():
            with self.subTest(name):
                self.assertLessEqual(error, 0.05 * largest)
                self.assertGreater(calls, 0)


class Calls(GpuTest):
    def test_flash_attention_3_with_a_window(self):
        """As nanochat calls it."""
        q, k, v = self.randn(2, 40, 6, 128), self.randn(2, 40, 2, 128), self.randn(2, 40, 2, 128)
        out = fa3.flash_attn_func(q, k, v, causal=True, window_size=(12, 0))
        self.assert_near(out, torch.stack([reference(*one, causal=True, window=(12, None))[0] for one in zip(q, k, v)]))
        k_cache, v_cache = self.randn(2, 64, 2, 128), self.randn(2, 64, 2, 128)
        lens = torch.tensor([40, 40], dtype=torch.int32, device="cuda")
        step = self.randn(2, 1, 6, 128), self.randn(2, 1, 2, 128), self.randn(2, 1, 2, 128)
        out = fa3.flash_attn_with_kvcache(step[0], k_cache, v_cache, k=step[1], v=step[2], cache_seqlens=lens, causal=True,
                                          window_size=(12, 0))
        self.assertTrue(torch.equal(k_cache[:, 40], step[1][:, 0]))
        self.assert_near(out, torch.stack([reference(q, k[:41], v[:41], causal=True, window=(12, None))[0]
                                           for q, k, v in zip(step[0], k_cache, v_cache)]))

    def test_rotary_embeddings(self):
        module = RotaryEmbedding(64, device="cuda")
        qkv = self.randn(2, 9, 3, 4, 64)
        angles = torch.outer(torch.arange(9.0, device="cuda"), 10000.0 ** (-torch.arange(0, 64, 2, device="cuda") / 64))
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        halves = [torch.complex(*x.float().chunk(2, -1)) * turn for x in qkv[:, :, :2].unbind(2)]
        wanted = torch.stack([torch.cat((one.real, one.imag), -1) for one in halves], 2)
        got = module(qkv.clone())
        self.assert_near(got[:, :, :2], wanted.double())
        self.assertTrue(torch.equal(got[:, :, 2], qkv[:, :, 2]))


if __name__ == "__main__":
    unittest.main()

"""`attnsmith prewarm --engine vllm` against what vLLM's backend asks for: its requests as they are recorded, and those that
this package's functions make of tensors that lie in memory as vLLM's do. Nothing is compiled: every kernel is missing.
"""

import json
import os
import subprocess
import unittest

from support import COMMAND, FAKE_CUDA, MODELS, PythonTest, attnsmith

SIZES = ("batch", "q_len", "kv_len", "sm")
PAGED = {"kv": "paged", "page_order": "HND", "page_size": 16, "index_dtype": "int32"}
BERT = {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
        "torch_dtype": "float16"}
WHISPER = {"model_type": "whisper", "d_model": 512, "decoder_layers": 6, "decoder_attention_heads": 8,
           "is_encoder_decoder": True, "torch_dtype": "float16"}


def stored(kv_dtype):
    """K or V of a dtype, with the scale that the backend gives for one of 8 bits."""
    return {"kv_dtype": kv_dtype, "kv_scale": "tensor"} if kv_dtype else {}


def decoder(head_dim, q_heads, kv_heads, kv_dtype=None, page_size=16, windows=(None,), consistency="standard", **words):
    """The requests of a decoder's layers, one for each window of keys before the query's own, and their cache write."""
    cache = {**PAGED, "page_size": page_size, **stored(kv_dtype)}
    heads = {"dtype": "bf16", "head_dim": head_dim, "kv_heads": kv_heads, **cache}
    attentions = [{"op": "attention", "q_heads": q_heads, "mask": "causal", "consistency": consistency, **heads, **words,
                   **({} if window is None else {"window_left": window})} for window in windows]
    return [*attentions, {"op": "append", "slots": "mapping", "q_heads": kv_heads, **heads}]


def latents(q_heads, scale, kv_dtype=None, page_size=16):
    """The requests of DeepSeek-V3. A prefill attends to its own tokens, with the log-sum-exp where there is a context; then
    to chunks of the context. vLLM merges them."""
    cache = {"head_dim_ckv": 512, "head_dim_kpe": 64, "kv": "paged", "page_size": page_size, **stored(kv_dtype)}
    prefill = {"op": "attention", "dtype": "bf16", "head_dim_qk": 192, "head_dim_vo": 128, "q_heads": q_heads, "kv": "ragged",
               "scale": scale}
    return [{"op": "mla", "dtype": "bf16", "q_heads": q_heads, "mask": "causal", "scale": scale, **cache},
            {"op": "append", "dtype": "bf16", "slots": "mapping", "q_heads": 1, **cache},
            *[{**prefill, "mask": "causal", "lse": lse} for lse in (False, True)],
            {**prefill, "mask": "full", "lse": True}]


def crossed():
    """Whisper's decoder: its own keys, and the encoder's without a mask."""
    own, append = [{**request, "dtype": "fp16"} for request in decoder(64, 8, 8)]
    return [own, {**own, "mask": "full"}, append]


DEEPSEEK_SCALE = 0.1352337788608801  # with YaRN's factor
ENCODER = {"op": "attention", "dtype": "fp16", "head_dim": 64, "q_heads": 12, "kv": "ragged", "mask": "full"}
# A model, the flags after --engine vllm, and what vLLM asks for with the same options of its own.
CASES = {
    "llama": ("llama-3.1-8b.json", [], decoder(128, 32, 8)),
    "llama on 8 GPUs": ("llama-3.1-70b.json", ["--tensor-parallel", "8"], decoder(128, 8, 1)),
    "llama, fp8": ("llama-3.1-8b.json", ["--kv-dtype", "fp8", "--page-size", "32"], decoder(128, 32, 8, "e4m3", 32)),
    "llama, e5m2": ("llama-3.1-8b.json", ["--kv-dtype", "fp8_e5m2"], decoder(128, 32, 8, "e5m2")),
    "llama, batch-invariant": ("llama-3.1-8b.json", ["--consistency", "bitwise", "--kv-dtype", "auto"],
                               decoder(128, 32, 8, consistency="bitwise")),
    "gpt-oss": ("gpt-oss-20b.json", [], decoder(64, 64, 8, windows=(127, None), sink=True)),
    "gemma-2": ("gemma-2-9b.json", [], decoder(256, 16, 8, windows=(4095, None), softcap=50.0, scale=0.0625)),
    "deepseek": ("deepseek-v3.json", ["--tensor-parallel", "8"], latents(16, DEEPSEEK_SCALE)),
    "deepseek, fp8": ("deepseek-v3.json", ["--kv-dtype", "fp8", "--page-size", "64"],
                      latents(128, DEEPSEEK_SCALE, "e4m3", 64)),
    "bert": (BERT, [], [ENCODER]),
    "bert, fp8": (BERT, ["--kv-dtype", "fp8"], [ENCODER]),
    "whisper's decoder": (WHISPER, ["--allow-unsupported"], crossed()),
}


@unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA is not set")
class EngineTest(PythonTest):
    def setUp(self):
        super().setUp()
        os.environ["FAKE_CUDA_SM"] = "90"
        self.file = self.folder / "recorded.jsonl"
        self.rt = self.runtime(driver_path=FAKE_CUDA, nvrtc_path="/nowhere", on_miss="error", record_file=self.file)
        attnsmith.set_default_runtime(self.rt)
        self.addCleanup(attnsmith.set_default_runtime, None)

    def command(self, *words):
        done = subprocess.run([COMMAND, *map(str, words), "--sm", "90", "--cache", str(self.folder / "none"), "--json"],
                              capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def model(self, config):
        if isinstance(config, str):
            return MODELS / config
        file = self.folder / "config.json"
        file.write_text(json.dumps(config))
        return file

    def keys(self, *words):
        return {kernel["key"] for kernel in self.command("prewarm", *words, "--dry-run")["kernels"]}

    def asks(self, function, *arguments, **words):
        """The call gets as far as its kernel, which is not there."""
        with self.assertRaises(attnsmith.KernelMissing):
            function(*arguments, **words)

    def recorded(self):
        return [json.loads(line)["request"] for line in self.file.read_text().splitlines()]


class Prepared(EngineTest):
    def test_keys_are_those_of_what_is_recorded(self):
        for name, (config, flags, requests) in CASES.items():
            with self.subTest(name):
                self.file.unlink(missing_ok=True)
                self.rt = self.runtime(driver_path=FAKE_CUDA, nvrtc_path="/nowhere", on_miss="error",
                                       record_file=self.file)
                attnsmith.set_default_runtime(self.rt)
                for request in requests:
                    self.asks(attnsmith.default_runtime().prepare, **request)
                self.assertEqual(len(self.recorded()), len(requests))
                recorded = self.keys("--recorded", self.file)
                self.assertEqual(self.keys("--model", self.model(config), "--engine", "vllm", *flags), recorded)
                self.assertGreater(len(recorded), 2)

    def test_fields_that_no_kernel_depends_on(self):
        """One request is enough where a program asks for several that differ in these."""
        _, _, (attention, append) = CASES["llama, fp8"]
        _, _, (_, latent_append, prefill, _, context) = CASES["deepseek, fp8"]
        for request, changes in ((attention, [{"page_order": "NHD"}, {"lse": True}, {"kv_scale": "none"}]),
                                 (append, [{"page_order": "NHD"}, {"kv_scale": "none"}, {"page_size": 64}, {"q_heads": 32}]),
                                 (latent_append, [{"page_size": 16}, {"q_heads": 128}]),
                                 (prefill, [{"lse": True}]), (context, [{"lse": False}])):
            words = [f"--{name.replace('_', '-')}={json.dumps(value).strip(chr(34))}" for name, value in request.items()]
            keys = self.keys(*words)
            for change in changes:
                with self.subTest(op=request["op"], **change):
                    (name, value), = change.items()
                    flag = f"--{name.replace('_', '-')}"
                    others = [word for word in words if not word.startswith(f"{flag}=")]
                    self.assertEqual(self.keys(*others, f"{flag}={json.dumps(value).strip(chr(34))}"), keys)


class Called(EngineTest):
    """With tensors that lie in memory as vLLM's do."""

    def array(self, *shape, dtype="bf16"):
        item_bytes = {"bf16": 2, "fp16": 2, "fp32": 4, "int32": 4, "int64": 8, "uint8": 1}[dtype]
        count = item_bytes
        for extent in shape:
            count *= extent
        return self.rt.allocate(count).array(shape, dtype)

    def part(self, array, first, *shape):
        """The columns of the last axis from `first` on, with this shape in the place of that axis."""
        item_bytes = {"bf16": 2, "fp16": 2, "uint8": 1}[array.dtype]
        strides = attnsmith._tensors.views.compact_strides(shape)
        view = (array.data + first * item_bytes, (*array.shape[:-1], *shape), (*array.strides[:-1], *strides),
                *array._view[3:])
        return attnsmith.Array(view, array._buffer)

    def scales(self, kv_dtype, *names):
        if kv_dtype is None:
            return {}
        return {"kv_dtype": kv_dtype, **{name: self.array(1, dtype="fp32") for name in names}}

    def batch(self):
        """Two sequences of four tokens in all, in up to four pages each."""
        return {"page_table": self.array(2, 4, dtype="int32"), "kv_lens": self.array(2, dtype="int32"),
                "q_indptr": self.array(3, dtype="int32"), "max_q_len": 4, "max_kv_len": 64}

    def serve(self, head_dim, q_heads, kv_heads, kv_dtype=None, page_size=16, dtype="bf16", windows=(None,), sinks=False,
              **words):
        """A step of each layer: k and v go to the cache, then q attends to it."""
        fused = self.array(4, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype)
        q = self.part(fused, 0, q_heads, head_dim)
        k, v = (self.part(fused, heads * head_dim, kv_heads, head_dim) for heads in (q_heads, q_heads + kv_heads))
        pages = self.array(8, kv_heads, page_size, 2 * head_dim, dtype="uint8" if kv_dtype else dtype)
        cache = self.part(pages, 0, head_dim), self.part(pages, head_dim, head_dim)
        scales = self.scales(kv_dtype, "k_scale", "v_scale")
        self.asks(attnsmith.append, k, v, *cache, slot_mapping=self.array(4, dtype="int64"), page_order="HND", **scales)
        more = {"sinks": self.array(q_heads, dtype="fp32")} if sinks else {}
        for window in windows:
            self.asks(attnsmith.paged_attention, q, cache, **self.batch(), page_order="HND", causal=True, window=window,
                      out=self.array(4, q_heads, head_dim, dtype=dtype), **scales, **more, **words)

    def serve_latents(self, heads, scale, kv_dtype=None, page_size=16):
        pages = self.array(8, page_size, 576, dtype="uint8" if kv_dtype else "bf16")
        scales = self.scales(kv_dtype, "k_scale")
        fused = self.array(4, 1536 + 512 + 64)
        self.asks(attnsmith.append, self.array(4, 512), kpe=self.part(fused, 2048, 1, 64), k_cache=pages,
                  head_dim_ckv=512, slot_mapping=self.array(4, dtype="int64"), page_order="NHD", **scales)
        self.asks(attnsmith.mla_attention, self.array(4, heads, 512), pages, **self.batch(),
                  q_pe=self.array(4, heads, 64), causal=True, scale=scale, **scales)
        q, k = (self.array(4, heads, 192) for _ in "qk")
        v = self.part(self.array(4, heads, 256), 128, 128)
        indptr = self.array(3, dtype="int32")
        for lse in (False, True):
            self.asks(attnsmith.varlen_attention, q, k, v, indptr, indptr, causal=True, scale=scale, return_lse=lse)
        self.asks(attnsmith.varlen_attention, q, k, v, indptr, indptr, scale=scale, return_lse=True)

    def check_requests(self, case):
        """What was asked for is what the command lists of the model, field by field, and it has the same kernels."""
        config, flags, _ = CASES[case]
        asked = ("--model", self.model(config), "--engine", "vllm", *flags)
        plans = self.command("plan", *asked)["plans"]

        def of_spec(request):
            return json.dumps({name: value for name, value in request.items() if name not in SIZES}, sort_keys=True)

        listed = {of_spec(plan["request"]) for plan in plans}
        called = {of_spec(request) for request in self.recorded()}
        self.assertLessEqual(listed, called)
        without_lse = {of_spec({**json.loads(request), "lse": True}) for request in called - listed}
        self.assertLessEqual(without_lse, called, "nothing but the log-sum-exp may differ")
        self.assertEqual(self.keys(*asked), self.keys("--recorded", self.file))

    def test_a_decoder(self):
        self.serve(128, 32, 8)
        self.check_requests("llama")

    def test_a_cache_of_8_bits(self):
        self.serve(128, 32, 8, "e4m3", 32)
        self.check_requests("llama, fp8")

    def test_the_same_bits_in_any_batch(self):
        self.serve(128, 32, 8, consistency="bitwise")
        self.check_requests("llama, batch-invariant")

    def test_windows_and_sinks(self):
        self.serve(64, 64, 8, windows=(None, (127, 0)), sinks=True)
        self.check_requests("gpt-oss")

    def test_a_softcap(self):
        self.serve(256, 16, 8, windows=((4095, 0), None), softcap=50.0, scale=0.0625)
        self.check_requests("gemma-2")

    def test_latents(self):
        self.serve_latents(16, DEEPSEEK_SCALE)
        self.check_requests("deepseek")

    def test_latents_of_8_bits(self):
        self.serve_latents(128, DEEPSEEK_SCALE, "e4m3", 64)
        self.check_requests("deepseek, fp8")

    def test_an_encoder(self):
        q, k, v = (self.array(4, 12, 64, dtype="fp16") for _ in "qkv")
        indptr = self.array(3, dtype="int32")
        self.asks(attnsmith.varlen_attention, q, k, v, indptr, indptr)
        self.check_requests("bert")


if __name__ == "__main__":
    unittest.main()

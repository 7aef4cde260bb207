"""Models of transformers on the GPU by attnsmith: logits beside fp32 eager's, greedy tokens in every kind of generation, and
a model that SDPA serves after attnsmith.torch.activate()."""

import copy
import importlib.util
import itertools
import unittest

from gpu_support import DEVICE, GpuTest, torch

import attnsmith

try:
    import transformers
    from models import ARCHITECTURES, model_of
except ImportError:
    transformers = None
    ARCHITECTURES = {}

STEPS = 64
PROMPT = 40


class ModelTest(GpuTest):
    """What tests of models share. It has none itself."""

    def setUp(self):
        super().setUp()
        if transformers is None:
            self.skipTest("transformers is not installed")
        import attnsmith.transformers
        self.adapter = attnsmith.transformers
        self.adapter.register(strict=True)
        self.addCleanup(self.adapter.register)
        self.addCleanup(torch._dynamo.reset)

    def models(self, architecture):
        """In bf16, which attnsmith serves, and the fp32 model of the same weights, rounded to bf16."""
        model = model_of(architecture, "small", torch.bfloat16, DEVICE)
        exact = model_of(architecture, "small", torch.float32, DEVICE)
        exact.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
        return model, exact

    def prompts(self, batch=1, length=None):
        return torch.randint(1, 1000, (batch, length or PROMPT), generator=torch.Generator().manual_seed(batch)).to(DEVICE)

    def wanted(self, model, exact, prompts, mask=None):
        """The greedy tokens of fp32 eager [batch, STEPS] and their logits; the largest error of bf16 eager's logits on the
        same tokens; and which steps are decided: whose two highest logits differ by more than four such errors."""
        given = exact.generate(prompts, attention_mask=torch.ones_like(prompts) if mask is None else mask, max_new_tokens=STEPS,
                               do_sample=False, output_logits=True, return_dict_in_generate=True, disable_compile=True)
        logits = torch.stack(given.logits, 1)
        tokens = given.sequences[:, prompts.shape[1]:]
        model.set_attn_implementation("eager")
        error = (self.logits_of(model, prompts, tokens, mask) - logits).abs().max().item()
        highest = logits.topk(2, -1).values
        decided = highest[..., 0] - highest[..., 1] > 4 * error
        return tokens, logits, error, decided

    def logits_of(self, model, prompts, tokens, mask=None, cache=None, step=None):
        """The logits at each of `tokens`, which are given step by step where there is a cache."""
        mask = torch.ones_like(prompts) if mask is None else mask
        whole = torch.cat([mask, torch.ones_like(tokens)], 1)
        if cache is None:
            positions = (whole.cumsum(-1) - 1).clamp(min=0)
            sequence = torch.cat([prompts, tokens], 1)
            out = model(sequence, attention_mask=whole, position_ids=positions, use_cache=False)
            return out.logits[:, prompts.shape[1] - 1:-1].float()
        step = step if step is not None else model  # a compiled one has no truth value
        logits = [model(prompts, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
                        past_key_values=cache).logits[:, -1]]
        static = isinstance(cache, transformers.StaticCache)
        for i in range(tokens.shape[1] - 1):
            seen = whole[:, :prompts.shape[1] + i + 1]
            if static:
                seen = torch.nn.functional.pad(seen, (0, prompts.shape[1] + STEPS - seen.shape[1]))
            logits.append(step(tokens[:, i:i + 1], attention_mask=seen, past_key_values=cache,
                               position_ids=seen.sum(-1, keepdim=True) - 1).logits[:, -1].clone())
        return torch.stack(logits, 1).float()

    def assert_follows(self, logits, wanted, what):
        tokens, exact, error, decided = wanted
        self.assertLessEqual((logits - exact).abs().max().item(), 2 * error, what)
        self.assertTrue(torch.equal(logits.argmax(-1)[decided], tokens[decided]), f"{what}: other tokens")

    def assert_starts(self, got, tokens, decided):
        for row, wanted, sure in zip(got, tokens, decided):
            first = int((~sure).int().argmax()) if not sure.all() else len(sure)
            self.assertEqual(row[:first].tolist(), wanted[:first].tolist())


class OfArchitecture:
    """The tests that every architecture has, in a class each, so that processes can share them."""

    architecture = ""

    def test_logits_and_tokens(self):
        model, exact = self.models(self.architecture)
        for batch in (1, 4):
            prompts = self.prompts(batch)
            mask = torch.ones_like(prompts)
            for row in range(1, batch):  # padded on the left
                mask[row, :7 * row] = 0
            wanted = self.wanted(model, exact, prompts, mask)
            print(f"{self.architecture}, batch {batch}: {wanted[3].float().mean():.0%} of steps are decided; "
                  f"bf16 eager's largest error is {wanted[2]:.3g}")
            model.set_attn_implementation("attnsmith")
            length = PROMPT + STEPS
            caches = {"no cache": None, "dynamic": transformers.DynamicCache(config=model.config),
                      "static": transformers.StaticCache(config=model.config, max_cache_len=length)}
            for name, cache in caches.items():
                with self.subTest(batch=batch, cache=name):
                    self.assert_follows(self.logits_of(model, prompts, wanted[0], mask, cache), wanted, name)
            for mode in ("default", "reduce-overhead"):
                with self.subTest(batch=batch, compiled=mode):
                    torch._dynamo.reset()
                    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
                    step = torch.compile(model, mode=mode, fullgraph=True)
                    self.assert_follows(self.logits_of(model, prompts, wanted[0], mask, cache, step), wanted, mode)
        self.assertEqual(self.adapter.report()["passed_on"], [])

    def test_generate(self):
        """Tokens are those of fp32 eager up to the first step that is not decided."""
        model, exact = self.models(self.architecture)
        prompts = self.prompts(3)
        tokens, _, _, decided = self.wanted(model, exact, prompts)
        model.set_attn_implementation("attnsmith")
        for name, options in {"dynamic": {}, "static": {"cache_implementation": "static"}}.items():
            with self.subTest(cache=name):
                got = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=STEPS, do_sample=False,
                                     **options)
                self.assert_starts(got[:, PROMPT:], tokens, decided)

    def test_continuous_batching(self):
        if self.architecture == "DeepseekV3":
            self.skipTest("transformers' pages do not have its head dims")
        model, exact = self.models(self.architecture)
        prompts = self.prompts(5)
        tokens, _, _, decided = self.wanted(model, exact, prompts)
        names = ["attnsmith"]
        if self.architecture in ("Llama", "Qwen3") and importlib.util.find_spec("kernels"):
            names.append(self.adapter.FLASH3)
        for name, graphs in itertools.product(names, (False, True)):
            with self.subTest(name=name, graphs=graphs):
                model.set_attn_implementation(name)
                got = model.generate_batch(
                    prompts.tolist(), progress_bar=False,
                    generation_config=transformers.GenerationConfig(max_new_tokens=STEPS, do_sample=False, pad_token_id=0),
                    # Little memory, since other tests may run beside. On a busy GPU transformers' asynchronous batching now
                    # and then gives zeros or other tokens, with FlashAttention-3's functions as well.
                    continuous_batching_config=transformers.ContinuousBatchingConfig(
                        use_cuda_graph=graphs, max_memory_percent=0.02, use_async_batching=False))
                self.assertEqual([given.error for given in got.values() if given.error], [])
                rows = [given.generated_tokens for given in got.values()]
                self.assert_starts(torch.tensor(rows, device=DEVICE), tokens, decided)


for _architecture in ARCHITECTURES:
    globals()[_architecture] = type(_architecture, (OfArchitecture, ModelTest),
                                    {"architecture": _architecture, "__module__": __name__})


class Transformers(ModelTest):
    def test_rows_of_one_key(self):
        """The memory of a single key may lie in any way, and that of keys in another than that of values."""
        from attnsmith._adapters import spans as _spans
        q, k, v = self.randn(3, 4, 1, 64), self.randn(3, 2, 1, 64), self.randn(3, 1, 2, 64).transpose(1, 2)
        spans = torch.tensor([[0, 0, 1, 0, 1], [1, 0, 1, 0, 1], [2, 0, 0, 0, 0]], dtype=torch.int32)
        for numbers in (spans.to(DEVICE), _spans.on_device(spans, DEVICE)):
            o = _spans.attend_spans(q, k, v, numbers, causal=True, window=None, scale=None, softcap=None, sinks=None)
            self.assertTrue(torch.equal(o[:2, 0], v[:2, :, 0].repeat_interleave(2, 1)))
            self.assertEqual(o[2].abs().max(), 0)

    def test_packed_sequences(self):
        for architecture in ("Llama", "Mistral", "Gemma2"):
            with self.subTest(architecture):
                model, exact = self.models(architecture)
                tokens = self.prompts(2, 90)
                positions = torch.cat([torch.arange(50), torch.arange(40)]).to(DEVICE).expand(2, 90)
                wanted = exact(tokens, position_ids=positions, use_cache=False).logits
                error = (model(tokens, position_ids=positions, use_cache=False).logits - wanted).abs().max()
                model.set_attn_implementation("attnsmith")
                got = model(tokens, position_ids=positions, use_cache=False).logits
                self.assertLessEqual((got - wanted).abs().max(), 2 * error)

    def test_cross_attention_to_an_encoder_with_padding(self):
        """Where transformers' own code for FlashAttention is off, as docs/transformers.md says."""
        tokens, mask = self.prompts(3, 60), torch.ones(3, 60, dtype=torch.int64, device=DEVICE)
        mask[1, -25:] = mask[2, :31] = 0
        for name in ("Bart", "Pegasus"):
            torch.manual_seed(1)
            config = getattr(transformers, f"{name}Config")(
                vocab_size=1000, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, max_position_embeddings=128,
                pad_token_id=0, attn_implementation="eager")
            exact = getattr(transformers, f"{name}Model")(copy.deepcopy(config)).eval().to(DEVICE)
            for parameter in exact.parameters():
                parameter.data = (2 * parameter.data).bfloat16().float()
            model = getattr(transformers, f"{name}Model")(config).eval().to(DEVICE, torch.bfloat16)
            model.load_state_dict(exact.state_dict())
            for queries in (1, 20, 60, 90):
                with self.subTest(name, queries=queries):
                    inputs = {"attention_mask": mask, "decoder_input_ids": self.prompts(3, queries)}
                    wanted = exact(tokens, **inputs)[0]
                    model.set_attn_implementation("eager")
                    error = (model(tokens, **inputs)[0] - wanted).abs().max()
                    model.set_attn_implementation("attnsmith")
                    self.assertLessEqual((model(tokens, **inputs)[0] - wanted).abs().max(), 2 * error)

    def test_an_unchanged_model_of_sdpa(self):
        import attnsmith.torch as of_torch
        if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
            self.skipTest("torch 2.11 or newer is not installed")
        model, exact = self.models("Llama")
        tokens = self.prompts(2, 64)
        wanted = exact(tokens).logits
        error = (model(tokens).logits - wanted).abs().max()
        model.set_attn_implementation("sdpa")
        of_torch.reset()
        self.addCleanup(of_torch.deactivate)
        of_torch.activate()
        self.assertLessEqual((model(tokens).logits - wanted).abs().max(), 2 * error)
        report = of_torch.report()
        self.assertEqual((sum(report["served"].values()), report["passed_on"]), (2, []))

    def test_a_training_step_of_sdpa(self):
        """Gradients within twice the error that torch's own flash attention has."""
        import attnsmith.torch as of_torch
        if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
            self.skipTest("torch 2.11 or newer is not installed")
        model, exact = self.models("Llama")
        tokens = self.prompts(2, 64)

        def gradients(of):
            of.set_attn_implementation("sdpa")
            of.zero_grad()
            with torch.enable_grad():
                of(tokens, labels=tokens).loss.backward()
            return {name: parameter.grad.double() for name, parameter in of.named_parameters() if parameter.grad is not None}

        wanted, torchs = gradients(exact), gradients(model)
        of_torch.reset()
        self.addCleanup(of_torch.deactivate)
        of_torch.activate()
        ours = gradients(model)
        self.assertEqual((sum(of_torch.report()["served"].values()), of_torch.report()["passed_on"]), (2, []))
        for name, want in wanted.items():
            error, other = ((got[name] - want).norm() for got in (ours, torchs))
            self.assertLessEqual(error, 2 * other, name)

    def test_a_training_step_with_windows(self):
        """Gradients within twice the error that SDPA with a mask has."""
        model, exact = self.models("Mistral")
        tokens = self.prompts(2, 200)

        def gradients(of, implementation):
            of.set_attn_implementation(implementation)
            of.zero_grad()
            with torch.enable_grad():
                of(tokens, labels=tokens).loss.backward()
            return {name: parameter.grad.double() for name, parameter in of.named_parameters() if parameter.grad is not None}

        wanted, torchs = gradients(exact, "sdpa"), gradients(model, "sdpa")
        self.adapter.reset()
        ours = gradients(model, "attnsmith")
        self.assertEqual(self.adapter.report(), {"served": {"attention": 2}, "passed_on": []})
        for name, want in wanted.items():
            error, other = ((got[name] - want).norm() for got in (ours, torchs))
            self.assertLessEqual(error, 2 * other, name)

    def test_packed_sequences_are_trained(self):
        module = torch.nn.Module()
        module.is_causal, module.num_key_value_groups = True, 2
        ends = torch.tensor([0, 40, 41, 200], dtype=torch.int32, device="cuda")
        tensors = [self.randn(1, heads, 200, 64) for heads in (4, 2, 2)]

        def gradients(these, attend):
            these = [tensor.detach().clone().requires_grad_() for tensor in these]
            with torch.enable_grad():
                attend(*these).double().square().sum().backward()
            return [tensor.grad.double() for tensor in these]

        for window in (None, 17):
            def ours(q, k, v, window=window):
                return self.adapter.attention_forward(
                    module, q, k, v, None, scaling=0.2, sliding_window=window, cu_seq_lens_q=ends, cu_seq_lens_k=ends,
                    max_length_q=159, max_length_k=159)[0]

            def sdpa(q, k, v, window=window):
                place = torch.arange(200, device="cuda")
                sequence = torch.bucketize(place, ends[1:], right=True)
                ahead = place[None] - place[:, None]
                seen = (sequence[:, None] == sequence) & (ahead <= 0) & (ahead > -(window or 999))
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=0.2, enable_gqa=True).transpose(1, 2)

            with self.subTest(window=window):
                with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                    wanted = gradients([tensor.double() for tensor in tensors], sdpa)
                    others = gradients(tensors, sdpa)
                for want, got, other in zip(wanted, gradients(tensors, ours), others):
                    self.assertLessEqual((got - want).norm(), 2 * (other - want).norm())


if __name__ == "__main__":
    unittest.main()

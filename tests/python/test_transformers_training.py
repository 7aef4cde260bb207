"""Training with the attention of transformers: gradients against eager's, with the backward of torch's flash attention by hand."""

import contextlib
import unittest
import unittest.mock

from support import attnsmith  # noqa: F401

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None
    TransformersCase = unittest.TestCase
else:
    from transformers_case import TransformersCase
    from stand_in import standing_in
    from models import model_of  # of the folder gpu


@unittest.skipIf(transformers is None, "PyTorch and transformers are not installed")
class Training(TransformersCase):
    def test_training_is_passed_on_with_the_same_gradients(self):
        for architecture in ("Llama", "Mistral", "DeepseekV3"):
            for padded in (False, True):
                with self.subTest(architecture, padded=padded):
                    model, tokens = model_of(architecture), self.tokens(2, 9)
                    mask = torch.ones_like(tokens)
                    mask[1, :3 * padded] = 0
                    gradients = []
                    for implementation in ("eager", "attnsmith"):
                        model.set_attn_implementation(implementation)
                        model.zero_grad()
                        logits = model(tokens, attention_mask=mask).logits
                        logits[mask.bool()].square().sum().backward()
                        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
                    for wanted, got in zip(*gradients):
                        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
                    self.assertIn("gradients", [entry["why"][:9] for entry in self.adapter.report()["passed_on"]])

    def test_a_mask_is_made_once_for_all_layers(self):
        from attnsmith._adapters import transformers_masks
        model, tokens = model_of("Llama"), self.tokens(2, 9)
        mask = torch.ones_like(tokens)
        mask[1, 6:] = 0
        model.set_attn_implementation("attnsmith")
        with unittest.mock.patch.object(transformers_masks, "_whole", wraps=transformers_masks._whole) as made:
            for steps in (1, 2):
                model(tokens, attention_mask=mask).logits.sum().backward()
                self.assertEqual(made.call_count, steps)

    @contextlib.contextmanager
    def backward_on_the_cpu(self):
        """The backward of torch's flash attention by hand, since torch has none there, and what it was asked."""
        from attnsmith._adapters import gradients as _gradients
        asked = []

        def backward(grad, q, k, v, o, lse, q_ends, kv_ends, max_q, max_k, dropout, causal, seed, offset, *, scale=None,
                     window_size_left=None, window_size_right=None):
            asked.append((causal, window_size_left, window_size_right, q_ends is not None))
            grads = [torch.zeros_like(one) for one in (q, k, v)]
            parts = [(slice(*rows), slice(*keys)) for rows, keys in
                     zip(*[zip(ends.tolist(), ends.tolist()[1:]) for ends in (q_ends, kv_ends)])] if q_ends is not None else \
                [None] * q.shape[0]
            for i, part in enumerate(parts):
                rows, keys = (i, i) if part is None else part
                one, two, three, g, out = q[rows], k[keys], v[keys], grad[rows], o[rows]
                sums = lse[i] if part is None else lse[:, rows]
                group = one.shape[1] // two.shape[1]
                two, three = two.repeat_interleave(group, 1), three.repeat_interleave(group, 1)
                ahead = torch.arange(two.shape[0])[None] - (torch.arange(one.shape[0])[:, None] + two.shape[0] - one.shape[0])
                seen = (ahead <= 0) if causal else torch.ones_like(ahead, dtype=torch.bool)
                for side, sign in ((window_size_left, -1), (window_size_right, 1)):
                    seen = seen if side is None or side < 0 else seen & (ahead * sign <= side)
                scores = torch.einsum("qhd,khd->hqk", one, two) * scale
                p = torch.exp(scores.masked_fill(~seen, -float("inf")) - sums[..., None])
                ds = p * (torch.einsum("qhd,khd->hqk", g, three) - (g * out).sum(-1).T[..., None]) * scale
                grads[0][rows] = torch.einsum("hqk,khd->qhd", ds, two)
                for place, got in ((1, torch.einsum("hqk,qhd->khd", ds, one)), (2, torch.einsum("hqk,qhd->khd", p, g))):
                    grads[place][keys] = got.unflatten(1, (-1, group)).sum(2)
            return tuple(grads)

        library = torch.library.Library("aten", "IMPL")
        try:
            library.impl("_flash_attention_backward", backward, "CPU")
            with unittest.mock.patch.object(_gradients, "why_not", lambda *tensors: None), standing_in(torch.float32):
                yield asked
        finally:
            library._destroy()

    def gradients_of(self, model, tokens, **words):
        model.zero_grad()
        model(tokens, **words).logits.square().sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    def test_windows_are_trained(self):
        model, tokens = model_of("Mistral"), self.tokens(2, 12)
        model.set_attn_implementation("eager")
        wanted = self.gradients_of(model, tokens)
        model.set_attn_implementation("attnsmith")
        self.adapter.reset()
        with self.backward_on_the_cpu() as asked:
            got = self.gradients_of(model, tokens)
        for one, other in zip(wanted, got):
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)
        self.assertEqual(len(asked), 2)
        for causal, left, right, ragged in asked:
            self.assertEqual((causal, right, ragged), (True, 0, False))
            self.assertLess(left, 11)
        self.assertEqual(self.adapter.report(), {"served": {"attention": 2}, "passed_on": []})

    def test_packed_sequences_are_trained(self):
        module = torch.nn.Module()
        module.is_causal, module.num_key_value_groups = True, 2
        ends, kv_ends = torch.tensor([0, 4, 9]), torch.tensor([0, 6, 13])
        words = {"cu_seq_lens_q": ends, "cu_seq_lens_k": kv_ends, "max_length_q": 5, "max_length_k": torch.tensor(7)}
        for window in (None, 3):
            q, k, v = (torch.randn(1, heads, length, 16, generator=torch.Generator().manual_seed(heads + length),
                                   requires_grad=True) for heads, length in ((4, 9), (2, 13), (2, 13)))
            with self.subTest(window=window), self.backward_on_the_cpu() as asked:
                o = self.adapter.attention_forward(module, q, k, v, None, scaling=0.25, sliding_window=window, **words)[0]
                o.square().sum().backward()
                self.assertEqual(asked, [(True, window and window - 1, window and 0, True)])
            others = [tensor.detach().clone().requires_grad_() for tensor in (q, k, v)]
            total = 0
            for rows, keys in ((slice(0, 4), slice(0, 6)), (slice(4, 9), slice(6, 13))):
                q_len, kv_len = rows.stop - rows.start, keys.stop - keys.start
                ahead = torch.arange(kv_len)[None] - (torch.arange(q_len)[:, None] + kv_len - q_len)
                seen = (ahead <= 0) & (ahead > -(window or 99))
                part = torch.nn.functional.scaled_dot_product_attention(
                    others[0][:, :, rows], others[1][:, :, keys], others[2][:, :, keys], seen, scale=0.25, enable_gqa=True)
                torch.testing.assert_close(o[:, rows], part.transpose(1, 2), rtol=1e-4, atol=1e-4)
                total = total + part.square().sum()
            total.backward()
            for one, other in zip((q, k, v), others):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)

    def test_what_is_not_trained_here(self):
        from attnsmith._adapters import gradients as _gradients
        q = torch.zeros(1, 2, 3, 16)
        self.assertEqual(_gradients.why_not(q, q, q), "tensors on cpu")


if __name__ == "__main__":
    unittest.main()

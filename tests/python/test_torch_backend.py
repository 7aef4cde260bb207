"""attnsmith in the place of torch's flash attention and cuDNN: what torch gets back, what is passed on, and gradients. The
kernels are registered for the CPU here, on which torch has none of these operators."""

import inspect
import math
import re
import unittest
import unittest.mock

from support import REPOSITORY, attnsmith

try:
    import torch
except ImportError:
    torch = None
else:
    import attnsmith.torch
    from stand_in import standing_in


def whole_mask(q_len, kv_len, causal=False, left=None, right=None):
    ahead = torch.arange(kv_len)[None] - (torch.arange(q_len)[:, None] + kv_len - q_len)
    seen = torch.ones(q_len, kv_len, dtype=torch.bool)
    if causal:
        seen &= ahead <= 0
    if left is not None and left >= 0:
        seen &= ahead >= -left
    if right is not None and right >= 0:
        seen &= ahead <= right
    return seen


def by_hand(q, k, v, seen, scale=None):
    """[heads, tokens, head_dim] -> o and lse, which torch's autograd can go through."""
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = (q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))).masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def backward_by_hand(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                     seed, offset, *, scale=None):
    """The formula of flash attention's backward, which needs no more of the forward than o and lse."""
    scale = scale or 1 / math.sqrt(query.shape[-1])
    seen = whole_mask(query.shape[-2], key.shape[-2], is_causal)
    p = torch.exp((query @ key.transpose(-1, -2) * scale).masked_fill(~seen, -math.inf) - logsumexp[..., None])
    ds = p * (grad_out @ value.transpose(-1, -2) - (grad_out * out).sum(-1, keepdim=True)) * scale
    return ds @ key, ds.transpose(-1, -2) @ query, p.transpose(-1, -2) @ grad_out


def cudnn_backward_by_hand(grad_out, query, key, value, out, logsumexp, seed, offset, bias, cum_seq_q, cum_seq_k, max_q, max_k,
                           dropout_p, is_causal, *, scale=None):
    assert logsumexp.shape[-1] == 1 and bias is cum_seq_q is cum_seq_k is None
    assert (max_q, max_k) == (query.shape[2], key.shape[2])
    assert grad_out.stride() == out.stride()  # torch's own goes wrong with others
    return backward_by_hand(grad_out, query, key, value, out, logsumexp[..., 0], None, None, max_q, max_k, dropout_p, is_causal,
                            seed, offset, scale=scale)


CUDNN = "_scaled_dot_product_cudnn_attention"


@unittest.skipIf(torch is None or not hasattr(getattr(torch.nn, "attention", None), "register_flash_attention_impl"),
                 "PyTorch 2.11 or newer is not installed")
class Backend(unittest.TestCase):
    def setUp(self):
        from attnsmith._adapters import torch_backend
        self.backend = torch_backend
        self.passed, self.failure = [], None
        self.torchs_own = torch.library.Library("aten", "IMPL")
        self.addCleanup(self.torchs_own._destroy)
        for name in ("_scaled_dot_product_flash_attention", "_flash_attention_forward", CUDNN):
            self.torchs_own.impl(name, self.own(name), "CPU")
        self.torchs_own.impl("_scaled_dot_product_flash_attention_backward", backward_by_hand, "CPU")
        self.torchs_own.impl(f"{CUDNN}_backward", cudnn_backward_by_hand, "CPU")
        on_the_cpu = unittest.mock.patch.object(torch_backend, "Handle",
                                                lambda key, made=torch_backend.Handle: made("CPU"))
        on_the_cpu.start()
        self.addCleanup(on_the_cpu.stop)
        attnsmith.torch.reset()
        self.addCleanup(attnsmith.torch.deactivate)
        attnsmith.torch.activate()

    def own(self, name):
        def call(query, *arguments, **words):
            self.passed.append(name)
            if self.failure is not None:
                raise self.failure
            rest = (None, None, 1, 1) if name.startswith("_scaled") else ()
            last = (*[torch.empty((), dtype=torch.int64)] * 2, None) if name == CUDNN else self.backend._seeds(query)
            return (torch.empty_like(query), query.new_empty(0), *rest, *last)
        return call

    def randn(self, *shape, **words):
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_(words.get("gradient", False))

    def sdpa(self, *arguments, **words):
        with standing_in(torch.float64):
            return torch.ops.aten._scaled_dot_product_flash_attention(*arguments, **words)

    def cudnn(self, q, k, v, bias=None, lse=True, *arguments, **words):
        with standing_in(torch.float64):
            return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, bias, lse, *arguments, **words)

    def flash(self, q, k, v, q_ends=None, kv_ends=None, causal=False, dropout=0.0, debug=False, **words):
        longest = [tensor.shape[0] if ends is not None else tensor.shape[1] for tensor, ends in ((q, q_ends), (k, kv_ends))]
        with standing_in(torch.float64):
            return torch.ops.aten._flash_attention_forward(q, k, v, q_ends, kv_ends, *longest, dropout, causal, debug, **words)

    def test_what_torch_gets_is_what_it_expects(self):
        """Shapes, dtypes and strides are those that torch itself says without running: compiled graphs rely on them."""
        contiguous = self.randn(2, 4, 5, 16)
        transposed = self.randn(2, 5, 4, 16).transpose(1, 2)
        k = self.randn(2, 2, 7, 16)
        for q in (contiguous, transposed):
            got = self.sdpa(q, k, k)
            wanted = torch.ops.aten._scaled_dot_product_flash_attention(*[tensor.to("meta") for tensor in (q, k, k)])
            self.assert_alike(got, wanted)
        packed = self.randn(2, 9, 3, 4, 16).transpose(1, 3)
        for q in (contiguous, transposed, packed[:, :, 1], self.randn(2, 2, 1, 16), self.randn(1, 4, 1, 16)):
            for v in (self.randn(2, 2, 7, 16), self.randn(2, 2, 7, 24)):
                k = self.randn(2, 2, 7, 16)[:q.shape[0]]
                got = self.cudnn(q, k, v[:q.shape[0]])
                meta = [tensor.to("meta") for tensor in (q, k, v[:q.shape[0]])]
                self.assert_alike(got, torch.ops.aten._scaled_dot_product_cudnn_attention(*meta, None, True))
        self.assertIsNone(self.cudnn(*[contiguous] * 3, lse=False)[1])
        q, k, ends = self.randn(9, 4, 16), self.randn(2, 2, 7, 16), torch.tensor([0, 4, 9], dtype=torch.int32)
        for arguments in ((contiguous, k.transpose(1, 2), None), (q, self.randn(9, 2, 16), ends)):
            q, k, ends = arguments
            if ends is None:
                q = q.transpose(1, 2)
            got = self.flash(q, k, k, ends, ends)
            meta = [tensor.to("meta") for tensor in (q, k, k)]
            wanted = torch.ops.aten._flash_attention_forward(*meta, ends, ends, 9, 9, 0.0, False, False)
            self.assert_alike(got, wanted)

    def assert_alike(self, got, wanted):
        self.assertEqual(len(got), len(wanted))
        for one, other in zip(got, wanted):
            if torch.is_tensor(one) and torch.is_tensor(other):
                for fact in ("shape", "dtype", "stride"):
                    a, b = getattr(one, fact), getattr(other, fact)
                    self.assertEqual(a() if callable(a) else a, b() if callable(b) else b)
            else:
                self.assertEqual(one, other)

    def test_sdpa(self):
        for q_len, kv_len, causal, scale in ((5, 5, True, None), (5, 7, False, 0.3), (3, 7, True, None)):
            with self.subTest(q_len=q_len, kv_len=kv_len, causal=causal):
                q, k, v = self.randn(2, 4, q_len, 16), self.randn(2, 2, kv_len, 16), self.randn(2, 2, kv_len, 16)
                o, lse = self.sdpa(q, k, v, 0.0, causal, False, scale=scale)[:2]
                wanted = by_hand(q, k, v, whole_mask(q_len, kv_len, causal), scale)
                torch.testing.assert_close(o, wanted[0])
                torch.testing.assert_close(lse, wanted[1].float())
        self.assertEqual(attnsmith.torch.report(), {"served": {"_scaled_dot_product_flash_attention": 3}, "passed_on": []})

    def test_cudnn(self):
        """Whose causal mask is counted from the first key."""
        for q_len, kv_len, causal, scale, lse in ((5, 5, True, None, True), (5, 7, False, 0.3, False), (3, 7, True, None, True),
                                                  (7, 3, True, None, False)):
            with self.subTest(q_len=q_len, kv_len=kv_len, causal=causal):
                q, k, v = self.randn(2, 4, q_len, 16), self.randn(2, 2, kv_len, 16), self.randn(2, 2, kv_len, 24)
                o, sums = self.cudnn(q, k, v, None, lse, 0.0, causal, False, scale=scale)[:2]
                seen = torch.ones(q_len, kv_len, dtype=torch.bool)
                wanted = by_hand(q, k, v, seen.tril() if causal else seen, scale)
                torch.testing.assert_close(o, wanted[0])
                self.assertEqual(sums is not None, lse)
                if lse:
                    torch.testing.assert_close(sums[..., 0], wanted[1].float())
        self.assertEqual(attnsmith.torch.report(), {"served": {CUDNN: 4}, "passed_on": []})

    def test_strict_is_a_bool(self):
        for strict in ("yes", 1, None):
            with self.assertRaisesRegex(attnsmith.InvalidRequest, "^strict: "):
                attnsmith.torch.activate(strict=strict)

    def test_masks_are_cudnns_own(self):
        """As they are without attnsmith: they are not counted, and no error where nothing is to be passed on."""
        attnsmith.torch.activate(strict=True)
        self.addCleanup(setattr, self.backend.served, "strict", False)
        q = self.randn(2, 4, 5, 16)
        self.cudnn(q, q, q, self.randn(2, 4, 5, 5))
        with standing_in(torch.float64):
            torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, attn_bias=q[..., :5], compute_log_sumexp=False)
        self.assertEqual(self.passed, [CUDNN] * 2)
        self.assertEqual(attnsmith.torch.report(), {"served": {}, "passed_on": []})

    def test_a_torch_that_reads_other_log_sums_keeps_its_own(self):
        q = self.randn(2, 4, 5, 16)
        with unittest.mock.patch.dict("os.environ", {"TORCH_CUDNN_SDPA_AVOID_RECOMPILE": "1"}):
            self.cudnn(q, q, q)
            self.cudnn(q, q, q, lse=False)
        report = attnsmith.torch.report()
        self.assertEqual((self.passed, report["served"]), ([CUDNN], {CUDNN: 1}))
        self.assertIn("TORCH_CUDNN_SDPA_AVOID_RECOMPILE", report["passed_on"][0]["why"])

    def test_windows_of_ragged_and_dense_tensors(self):
        ends, kv_ends = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)
        q, k, v = self.randn(9, 4, 16), self.randn(13, 2, 16), self.randn(13, 2, 16)
        for left, right, causal in ((None, None, True), (-1, -1, False), (2, 0, False), (2, 1, False), (3, None, True)):
            with self.subTest(left=left, right=right, causal=causal):
                words = {"window_size_left": left, "window_size_right": right}
                o, lse = self.flash(q, k, v, ends, kv_ends, causal, **words)[:2]
                for begin, end, kv_begin, kv_end in ((0, 4, 0, 6), (4, 9, 6, 13)):
                    seen = whole_mask(end - begin, kv_end - kv_begin, causal, left, right)
                    parts = [q[begin:end], k[kv_begin:kv_end], v[kv_begin:kv_end]]
                    wanted = by_hand(*[part.transpose(0, 1) for part in parts], seen)
                    torch.testing.assert_close(o[begin:end], wanted[0].transpose(0, 1))
                    torch.testing.assert_close(lse[:, begin:end], wanted[1].float())
                    dense = self.flash(*[part[None] for part in parts], causal=causal, **words)
                    torch.testing.assert_close(dense[0][0], o[begin:end])
                    torch.testing.assert_close(dense[1][0], lse[:, begin:end])

    def test_keys_in_use(self):
        q, k = self.randn(2, 3, 2, 16), self.randn(2, 9, 2, 16)
        o = self.flash(q, k, k, causal=True, seqused_k=torch.tensor([5, 9], dtype=torch.int32))[0]
        torch.testing.assert_close(o[:1], self.flash(q[:1], k[:1, :5], k[:1, :5], causal=True)[0])
        torch.testing.assert_close(o[1:], self.flash(q[1:], k[1:], k[1:], causal=True)[0])

    def test_gradients_are_torchs(self):
        for call, lengths in ((lambda *t: self.sdpa(*t, 0.0, True, False), (5, 7)),
                              (lambda *t: self.cudnn(*t, None, True, 0.0, True, False), (6, 6))):
            with self.subTest(lengths=lengths):
                tensors = [self.randn(2, 2, length, 16, gradient=True) for length in (lengths[0], lengths[1], lengths[1])]
                call(*tensors)[0].square().sum().backward()
                others = [tensor.detach().clone().requires_grad_() for tensor in tensors]
                by_hand(*others, whole_mask(*lengths, True))[0].square().sum().backward()
                for tensor, other in zip(tensors, others):
                    torch.testing.assert_close(tensor.grad, other.grad, rtol=1e-5, atol=1e-6)  # lse is of fp32
        self.assertEqual(self.passed, [])

    def test_cudnn_gets_a_gradient_in_the_strides_of_o(self):
        for made in (lambda: self.randn(2, 2, 5, 16, gradient=True), lambda: self.randn(2, 5, 2, 16, gradient=True).transpose(1, 2)):
            for use in (lambda o: torch.cat((o, o * 2), -1).square().sum(), lambda o: o.transpose(1, 2).flatten(2).square().sum(),
                        lambda o: o.sum(), lambda o: o[:, :, :3].square().sum()):
                q = made()
                use(self.cudnn(q, q, q)[0]).backward()
                got, q.grad = q.grad, None
                use(by_hand(q, q, q, whole_mask(5, 5))[0]).backward()
                torch.testing.assert_close(got, q.grad, rtol=1e-5, atol=1e-6)
        self.assertEqual(self.passed, [])

    def test_what_is_passed_on_is_said(self):
        q, k = self.randn(2, 4, 5, 16), self.randn(2, 2, 7, 16)
        flat, ends = self.randn(9, 4, 16), torch.tensor([0, 4, 9], dtype=torch.int32)
        slopes = torch.ones(4)
        self.sdpa(q, k, k, 0.1)
        self.sdpa(q, k, k, return_debug_mask=True)
        self.cudnn(q, k, k, None, True, 0.1)
        self.flash(flat, flat, flat, ends, ends, dropout=0.1)
        self.flash(flat, flat, flat, ends, ends, seqused_k=torch.tensor([1, 2], dtype=torch.int32))
        self.flash(flat, flat, flat, ends, ends, True, alibi_slopes=slopes.expand(2, 4))
        self.flash(flat, flat, flat, ends, ends, alibi_slopes=slopes)
        with standing_in():  # which does not take fp64
            torch.ops.aten._scaled_dot_product_flash_attention(q, k, k)
        report = attnsmith.torch.report()
        self.assertEqual(report["served"], {})
        self.assertEqual(len(self.passed), 8)
        reasons = [(entry["function"], entry["why"], entry["calls"]) for entry in report["passed_on"]]
        self.assertEqual([reason[1:] for reason in reasons if reason[0] == "_flash_attention_forward"],
                         [("alibi_slopes of each sequence", 1), ("alibi_slopes that are not causal", 1), ("dropout", 1),
                          ("seqused_k of ragged keys", 1)])
        self.assertEqual([why[:15] for _, why, _ in reasons[4:]], ["dropout", "dropout", "q.dtype: torch.", "return_debug_ma"])

    def test_calls_after_one_that_torchs_kernel_refused_are_served(self):
        q = self.randn(1, 2, 5, 16)
        self.failure = RuntimeError("no room")
        with self.assertRaisesRegex(RuntimeError, "no room"):
            self.sdpa(q, q, q, 0.5)  # dropout is passed on
        self.failure = None
        self.assertEqual(len(self.passed), 1)
        self.sdpa(q, q, q)
        self.assertEqual(len(self.passed), 1)

    def test_strict_passes_nothing_on(self):
        attnsmith.torch.activate(strict=True)
        self.addCleanup(setattr, self.backend.served, "strict", False)
        q = self.randn(2, 4, 5, 16)
        with self.assertRaisesRegex(attnsmith.Unsupported, "_scaled_dot_product_flash_attention: dropout"):
            self.sdpa(q, q, q, 0.1)
        self.assertEqual(self.passed, [])

    def test_alibi_slopes(self):
        q, k, slopes = self.randn(2, 3, 4, 16), self.randn(2, 7, 4, 16), torch.tensor([0.5, 0.25, 0.125, 1.0])
        o = self.flash(q, k, k, causal=True, alibi_slopes=slopes)[0]
        ahead = torch.arange(7)[None] - (torch.arange(3)[:, None] + 4)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4 - slopes.double()[:, None, None] * ahead.abs()
        scores = scores.masked_fill(~whole_mask(3, 7, True), -math.inf)
        torch.testing.assert_close(o, torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), k))

    def test_deactivate_puts_all_back(self):
        order = torch._C._get_sdp_priority_order()
        attnsmith.torch.activate()
        self.assertEqual(torch.nn.attention.current_flash_attention_impl(), "attnsmith")
        attnsmith.torch.deactivate()
        self.assertEqual(torch._C._get_sdp_priority_order(), order)
        self.assertIsNone(torch.nn.attention.current_flash_attention_impl())
        q = self.randn(2, 4, 5, 16)
        self.sdpa(q, q, q)
        self.cudnn(q, q, q)
        self.assertEqual(len(self.passed), 2)
        attnsmith.torch.deactivate()

    def test_what_was_active_before_is_active_again(self):
        class Handle:
            def remove(self):
                pass

        attnsmith.torch.deactivate()
        torch.nn.attention.register_flash_attention_impl("another", register_fn=Handle)
        torch.nn.attention.activate_flash_attention_impl("another")
        self.addCleanup(torch.nn.attention.restore_flash_attention_impl)
        attnsmith.torch.activate()
        attnsmith.torch.deactivate()
        self.assertEqual(torch.nn.attention.current_flash_attention_impl(), "another")

    def test_the_page_has_every_argument(self):
        """docs/pytorch.md says of each argument of torch's operators, and of its function, what becomes of it."""
        page = (REPOSITORY / "docs/pytorch.md").read_text(encoding="utf-8")
        tables = {part.partition("\n")[0].strip("`"): set(re.findall(r"`(\w+)`", " ".join(re.findall(
            r"^\| (.+?) \| .+ \|$", part, re.MULTILINE)))) for part in page.split("\n## ")}
        schemas = [getattr(torch.ops.aten, name).default._schema for name in
                   ("_scaled_dot_product_flash_attention", "_flash_attention_forward", CUDNN)]
        self.assertEqual(tables["attnsmith.torch.activate()"],
                         {argument.name for schema in schemas for argument in schema.arguments})
        function = attnsmith.torch.scaled_dot_product_attention
        self.assertEqual(tables["attnsmith.torch.scaled_dot_product_attention"], set(inspect.signature(function).parameters))

    def test_torch_without_a_registry_is_refused_by_name(self):
        attnsmith.torch.deactivate()
        with unittest.mock.patch.object(torch.nn.attention, "register_flash_attention_impl", create=True):
            del torch.nn.attention.register_flash_attention_impl
            with self.assertRaisesRegex(attnsmith.Unsupported, "register_flash_attention_impl: take torch 2.11"):
                attnsmith.torch.activate()


if __name__ == "__main__":
    unittest.main()

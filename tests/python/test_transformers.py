"""The attention of transformers: models of several architectures with attnsmith's words, against the same in eager."""

import contextlib
import copy
import importlib.util
import inspect
import itertools
import os
import re
import unittest
import unittest.mock
import warnings

from support import REPOSITORY, attnsmith, python

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None
    TransformersCase = unittest.TestCase
else:
    from transformers_case import TransformersCase
    from stand_in import computing_backend, plain_inductor, standing_in, taking
    from models import ARCHITECTURES, model_of  # of the folder gpu


def takes_any_name():
    """Whether generate_batch takes names of attention that are not its own, as it did until transformers 5.23."""
    return tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23)


SMALL = {"vocab_size": 97, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


@unittest.skipIf(transformers is None, "PyTorch and transformers are not installed")
class Transformers(TransformersCase):
    @contextlib.contextmanager
    def served(self, model, passed_on=0):
        """All calls of the model are attnsmith's, but for so many reasons to pass one on."""
        self.adapter.reset()
        model.set_attn_implementation("attnsmith")
        with standing_in(torch.float32) as calls, torch.no_grad():
            yield calls
        model.set_attn_implementation("eager")
        report = self.adapter.report()
        self.assertEqual(sum(report["served"].values()), len(calls))
        self.assertEqual(len(report["passed_on"]), passed_on, report)

    def assert_same(self, got, wanted, seen=None):
        if seen is not None:
            got, wanted = got[seen], wanted[seen]
        torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)

    def test_logits_without_padding(self):
        for architecture in ARCHITECTURES:
            with self.subTest(architecture):
                model, tokens = model_of(architecture), self.tokens()
                with torch.no_grad():
                    wanted = model(tokens).logits
                with self.served(model) as calls:
                    self.assert_same(model(tokens).logits, wanted)
                self.assertEqual([call[0] for call in calls], ["attention"] * 2)

    def test_padding_on_either_side(self):
        for architecture in ARCHITECTURES:
            for side in ("left", "right"):
                with self.subTest(architecture, side=side):
                    model, tokens = model_of(architecture), self.tokens()
                    mask = torch.ones_like(tokens)
                    for row, padding in enumerate((0, 3, 7)):
                        if padding:
                            mask[row, slice(0, padding) if side == "left" else slice(-padding, None)] = 0
                    with torch.no_grad():
                        wanted = model(tokens, attention_mask=mask).logits
                    with self.served(model) as calls:
                        self.assert_same(model(tokens, attention_mask=mask).logits, wanted, mask.bool())
                    self.assertEqual(len(calls), 2)

    def test_generation_with_padding_in_dynamic_and_static_caches(self):
        for architecture in ARCHITECTURES:
            for cache in ("dynamic", "static"):
                for padded in (False, True):
                    with self.subTest(architecture, cache=cache, padded=padded):
                        model, tokens = model_of(architecture), self.tokens(2, 7)
                        mask = torch.ones_like(tokens)
                        mask[1, :3 * padded] = 0
                        options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False,
                                   "output_logits": True, "return_dict_in_generate": True, "disable_compile": True}
                        wanted = model.generate(tokens, **options)
                        with self.served(model) as calls:
                            got = model.generate(tokens, cache_implementation=cache, **options)
                        self.assertTrue(torch.equal(got.sequences, wanted.sequences))
                        self.assert_same(torch.stack(got.logits), torch.stack(wanted.logits))
                        self.assertEqual(len(calls), 16)

    def test_sequences_packed_by_position_ids(self):
        for architecture in ARCHITECTURES:
            with self.subTest(architecture):
                model, tokens = model_of(architecture), self.tokens(2, 12)
                positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
                with torch.no_grad():
                    wanted = model(tokens, position_ids=positions, use_cache=False).logits
                with self.served(model) as calls:
                    self.assert_same(model(tokens, position_ids=positions, use_cache=False).logits, wanted)
                # GptOss keeps position_ids to itself: its masks, those of eager too, know no sequences.
                function = "attention" if architecture == "GptOss" else "varlen_attention"
                self.assertEqual([call[0] for call in calls], [function] * 2)

    def test_sequences_packed_by_lengths(self):
        model, tokens = model_of("Llama"), self.tokens(1, 12)
        ends = torch.tensor([0, 5, 12])
        with torch.no_grad():
            wanted = torch.cat([model(tokens[:, begin:end]).logits for begin, end in zip(ends, ends[1:])], 1)
        positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
        with self.served(model) as calls:
            got = model(tokens, position_ids=positions, use_cache=False, attention_mask=torch.ones_like(tokens),
                        cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=7, max_length_k=7).logits
        self.assert_same(got, wanted)
        self.assertEqual([call[0] for call in calls], ["varlen_attention"] * 2)
        model.set_attn_implementation("attnsmith")
        with torch.no_grad(), self.assertRaisesRegex(attnsmith.InvalidRequest, "cu_seq_lens_k: an object of type list"):
            model(tokens, position_ids=positions, use_cache=False, attention_mask=torch.ones_like(tokens), cu_seq_lens_q=ends,
                  cu_seq_lens_k=[0, 5, 12])

    def test_a_chunk_that_continues_a_cache(self):
        for architecture in ARCHITECTURES:
            with self.subTest(architecture):
                model, tokens = model_of(architecture), self.tokens(2, 13)
                mask = torch.ones_like(tokens)
                mask[1, :4] = 0
                with torch.no_grad():
                    wanted = model(tokens, attention_mask=mask).logits
                with self.served(model):
                    first = model(tokens[:, :6], attention_mask=mask[:, :6], use_cache=True)
                    rest = model(tokens[:, 6:], attention_mask=mask, past_key_values=first.past_key_values)
                self.assert_same(torch.cat([first.logits, rest.logits], 1), wanted, mask.bool())

    def base_model(self, name, config, implementation="eager"):
        """The model of that name without a head, with the same random weights at each call."""
        torch.manual_seed(1)
        config = getattr(transformers, f"{name}Config")(**copy.deepcopy(config))
        config._attn_implementation = implementation
        return getattr(transformers, f"{name}Model")._from_config(config).eval()

    def test_encoders_and_layers_that_do_not_say_what_they_are(self):
        """The mask says whether it is causal: Splinter's layers say nothing, and those of PegasusX's decoder the contrary."""
        words = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "max_position_embeddings": 64, "pad_token_id": 0}
        decoder = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                   "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "block_size": 4, "num_global_tokens": 2, "stagger_local_blocks": False}
        models = {"Bert": words, "Splinter": words,
                  "ModernBert": {**words, "local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2,
                                 "bos_token_id": 1, "eos_token_id": 2},
                  "PegasusX": {**decoder, "vocab_size": 97, "max_position_embeddings": 64}, "Bart": {**decoder, "vocab_size": 97,
                                                                                                  "max_position_embeddings": 64}}
        for name, config in models.items():
            for side in ("none", "left", "right"):
                with self.subTest(name, padding=side):
                    model = self.base_model(name, config)
                    tokens = self.tokens(2, 12)
                    mask = torch.ones_like(tokens)
                    if side != "none":
                        mask[1, slice(0, 4) if side == "left" else slice(-4, None)] = 0
                    inputs = {"decoder_input_ids": tokens} if name in ("PegasusX", "Bart") else {}
                    with torch.no_grad():
                        wanted = model(tokens, attention_mask=mask, **inputs)[0]
                    seen = torch.ones_like(mask, dtype=torch.bool) if inputs else mask.bool()
                    model.set_attn_implementation("attnsmith")
                    with standing_in(torch.float32) as calls, torch.no_grad():
                        self.assert_same(model(tokens, attention_mask=mask, **inputs)[0], wanted, seen)
                    self.assertGreater(len(calls), 0)

    ENCODER_DECODER = {"vocab_size": 97, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                       "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
                       "max_position_embeddings": 64, "pad_token_id": 0}

    def test_cross_attention_to_an_encoder_with_padding(self):
        """Also where there are fewer queries than keys, as many, and more: the encoder's mask says nothing about queries."""
        for name in ("Bart", "Pegasus"):
            model, tokens = self.base_model(name, self.ENCODER_DECODER), self.tokens(3, 12)
            for parameter in model.parameters():
                parameter.data *= 3  # so that weights differ from key to key
            for side in ("left", "right"):
                mask = torch.ones_like(tokens)
                for row, padding in ((1, 4), (2, 7)):
                    mask[row, slice(0, padding) if side == "left" else slice(-padding, None)] = 0
                for queries in (1, 5, 12, 17):
                    with self.subTest(name, side=side, queries=queries):
                        inputs = {"attention_mask": mask, "decoder_input_ids": self.tokens(3, queries, 2)}
                        with torch.no_grad():
                            wanted = model(tokens, **inputs)[0]
                        with self.served(model) as calls:
                            self.assert_same(model(tokens, **inputs)[0], wanted)
                        self.assertEqual(len(calls), 6)

    def test_transformers_cuts_the_mask_of_cross_attention(self):
        """What docs/transformers.md says of FlashAttention names, in transformers' own code, which takes padding away: once it
        holds no longer, the page is to say so."""
        from transformers.modeling_flash_attention_utils import _unpad_input, _upad_input
        mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
        kept = {}
        for queries in (1, 4, 6):
            q, k = torch.ones(2, queries, 1, 8), torch.ones(2, 6, 1, 8)
            kept[queries] = _upad_input(q, k, k, mask, queries, _unpad_input)[4][0].diff().tolist()
        self.assertEqual(kept, {1: [1, 1], 4: [4, 1], 6: [6, 3]})  # all queries would be 1, 4 and 6

    def test_a_window_that_only_the_mask_has(self):
        """Layers that do not pass it on, and an encoder whose window reaches as far to either side as its number."""
        decoder = {**{name: SMALL[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads")},
                   "num_hidden_layers": 2, "intermediate_size": 48, "sliding_window": 4, "pad_token_id": 0, "bos_token_id": 1,
                   "eos_token_id": 2}
        part = {**decoder, "head_dim": 16, "attn_logit_softcapping": None}
        models = {"Qwen2Moe": {**decoder, "use_sliding_window": True, "max_window_layers": 1, "num_experts": 2, "num_experts_per_tok": 2,
                               "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
                  "Phimoe": {**decoder, "num_local_experts": 2, "num_experts_per_tok": 2},
                  "T5Gemma": {"encoder": part, "decoder": part, "vocab_size": 97}}
        for name, config in models.items():
            for padding in (0, 3):
                with self.subTest(name, padding=padding):
                    model = self.base_model(name, config)
                    tokens = self.tokens(2, 12)
                    mask = torch.ones_like(tokens)
                    mask[1, :padding] = 0
                    inputs = {"decoder_input_ids": tokens} if name == "T5Gemma" else {}
                    with torch.no_grad():
                        wanted = model(tokens, attention_mask=mask, **inputs)[0]
                    again = self.base_model(name, config, "attnsmith")
                    with standing_in(torch.float32) as calls, torch.no_grad():
                        got = again(tokens, attention_mask=mask, **inputs)[0]
                    self.assert_same(got, wanted, torch.ones_like(mask, dtype=torch.bool) if inputs else mask.bool())
                    self.assertGreater(len(calls), 0)

    def test_a_window_without_a_mask(self):
        """sliding_window counts a query's own key, as transformers' masks have it."""
        from attnsmith.transformers import attention_forward
        module = torch.nn.Module()
        module.is_causal = True
        q, k, v = (torch.randn(2, heads, 12, 16) for heads in (4, 2, 2))
        after = torch.arange(12)[:, None] - torch.arange(12)
        for window in (1, 3, 12):
            with self.subTest(window=window), torch.no_grad():
                with standing_in(torch.float32) as calls:
                    got = attention_forward(module, q, k, v, None, sliding_window=window)[0]
                wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, (after >= 0) & (after < window), enable_gqa=True)
                torch.testing.assert_close(got, wanted.transpose(1, 2), rtol=1e-4, atol=1e-4)
                self.assertEqual(len(calls), 1)

    def masks_of(self, **words):
        """What attnsmith's mask says and what eager's does, each as booleans [batch, 1, q_len, kv_len]."""
        from attnsmith._adapters import transformers_masks
        from transformers import masking_utils
        words = {"batch_size": 2, "q_length": 6, "kv_length": 6, "device": "cpu", "config": None, "dtype": torch.float32, **words}
        made = transformers_masks.attention_mask(**words)
        said = transformers_masks.read(made)
        exact = masking_utils.sdpa_mask(**{**words, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
        exact = exact.expand(2, -1, -1, -1)
        if said is None:
            return None, made.expand(2, -1, -1, -1), exact
        whole = transformers_masks.whole(said, None, 2, words["q_length"], words["kv_length"], "cpu")
        if whole is None:
            shape = words["q_length"], words["kv_length"]
            whole = (torch.ones(shape).tril() if said.causal else torch.ones(shape)).bool().expand(2, 1, -1, -1)
        return said.kind, whole, exact

    def test_masks_behind_a_cache(self):
        """The queries are the last of the keys. SDPA's is_causal counts from the first key, so a call that is passed on needs a
        mask."""
        from attnsmith._adapters import transformers_masks
        from attnsmith.transformers import attention_forward
        from transformers import masking_utils as of
        module = torch.nn.Module()
        module.num_key_value_groups = 2
        for function in (of.causal_mask_function, of.bidirectional_mask_function, of.sliding_window_causal_mask_function(2)):
            for q_len, kv_len in ((3, 7), (1, 7), (7, 7), (1, 1)):
                words = {"q_length": q_len, "kv_length": kv_len, "q_offset": kv_len - q_len, "mask_function": function}
                with self.subTest(function=function.__qualname__, q_len=q_len, kv_len=kv_len):
                    said, got, wanted = self.masks_of(**words)
                    self.assertEqual(said, "plain")
                    self.assertTrue(torch.equal(got, wanted))
                    q, k, v = (torch.randn(2, heads, length, 16, requires_grad=True) for heads, length in
                               ((4, q_len), (2, kv_len), (2, kv_len)))
                    mask = transformers_masks.attention_mask(batch_size=2, config=None, device="cpu", **words)
                    o = attention_forward(module, q, k, v, mask)[0]  # with gradients, so by SDPA
                    by_hand = torch.nn.functional.scaled_dot_product_attention(q, k, v, wanted, enable_gqa=True)
                    torch.testing.assert_close(o, by_hand.transpose(1, 2))

    def test_packed_sequences_that_are_more_than_runs(self):
        from transformers import masking_utils as of
        ids = {"spans": [[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 1]], None: [[0, 0, 1, 1, 0, 0], [0, 1, 2, 2, 2, 2]]}
        for base in (of.causal_mask_function, of.bidirectional_mask_function, of.sliding_window_causal_mask_function(2)):
            for kind, numbers in ids.items():
                with self.subTest(base=base.__qualname__, kind=kind):
                    packed = of.and_masks(base, of.packed_sequence_mask_function(torch.tensor(numbers)))
                    said, got, wanted = self.masks_of(mask_function=packed)
                    self.assertEqual(said, kind)
                    self.assertTrue(torch.equal(got, wanted))
        packed = of.and_masks(of.causal_mask_function, of.packed_sequence_mask_function(torch.tensor(ids["spans"])))
        padding = torch.ones(2, 6, dtype=torch.bool)
        padding[0, :1] = False
        self.assertIsNone(self.masks_of(mask_function=packed, attention_mask=padding)[0])

    def test_mask_functions_of_any_kind(self):
        import functools
        from transformers import masking_utils as of

        class Callable:
            def __call__(self, batch, head, q, kv):
                return kv <= q

        one_sided = of.and_masks(of.bidirectional_mask_function, of.sliding_window_overlay(3))
        for function in (functools.partial(of.causal_mask_function), Callable(), one_sided,
                         of.or_masks(of.causal_mask_function, of.bidirectional_mask_function)):
            said, got, wanted = self.masks_of(mask_function=function)
            self.assertIsNone(said)
            self.assertTrue(torch.equal(got, wanted))
        both = of.and_masks(of.causal_mask_function, of.sliding_window_bidirectional_overlay(2))
        said, got, wanted = self.masks_of(mask_function=both)
        self.assertEqual(said, "plain")
        self.assertTrue(torch.equal(got, wanted))

    def test_chunks_of_keys_that_do_not_begin_at_zero(self):
        """A cache of a window's length drops its first keys; where a chunk ends is counted with them."""
        from transformers import masking_utils as of
        chunked = of.and_masks(of.chunked_overlay(8, torch.zeros(2, dtype=torch.int)), of.causal_mask_function)
        for offset, wanted_said in ((0, "plain"), (4, None)):
            with self.subTest(kv_offset=offset):
                said, got, wanted = self.masks_of(q_length=1, kv_length=8, q_offset=7 + offset, kv_offset=offset,
                                                  mask_function=chunked)
                self.assertEqual(said, wanted_said)
                self.assertTrue(torch.equal(got, wanted))
                self.assertEqual(int(wanted[0].sum()), 8 - offset)

    def test_masks_that_are_not_what_was_made(self):
        from attnsmith._adapters import transformers_masks
        made = transformers_masks.attention_mask(2, 6, 6, config=None, device="cpu")
        for changed in (torch.nn.functional.pad(made, (0, 3)), torch.cat([made, made], -1), made[..., :6]):
            with self.assertRaisesRegex(attnsmith.Unsupported, "changes the mask"):
                transformers_masks.read(changed)
        self.assertIsNone(transformers_masks.read(torch.zeros(2, 1, 6, 6, dtype=torch.int32)))

    def test_inference_mode(self):
        model, tokens = model_of("Llama"), self.tokens(2, 9)
        mask = torch.ones_like(tokens)
        mask[1, :3] = 0
        with torch.no_grad():
            wanted = model(tokens, attention_mask=mask).logits
        model.set_attn_implementation("attnsmith")
        for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
            with mode(), standing_in(torch.float32):
                self.assert_same(model(tokens, attention_mask=mask).logits, wanted, mask.bool())
                self.assert_same(model(tokens[:1]).logits, wanted[:1])

    def test_models_that_never_call_the_interface_are_refused(self):
        for name in ("Bloom", "CodeGen"):
            with self.subTest(name):
                config = getattr(transformers, f"{name}Config")(vocab_size=97, hidden_size=32, n_embd=32, n_layer=1, n_head=4,
                                                               rotary_dim=4)
                model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="attnsmith")
                if name != "Bloom" and model._can_set_attn_implementation():  # newer versions' CodeGen calls it
                    with self.served(model):
                        model(self.tokens(1, 5))
                    continue
                with self.assertRaisesRegex(attnsmith.Unsupported, f"{name}ForCausalLM.* do not call transformers' AttentionInterface"):
                    model(self.tokens(1, 5))

    def test_columns_that_lie_apart_are_copied(self):
        q, k = (torch.randn(1, 2, 16, length).transpose(2, 3) for length in (5, 7))
        module = torch.nn.Module()
        with standing_in(torch.float32), torch.no_grad():
            got, _ = self.adapter.attention_forward(module, q, k, k, None, is_causal=False)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, k)
        torch.testing.assert_close(got, wanted.transpose(1, 2))

    def test_wrong_arguments_are_named(self):
        for name in ("register", "unregister", "report", "reset"):
            for arguments, words, field in (((), {"no_such_word": 1}, "no_such_word"), ((1, 2, 3), {}, "arguments")):
                with self.subTest(name, field=field), self.assertRaises(attnsmith.InvalidRequest) as caught:
                    getattr(self.adapter, name)(*arguments, **words)
                self.assertEqual(caught.exception.field, field)

    def test_names(self):
        for name in ("", "sdpa", "eager", "paged|x", None):
            with self.subTest(name), self.assertRaisesRegex(attnsmith.InvalidRequest, "^name: "):
                self.adapter.register(name)
        self.adapter.register("another")
        self.assertIn("another", transformers.AttentionInterface().valid_keys())
        self.adapter.unregister("another")
        self.assertNotIn("another", transformers.AttentionInterface().valid_keys())
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "^name: "):
            self.adapter.unregister("another")

    def test_refusals_say_what_to_do_with_a_model(self):
        model, tokens = model_of("Llama"), self.tokens()
        model.set_attn_implementation("attnsmith")
        with torch.no_grad(), self.assertRaisesRegex(attnsmith.InvalidRequest, r'model\.to\("cuda"\)'):
            model(tokens)
        with torch.no_grad(), standing_in(), self.assertRaisesRegex(attnsmith.Unsupported, 'dtype="bfloat16"'):
            self.adapter.reset()
            model(tokens)
        self.assertEqual(self.adapter.report(), {"served": {}, "passed_on": []})

    def test_masks_that_are_passed_on(self):
        tokens = self.tokens(2, 9)
        holes = torch.ones_like(tokens)
        holes[1, 4] = 0
        whole = torch.zeros(2, 1, 9, 9).masked_fill_(torch.rand(2, 1, 9, 9) < 0.4, -1e30)
        whole.diagonal(0, 2, 3).fill_(0)
        for name, mask in (("holes", holes), ("whole", whole)):
            with self.subTest(name):
                model = model_of("Llama")
                with torch.no_grad():
                    wanted = model(tokens, attention_mask=mask).logits
                with self.served(model, passed_on=1) as calls:
                    self.assert_same(model(tokens, attention_mask=mask).logits, wanted, holes.bool())
                self.assertEqual(calls, [])
                (entry,) = self.adapter.report()["passed_on"]
                self.assertEqual((entry["calls"], entry["to"]), (2, "transformers' sdpa"))
                self.assertIn("a mask that is more than", entry["why"])

    def test_spans_whose_rows_a_model_chooses_are_refused(self):
        from attnsmith._adapters import transformers_masks
        from transformers import masking_utils
        tokens = torch.ones(3, 6, dtype=torch.bool)
        tokens[0, :2], tokens[2, 4:] = False, False
        mask = transformers_masks.attention_mask(3, 6, 6, mask_function=masking_utils.bidirectional_mask_function,
                                                 attention_mask=tokens, device="cpu", config=None, dtype=torch.float32)
        said = transformers_masks.read(mask)
        self.assertEqual(said.kind, "spans")
        again = transformers_masks.read(mask.clone())
        self.assertTrue(torch.equal(said.numbers, again.numbers))
        for changed in (mask.repeat_interleave(2, 0), mask.flip(0), torch.cat((mask, mask)), mask[[2, 0]], mask[5:],
                        mask.repeat_interleave(5, 0)):
            with self.assertRaisesRegex(attnsmith.Unsupported, "changes the mask"):
                transformers_masks.read(changed)

    def test_what_sdpa_would_drop_is_an_error(self):
        tokens = self.tokens(2, 9)
        for architecture, word in (("Gemma2", "softcap"), ("GptOss", "s_aux")):
            with self.subTest(architecture):
                model = model_of(architecture)
                model.set_attn_implementation("attnsmith")
                with self.assertRaisesRegex(attnsmith.Unsupported, f"{word} with gradients .* is not served"):
                    model(tokens)

    def test_strict_passes_nothing_on(self):
        self.addCleanup(self.adapter.register)
        self.adapter.register(strict=True)
        model = model_of("Llama")
        model.set_attn_implementation("attnsmith")
        with self.assertRaisesRegex(attnsmith.Unsupported, "^attention: gradients"):
            model(self.tokens())

    def test_versions_that_were_not_tested_are_warned_of(self):
        self.addCleanup(self.adapter.register)
        # assertWarns would look into all of transformers' modules, which imports them.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.adapter.register()
            self.assertEqual(said, [])
            with unittest.mock.patch.object(self.adapter, "transformers_version", "5.99.0"):
                self.adapter.register()
                self.adapter.register()
        self.assertEqual([(str(warning.message), warning.filename) for warning in said],
                         [("attnsmith: tested with transformers 5.17.0 and 5.24.0; this is 5.99.0", __file__)])
        self.assertIn(transformers.__version__, self.adapter.TESTED)

    def test_continuous_batching(self):
        if not takes_any_name():
            with self.assertRaisesRegex(ValueError, "not supported for continuous batching"):
                model = model_of("Llama")
                model.set_attn_implementation("attnsmith")
                model.generate_batch([[5, 6, 7]], generation_config=transformers.GenerationConfig(max_new_tokens=2, pad_token_id=0),
                                     progress_bar=False)
            return
        from transformers.generation.continuous_batching import cache
        # Which finds no memory where there is no GPU.
        there = unittest.mock.patch.object(cache.PagedAttentionMemoryHandler, "get_available_memory", lambda handler: 1 << 28)
        prompts = [[5, 6, 7, 8, 9], [11, 12, 13], [20, 21, 22, 23, 24, 25, 26, 27]]
        options = {"max_new_tokens": 8, "do_sample": False}
        for architecture in ("Llama", "Mistral", "Gemma2", "GptOss"):  # DeepSeek's head dims are not what the cache expects
            with self.subTest(architecture):
                model = model_of(architecture)
                wanted = [model.generate(torch.tensor([prompt]), **options)[0, len(prompt):].tolist() for prompt in prompts]
                with self.served(model) as calls, there:
                    got = model.generate_batch(
                        prompts, generation_config=transformers.GenerationConfig(**options, pad_token_id=0), progress_bar=False,
                        continuous_batching_config=transformers.ContinuousBatchingConfig(num_blocks=32, max_batch_tokens=32))
                self.assertEqual([got[name].generated_tokens for name in got], wanted)
                self.assertGreater(len(calls), 8)

    @unittest.skipUnless(transformers and transformers.utils.import_utils.is_kernels_available(),
                         "the package kernels in a version that transformers takes is not installed")
    def test_as_a_kernel_of_flash_attention(self):
        """By transformers' own code around FlashAttention, in one step of a model and in generate_batch with block tables."""
        from transformers.generation.continuous_batching import cache, initialization

        def with_tables(config, options, user_requested):  # which transformers makes only where there is a GPU
            options.max_blocks_per_request = 4

        patches = (unittest.mock.patch.object(cache.PagedAttentionMemoryHandler, "get_available_memory", lambda handler: 1 << 28),
                   unittest.mock.patch.object(initialization, "ensure_decode_fast_path_is_available", with_tables))
        prompts = [[5, 6, 7, 8, 9], [11, 12, 13], [20, 21, 22, 23, 24, 25, 26, 27]]
        options = {"max_new_tokens": 8, "do_sample": False}
        for architecture in ("Llama", "Qwen3"):  # transformers drops Mistral's window and Gemma's softcap on this way
            with self.subTest(architecture):
                model, tokens = model_of(architecture), self.tokens(2, 9)
                mask = torch.ones_like(tokens)
                mask[1, :3] = 0
                with torch.no_grad():
                    logits = model(tokens, attention_mask=mask).logits
                wanted = [model.generate(torch.tensor([prompt]), **options)[0, len(prompt):].tolist() for prompt in prompts]
                model.set_attn_implementation(self.adapter.FLASH3)
                with standing_in(torch.float32) as calls, torch.no_grad():
                    self.assert_same(model(tokens, attention_mask=mask).logits, logits, mask.bool())
                    self.assertEqual([call[0] for call in calls], ["varlen_attention"] * 2)
                with standing_in(torch.float32) as calls, patches[0], patches[1]:
                    got = model.generate_batch(
                        prompts, generation_config=transformers.GenerationConfig(**options, pad_token_id=0), progress_bar=False,
                        continuous_batching_config=transformers.ContinuousBatchingConfig(
                            num_blocks=32, max_batch_tokens=32, block_size=16, max_blocks_per_request=4, use_cuda_graph=False))
                self.assertEqual([got[name].generated_tokens for name in got], wanted)
                self.assertEqual([call[0] for call in calls[-2:]], ["append", "paged_attention"])

    @unittest.skipIf(importlib.util.find_spec("kernels") is None, "the package kernels is not installed")
    def test_importing_the_adapter_keeps_its_name_from_the_hub(self):
        """Without register(), with and without trust in every kernel of the hub: no host is looked up or connected to."""
        program = """
import contextlib, socket, sys
asked = []

def refuse(*arguments, **words):
    asked.append(arguments)
    raise OSError("sockets are refused")

socket.getaddrinfo = refuse
socket.socket.connect = refuse
socket.socket.connect_ex = refuse
if sys.argv[1] == "yes":
    import attnsmith.transformers
import transformers
from transformers.integrations import hub_kernels
config = transformers.LlamaConfig(vocab_size=97, hidden_size=64, intermediate_size=64, num_attention_heads=4,
                                  num_key_value_heads=2, num_hidden_layers=1)
for trusting in (contextlib.nullcontext, hub_kernels.allow_all_hub_kernels):
    try:
        with trusting():
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="attnsmith/flash3-attnsmith")
        print(model.config._attn_implementation, end=" ")
    except Exception as error:
        print(type(error).__name__, end=" ")
print(len(asked) > 0)
"""
        environment = {"LOCAL_KERNELS": None, "HF_HUB_OFFLINE": None, "TRANSFORMERS_OFFLINE": None, "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
        imported = python(program, "yes", **environment)
        self.assertEqual(imported.stdout.split(), [self.adapter.FLASH3, self.adapter.FLASH3, "False"], imported.stderr)
        # This is what the sockets see otherwise: SECURITY.md states the risk.
        alone = python(program, "no", **environment)
        self.assertEqual(alone.stdout.split()[-1:], ["True"], alone.stderr)

    def test_local_kernels_of_others_are_kept(self):
        with unittest.mock.patch.dict("os.environ", {"LOCAL_KERNELS": "some/kernel=/there"}):
            for _ in range(2):
                self.adapter.register()
            entries = os.environ["LOCAL_KERNELS"].split(":")
        self.assertEqual(entries[0], "some/kernel=/there")
        self.assertEqual([entry.partition("=")[0] for entry in entries[1:]], [self.adapter.FLASH3])

    def test_the_page_has_every_word(self):
        """docs/transformers.md says of all that layers give, and that is read here, what becomes of it."""
        page = (REPOSITORY / "docs/transformers.md").read_text(encoding="utf-8").partition("\n## ")[0]
        cells = re.findall(r"^\| (.+?) \| .+ \|$", page, re.MULTILINE)
        listed = set(re.findall(r"`(\w+)`", " ".join(cells)))
        forward = "".join(inspect.getsource(getattr(self.adapter, name))
                          for name in ("attention_forward", "_attend_ragged", "_has_offsets", "_why_not"))
        read = set(re.findall(r'words\.get\("(\w+)"\)', forward)) | {"indices", "block_indices"}
        parameters = set(inspect.signature(self.adapter.attention_forward).parameters) - {"module", "words"}
        self.assertEqual(listed, parameters | read | {"position_ids", "attention_chunk_size"})

    def compiled_generation(self, model, tokens, mask, made_before=False):
        """The tokens, with those of a static cache that a compiled model adds, and its graphs, none of which has a break."""
        torch._dynamo.reset()
        graphs = []
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        with standing_in(torch.float32):
            logits = model(tokens, attention_mask=mask, past_key_values=cache).logits[:, -1:]
        compiled = torch.compile(model, backend=computing_backend(graphs), fullgraph=True)
        for _ in range(6):
            tokens = torch.cat([tokens, logits.argmax(-1)], 1)
            mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], 1)
            given = torch.nn.functional.pad(mask, (0, 16 - mask.shape[1]))
            if made_before:  # as generate() does, outside of what is compiled
                given = transformers.masking_utils.create_masks_for_generate(
                    model.config, model.get_input_embeddings()(tokens[:, -1:]), mask, cache)
            with taking(torch.float32):
                logits = compiled(tokens[:, -1:], past_key_values=cache, attention_mask=given).logits
        return tokens, graphs

    def test_compiled_with_static_caches(self):
        """As many graphs as eager attention has: windows of static caches have a graph from when they are full on."""
        for architecture in ("Llama", "GptOss"):
            with self.subTest(architecture), torch.no_grad():
                model, tokens = model_of(architecture), self.tokens(2, 7)
                mask = torch.ones_like(tokens)
                mask[1, :3] = 0
                wanted, eager_graphs = self.compiled_generation(model, tokens, mask)
                model.set_attn_implementation("attnsmith")
                for made_before in (False, True):
                    got, graphs = self.compiled_generation(model, tokens, mask, made_before)
                    self.assertTrue(torch.equal(got, wanted))
                    self.assertEqual([len(operators) for operators in graphs], [2] * len(graphs))
                    if not made_before:
                        self.assertEqual(len(graphs), len(eager_graphs))
                        self.assertEqual(graphs, [["_attend_in_a_row.default"] * 2] * len(graphs))

    def test_as_many_graphs_as_sdpa_has(self):
        """For prompts of any lengths with a mask, and steps that continue a dynamic cache."""
        def graphs_of(model, implementation):
            model.set_attn_implementation(implementation)
            torch._dynamo.reset()
            graphs = []
            compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=computing_backend(graphs))
            for length in range(5, 9):
                tokens = self.tokens(2, length)
                with taking(torch.float32):
                    compiled(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
            prompts = len(graphs)
            cache, tokens = transformers.DynamicCache(config=model.config), self.tokens(2, 9)
            for length in range(9):
                with taking(torch.float32):
                    compiled(tokens[:, length:length + 1], attention_mask=torch.ones_like(tokens[:, :length + 1]),
                             past_key_values=cache)
            return prompts, len(graphs) - prompts

        with torch.no_grad():
            model = model_of("Llama")
            wanted, got = (graphs_of(model, implementation) for implementation in ("sdpa", "attnsmith"))
        self.assertEqual(wanted[0], got[0])
        self.assertLessEqual(got[1], wanted[1] + 1)  # one more where there is one key, as its strides say less

    def test_spans_of_tensors_that_a_compiler_lays_out(self):
        """Values are the last columns of a product whose memory, and place in it, is Inductor's to choose."""
        from attnsmith._adapters import spans as _spans
        spans = torch.tensor([[0, 0, 1, 0, 9], [1, 0, 1, 2, 9]], dtype=torch.int32)

        def attend(hidden, weight, spans):
            k, v = (hidden @ weight).view(*hidden.shape[:2], 2, 48).split((32, 16), -1)
            q, k, v = ((tensor.transpose(1, 2)) for tensor in (k[:, -1:] * 2, k + 1, v))
            return _spans.attend_spans(q, k, v, spans, causal=True, window=None, scale=None, softcap=None, sinks=None)

        torch._dynamo.reset()
        for rows in (1, 2):
            with self.subTest(rows=rows), standing_in(torch.float32), torch.no_grad(), plain_inductor():
                tensors = torch.randn(rows, 9, 24), torch.randn(24, 96), spans[:rows]
                got = torch.compile(attend, fullgraph=True, dynamic=False)(*tensors)
                self.assert_same(got, attend(*tensors))

    def test_a_mask_that_a_compiler_makes(self):
        from attnsmith._adapters import transformers_masks
        padding = torch.tensor([[1] * 9, [0] * 2 + [1] * 7, [1] * 5 + [0] * 4, [0] * 9, [0] * 3 + [1] * 4 + [0] * 2])

        def numbers(padding, q_len):
            return transformers_masks.attention_mask(5, q_len, 9, 9 - q_len, attention_mask=padding)[:, 0, 0, 0]

        torch._dynamo.reset()
        compiled = torch.compile(numbers, fullgraph=True)
        for q_len in (1, 9):
            made = numbers(padding, q_len)
            with plain_inductor():
                self.assertTrue(torch.equal(compiled(padding, q_len), made))
            spans = made.view(5, 5).tolist()  # of row, queries and keys
            self.assertEqual([span[3:] for span in spans], [[0, 9], [2, 9], [0, 5], [0, 0], [3, 7]])
            for row, (_, begin, end, kv_begin, kv_end) in enumerate(spans):
                self.assertEqual(list(range(begin, end)), [i for i in range(q_len) if padding[row, 9 - q_len + i]])

    def test_tensors_are_read_as_they_lie(self):
        """What a kernel is told of tensors with heads before tokens is what it is told of torch's own views of them."""
        from attnsmith import functions
        from attnsmith._adapters import heads_first, spans as _spans
        options = (True, None, None, None, None, False, "standard", "standard", None)
        offsets = torch.tensor([0, 1], dtype=torch.int32)

        def views(*tensors):
            return [tensor if tensor is None else (tensor.data_ptr(), tensor.shape, tensor.stride(), 0, 2) for tensor in tensors]

        def told(problem, out):  # strides of single rows, tokens and heads say nothing
            return ([(pointer, tuple(shape), [stride for stride, extent in zip(strides, shape) if extent > 1])
                     for pointer, shape, strides, _, _ in (problem.q, problem.k, problem.v, out)],
                    problem.batch, problem.max_q_len, problem.max_kv_len, problem.kv)

        layouts = {"heads first": lambda *shape: torch.randn(shape),
                   "tokens first": lambda rows, heads, tokens, dim: torch.randn(rows, tokens, heads, dim).transpose(1, 2),
                   "in a longer cache": lambda rows, heads, tokens, dim: torch.randn(rows, heads, tokens + 5, dim)[:, :, :tokens]}
        for (name, make), rows, tokens, heads, keys in itertools.product(layouts.items(), (1, 3), (1, 2, 7), (1, 2, 7), (9, 1)):
            with self.subTest(name, rows=rows, tokens=tokens, heads=heads, keys=keys):
                q, k, v = make(rows, heads, tokens, 16), make(rows, 2, keys, 16), make(rows, 2, keys, 8)
                if keys == 1:  # whose memory lies in any way
                    v = layouts["tokens first"](rows, 2, keys, 8)
                flat = [tensor.transpose(1, 2) for tensor in (q, k, v)]
                o = torch.empty(rows, tokens, heads, 8)
                got = heads_first._resolve(views(q, k, v, None, None, None, None), options)
                wanted = functions._dense(views(*flat, None, None, None, None, None), options)
                self.assertEqual(told(got, got.as_kernel(*views(o))), told(wanted, *views(o)))
                got = heads_first._resolve_into(views(q, k, v, None, None, None, None), options)
                turned = o.transpose(1, 2).contiguous()
                self.assertEqual(told(got, got.as_kernel(*views(turned))), told(wanted, *views(turned.transpose(1, 2))))
                self.assertEqual(tuple(got.rows), (rows, heads, tokens))

                pitch = _spans.pitch_of(2, k, v)
                self.assertGreater(pitch, 0)
                if rows > 1 and tokens > 1 and q.stride(0) != tokens * q.stride(2):
                    continue  # copies are made before
                got = _spans._resolve(views(q, k, v, None, None, None, offsets, offsets), (*options, pitch))
                ragged = [flat[0].reshape(rows * tokens, heads, 16), *(_spans.in_a_row(tensor, pitch) for tensor in flat[1:])]
                wanted = functions._ragged(views(*ragged, None, None, None, offsets, offsets), (*options, tokens, keys))
                self.assertEqual(told(got, got.as_kernel(*views(o))), told(wanted, *views(o.view(rows * tokens, heads, 8))))
                self.assertEqual(got.batch_views, wanted.batch_views)
                self.assertEqual(tuple(got.rows), (rows, tokens, heads))

    def test_rows_that_lie_in_another_way_than_was_traced(self):
        from attnsmith._adapters import spans as _spans
        q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
        q_indptr, kv_indptr = _spans._indptr(torch.tensor([[0, 0, 1, 1, 9], [1, 0, 1, 0, 7]], dtype=torch.int32), 2, 1, 18)
        words = q_indptr, kv_indptr, 18, True, None, None, None, None
        with standing_in(torch.float32):
            wanted = torch.ops.attnsmith._attend_in_a_row(q, *(torch.stack([tensor, tensor], 1)[:, 0] for tensor in (k, v)), *words)
            self.assert_same(torch.ops.attnsmith._attend_in_a_row(q, k, v, *words), wanted)

    def test_one_tensor_of_spans_serves_caches_of_several_pitches(self):
        """The offsets of keys that are kept with it are those of one pitch."""
        from attnsmith._adapters import spans as _spans
        numbers = torch.tensor([[0, 0, 1, 1, 8], [1, 0, 1, 0, 7]], dtype=torch.int32)
        q = torch.zeros(2, 4, 1, 16)

        def keys_of_spans(spans, pitch):
            """Where the kernel is told that the keys of each span begin and end, in a cache of rows that lie so far apart."""
            rows = torch.zeros(2, pitch, 2, 16)[:, :8].transpose(1, 2)
            with unittest.mock.patch.object(_spans, "attend", return_value=q) as attend:
                _spans.attend_spans(q, rows, rows, spans, causal=True, window=None, scale=None, softcap=None, sinks=None)
            kv_indptr = attend.call_args[0][1][7].tolist()
            return kv_indptr[2:4], kv_indptr[5:7]

        for name, spans in (("on the device", numbers.clone()), ("of the host", _spans.on_device(numbers.clone(), "cpu"))):
            for pitch in (8, 16, 8):
                with self.subTest(name, pitch=pitch):
                    self.assertEqual(keys_of_spans(spans, pitch), ([1, 8], [pitch, pitch + 7]))


if __name__ == "__main__":
    unittest.main()

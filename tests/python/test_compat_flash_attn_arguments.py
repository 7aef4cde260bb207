"""attnsmith.compat.flash_attn: each argument that FlashAttention has, as docs/replace-flash-attn.md says it is taken."""

import inspect
import re
import unittest
import unittest.mock

from flash_attn_cases import FlashTest, NOTHING
from support import REPOSITORY, attnsmith

try:
    import torch
except ImportError:
    torch = None
else:
    import attnsmith.compat.flash_attn as fa

PAGE = REPOSITORY / "docs/replace-flash-attn.md"

# flash_attn 2.8.3, flash_attn_interface.py.
_TAIL = (("dropout_p", 0.0), ("softmax_scale", None), ("causal", False), ("window_size", NOTHING), ("softcap", 0.0),
         ("alibi_slopes", None), ("deterministic", False), ("return_attn_probs", False))
_OFFSETS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
FLASH_ATTENTION_2 = {
    "flash_attn_func": ("q", "k", "v", *_TAIL),
    "flash_attn_kvpacked_func": ("q", "kv", *_TAIL),
    "flash_attn_qkvpacked_func": ("qkv", *_TAIL),
    "flash_attn_varlen_func": ("q", "k", "v", *_OFFSETS, *_TAIL, ("block_table", None)),
    "flash_attn_varlen_kvpacked_func": ("q", "kv", *_OFFSETS, *_TAIL),
    "flash_attn_varlen_qkvpacked_func": ("qkv", "cu_seqlens", "max_seqlen", *_TAIL),
    "flash_attn_with_kvcache": (
        "q", "k_cache", "v_cache", ("k", None), ("v", None), ("rotary_cos", None), ("rotary_sin", None),
        ("cache_seqlens", None), ("cache_batch_idx", None), ("cache_leftpad", None), ("block_table", None),
        ("softmax_scale", None), ("causal", False), ("window_size", NOTHING), ("softcap", 0.0),
        ("rotary_interleaved", True), ("alibi_slopes", None), ("num_splits", 0), ("return_softmax_lse", False))}

# What flash_attn_interface.py of FlashAttention 3 has besides, as in the wheel tokenspeed-fa3 3.0.0.post20260810.
_DESCALES = {"q_descale": None, "k_descale": None, "v_descale": None}
_FA3 = {"qv": None, **_DESCALES, "attention_chunk": 0, "num_splits": 1, "pack_gqa": None, "sm_margin": 0, "sinks": None}
FLASH_ATTENTION_3 = {
    "flash_attn_func": _FA3,
    "flash_attn_qkvpacked_func": {**_DESCALES, "attention_chunk": 0, "num_heads_q": None, "sm_margin": 0},
    "flash_attn_varlen_func": {**_FA3, "seqused_q": None, "seqused_k": None},
    "flash_attn_with_kvcache": {**{name: value for name, value in _FA3.items() if name != "num_splits"},
                                "page_table": None, "cu_seqlens_q": None, "cu_seqlens_k_new": None,
                                "max_seqlen_q": None, "rotary_seqlens": None, "scheduler_metadata": None}}
# And vLLM's fork of both, vllm_flash_attn/flash_attn_interface.py of August 2026.
FORKS = {
    "flash_attn_func": {"s_aux": None},
    "flash_attn_varlen_func": {"s_aux": None, "return_softmax_lse": False, "out": None, "scheduler_metadata": None},
    "flash_attn_with_kvcache": {"s_aux": None, "out": None}}


class Signatures(FlashTest):
    def parameters(self, name, kind):
        parameters = inspect.signature(getattr(fa, name)).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.kind is kind}

    def test_positional_arguments_are_those_of_flash_attention_2(self):
        for name, wanted in FLASH_ATTENTION_2.items():
            with self.subTest(name):
                wanted = [one if isinstance(one, tuple) else (one, inspect.Parameter.empty) for one in wanted]
                got = self.parameters(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                self.assertEqual(list(got.items()), wanted)

    def test_keywords_are_those_of_flash_attention_3_and_of_forks(self):
        for name in FLASH_ATTENTION_2:
            with self.subTest(name):
                self.assertEqual(self.parameters(name, inspect.Parameter.KEYWORD_ONLY),
                                 {**FLASH_ATTENTION_3.get(name, {}), **FORKS.get(name, {})})

    def test_arguments_that_do_not_fit_raise_what_flash_attention_raises(self):
        for name in FLASH_ATTENTION_2:
            with self.subTest(name), self.assertRaisesRegex(TypeError, "no_such_word"):
                getattr(fa, name)(no_such_word=1)

    def test_there_are_no_other_functions(self):
        public = {name for name, one in vars(fa).items() if inspect.isfunction(one) and not name.startswith("_")}
        self.assertEqual(public, {*FLASH_ATTENTION_2, "get_scheduler_metadata", "install", "uninstall"})
        self.assertEqual(set(fa.__all__), public)

    def test_what_combines_partial_results_elsewhere_is_named(self):
        from attnsmith.compat import flash_attn
        with self.assertRaisesRegex(AttributeError, "flash_attn_combine.*attnsmith.merge_states"):
            flash_attn.flash_attn_combine

    def test_help_says_each_argument_and_what_is_raised(self):
        for name in FLASH_ATTENTION_2:
            with self.subTest(name):
                function = getattr(fa, name)
                text = inspect.getdoc(function) + ("return_attn_probs" if "varlen" in name else "")
                self.assertEqual([word for word in inspect.signature(function).parameters
                                  if not re.search(rf"\b{word}\b", text)], [])
                self.assertRegex(text, r"\bRaises [A-Z]\w+")


class Page(FlashTest):
    """docs/replace-flash-attn.md: each argument of each function is in its table once, and is what the table says."""

    def rows(self):
        """(argument, function) -> what the table says that it is."""
        table, names = {}, list(FLASH_ATTENTION_2)
        by_short = {re.sub(r"^flash_attn_(with_)?|_?func$", "", name) or "func": name for name in names}
        text = PAGE.read_text(encoding="utf-8").partition("\n## Arguments\n")[2]
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != 4 or not cells[0].startswith("`"):
                continue
            of = names if cells[1] == "all" else [by_short[short.strip()] for short in cells[1].split(",")]
            for argument in re.findall(r"`(\w+)`", cells[0]):
                for function in of:
                    self.assertNotIn((argument, function), table, "said twice")
                    table[argument, function] = cells[2]
        return table

    def test_every_argument_of_every_function_is_there(self):
        wanted = {(argument, name) for name in FLASH_ATTENTION_2
                  for argument in inspect.signature(getattr(fa, name)).parameters}
        self.assertEqual(set(self.rows()), wanted)
        self.assertEqual(set(self.rows().values()), {"served", "in part", "hint", "refused"})

    def base(self, function):
        """A call that is right."""
        q, k, v = self.dense(2, 6)
        packed, offsets = torch.stack((k, v), 2), [self.integers(0, 2, 4), self.integers(0, 6, 12)]
        qkv = torch.stack((k, k, v), 2)
        ragged = dict(zip(_OFFSETS, (*offsets, 2, 6)))
        flat = [tensor.flatten(0, 1) for tensor in (q, k, v, packed, qkv)]
        return {"flash_attn_func": {"q": q, "k": k, "v": v}, "flash_attn_kvpacked_func": {"q": q, "kv": packed},
                "flash_attn_qkvpacked_func": {"qkv": qkv},
                "flash_attn_varlen_func": {"q": flat[0], "k": flat[1], "v": flat[2], **ragged},
                "flash_attn_varlen_kvpacked_func": {"q": flat[0], "kv": flat[3], **ragged},
                "flash_attn_varlen_qkvpacked_func": {"qkv": flat[4], "cu_seqlens": offsets[1], "max_seqlen": 6},
                "flash_attn_with_kvcache": {"q": q, "k_cache": k, "v_cache": v}}[function]

    def changed(self, argument, function, base):
        """What the argument is given beside, and a value for it."""
        new, cached = self.randn(2, 1, 2, 8), function == "flash_attn_with_kvcache"
        if argument in base:
            value = base[argument]
            if isinstance(value, int):
                return {}, value + 1
            return {}, value.flip(0) if value.is_floating_point() else value // 2
        appended = {"k": new, "v": new, "cache_seqlens": 3}
        turned = {**appended, "rotary_cos": self.randn(9, 2), "rotary_sin": self.randn(9, 2)}
        new_in_a_row = {**appended, "k": new[0], "v": new[0]}
        keys = {name: base[name] for name in (("k_cache", "v_cache") if cached else ("k", "v")) if name in base}
        latents = {name: tensor[..., :1, :] for name, tensor in keys.items()}
        pages = {} if cached else {name: tensor.view(6, 2, 2, 8) for name, tensor in keys.items()}
        table = torch.arange(2 if cached else 6, dtype=torch.int32).view(2, -1)
        q = base.get("q", new)
        in_a_row = {"q": q.flatten(0, 1)} if cached else {}
        joined = {"qkv": torch.cat(base["qkv"].unbind(-3), -2)} if "qkv" in base else {}
        offsets = self.integers(0, 3, 4)
        values = {
            "softmax_scale": ({}, 0.3), "causal": ({}, True), "window_size": ({}, (2, 0)), "softcap": ({}, 2.0),
            "attention_chunk": ({}, 2), "alibi_slopes": ({"causal": True}, torch.rand(4 if q is not new else 2)),
            "sinks": ({}, torch.rand(4)), "s_aux": ({}, torch.rand(4)), "deterministic": ({}, True),
            "num_splits": ({}, 3), "pack_gqa": ({}, True), "sm_margin": ({}, 8),
            "scheduler_metadata": ({}, self.integers(1)), "return_attn_probs": ({}, True),
            "return_softmax_lse": ({}, True), "k_descale": ({}, torch.rand(2)), "v_descale": ({}, torch.rand(2)),
            "qv": (latents, q), "out": ({}, torch.empty_like(q)), "num_heads_q": (joined, 2),
            "block_table": (pages, table), "page_table": ({}, table),
            "seqused_q": ({}, self.integers(1, 2)), "seqused_k": ({}, self.integers(2, 5)),
            "cache_leftpad": ({}, self.integers(1, 0)), "cache_seqlens": ({}, 4),
            "cache_batch_idx": ({}, self.integers(1, 0)), "cu_seqlens_q": (in_a_row, offsets),
            "max_seqlen_q": ({**in_a_row, "cu_seqlens_q": offsets}, 3),
            "cu_seqlens_k_new": (new_in_a_row, self.integers(0, 1, 1)), "k": (appended, new + 1),
            "v": (appended, new + 1), "rotary_cos": (turned, self.randn(9, 2)),
            "rotary_sin": (turned, self.randn(9, 2)), "rotary_interleaved": (turned, False),
            "rotary_seqlens": (turned, self.integers(2, 4))}
        return values[argument]

    def told(self, function, words):
        """What the plain functions are called with."""
        self.calls.clear()
        caches = {name: words[name].clone() for name in ("k_cache", "v_cache") if name in words}
        getattr(fa, function)(**{**words, **caches})

        def plain(value):
            if isinstance(value, torch.Tensor):
                return tuple(value.shape), str(value.dtype), str(value.tolist())
            return tuple(map(plain, value)) if isinstance(value, (tuple, list)) else value

        return [(name, plain(arguments), {word: plain(value) for word, value in given.items() if value is not None})
                for name, arguments, given in self.calls]

    def test_what_is_served_has_an_effect_and_a_hint_has_none(self):
        for (argument, function), becomes in self.rows().items():
            if becomes == "refused" or argument == "dropout_p":
                continue
            with self.subTest(argument=argument, function=function):
                base = self.base(function)
                beside, value = self.changed(argument, function, base)
                words = {**base, **beside}
                given = self.told(function, {**words, argument: value})
                if argument in ("cu_seqlens_q", "cu_seqlens_k_new", "num_heads_q", "block_table") and beside:
                    continue  # what is beside it would be wrong without it
                without = self.told(function, words)
                (self.assertEqual if becomes == "hint" else self.assertNotEqual)(given, without)

    # What the table says to be refused, or served in part, by an example that is refused, or by all words of one.
    REFUSED = {
        "dropout_p": lambda self: 0.1,
        "alibi_slopes": lambda self: torch.rand(4),
        "cache_leftpad": lambda self: {"cache_leftpad": self.integers(1, 0), "cache_batch_idx": self.integers(1, 0)},
        "qv": lambda self: self.randn(2, 2, 4, 8),
        "q_descale": lambda self: torch.rand(2, 2),
        "k_descale": lambda self: torch.rand(2, 2),
        "v_descale": lambda self: torch.rand(2, 2)}

    def test_what_is_refused_is_refused_by_name_and_with_a_remedy(self):
        seen = set()
        for (argument, function), becomes in self.rows().items():
            if becomes not in ("refused", "in part"):
                continue
            seen.add(argument)
            with self.subTest(argument=argument, function=function):
                given = self.REFUSED[argument](self)
                words = {**self.base(function), **(given if isinstance(given, dict) else {argument: given})}
                error = self.assert_refused(argument, attnsmith.Unsupported, getattr(fa, function), **words)
                self.assertRegex(str(error), "(: |; |, )(pass|let|join|call)")
                self.assertEqual(self.calls, [])
        self.assertEqual(seen, set(self.REFUSED))


if __name__ == "__main__":
    unittest.main()

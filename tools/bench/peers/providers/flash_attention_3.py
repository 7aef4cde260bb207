"""FlashAttention-3, Hopper's: built from the project's hopper folder, or one of the wheels of it."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Optional

from ..cases import Case
from ..tensors import Tensors, torch_kv_dtype
from .base import Provider


def output(result: Any) -> Any:
    """Some versions return (out, lse, ...)."""
    return result[0] if isinstance(result, (tuple, list)) else result


class FlashAttention3(Provider):
    name = "fa3"
    title = "FlashAttention-3"
    install = "tokenspeed-fa3 (or fa3-fwd: bf16, no pages, no windows; or build flash-attention/hopper)"
    modules = ("flash_attn_interface", "flash_attn_3.flash_attn_interface", "fa3_fwd_interface")
    distributions = ("flash-attn-3", "tokenspeed-fa3", "fa3-fwd")
    isolated = True
    takes_8_bits = True
    rounds_q = True  # its kernels take Q, K and V of one dtype, and have the weights in it, too

    @functools.lru_cache(maxsize=None)  # asked for every case that is left, after each one
    def _is_small_build(self) -> bool:
        return self.module_name() == "fa3_fwd_interface"

    def refuses(self, case: Case) -> Optional[str]:
        if case.kv_dtype and (self._is_small_build() or case.shared_kv):
            return "no kernels of 8 bits" if self._is_small_build() else "latents of 16 bits only"
        if self._is_small_build() and (case.dtype != "bf16" or case.kv == "paged" or case.window is not None):
            return "fa3-fwd is built for bf16, without pages and windows"
        return super().refuses(case)

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        import torch

        module = self.module()
        t = tensors
        q = t.q_rounded if case.kv_dtype else t.q
        window = case.window or (-1, -1)
        options: Dict[str, Any] = dict(causal=case.causal, window_size=window)
        if case.kv_dtype:
            options.update((name + "_descale", scale.expand(case.batch, case.kv_heads))
                           for name, scale in (("q", t.q_scale), ("k", t.k_scale), ("v", t.v_scale)))
        if case.kv == "ragged":
            return lambda: output(module.flash_attn_varlen_func(q, t.k, t.v, t.q_indptr, t.kv_indptr, case.q_len,
                                                                case.kv_len, **options))
        if case.has_few_queries or case.kv == "paged":
            # The entry that splits KV when there are few queries.
            options.update(cache_seqlens=t.kv_lens)
            of_queries: Dict[str, Any] = dict(cu_seqlens_q=t.q_indptr) if case.ragged_q else {}
            longest = case.kv_len
            if case.kv == "paged":
                options.update(page_table=t.page_table)
                longest = max(case.page_counts) * case.page_size  # what the launch takes it to be
            if hasattr(module, "get_scheduler_metadata"):
                # Made once for all layers of a step by who serves with it, so not timed here.
                options["scheduler_metadata"] = module.get_scheduler_metadata(
                    case.batch, case.q_len, longest, case.q_heads, case.kv_heads, case.head_dim_qk, t.kv_lens,
                    qkv_dtype=torch_kv_dtype(torch, case), headdim_v=case.head_dim_vo,
                    page_size=case.page_size or None, causal=case.causal, window_size=window, **of_queries)
            if case.ragged_q:
                options.update(of_queries, max_seqlen_q=case.q_len)
            return lambda: output(module.flash_attn_with_kvcache(q, t.k, t.v, **options))
        return lambda: output(module.flash_attn_func(q, t.k, t.v, **options))

"""flash-attn 2: dense and ragged tensors, and a KV cache in pages of a multiple of 256."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from ..cases import Case
from ..tensors import Tensors
from .base import Provider


class FlashAttention2(Provider):
    name = "fa2"
    title = "flash-attn 2"
    install = "flash-attn --no-build-isolation (builds from source)"
    modules = ("flash_attn.flash_attn_interface",)  # `flash_attn` alone may be FlashAttention-4's namespace
    distributions = ("flash-attn",)
    isolated = True

    def refuses(self, case: Case) -> Optional[str]:
        if case.head_dim_qk != case.head_dim_vo:
            return "one head dim for Q, K and V"
        if case.kv == "paged" and case.page_size % 256:
            return "pages of a multiple of 256 only"
        if case.kv == "paged" and case.ragged_q:
            return "as many queries of each sequence where KV is paged"
        return super().refuses(case)

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        module = self.module()
        t = tensors
        options: Dict[str, Any] = dict(causal=case.causal, window_size=case.window or (-1, -1))
        if case.kv == "ragged":
            return lambda: module.flash_attn_varlen_func(t.q, t.k, t.v, t.q_indptr, t.kv_indptr, case.q_len,
                                                         case.kv_len, **options)
        if case.has_few_queries or case.kv == "paged":
            # The entry that splits KV when there are few queries.
            return lambda: module.flash_attn_with_kvcache(t.q, t.k, t.v, cache_seqlens=t.kv_lens,
                                                          block_table=t.page_table, **options)
        return lambda: module.flash_attn_func(t.q, t.k, t.v, **options)

"""flash-attn 4: kernels in CuTe's Python language, compiled when first used."""

from __future__ import annotations

from typing import Any, Callable, Dict

from ..cases import Case
from ..tensors import Tensors
from .base import Provider
from .flash_attention_3 import output


class FlashAttention4(Provider):
    name = "fa4"
    title = "flash-attn 4"
    install = "--pre flash-attn-4 nvidia-cutlass-dsl[cu13]"
    modules = ("flash_attn.cute",)
    needs = ("cutlass", "quack", "tvm_ffi")
    distributions = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
    isolated = True
    compiles = True

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        module = self.module()
        t = tensors
        options: Dict[str, Any] = dict(causal=case.causal)
        if case.window is not None:
            options["window_size"] = case.window
        if case.kv == "ragged":
            options.update(cu_seqlens_k=t.kv_indptr, max_seqlen_k=case.kv_len)
        elif case.kv == "paged":
            options.update(seqused_k=t.kv_lens, page_table=t.page_table)
        if case.ragged_q:
            options.update(cu_seqlens_q=t.q_indptr, max_seqlen_q=case.q_len)
        function = module.flash_attn_func if case.kv == "dense" else module.flash_attn_varlen_func
        return lambda: output(function(t.q, t.k, t.v, **options))

"""FlashAttention's functions, forward only: its arguments, layouts and results, computed by attnsmith.

    from attnsmith.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

Or, for programs that stay as they are, ``install()`` and ``python -m attnsmith.compat.flash_attn PROGRAM ARGS``: then
``import flash_attn`` and ``import flash_attn_interface`` find attnsmith's.

Names, order and defaults of positional arguments are those of FlashAttention 2.8. Arguments that only FlashAttention 3 and
its forks have are keywords. docs/replace-flash-attn.md lists every argument. Tensors are torch's, of fp16 or bf16, with any
strides but the last: where that is not 1, q, k and v are copied as FlashAttention does. Nothing waits for the GPU, so a
CUDA graph that captured a call is right as lengths and tables change.

Words that several functions have:

dropout_p: 0.0; any other is refused, since there is no training. A tensor that requires a gradient is refused as well.
softmax_scale: None is 1 / sqrt(head_dim); with qv the head dims of both count.
causal: the last query sees the last key, each one before it a key less, also where the lengths differ. 1 and 0 are accepted.
window_size: (left, right): a query at position p sees the keys p - left .. p + right; below 0, or None, is no bound. It may
    be a tensor, which is read: one on the GPU waits.
attention_chunk: a query sees the keys of its own chunk of this many tokens alone; 0 is no chunks.
softcap: logits become softcap * tanh(logit / softcap); 0.0 and below is off.
alibi_slopes: fp32 [heads], or [batch, heads]: without cu_seqlens_q by a launch for each sequence, unless its rows are one
    that was expanded; else they must be that. -slope * |position - key| is added. Served where no key after the query is
    seen: with causal, with a window of 0 to the right, and for one query.
sinks, s_aux: [heads], of 16 bits or fp32: exp(sink) is added to each row's denominator. Two names of one thing.
qv: queries of the values, as FlashAttention 3 has them for latent attention (MLA): logits are q k^T + qv v^T. Served
    where k and v have one head, without the words that mla_attention lacks.
k_descale, v_descale: fp32 [batch, kv_heads] whose rows are one row, or [kv_heads] or [1], of k and v of 8 bits.
    q_descale is refused, as is a q of 8 bits.
deterministic, num_splits, pack_gqa, sm_margin, scheduler_metadata: hints, which change nothing but speed elsewhere, and
    nothing here: results are the same at every launch.
return_attn_probs: gives (out, softmax_lse, S_dmask) as FlashAttention 2 does, whose S_dmask is empty without dropout.
    softmax_lse is fp32, the natural logarithm of each row's sum.

A query that sees no key gets 0 and an LSE of -inf, as in FlashAttention 3; FlashAttention 2 makes that LSE +inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ._install import install, uninstall

if TYPE_CHECKING:
    from .flash_attn_interface import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func,
                                       flash_attn_varlen_func, flash_attn_varlen_kvpacked_func,
                                       flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache,
                                       get_scheduler_metadata)

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
           "get_scheduler_metadata", "install", "uninstall"]


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take any name for one of the module's

    def __getattr__(name: str) -> Any:
        """The functions, with which torch comes: install() and the launcher, which need none, are not to wait for it."""
        if name not in __all__:
            if name == "flash_attn_combine":
                raise AttributeError(f"attnsmith.compat.flash_attn has no {name}: attnsmith.merge_states merges partial results")
            raise AttributeError(f"attnsmith.compat.flash_attn has no {name}: it has {', '.join(__all__)}, and the modules "
                                 "bert_padding and layers.rotary; what else flash_attn has comes from flash_attn itself")
        from . import flash_attn_interface
        globals().update({function: getattr(flash_attn_interface, function) for function in __all__
                          if function not in globals()})
        return globals()[name]

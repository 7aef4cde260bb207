"""flash_attn_interface, FlashAttention 3's functions: its positional arguments and results. What else FlashAttention 2 and
forks have (block_table, alibi_slopes, s_aux, out, ...) are keywords. The package says more of each word."""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Tuple

from ...errors import InvalidRequest, Unsupported
from . import flash_attn_interface as _fa2
from .flash_attn_interface import get_scheduler_metadata

__all__ = ["_flash_attn_backward", "_flash_attn_forward", "flash_attn_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_NO_WINDOW = (-1, -1)


def flash_attn_func(q: Any, k: Any, v: Any, softmax_scale: Optional[float] = None, causal: bool = False, qv: Any = None,
                    q_descale: Any = None, k_descale: Any = None, v_descale: Any = None, window_size: Any = _NO_WINDOW,
                    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: Optional[bool] = None, deterministic: bool = False, sm_margin: int = 0,
                    return_attn_probs: bool = False, sinks: Any = None, **more: Any) -> Any:
    """attnsmith.compat.flash_attn.flash_attn_func. Gives out [batch, seqlen_q, heads, head_dim_v]; with
    return_attn_probs (out, softmax_lse [batch, heads, seqlen_q])."""
    return _pair_or_out(_fa2.flash_attn_func(
        q, k, v, softmax_scale=softmax_scale, causal=causal, qv=qv, q_descale=q_descale, k_descale=k_descale,
        v_descale=v_descale, window_size=window_size, attention_chunk=attention_chunk, softcap=softcap,
        num_splits=num_splits, pack_gqa=pack_gqa, deterministic=deterministic, sm_margin=sm_margin,
        return_attn_probs=return_attn_probs, sinks=sinks, **more))


def flash_attn_qkvpacked_func(qkv: Any, softmax_scale: Optional[float] = None, causal: bool = False,
                              q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
                              window_size: Any = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0,
                              deterministic: bool = False, num_heads_q: Optional[int] = None, sm_margin: int = 0,
                              return_attn_probs: bool = False, **more: Any) -> Any:
    """attnsmith.compat.flash_attn.flash_attn_qkvpacked_func. Gives out, or (out, softmax_lse) with return_attn_probs."""
    return _pair_or_out(_fa2.flash_attn_qkvpacked_func(
        qkv, softmax_scale=softmax_scale, causal=causal, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        window_size=window_size, attention_chunk=attention_chunk, softcap=softcap, deterministic=deterministic,
        num_heads_q=num_heads_q, sm_margin=sm_margin, return_attn_probs=return_attn_probs, **more))


def flash_attn_varlen_func(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Optional[int],
                           max_seqlen_k: Optional[int], seqused_q: Any = None, seqused_k: Any = None,
                           softmax_scale: Optional[float] = None, causal: bool = False, qv: Any = None,
                           q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
                           window_size: Any = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0,
                           num_splits: int = 1, pack_gqa: Optional[bool] = None, deterministic: bool = False,
                           sm_margin: int = 0, return_attn_probs: bool = False, sinks: Any = None, *,
                           s_aux: Any = None, **more: Any) -> Any:
    """attnsmith.compat.flash_attn.flash_attn_varlen_func. Gives out [total_q, heads, head_dim_v], or (out, softmax_lse
    [heads, total_q]) with return_attn_probs."""
    return _pair_or_out(_fa2.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=seqused_q, seqused_k=seqused_k,
        softmax_scale=softmax_scale, causal=causal, qv=qv, q_descale=q_descale, k_descale=k_descale,
        v_descale=v_descale, window_size=window_size, attention_chunk=attention_chunk, softcap=softcap,
        num_splits=num_splits, pack_gqa=pack_gqa, deterministic=deterministic, sm_margin=sm_margin,
        return_attn_probs=return_attn_probs, sinks=sinks, s_aux=s_aux, **more))


def flash_attn_with_kvcache(q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, qv: Any = None,
                            rotary_cos: Any = None, rotary_sin: Any = None, cache_seqlens: Any = None,
                            cache_batch_idx: Any = None, cache_leftpad: Any = None, page_table: Any = None,
                            cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None, max_seqlen_q: Optional[int] = None,
                            rotary_seqlens: Any = None, q_descale: Any = None, k_descale: Any = None,
                            v_descale: Any = None, softmax_scale: Optional[float] = None, causal: bool = False,
                            window_size: Any = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0,
                            rotary_interleaved: bool = True, scheduler_metadata: Any = None, num_splits: int = 0,
                            pack_gqa: Optional[bool] = None, sm_margin: int = 0, return_softmax_lse: bool = False,
                            sinks: Any = None, **more: Any) -> Any:
    """attnsmith.compat.flash_attn.flash_attn_with_kvcache. Gives out, or (out, softmax_lse) with return_softmax_lse."""
    return _fa2.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, qv=qv, rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, page_table=page_table, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new, max_seqlen_q=max_seqlen_q, rotary_seqlens=rotary_seqlens,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, attention_chunk=attention_chunk, softcap=softcap,
        rotary_interleaved=rotary_interleaved, scheduler_metadata=scheduler_metadata, num_splits=num_splits,
        pack_gqa=pack_gqa, sm_margin=sm_margin, return_softmax_lse=return_softmax_lse, sinks=sinks, **more)


def _pair_or_out(result: Any) -> Any:
    """Without S_dmask, which FlashAttention 3 does not give."""
    return result[:2] if isinstance(result, tuple) else result


# What its autograd functions are made of. Context parallelism calls these.


def _flash_attn_forward(q: Any, k: Any, v: Any, k_new: Any = None, v_new: Any = None, qv: Any = None, out: Any = None,
                        cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, cu_seqlens_k_new: Any = None,
                        seqused_q: Any = None, seqused_k: Any = None, max_seqlen_q: Optional[int] = None,
                        max_seqlen_k: Optional[int] = None, page_table: Any = None, kv_batch_idx: Any = None,
                        leftpad_k: Any = None, rotary_cos: Any = None, rotary_sin: Any = None,
                        seqlens_rotary: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
                        softmax_scale: Optional[float] = None, causal: bool = False, window_size_left: int = -1,
                        window_size_right: int = -1, attention_chunk: int = 0, softcap: float = 0.0,
                        rotary_interleaved: bool = True, scheduler_metadata: Any = None, num_splits: int = 1,
                        pack_gqa: Optional[bool] = None, sm_margin: int = 0, sinks: Any = None) -> Tuple[Any, ...]:
    """(out, softmax_lse, out_accum, softmax_lse_accum), the last two None: of dense tensors, and with cu_seqlens_q and
    cu_seqlens_k of ragged ones. What writes to or reads from a cache is flash_attn_with_kvcache's, and refused here."""
    for name, value in (("k_new", k_new), ("v_new", v_new), ("cu_seqlens_k_new", cu_seqlens_k_new),
                        ("page_table", page_table), ("kv_batch_idx", kv_batch_idx), ("leftpad_k", leftpad_k),
                        ("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin), ("seqlens_rotary", seqlens_rotary),
                        ("out", out)):
        if value is not None:
            raise Unsupported(f"{name} of _flash_attn_forward is not supported: call flash_attn_with_kvcache")
    words = {"qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
             "softmax_scale": softmax_scale, "causal": causal, "window_size": (window_size_left, window_size_right),
             "attention_chunk": attention_chunk, "softcap": softcap, "sinks": sinks, "return_attn_probs": True}
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        missing, given = ("cu_seqlens_q", "cu_seqlens_k") if cu_seqlens_q is None else ("cu_seqlens_k", "cu_seqlens_q")
        raise InvalidRequest(missing, "None", f"a tensor, as {given} is")
    if cu_seqlens_q is not None:
        result = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q,
                                        seqused_k, **words)
    else:
        for name, value in (("seqused_q", seqused_q), ("seqused_k", seqused_k)):
            if value is not None:
                raise Unsupported(f"{name} without cu_seqlens_q is not supported: pass sequences by cu_seqlens_q")
        result = flash_attn_func(q, k, v, **words)
    return (*result, None, None)


def _flash_attn_backward(*arguments: Any, **words: Any) -> NoReturn:
    raise Unsupported("_flash_attn_backward is not supported: there is no training; call under torch.no_grad()")

"""flash_attn.flash_attn_interface: FlashAttention 2's functions. The package says more of each word."""

from __future__ import annotations

import numbers
import re
from typing import Any, Dict, Mapping, NoReturn, Optional, Tuple, cast

from ..._base.extras import missing

try:
    import torch
except ImportError as _error:
    raise missing("attnsmith.compat.flash_attn", "PyTorch", "torch", _error) from _error

from ... import functions
from ..._adapters import spans
from ..._operators.tracing import is_tracing
from ...errors import InvalidRequest, Unsupported
from ._tokens import sequences_of

__all__ = ["_flash_attn_backward", "_flash_attn_forward", "_flash_attn_varlen_backward", "_flash_attn_varlen_forward",
           "_wrapped_flash_attn_backward", "_wrapped_flash_attn_forward", "_wrapped_flash_attn_varlen_backward",
           "_wrapped_flash_attn_varlen_forward", "flash_attn_func", "flash_attn_kvpacked_func",
           "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]

_NO_WINDOW = (-1, -1)
# What attnsmith's functions call otherwise.
_NAMES = {"scale": "softmax_scale", "window": "window_size", "window_left": "window_size",
          "window_right": "window_size", "k_scale": "k_descale", "v_scale": "v_descale", "q_indptr": "cu_seqlens_q",
          "kv_indptr": "cu_seqlens_k", "max_q_len": "max_seqlen_q", "max_kv_len": "max_seqlen_k"}
_QUERIES = "[batch, seqlen_q, heads, head_dim]"
_KEYS = "[batch, seqlen_k, kv_heads, head_dim]"
_RAGGED_QUERIES = "[total_q, heads, head_dim]"
_RAGGED_KEYS = "[total_k, kv_heads, head_dim]"
_PAGES = "[pages, page_size, kv_heads, head_dim]"
_QKV = {"q": "qkv", "k": "qkv", "v": "qkv"}
_KV = {"k": "kv", "v": "kv"}


def flash_attn_func(q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                    causal: bool = False, window_size: Any = _NO_WINDOW, softcap: float = 0.0, alibi_slopes: Any = None,
                    deterministic: bool = False, return_attn_probs: bool = False, *, qv: Any = None,
                    q_descale: Any = None, k_descale: Any = None, v_descale: Any = None, attention_chunk: int = 0,
                    num_splits: int = 1, pack_gqa: Optional[bool] = None, sm_margin: int = 0, sinks: Any = None,
                    s_aux: Any = None) -> Any:
    """Attention of a batch of sequences of one length. The package says more of each word.

    q: [batch, seqlen_q, heads, head_dim]. k: [batch, seqlen_k, kv_heads, head_dim], where kv_heads divides heads.
        v: [batch, seqlen_k, kv_heads, head_dim_v]. qv: [batch, seqlen_q, heads, head_dim_v].
    dropout_p, softmax_scale, causal, window_size, attention_chunk, softcap: numbers, and pairs of them.
    alibi_slopes, sinks, s_aux: [heads]. k_descale, v_descale: fp32 [batch, kv_heads]. q_descale: [batch, kv_heads],
        refused. deterministic, num_splits, pack_gqa, sm_margin: hints.

    Gives out [batch, seqlen_q, heads, head_dim_v]; with return_attn_probs (out, softmax_lse [batch, heads, seqlen_q],
    S_dmask, which is empty).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    return _dense({"sinks": _name_of_sinks(s_aux)}, q, k, v, qv, return_attn_probs, dropout_p, softmax_scale, causal,
                  window_size, softcap, alibi_slopes, q_descale, k_descale, v_descale, attention_chunk, sinks, s_aux)


def flash_attn_kvpacked_func(q: Any, kv: Any, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                             causal: bool = False, window_size: Any = _NO_WINDOW, softcap: float = 0.0,
                             alibi_slopes: Any = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Any:
    """flash_attn_func with keys and values in one tensor. The package says more of each word.

    q: [batch, seqlen_q, heads, head_dim]. kv: [batch, seqlen_k, 2, kv_heads, head_dim].
    dropout_p, softmax_scale, causal, window_size, softcap: numbers, and a pair. alibi_slopes: [heads].
    deterministic: a hint.

    Gives out [batch, seqlen_q, heads, head_dim]; with return_attn_probs (out, softmax_lse [batch, heads, seqlen_q],
    S_dmask, which is empty).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    k, v = _unpacked("kv", kv, 2, "[batch, seqlen_k, 2, kv_heads, head_dim]")
    return _dense(_KV, q, k, v, None, return_attn_probs, dropout_p, softmax_scale, causal, window_size, softcap,
                  alibi_slopes)


def flash_attn_qkvpacked_func(qkv: Any, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                              causal: bool = False, window_size: Any = _NO_WINDOW, softcap: float = 0.0,
                              alibi_slopes: Any = None, deterministic: bool = False,
                              return_attn_probs: bool = False, *, q_descale: Any = None,
                              k_descale: Any = None, v_descale: Any = None, attention_chunk: int = 0,
                              num_heads_q: Optional[int] = None, sm_margin: int = 0) -> Any:
    """flash_attn_func with queries, keys and values in one tensor. The package says more of each word.

    qkv: [batch, seqlen, 3, heads, head_dim], or, with num_heads_q, [batch, seqlen, heads + 2 * kv_heads, head_dim].
    dropout_p, softmax_scale, causal, window_size, attention_chunk, softcap: numbers, and a pair.
    alibi_slopes: [heads]. deterministic, sm_margin: hints.
    q_descale, k_descale, v_descale: [batch, kv_heads], refused, since they are of a qkv of 8 bits.

    Gives out [batch, seqlen, heads, head_dim]; with return_attn_probs (out, softmax_lse [batch, heads, seqlen],
    S_dmask, which is empty).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    for name, scale in (("q_descale", q_descale), ("k_descale", k_descale), ("v_descale", v_descale)):
        _refuse_query_scale(name, scale)
    if num_heads_q is None:
        q, k, v = _unpacked("qkv", qkv, 3, "[batch, seqlen, 3, heads, head_dim]")
    else:
        q, k, v = _split(qkv, num_heads_q)
    return _dense(_QKV, q, k, v, None, return_attn_probs, dropout_p, softmax_scale, causal, window_size, softcap,
                  alibi_slopes, attention_chunk=attention_chunk)


def flash_attn_varlen_func(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Optional[int],
                           max_seqlen_k: Optional[int], dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                           causal: bool = False, window_size: Any = _NO_WINDOW, softcap: float = 0.0,
                           alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: Any = None, *, seqused_q: Any = None, seqused_k: Any = None, qv: Any = None,
                           q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
                           attention_chunk: int = 0, num_splits: int = 1, pack_gqa: Optional[bool] = None,
                           sm_margin: int = 0, scheduler_metadata: Any = None, sinks: Any = None, s_aux: Any = None,
                           return_softmax_lse: bool = False, out: Any = None) -> Any:
    """Attention of sequences of different lengths, one after the other. The package says more of each word.

    q: [total_q, heads, head_dim]. k: [total_k, kv_heads, head_dim], where kv_heads divides heads. v: [total_k,
        kv_heads, head_dim_v]. qv: [total_q, heads, head_dim_v].
    cu_seqlens_q, cu_seqlens_k: int32 or int64 [batch + 1] on the GPU: where each sequence begins, and the end.
    max_seqlen_q, max_seqlen_k: integers on the host that no sequence is longer than.
    block_table: int32 or int64 [batch, pages a sequence] on the GPU: k and v are then pages, [pages, page_size,
        kv_heads, head_dim] of any size. Lengths are those of seqused_k [batch], where
        cu_seqlens_k may be None, or of cu_seqlens_k.
    seqused_q, seqused_k: int32 or int64 [batch] on the GPU: how many of each sequence's queries and keys, from its first
        on, are in use. Other queries get 0. max_seqlen_q and max_seqlen_k need not count what is not in use.
    dropout_p, softmax_scale, causal, window_size, attention_chunk, softcap: numbers, and a pair.
    alibi_slopes, sinks, s_aux: [heads]. k_descale, v_descale: fp32 [batch, kv_heads]. q_descale: [batch, kv_heads],
        refused. deterministic, num_splits, pack_gqa, sm_margin, scheduler_metadata: hints. out: a tensor to write to.

    Gives out [total_q, heads, head_dim_v]; with return_softmax_lse (out, softmax_lse [heads, total_q]); with
    return_attn_probs (out, softmax_lse, S_dmask, which is empty).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    if seqused_k is None and block_table is not None and cu_seqlens_k is None:
        raise InvalidRequest("cu_seqlens_k", "None", "lengths of the sequences in block_table, here or in seqused_k")
    options = _options(max_seqlen_q == 1, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                       q_descale, k_descale, v_descale, attention_chunk, sinks, s_aux)
    names = {"sinks": _name_of_sinks(s_aux)}
    lengths = {"q_indptr": cu_seqlens_q, "max_q_len": max_seqlen_q, "max_kv_len": max_seqlen_k}
    _check_used(seqused_q, "seqused_q", cu_seqlens_q, "cu_seqlens_q")
    if seqused_q is not None:  # the queries that are not in use are sequences too, as long as any
        lengths["max_q_len"] = None
    if block_table is None:
        _check_used(seqused_k, "seqused_k", cu_seqlens_k, "cu_seqlens_k")
        lengths["kv_indptr"] = cu_seqlens_k
        if seqused_q is not None or seqused_k is not None:
            q_spans, k_spans = _spans_of(cu_seqlens_q, seqused_q), _spans_of(cu_seqlens_k, seqused_k)
            lengths["q_indptr"], lengths["kv_indptr"] = _between(q_spans, cu_seqlens_q[-1:], k_spans)
    else:
        kv_lens = _lengths_of(cu_seqlens_k) if seqused_k is None else seqused_k
        lengths.update(page_table=block_table, kv_lens=kv_lens)
        names.update(page_table="block_table", kv_lens="cu_seqlens_k" if seqused_k is None else "seqused_k",
                     k_cache="k", v_cache="v")
        if seqused_q is not None:  # between the sequences one of the queries that are not in use, without keys
            begin, end = _spans_of(cu_seqlens_q, seqused_q)
            rows = torch.arange(len(begin), device=begin.device, dtype=kv_lens.dtype)
            lengths.update(q_indptr=torch.cat((torch.stack((begin, end), 1).flatten(), cu_seqlens_q[-1:])),
                           kv_lens=torch.stack((kv_lens, torch.zeros_like(kv_lens)), 1).flatten(),
                           table_rows=torch.stack((rows, rows), 1).flatten())
    return _ragged(names, q, k, v, qv, lengths, options, return_attn_probs, return_softmax_lse, out)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Optional[int],
                                    max_seqlen_k: Optional[int], dropout_p: float = 0.0,
                                    softmax_scale: Optional[float] = None, causal: bool = False,
                                    window_size: Any = _NO_WINDOW, softcap: float = 0.0, alibi_slopes: Any = None,
                                    deterministic: bool = False, return_attn_probs: bool = False) -> Any:
    """flash_attn_varlen_func with keys and values in one tensor. The package says more of each word.

    q: [total_q, heads, head_dim]. kv: [total_k, 2, kv_heads, head_dim].
    cu_seqlens_q, cu_seqlens_k: int32 or int64 [batch + 1] on the GPU: where each sequence begins, and the end.
    max_seqlen_q, max_seqlen_k: integers on the host that no sequence is longer than.
    dropout_p, softmax_scale, causal, window_size, softcap: numbers, and a pair. alibi_slopes: [heads].
    deterministic: a hint.

    Gives out [total_q, heads, head_dim]; with return_attn_probs (out, softmax_lse [heads, total_q], S_dmask, which is
    empty).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    k, v = _unpacked("kv", kv, 2, "[total_k, 2, kv_heads, head_dim]")
    options = _options(max_seqlen_q == 1, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    lengths = {"q_indptr": cu_seqlens_q, "kv_indptr": cu_seqlens_k, "max_q_len": max_seqlen_q,
               "max_kv_len": max_seqlen_k}
    return _ragged(_KV, q, k, v, None, lengths, options, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: Optional[int], dropout_p: float = 0.0,
                                     softmax_scale: Optional[float] = None, causal: bool = False,
                                     window_size: Any = _NO_WINDOW, softcap: float = 0.0, alibi_slopes: Any = None,
                                     deterministic: bool = False, return_attn_probs: bool = False) -> Any:
    """flash_attn_varlen_func with queries, keys and values in one tensor. The package says more of each word.

    qkv: [total, 3, heads, head_dim]. cu_seqlens: int32 or int64 [batch + 1] on the GPU: where each sequence begins, and
        the end. max_seqlen: an integer on the host that no sequence is longer than.
    dropout_p, softmax_scale, causal, window_size, softcap: numbers, and a pair. alibi_slopes: [heads].
    deterministic: a hint.

    Gives out [total, heads, head_dim]; with return_attn_probs (out, softmax_lse [heads, total], S_dmask, which is
    empty).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    q, k, v = _unpacked("qkv", qkv, 3, "[total, 3, heads, head_dim]")
    options = _options(max_seqlen == 1, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    lengths = {"q_indptr": cu_seqlens, "kv_indptr": cu_seqlens, "max_q_len": max_seqlen, "max_kv_len": max_seqlen}
    names = {**_QKV, "q_indptr": "cu_seqlens", "kv_indptr": "cu_seqlens", "max_q_len": "max_seqlen",
             "max_kv_len": "max_seqlen"}
    return _ragged(names, q, k, v, None, lengths, options, return_attn_probs)


def flash_attn_with_kvcache(q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, rotary_cos: Any = None,
                            rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None,
                            cache_leftpad: Any = None, block_table: Any = None, softmax_scale: Optional[float] = None,
                            causal: bool = False, window_size: Any = _NO_WINDOW, softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Any = None, num_splits: int = 0,
                            return_softmax_lse: bool = False, *, qv: Any = None, page_table: Any = None,
                            cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None,
                            max_seqlen_q: Optional[int] = None, rotary_seqlens: Any = None, q_descale: Any = None,
                            k_descale: Any = None, v_descale: Any = None, attention_chunk: int = 0,
                            scheduler_metadata: Any = None, pack_gqa: Optional[bool] = None, sm_margin: int = 0,
                            sinks: Any = None, s_aux: Any = None, out: Any = None) -> Any:
    """Attention to a cache, to which new keys and values are written first. The package says more of each word.

    q: [batch, seqlen_q, heads, head_dim], or, with cu_seqlens_q, [total_q, heads, head_dim]. qv: the same with
        head_dim_v.
    k_cache, v_cache: [rows, seqlen_cache, kv_heads, head_dim], whose first rows are the batch's; or, with
        block_table (or page_table, its other name), pages [pages, page_size, kv_heads, head_dim] of any size.
    k, v: [batch, seqlen_new, kv_heads, head_dim], or, with cu_seqlens_k_new, [total_new, kv_heads, head_dim]. They are
        written to the caches, in place, after the cache_seqlens keys of each sequence, and the queries see them. Of a
        sequence that the cache has no room for, none is written.
    cache_seqlens: the keys of each sequence before that, int32 or int64 [batch] on the GPU, or an integer for all; None
        is all that the cache has room for, where nothing is written.
    block_table, page_table: int32 or int64 [batch, pages a sequence] on the GPU.
    cache_batch_idx: int32 or int64 [batch] on the GPU: the row of the caches, or of block_table, of each sequence.
    cache_leftpad: int32 or int64 [batch] on the GPU: each sequence begins at this place of its row, and the keys before it
        are not seen; cache_seqlens counts them. Refused with pages, cache_batch_idx, cu_seqlens_q and rotary_cos.
    cu_seqlens_q, cu_seqlens_k_new: int32 or int64 [batch + 1] on the GPU: where each sequence's queries, and new keys,
        begin, and the end. max_seqlen_q: an integer on the host that no sequence has more queries than.
    rotary_cos, rotary_sin: [positions, rotary_dim / 2], fp32 or of q's dtype, refused without k. New keys are rotated
        at cache_seqlens + 0, 1, ..., and so are queries with causal, a window_size or an attention_chunk; without these
        all of them are rotated at cache_seqlens. rotary_seqlens: [batch], counted from in place of cache_seqlens.
        rotary_interleaved: True turns columns 2 i and 2 i + 1, False i and i + rotary_dim / 2. Each call copies the two
        side by side, unless they are the halves of one tensor.
    softmax_scale, causal, window_size, attention_chunk, softcap: numbers, and a pair.
    alibi_slopes, sinks, s_aux: [heads]. k_descale, v_descale: fp32 [batch, kv_heads], of caches of 8 bits, which k and
        v are rounded to. q_descale: [batch, kv_heads], refused.
    num_splits, scheduler_metadata, pack_gqa, sm_margin: hints. out: a tensor to write to.

    Gives out, of q's shape with head_dim_v; with return_softmax_lse (out, softmax_lse [batch, heads, seqlen_q], or with
    cu_seqlens_q [heads, total_q]).

    Raises InvalidRequest naming the argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    table = _one_of("block_table", block_table, "page_table", page_table)
    _check_new(k, v, rotary_cos, rotary_sin, cache_seqlens, cu_seqlens_k_new)
    if cache_leftpad is not None:
        _check_left_padding(cache_leftpad, **{"block_table" if page_table is None else "page_table": table,
                                              "cache_batch_idx": cache_batch_idx, "cu_seqlens_q": cu_seqlens_q,
                                              "rotary_cos": rotary_cos})
    q = _operand("q", q, _QUERIES if cu_seqlens_q is None else _RAGGED_QUERIES)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_axes(name, cache, "[rows, seqlen_cache, kv_heads, head_dim]" if table is None else _PAGES)
    one_query = (q.shape[1] if cu_seqlens_q is None else max_seqlen_q) == 1
    options = _options(one_query, 0.0, softmax_scale, causal, window_size, softcap, alibi_slopes, q_descale, k_descale,
                       v_descale, attention_chunk, sinks, s_aux)
    names = {"kv_lens": "cache_seqlens", "table_rows": "cache_batch_idx", "sinks": _name_of_sinks(s_aux),
             "page_table": "block_table" if page_table is None else "page_table"}

    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    index = {"dtype": _index_dtype(cache_seqlens, table, cache_batch_idx, cu_seqlens_q, cu_seqlens_k_new),
             "device": q.device}
    pages: Dict[str, Any] = {}
    if table is not None:
        pages = {"page_table": table, "table_rows": cache_batch_idx}
    elif cache_batch_idx is not None or cu_seqlens_q is not None:
        # Dense kernels take rows in their order and a q of one length. To paged ones each row of the cache is a page.
        rows = torch.arange(batch, **index) if cache_batch_idx is None else cache_batch_idx
        pages = {"page_table": rows[:, None]}
        names["page_table"] = "cache_batch_idx"
    else:
        k_cache, v_cache = k_cache[:batch], v_cache[:batch]
    if cache_seqlens is None and pages:
        cache_seqlens = pages["page_table"].shape[1] * k_cache.shape[1]
    if isinstance(cache_seqlens, (int, torch.SymInt)):
        cache_seqlens = torch.full((batch,), cast(int, cache_seqlens), **index)

    kv_lens = cache_seqlens
    if k is not None:
        axes = _KEYS if cu_seqlens_k_new is None else _RAGGED_KEYS
        k, v = _operand("k", k, axes), _operand("v", v, axes)
        kv_lens = cache_seqlens + (k.shape[1] if cu_seqlens_k_new is None else _lengths_of(cu_seqlens_k_new))
        words = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "k_scale": options["k_scale"],
                 "v_scale": options["v_scale"], "q_indptr": cu_seqlens_k_new, "kv_lens": kv_lens,
                 "page_order": "NHD" if pages else None, **pages}
        if rotary_cos is None:
            _append(names, **words)
        else:
            moves = bool(causal or options["window"] or attention_chunk)  # or all queries are at one position
            q = _append_rotated(names, words, q, cu_seqlens_q, moves or one_query,
                                cache_seqlens if rotary_seqlens is None else rotary_seqlens, rotary_seqlens is None,
                                rope_table=_rope_table(rotary_cos, rotary_sin),
                                rope="interleaved" if rotary_interleaved else "half")

    names = {**names, "k": "k_cache", "v": "v_cache"}
    if cache_leftpad is not None:
        out, lse = _attend_left_padded(names, q, k_cache, v_cache, qv, cache_leftpad, kv_lens, options, return_softmax_lse,
                                       out)
        return (out, lse) if return_softmax_lse else out
    lengths = {"kv_lens": kv_lens, **pages}
    if pages:
        lengths.update(q_indptr=cu_seqlens_q, max_q_len=None if cu_seqlens_q is None else max_seqlen_q)
    out, lse = _attend(names, q, k_cache, v_cache, qv, lengths, options, return_softmax_lse, out)
    return (out, lse) if return_softmax_lse else out


def get_scheduler_metadata(*arguments: Any, **words: Any) -> None:
    """FlashAttention 3's and vLLM's: None, since attnsmith's launches need none. The functions take it as a hint."""


# What flash_attn's own autograd functions are made of. Context parallelism calls these.


def _flash_attn_forward(q: Any, k: Any, v: Any, dropout_p: float, softmax_scale: Optional[float], causal: bool,
                        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Any,
                        return_softmax: bool) -> Tuple[Any, ...]:
    """Gives (out, softmax_lse, S_dmask, rng_state), the last two without contents."""
    result = flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap,
                             alibi_slopes, return_attn_probs=True)
    return (*result, _no_random_state(q))


def _flash_attn_varlen_forward(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Optional[int],
                               max_seqlen_k: Optional[int], dropout_p: float, softmax_scale: Optional[float],
                               causal: bool, window_size_left: int = -1, window_size_right: int = -1,
                               softcap: float = 0.0, alibi_slopes: Any = None, return_softmax: bool = False,
                               block_table: Any = None, leftpad_k: Any = None, seqused_k: Any = None,
                               zero_tensors: bool = False) -> Tuple[Any, ...]:
    """The same of flash_attn_varlen_func."""
    if leftpad_k is not None:
        raise Unsupported("leftpad_k is not supported: let each sequence begin at the start of its row, and pass None")
    result = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                    softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes,
                                    return_attn_probs=True, block_table=block_table, seqused_k=seqused_k)
    return (*result, _no_random_state(q))


def _no_random_state(q: Any) -> Any:
    """Dropout's, which there is none of: two numbers, as flash_attn has them."""
    return torch.zeros(2, dtype=torch.int64, device=q.device)


def _flash_attn_backward(*arguments: Any, **words: Any) -> NoReturn:
    raise Unsupported("_flash_attn_backward is not supported: there is no training; call under torch.no_grad()")


def _flash_attn_varlen_backward(*arguments: Any, **words: Any) -> NoReturn:
    raise Unsupported("_flash_attn_varlen_backward is not supported: there is no training; call under torch.no_grad()")


_wrapped_flash_attn_forward, _wrapped_flash_attn_backward = _flash_attn_forward, _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


def _dense(names: Mapping[str, str], q: Any, k: Any, v: Any, qv: Any, return_attn_probs: bool, *words: Any,
           **more: Any) -> Any:
    """`words` and `more`: those of _options()."""
    q, k, v = _operand("q", q, _QUERIES), _operand("k", k, _KEYS), _operand("v", v, _KEYS)
    out, lse = _attend(names, q, k, v, qv, {}, _options(q.shape[1] == 1, *words, **more), return_attn_probs)
    return (out, lse, q.new_empty(0)) if return_attn_probs else out


def _ragged(names: Mapping[str, str], q: Any, k: Any, v: Any, qv: Any, lengths: Dict[str, Any],
            options: Dict[str, Any], return_attn_probs: bool, return_softmax_lse: bool = False, out: Any = None) -> Any:
    axes = _PAGES if "page_table" in lengths else _RAGGED_KEYS
    q, k, v = _operand("q", q, _RAGGED_QUERIES), _operand("k", k, axes), _operand("v", v, axes)
    out, lse = _attend(names, q, k, v, qv, lengths, options, return_attn_probs or return_softmax_lse, out)
    if return_attn_probs:
        return out, lse, q.new_empty(0)
    return (out, lse) if return_softmax_lse else out


def _check_used(used: Any, name: str, offsets: Any, offsets_name: str) -> None:
    """What cuts the sequences that offsets count."""
    if used is None:
        return
    _check_axes(name, used, "[batch]")
    _check_axes(offsets_name, offsets, "[batch + 1]")
    if len(used) != len(offsets) - 1:
        raise InvalidRequest(f"{name}.shape", str(tuple(used.shape)), f"({len(offsets) - 1},), as {offsets_name} has sequences")


def _spans_of(offsets: Any, used: Any) -> Tuple[Any, Any]:
    """Where each sequence's tokens that are in use begin and end: within the sequence, whatever `used` is."""
    begin, end = offsets[:-1], offsets[1:]
    return begin, end if used is None else begin + torch.minimum(used.to(begin.dtype).clamp(min=0), end - begin)


def _between(queries: Tuple[Any, Any], total: Any, keys: Tuple[Any, Any]) -> Tuple[Any, Any]:
    """q_indptr and kv_indptr of spans (begin, end) of ragged tensors, which ascend: after each sequence one of the keys to
    the next, without queries, and one of the queries to the next, without keys, which gives 0. `total`: where the queries
    end, [1]."""
    (q_begin, q_end), (k_begin, k_end) = queries, keys
    next_keys = torch.cat((k_begin[1:], k_end[-1:]))
    q_indptr = torch.cat((torch.stack((q_begin, q_end, q_end), 1).flatten(), total.to(q_begin.dtype)))
    kv_indptr = torch.cat((torch.stack((k_begin, k_end, next_keys), 1).flatten(), next_keys[-1:]))
    return q_indptr, kv_indptr.to(q_indptr.dtype)


def _check_left_padding(cache_leftpad: Any, **others: Any) -> None:
    for name, value in others.items():
        if value is not None:
            raise Unsupported(f"cache_leftpad with {name} is not supported: let each sequence begin at the start of its "
                              "row, or of its first page, and pass None")
    _check_axes("cache_leftpad", cache_leftpad, "[batch]")


def _attend_left_padded(names: Mapping[str, str], q: Any, k_cache: Any, v_cache: Any, qv: Any, leftpad: Any, kv_lens: Any,
                        options: Dict[str, Any], return_lse: bool, out: Any) -> Tuple[Any, Any]:
    """Rows of dense caches as spans of ragged ones of the same memory."""
    pitch = spans.pitch_of(1, k_cache, v_cache)
    if not pitch:
        raise Unsupported("cache_leftpad is supported where rows of k_cache and v_cache lie a whole number of tokens apart: "
                          "pass contiguous caches, or no cache_leftpad")
    batch, q_len = q.shape[:2]
    if len(leftpad) != batch:
        raise InvalidRequest("cache_leftpad.shape", str(tuple(leftpad.shape)), f"({batch},), as q has sequences")
    rows = torch.arange(batch, device=leftpad.device, dtype=leftpad.dtype)
    if kv_lens is None:
        kv_lens = torch.full_like(leftpad, k_cache.shape[1])
    first = leftpad.clamp(0, k_cache.shape[1])  # in its row, as the last is: the next row's keys lie after it
    last = torch.maximum(kv_lens.to(leftpad.dtype).clamp(max=k_cache.shape[1]), first)
    begin, end = rows * pitch + first, rows * pitch + last
    ends = (rows + 1) * q_len
    q_indptr, kv_indptr = _between((rows * q_len, ends), ends[-1:], (begin, end))
    lengths = {"q_indptr": q_indptr, "kv_indptr": kv_indptr, "max_q_len": q_len, "max_kv_len": k_cache.shape[1]}
    qv = None if qv is None else _operand("qv", qv, _QUERIES).flatten(0, 1)
    result, lse = _attend(names, q.flatten(0, 1), spans.in_a_row(k_cache, pitch), spans.in_a_row(v_cache, pitch), qv,
                          lengths, options, return_lse)
    result = result.unflatten(0, (batch, q_len))
    lse = None if lse is None else lse.unflatten(1, (batch, q_len)).transpose(0, 1).contiguous()
    return (result if out is None else out.copy_(result)), lse


def _attend(names: Mapping[str, str], q: Any, k: Any, v: Any, qv: Any, lengths: Dict[str, Any],
            options: Dict[str, Any], return_lse: bool, out: Any = None) -> Tuple[Any, Any]:
    """out, and the LSE or None. `lengths`: words that also tell how k and v are stored."""
    slopes = options["alibi_slopes"]
    if isinstance(slopes, torch.Tensor) and slopes.dim() == 2:
        return _attend_each(names, q, k, v, qv, lengths, options, return_lse, out)
    words = dict(lengths)
    if return_lse:
        words.update(return_lse=True, lse_order="HND")
    if out is not None:
        words["out"] = out
    if qv is not None:
        result = _attend_latents(names, q, k, v, qv, words, options)
        return result if return_lse else (result, None)
    words.update(options)
    try:
        if "page_table" in lengths:
            result = functions.paged_attention(q, (k, v), **words)
        elif "kv_indptr" in lengths:
            result = functions.varlen_attention(q, k, v, **words)
        else:
            result = functions.attention(q, k, v, **words)
    except InvalidRequest as error:
        raise _renamed(error, names) from None
    return result if return_lse else (result, None)


def _attend_each(names: Mapping[str, str], q: Any, k: Any, v: Any, qv: Any, lengths: Dict[str, Any],
                 options: Dict[str, Any], return_lse: bool, out: Any) -> Tuple[Any, Any]:
    """By a launch for each sequence, whose slopes are its own."""
    slopes = options["alibi_slopes"]
    if q.dim() != 4:
        raise Unsupported("alibi_slopes of its own for each sequence is not supported with cu_seqlens_q: pass one row, "
                          "[heads] or row.expand(batch, heads), or call once for each sequence")
    if len(slopes) != len(q):
        raise InvalidRequest("alibi_slopes.shape", str(tuple(slopes.shape)), f"({len(q)}, {q.shape[2]}), or ({q.shape[2]},)")
    if out is None:
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
    lse = None
    if return_lse:
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
    for b in range(len(q)):
        one = slice(b, b + 1)
        each = {name: value[one] if name in ("kv_lens", "table_rows") and value is not None else value
                for name, value in lengths.items()}
        keys = k, v
        if each.get("page_table") is None:
            keys = k[one], v[one]
        elif each.get("table_rows") is None:
            each["page_table"] = each["page_table"][one]
        _, part = _attend(names, q[one], *keys, None if qv is None else qv[one], each,
                          {**options, "alibi_slopes": slopes[b]}, return_lse, out[one])
        if lse is not None:
            lse[one] = part
    return out, lse


def _attend_latents(names: Mapping[str, str], q: Any, k: Any, v: Any, qv: Any, words: Dict[str, Any],
                    options: Dict[str, Any]) -> Any:
    """q k^T + qv v^T over one KV head is latent attention: v has the latents, and k the columns of their positions."""
    for word, value in options.items():
        if value is not None and word not in ("causal", "scale"):
            name = {**_NAMES, **names}.get(word, word)
            raise Unsupported(f"{name} beside qv is not supported: latent attention does not have it; leave it out")
    if k.shape[-2] != 1:
        raise Unsupported(f"qv is supported where k and v have one head, which is latent attention, and here k has "
                          f"{k.shape[-2]}: join q with qv and k with v by columns, and pass no qv")
    qv = _operand("qv", qv, _RAGGED_QUERIES if q.dim() == 3 else _QUERIES)
    scale = options["scale"]
    if scale is None:
        scale = (q.shape[-1] + qv.shape[-1]) ** -0.5
    try:
        return functions.mla_attention(qv, v, q_pe=q, kpe=k, causal=options["causal"], scale=scale, **words)
    except InvalidRequest as error:
        raise _renamed(error, {**names, "q": "qv", "q_pe": "q", "ckv": names.get("v", "v"),
                               "kpe": names.get("k", "k")}) from None


def _append(names: Mapping[str, str], **words: Any) -> Any:
    names = {**names, "q_indptr": "cu_seqlens_k_new", "rope_table": "rotary_cos", "positions": "rotary_seqlens"}
    try:
        return functions.append(**words)
    except InvalidRequest as error:
        raise _renamed(error, names) from None


def _append_rotated(names: Mapping[str, str], words: Dict[str, Any], q: Any, cu_seqlens_q: Any, moves: bool,
                    start: Any, is_by_lengths: bool, **rotation: Any) -> Any:
    """Appends, and gives the rotated queries. `moves`: query i of a sequence is at start + i, and not at start.
    `is_by_lengths`: start is what the cache held, from which append() counts by itself."""
    k, offsets = words["k"], words["q_indptr"]
    if not is_by_lengths:
        words = {**words, "positions": _positions(start, k, offsets, True)}
    if moves and cu_seqlens_q is offsets and q.shape[:-2] == k.shape[:-2]:  # a query for each key: one launch for all
        return _append(names, q=q, **words, **rotation)
    _append(names, **words, **rotation)
    return _append(names, q=q, positions=_positions(start, q, cu_seqlens_q, moves), **rotation)


def _positions(start: Any, rows: Any, offsets: Any, moves: bool) -> Any:
    """[tokens]: start of the token's sequence, and its place there if it `moves`. rows: [batch, length, ...], or with
    offsets [tokens, ...]."""
    if offsets is None:
        length = rows.shape[1]
        if not moves:
            return start.long().repeat_interleave(length)
        return (start[:, None] + torch.arange(length, device=start.device)).flatten()
    tokens, sequence = sequences_of(rows.shape[0], offsets)
    position = start[sequence]
    return (position + tokens - offsets[sequence] if moves else position).long()


def _rope_table(cos: Any, sin: Any) -> Any:
    """[positions, rotary_dim]: the cosines, and then the sines. Halves of one table are that table."""
    columns, strides = cos.shape[1], cos.stride()
    if (not is_tracing()  # where tensors have no addresses yet
            and sin.stride() == strides and strides[1] == 1 and strides[0] >= 2 * columns
            and sin.untyped_storage().data_ptr() == cos.untyped_storage().data_ptr()
            and sin.storage_offset() == cos.storage_offset() + columns):
        return cos.as_strided((cos.shape[0], 2 * columns), strides)
    return torch.cat((cos, sin), 1)


def _check_new(k: Any, v: Any, cos: Any, sin: Any, cache_seqlens: Any, offsets: Any) -> None:
    """What goes together with new keys, or not without them."""
    if k is None:
        for name, value in (("v", v), ("rotary_cos", cos), ("rotary_sin", sin), ("cu_seqlens_k_new", offsets)):
            if value is not None:
                raise InvalidRequest(name, "a tensor", "None without k, the new keys")
        return
    if v is None:
        raise InvalidRequest("v", "None", "the values of the keys in k")
    if cache_seqlens is None:
        raise InvalidRequest("cache_seqlens", "None", "what the cache holds before k and v are written behind that")
    if (cos is None) != (sin is None):
        missing, given = ("rotary_cos", "rotary_sin") if cos is None else ("rotary_sin", "rotary_cos")
        raise InvalidRequest(missing, "None", f"a tensor, as {given} is")
    if cos is not None:
        _check_axes("rotary_cos", cos, "[positions, rotary_dim / 2]")
        _check_axes("rotary_sin", sin, "[positions, rotary_dim / 2]")
        if cos.shape != sin.shape:
            raise InvalidRequest("rotary_sin.shape", str(tuple(sin.shape)), f"{tuple(cos.shape)}, as rotary_cos has")


def _options(one_query: bool, dropout_p: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any,
             alibi_slopes: Any, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
             attention_chunk: Any = 0, sinks: Any = None, s_aux: Any = None) -> Dict[str, Any]:
    """The words of attnsmith's functions, None for what is off. `one_query`: no sequence has two."""
    if not isinstance(dropout_p, (int, float)):
        raise InvalidRequest("dropout_p", f"an object of type {type(dropout_p).__name__}",
                             "0.0; arguments of FlashAttention 3 are given by name")
    if dropout_p:
        raise Unsupported(f"dropout_p {dropout_p} is not supported: there is no training; pass 0.0. Arguments of "
                          "FlashAttention 3 are given by name")
    _refuse_query_scale("q_descale", q_descale)
    if isinstance(causal, numbers.Integral) and causal in (0, 1):
        causal = bool(causal)
    window = _window(window_size)
    if causal and window is not None:  # as FlashAttention has it: the mask ends at the query
        window = None if window[0] is None else (window[0], None)
    slopes = _one_row(alibi_slopes)
    sees_later_keys = not causal and (window is None or window[1] != 0)
    if slopes is not None and sees_later_keys and not one_query:
        raise Unsupported("alibi_slopes where a query sees keys after its own are not supported: pass causal=True, or "
                          "a window_size of (left, 0)")
    k_scale, v_scale = _descale("k_descale", k_descale), _descale("v_descale", v_descale)
    if isinstance(k_scale, torch.Tensor) and v_scale is None:  # which is 1, and attnsmith takes both or neither
        v_scale = torch.ones_like(k_scale)
    if isinstance(v_scale, torch.Tensor) and k_scale is None:
        k_scale = torch.ones_like(v_scale)
    sink = _one_of("sinks", sinks, "s_aux", s_aux)
    return {"causal": causal, "window": window, "attention_chunk": attention_chunk or None,
            "softcap": None if isinstance(softcap, (int, float)) and softcap <= 0 else softcap, "scale": softmax_scale,
            "alibi_slopes": slopes, "sinks": sink.float() if isinstance(sink, torch.Tensor) else sink,
            "k_scale": k_scale, "v_scale": v_scale}


def _window(window_size: Any) -> Any:
    """None where there is none. A tensor is read, which waits where it is on the GPU. Raises InvalidRequest for what is
    no pair."""
    if isinstance(window_size, torch.Tensor):
        window_size = window_size.tolist()
    if window_size is None:
        return None
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise InvalidRequest("window_size", repr(window_size), "a pair (left, right), with -1 for no bound")
    sides = [side.item() if isinstance(side, torch.Tensor) and side.numel() == 1 else side for side in window_size]
    left, right = (None if isinstance(side, numbers.Integral) and side < 0 else side for side in sides)
    return None if left is None and right is None else (left, right)


def _one_row(tensor: Any) -> Any:
    """[heads] of [batch, heads], if all sequences have the same as far as the shape tells."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or not len(tensor):
        return tensor
    return tensor[0] if tensor.shape[0] == 1 or tensor.stride(0) == 0 else tensor


def _descale(name: str, tensor: Any) -> Any:
    """[kv_heads], or [1] where one number was expanded to all heads."""
    row = _one_row(tensor)
    if isinstance(row, torch.Tensor) and row.dim() == 2:
        raise Unsupported(f"{name} of its own for each sequence is not supported: pass one row, [kv_heads] or "
                          "row.expand(batch, kv_heads), or call once for each sequence")
    if not isinstance(row, torch.Tensor) or row.dim() != 1 or row.stride(0) == 1:
        return row
    return row[:1] if row.stride(0) == 0 else row.contiguous()


def _refuse_query_scale(name: str, scale: Any) -> None:
    if scale is not None:
        raise Unsupported(f"{name} is not supported: queries are of 16 bits; pass q in fp16 or bf16, and no {name}")


def _name_of_sinks(s_aux: Any) -> str:
    return "sinks" if s_aux is None else "s_aux"


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    """What two names of one argument say."""
    if value is not None and other is not None:
        raise InvalidRequest(other_name, "a tensor", f"None beside {name}, which is the same argument")
    return other if value is None else value


def _index_dtype(*tensors: Any) -> torch.dtype:
    """What lengths that are made here have to be of: all of a call are of one dtype."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            return tensor.dtype
    return torch.int32


def _lengths_of(offsets: Any) -> Any:
    return offsets[1:] - offsets[:-1]


def _check_axes(name: str, tensor: Any, axes: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidRequest(name, f"an object of type {type(tensor).__name__}", f"a torch.Tensor {axes}")
    if tensor.dim() != axes.count(",") + 1:
        raise InvalidRequest(f"{name}.shape", str(tuple(tensor.shape)), axes)


def _operand(name: str, tensor: Any, axes: str) -> Any:
    """With a last stride of 1, of a copy where it has to be."""
    _check_axes(name, tensor, axes)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _unpacked(name: str, packed: Any, count: int, axes: str) -> Tuple[Any, ...]:
    _check_axes(name, packed, axes)
    if packed.shape[-3] != count:
        raise InvalidRequest(f"{name}.shape", str(tuple(packed.shape)), axes)
    return tuple(packed.unbind(-3))


def _split(qkv: Any, heads: int) -> Tuple[Any, ...]:
    axes = "[batch, seqlen, heads + 2 * kv_heads, head_dim]"
    _check_axes("qkv", qkv, axes)
    kv_heads, odd = divmod(qkv.shape[2] - heads, 2)
    if kv_heads < 1 or odd:
        raise InvalidRequest("num_heads_q", str(heads), f"heads of a qkv of {tuple(qkv.shape)}, which is {axes}")
    return tuple(qkv.split((heads, kv_heads, kv_heads), 2))


def _renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """An error about a word of attnsmith's functions as one about the argument."""
    names = {**_NAMES, **names}
    name, dot, part = error.field.partition(".")
    if name not in names:
        return error
    accepted = re.sub(rf"\b{name}\.", f"{names[name]}.", error.accepted)
    # Of other tensors the names that are no words: what an error compares this one with.
    accepted = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: names.get(found[0], found[0]), accepted)
    return InvalidRequest(names[name] + dot + part, error.value, accepted)

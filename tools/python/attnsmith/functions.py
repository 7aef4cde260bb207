"""attention(), varlen_attention(), paged_attention(), mla_attention(), merge_states(), append() and top_k(): each finds,
binds and launches a kernel in one call. The first call for a problem prepares its kernel; later calls look it up.

Tensors are those of PyTorch, CuPy, JAX, or any object with ``__dlpack__`` or ``__cuda_array_interface__`` (Numba). They are
fp16 or bf16; outputs and the scores of top_k may be fp32, keys and values may be floats of 8 bits. The last stride is 1,
the others may be any. Outputs are made by the framework of q; they are attnsmith.Array where it is none of these. Work is
enqueued on that framework's current stream, or on ``stream``. All tensors of a call are on one GPU: that of q, or the
current one if q does not say. A mask in a ``__cuda_array_interface__`` is refused, and so is a read-only output. There is
no backward pass: a torch tensor that requires a gradient is refused.

These arguments are common to the first four functions, which also take what FlashAttention and FlashInfer write for "none".
mla_attention has no window, attention_chunk, softcap, sinks, alibi_slopes and precision. causal, return_lse and
return_status are True or False, of Python or numpy; 0, 1 and None are refused. softcap and scale are numbers; True is
refused.

causal: queries are aligned with the end of the keys: the last query sees the last key.
window: (left, right): query i, aligned like that, sees the keys i - left to i + right. None or -1 on a side is no bound.
    With causal, no key after i is seen, whatever right is.
attention_chunk: the length of a chunk in tokens, counted from the sequence's first key. A query sees only the keys of its
    own chunk, among those that causal and window allow. None or 0 is no chunks.
softcap: logits become softcap * tanh(logit / softcap); None or 0 is off. scale: the factor of q k^T; None is 1 /
    sqrt(head_dim), which mla_attention refuses.
sinks: fp32 [q_heads]: exp(sink) is added to each row's denominator. alibi_slopes: fp32 [q_heads].
return_lse: True also returns the fp32 natural-log log-sum-exp, of q's shape without the last axis. lse_order: "NHD", or
    "HND", which has the axis of the heads before that of the tokens, as FlashAttention and PyTorch do.
return_status: True also returns, last, an int32 tensor without axes on the GPU. CallStatus(status) says whether this call
    met lengths above its bounds, which are clamped, page ids that do not exist, or scales that are not above 0. It is
    written in stream order, by each replay of a graph too. Reading it waits; calls without it cost nothing more.
out: a tensor to write to.
o_dtype: the dtype of o: "fp32" (or torch.float32), which is not rounded, or that of q. None is the dtype of ``out``, or
    without ``out`` that of q.
precision: "standard" or "high". consistency: "standard" or "bitwise".
k_scale, v_scale: the scales of k and v of 8 bits, which are torch.float8_e4m3fn or torch.float8_e5m2, or uint8 with
    kv_dtype "e4m3" or "e5m2": fp32 [1] or [kv_heads] on the GPU; both, or neither. A key is the stored number times its
    scale: vLLM's k_scale, and FlashAttention's k_descale without its axis of sequences. Where each head of each token has
    its own scale, k_scale has the axes of k except the last, and v_scale those of v. With one axis more, each 128 columns
    have a scale: this needs head dims of at most 128, or latents, whose positions are then separate, in 16 bits and not
    scaled. All strides are allowed, so scales that a cache stores after each head's columns are a view of it: ``k =
    cache[..., :128]`` and ``k_scale = cache[..., 128:132].view(torch.float32)[..., 0]`` of a cache of uint8. A scale that
    is not above 0 makes the rows that see it NaN, which the status reports. mla_attention has k_scale alone, for keys and
    values at once.
stream: a CUstream as a number, or a stream of torch, CuPy, Numba or any object with ``__cuda_stream__``.

Lengths, offsets and page tables stay on the GPU, so a captured CUDA graph stays correct as they change. Call once before
the capture, so that the kernel is loaded. Errors: InvalidRequest, which names the tensor or argument, Unsupported,
CompileError, DriverError, LibraryMissing.
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from ctypes import c_int32, c_int64
from typing import Any, Callable, List, Optional, Tuple

from ._base.arguments import named
from ._base.integers import fitting
from ._base.options import COMMON, Options, check_order, flag, number, ordered_lse
from ._c_api import abi
from ._calls.append import append_all
from ._calls.attend import attend, begin
from ._calls.dispatch import Dispatch, Prepared, dispatch_now, index_kind_of
from ._calls.forms import LONGEST, Form, Problem, alignment_of, batch_views, latent_columns, need_axes
from ._calls.ops import launch_op
from ._operators.traceable import traceable
from ._tensors import frameworks, views as _views
from ._tensors.blocks import MergeBlock
from ._tensors.frameworks import Framework, Order
from ._tensors.views import View
from .errors import InvalidRequest
from .kernels import merge_states_views
from .words import Consistency, KvDType, ODType, PageOrder, Precision, Rope, Window

__all__ = ["append", "attention", "merge_states", "mla_attention", "paged_attention", "top_k", "varlen_attention"]

_MOST_STATES = 32  # that one kernel merges


def _bound(given: Optional[int], most: int) -> int:
    return min(given, most) if given else most


def _limit(name: str, given: Optional[int]) -> Optional[int]:
    """A bound of lengths: 0, which the longest of no sequences comes to, bounds nothing."""
    if given is None or given.__class__ is int and given >= 0:
        return given
    try:
        if isinstance(given, bool):
            raise TypeError
        limit = operator.index(given)
    except TypeError:
        raise InvalidRequest(name, f"an object of type {type(given).__name__}",
                             "an integer on the host, or None for what the shapes allow") from None
    if limit < 0:
        raise InvalidRequest(name, str(limit), "an integer from 1; None or 0 for what the shapes allow")
    return limit


@traceable
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, window: Window = None,
              attention_chunk: Optional[int] = None, softcap: Optional[float] = None, sinks: Any = None,
              scale: Optional[float] = None, alibi_slopes: Any = None, kv_lens: Any = None, q_lens: Any = None,
              return_lse: bool = False, lse_order: PageOrder = "NHD", return_status: bool = False, out: Any = None,
              o_dtype: Optional[ODType] = None, precision: Precision = "standard", consistency: Consistency = "standard",
              k_scale: Any = None, v_scale: Any = None, kv_dtype: Optional[KvDType] = None, stream: Any = None) -> Any:
    """Computes attention of a batch of sequences of one length. The module's docstring says more about each argument.

    q: the queries, [batch, q_len, q_heads, head_dim_qk], fp16 or bf16.
    k: the keys, [batch, kv_len, kv_heads, head_dim_qk]; kv_heads divides q_heads. v: the values, [batch, kv_len, kv_heads,
        head_dim_vo]. Both have the dtype of q, or 8 bits. The last stride of each tensor is 1; the others may be any.
    q_lens, kv_lens: int32 or int64 [batch] on the GPU: how many queries and keys of each sequence count. None counts all.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    window: (left, right): a query sees at most `left` keys before its own position and `right` keys after it. None or -1 on
        a side is no bound. With causal, no key after the query is seen.
    attention_chunk: the length of a chunk in tokens: a query sees only the keys of its own chunk. None or 0 is no chunks.
    softcap: logits become softcap * tanh(logit / softcap). None or 0 is off.
    scale: the factor of q k^T. None is 1 / sqrt(head_dim_qk).
    sinks, alibi_slopes: fp32 [q_heads] on the GPU. exp(sink) is added to the denominator of each row, and slope * (key
        position - query position) to each logit.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    return_status: True also returns, last, an int32 tensor without axes on the GPU, which CallStatus() reads.
    out: a tensor for o that overlaps no other tensor. None allocates one.
    o_dtype: "fp32", or the dtype of q. None is the dtype of out, or without out that of q.
    precision: "standard", or "high", which keeps products and probabilities in fp32. consistency: "standard", or "bitwise",
        with which the bits of a row depend on neither batch nor phase.
    k_scale, v_scale: fp32 [1] or [kv_heads] on the GPU, for k and v of 8 bits: both, or neither. A stored number times its
        scale is the number. With the axes of k, and of v, except the last, each head of each token has its own scale; with
        one axis more, each 128 columns have.
    kv_dtype: "e4m3" or "e5m2" for k and v that are tensors of uint8. None is their own dtype.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns o [batch, q_len, q_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [batch, q_len, q_heads]; with
    return_status the status follows. A query that sees no key gets o = 0 and lse = -inf, or the value of its sink.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    form, tensors = _DENSE, (q, k, v, out, sinks, alibi_slopes, q_lens, kv_lens)
    lse = return_lse if lse_order.__class__ is str and lse_order == "NHD" else ordered_lse(return_lse, lse_order)
    options: Options = (causal, window, attention_chunk, softcap, scale, lse, precision, consistency, o_dtype)
    if k_scale is not None or v_scale is not None or kv_dtype is not None:
        form, tensors, options = form.scaled(tensors, options, k_scale, v_scale, kv_dtype)
    return attend(form, tensors, options, stream, return_status)


def _dense(views: List[Any], options: Options) -> Problem:
    q, k, v, _, _, _, q_lens, kv_lens = views
    need_axes("q", q, "[batch, q_len, q_heads, head_dim]")
    need_axes("k", k, "[batch, kv_len, kv_heads, head_dim]")
    need_axes("v", v, "[batch, kv_len, kv_heads, head_dim]")
    return Problem(q, k, v, batch_views(q_lens=q_lens, kv_lens=kv_lens), "dense", None, q[1][0], q[1][1], k[1][1],
                   options, q[1][:-1])


_COMMON = ("out", "sinks", "alibi_slopes")
_DENSE = Form(("q", "k", "v", *_COMMON, "q_lens", "kv_lens"), {0, 1, 2}, _dense)


@traceable
def varlen_attention(q: Any, k: Any, v: Any, q_indptr: Any, kv_indptr: Any, *, max_q_len: Optional[int] = None,
                     max_kv_len: Optional[int] = None, causal: bool = False, window: Window = None,
                     attention_chunk: Optional[int] = None, softcap: Optional[float] = None, sinks: Any = None,
                     scale: Optional[float] = None, alibi_slopes: Any = None, return_lse: bool = False,
                     lse_order: PageOrder = "NHD", return_status: bool = False, out: Any = None,
                     o_dtype: Optional[ODType] = None, precision: Precision = "standard",
                     consistency: Consistency = "standard", k_scale: Any = None, v_scale: Any = None,
                     kv_dtype: Optional[KvDType] = None, stream: Any = None) -> Any:
    """Computes attention of sequences of different lengths, which are packed one after the other. The module's docstring
    says more about each argument.

    q: the queries, [q_tokens, q_heads, head_dim_qk], fp16 or bf16.
    k: the keys, [kv_tokens, kv_heads, head_dim_qk]; kv_heads divides q_heads. v: the values, [kv_tokens, kv_heads,
        head_dim_vo]. Both have the dtype of q, or 8 bits. The last stride of each tensor is 1; the others may be any.
    q_indptr, kv_indptr: int32 or int64 [batch + 1] on the GPU: where each sequence begins, in tokens, and the end of the
        last.
    max_q_len, max_kv_len: bounds of one sequence's queries and keys, numbers of the host. Longer sequences are clamped,
        which the status reports. None or 0 takes all tokens as the bound, which is correct but slower.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    window: (left, right): a query sees at most `left` keys before its own position and `right` keys after it. None or -1 on
        a side is no bound. With causal, no key after the query is seen.
    attention_chunk: the length of a chunk in tokens: a query sees only the keys of its own chunk. None or 0 is no chunks.
    softcap: logits become softcap * tanh(logit / softcap). None or 0 is off.
    scale: the factor of q k^T. None is 1 / sqrt(head_dim_qk).
    sinks, alibi_slopes: fp32 [q_heads] on the GPU. exp(sink) is added to the denominator of each row, and slope * (key
        position - query position) to each logit.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    return_status: True also returns, last, an int32 tensor without axes on the GPU, which CallStatus() reads.
    out: a tensor for o that overlaps no other tensor. None allocates one.
    o_dtype: "fp32", or the dtype of q. None is the dtype of out, or without out that of q.
    precision: "standard", or "high", which keeps products and probabilities in fp32. consistency: "standard", or "bitwise",
        with which the bits of a row depend on neither batch nor phase.
    k_scale, v_scale: fp32 [1] or [kv_heads] on the GPU, for k and v of 8 bits: both, or neither. A stored number times its
        scale is the number. With the axes of k, and of v, except the last, each head of each token has its own scale; with
        one axis more, each 128 columns have.
    kv_dtype: "e4m3" or "e5m2" for k and v that are tensors of uint8. None is their own dtype.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns o [q_tokens, q_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [q_tokens, q_heads]; with return_status
    the status follows. A query that sees no key gets o = 0 and lse = -inf, or the value of its sink.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    form, tensors = _RAGGED, (q, k, v, out, sinks, alibi_slopes, q_indptr, kv_indptr)
    lse = return_lse if lse_order.__class__ is str and lse_order == "NHD" else ordered_lse(return_lse, lse_order)
    options: Options = (causal, window, attention_chunk, softcap, scale, lse, precision, consistency, o_dtype,
                        _limit("max_q_len", max_q_len), _limit("max_kv_len", max_kv_len))
    if k_scale is not None or v_scale is not None or kv_dtype is not None:
        form, tensors, options = form.scaled(tensors, options, k_scale, v_scale, kv_dtype)
    return attend(form, tensors, options, stream, return_status)


def _ragged(views: List[Any], options: Options) -> Problem:
    q, k, v, _, _, _, q_indptr, kv_indptr = views
    max_q_len, max_kv_len = options[COMMON:]
    need_axes("q", q, "[q_tokens, q_heads, head_dim]")
    need_axes("k", k, "[kv_tokens, kv_heads, head_dim]")
    need_axes("v", v, "[kv_tokens, kv_heads, head_dim]")
    need_axes("q_indptr", q_indptr, "[batch + 1]")
    return Problem(q, k, v, batch_views(q_indptr=q_indptr, kv_indptr=kv_indptr), "ragged", None,
                   q_indptr[1][0] - 1, _bound(max_q_len, q[1][0]), _bound(max_kv_len, k[1][0]), options[:COMMON],
                   q[1][:-1])


_RAGGED = Form(("q", "k", "v", *_COMMON, "q_indptr", "kv_indptr"), {0, 1, 2, 6, 7}, _ragged)


@traceable
def paged_attention(q: Any, kv_cache: Any, page_table: Any = None, kv_lens: Any = None, *, table_rows: Any = None,
                    q_indptr: Any = None, page_indptr: Any = None, page_indices: Any = None, last_page_len: Any = None,
                    page_order: PageOrder = "NHD", max_q_len: Optional[int] = None, max_kv_len: Optional[int] = None,
                    causal: bool = False, window: Window = None, attention_chunk: Optional[int] = None,
                    softcap: Optional[float] = None, sinks: Any = None,
                    scale: Optional[float] = None, alibi_slopes: Any = None, q_lens: Any = None,
                    return_lse: bool = False, lse_order: PageOrder = "NHD", return_status: bool = False,
                    out: Any = None,
                    o_dtype: Optional[ODType] = None, precision: Precision = "standard",
                    consistency: Consistency = "standard", k_scale: Any = None, v_scale: Any = None,
                    kv_dtype: Optional[KvDType] = None, stream: Any = None) -> Any:
    """Computes attention to keys and values in pages. The module's docstring says more about each argument.

    q: the queries, [batch, q_len, q_heads, head_dim_qk], or [batch, q_heads, head_dim_qk] for one query each, or, with
        q_indptr, [q_tokens, q_heads, head_dim_qk]; fp16 or bf16.
    kv_cache: a pair (k_cache, v_cache), each [pages, page_size, kv_heads, head_dim] for page_order "NHD" or [pages,
        kv_heads, page_size, head_dim] for "HND"; or one tensor of both, [pages, 2, ...]. It has the dtype of q, or 8 bits.
    page_order: the order of a page's axes, "NHD" or "HND".
    page_table, kv_lens: int32 or int64 on the GPU, [batch, pages a sequence] and [batch]: the pages of each sequence in
        order, and its number of keys. Entries of the table after a sequence's end are never read.
    page_indptr, page_indices, last_page_len: int32 or int64 [batch + 1], [pages of all sequences] and [batch] on the GPU,
        as FlashInfer has them, instead of page_table and kv_lens. last_page_len is (kv_len - 1) % page_size + 1.
    table_rows: int32 or int64 [batch] on the GPU: the row of page_table that each sequence uses; page_table is then [rows,
        pages a sequence]. A sequence whose row does not exist has no keys, which the status reports.
    q_indptr: int32 or int64 [batch + 1] on the GPU: where each sequence's queries begin, and the end of the last.
    q_lens: int32 or int64 [batch] on the GPU: how many of the q_len queries of each sequence count. None counts all.
    max_q_len, max_kv_len: bounds of one sequence's queries and keys, numbers of the host. Longer sequences are clamped,
        which the status reports. None or 0 takes what the shapes allow.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    window: (left, right): a query sees at most `left` keys before its own position and `right` keys after it. None or -1 on
        a side is no bound. With causal, no key after the query is seen.
    attention_chunk: the length of a chunk in tokens: a query sees only the keys of its own chunk. None or 0 is no chunks.
    softcap: logits become softcap * tanh(logit / softcap). None or 0 is off.
    scale: the factor of q k^T. None is 1 / sqrt(head_dim_qk).
    sinks, alibi_slopes: fp32 [q_heads] on the GPU. exp(sink) is added to the denominator of each row, and slope * (key
        position - query position) to each logit.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    return_status: True also returns, last, an int32 tensor without axes on the GPU, which CallStatus() reads.
    out: a tensor for o that overlaps no other tensor. None allocates one.
    o_dtype: "fp32", or the dtype of q. None is the dtype of out, or without out that of q.
    precision: "standard", or "high", which keeps products and probabilities in fp32. consistency: "standard", or "bitwise",
        with which the bits of a row depend on neither batch nor phase.
    k_scale, v_scale: fp32 [1] or [kv_heads] on the GPU, for k and v of 8 bits: both, or neither. A stored number times its
        scale is the number. With the axes of k, and of v, except the last, each head of each token has its own scale; with
        one axis more, each 128 columns have.
    kv_dtype: "e4m3" or "e5m2" for k and v that are tensors of uint8. None is their own dtype.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns o of q's shape with head_dim_vo columns; with return_lse (o, lse), lse fp32 of q's shape without its last axis;
    with return_status the status follows. A query that sees no key gets o = 0 and lse = -inf, or the value of its sink.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    if page_order.__class__ is not str or page_order != "NHD":
        check_order("page_order", page_order)
    if not isinstance(kv_cache, (tuple, list)):
        form, k, v = _PAGED, kv_cache, None
    elif len(kv_cache) == 2:
        form, (k, v) = _PAGED_PAIR, kv_cache
    else:
        raise InvalidRequest("kv_cache", f"{len(kv_cache)} tensors", "(k_cache, v_cache), or one tensor of both")
    tensors = (q, k, v, out, sinks, alibi_slopes, q_indptr, q_lens, kv_lens, page_table, page_indptr, page_indices,
               last_page_len, table_rows)
    lse = return_lse if lse_order.__class__ is str and lse_order == "NHD" else ordered_lse(return_lse, lse_order)
    options: Options = (causal, window, attention_chunk, softcap, scale, lse, precision, consistency, o_dtype,
                        _limit("max_q_len", max_q_len), _limit("max_kv_len", max_kv_len), page_order)
    if k_scale is not None or v_scale is not None or kv_dtype is not None:
        form, tensors, options = form.scaled(tensors, options, k_scale, v_scale, kv_dtype)
    return attend(form, tensors, options, stream, return_status)


def _paged(views: List[Any], options: Options) -> Problem:
    q, k, v, _, _, _, q_indptr, q_lens, kv_lens, table, page_indptr, pages, last_page_len, table_rows = views
    max_q_len, max_kv_len, page_order = options[COMMON:]
    if v is None:
        if len(k[1]) != 5 or k[1][1] != 2:
            raise InvalidRequest("kv_cache.shape", str(tuple(k[1])), "[pages, 2, page_size, kv_heads, head_dim] (NHD), "
                                 "[pages, 2, kv_heads, page_size, head_dim] (HND), or a pair (k_cache, v_cache)")
        k, v = _views.selected(k, 1, 0), _views.selected(k, 1, 1)
    else:
        need_axes("k_cache", k, "[pages, page_size, kv_heads, head_dim]")
        need_axes("v_cache", v, "[pages, page_size, kv_heads, head_dim]")
    rows = q[1][:-1]
    q, batch, longest, as_kernel = _queries(q, q_indptr)
    capacity = _capacity(table, table_rows, pages, k[1][1 if page_order == "NHD" else 2])
    in_batch = batch_views(q_indptr=q_indptr, q_lens=q_lens, kv_lens=kv_lens, page_table=table, page_indptr=page_indptr,
                           page_indices=pages, last_page_len=last_page_len, table_rows=table_rows)
    return Problem(q, k, v, in_batch, "paged", page_order, batch, _bound(max_q_len, longest),
                   _bound(max_kv_len, capacity), options[:COMMON], rows, as_kernel)


def _queries(q: View, q_indptr: Optional[View]) -> Tuple[View, int, int, Callable[[View], View]]:
    """q as the library has it, how many sequences there are, the queries of the longest, and what makes o and lse of
    q's axes such as the library has."""
    if q_indptr is not None:
        need_axes("q", q, "[q_tokens, q_heads, head_dim]")
        need_axes("q_indptr", q_indptr, "[batch + 1]")
        return q, q_indptr[1][0] - 1, q[1][0], _same
    as_kernel = _one_query if len(q[1]) == 3 else _same
    q = as_kernel(q)
    need_axes("q", q, "[batch, q_len, q_heads, head_dim]")
    return q, q[1][0], q[1][1], as_kernel


def _capacity(table: Optional[View], table_rows: Optional[View], pages: Optional[View], page_size: int) -> int:
    """The most keys of a sequence that the pages of a table, or of a list for all sequences, have room for."""
    if table is not None:
        need_axes("page_table", table,
                  "[batch, pages a sequence]" if table_rows is None else "[rows, pages a sequence]")
    if pages is not None:
        need_axes("page_indices", pages, "[pages of all sequences]")
    listed = table[1][-1] if table is not None else pages[1][-1] if pages is not None else 0
    return min(listed * page_size, LONGEST)


def _same(view: View) -> View:
    return view


def _one_query(view: View) -> View:
    return _views.inserted(view, 1)


_BATCH = ("q_indptr", "q_lens", "kv_lens", "page_table", "page_indptr", "page_indices", "last_page_len", "table_rows")
_PAGED = Form(("q", "kv_cache", "v_cache", *_COMMON, *_BATCH), {0, 1}, _paged)
_PAGED_PAIR = Form(("q", "k_cache", "v_cache", *_COMMON, *_BATCH), {0, 1, 2}, _paged)


@traceable
def mla_attention(q: Any, ckv: Any, page_table: Any = None, kv_lens: Any = None, *, q_pe: Any = None, kpe: Any = None,
                  head_dim_ckv: Optional[int] = None, table_rows: Any = None, q_indptr: Any = None,
                  kv_indptr: Any = None, page_indptr: Any = None, page_indices: Any = None, last_page_len: Any = None,
                  max_q_len: Optional[int] = None, max_kv_len: Optional[int] = None, causal: bool = False,
                  scale: Optional[float] = None, q_lens: Any = None, return_lse: bool = False,
                  lse_order: PageOrder = "NHD", return_status: bool = False, out: Any = None,
                  o_dtype: Optional[ODType] = None, consistency: Consistency = "standard", k_scale: Any = None,
                  kv_dtype: Optional[KvDType] = None, stream: Any = None) -> Any:
    """Computes latent attention (MLA) as DeepSeek-V2 and V3 decode it: softmax(scale * (q_nope ckv^T + q_pe kpe^T)) ckv.
    Each token has one latent of head_dim_ckv columns, which is the key and the value of all query heads, and head_dim_kpe
    columns with its rotary position. The caller has absorbed W_UK into q_nope, and applies W_UV to o. The module's
    docstring says more about each argument.

    q: the queries q_nope, [batch, q_len, q_heads, head_dim_ckv], or [batch, q_heads, head_dim_ckv] for one query each, or,
        with q_indptr, [q_tokens, q_heads, head_dim_ckv]; fp16 or bf16.
    q_pe: the position columns of the queries, [batch, q_len, q_heads, head_dim_kpe], or with the other axes of q. None: q
        has them after its own columns.
    ckv: the latents, [pages, page_size, head_dim_ckv] in pages, [kv_tokens, head_dim_ckv] with kv_indptr, and [batch,
        kv_len, head_dim_ckv] with neither.
    kpe: the position columns of the keys, [pages, page_size, head_dim_kpe], or with the other axes of ckv. None: ckv has
        them after its own columns, as in the caches of vLLM, [pages, page_size, 576], and FlashMLA, [pages, page_size, 1,
        576]. Every ckv and kpe may have an axis of 1, the KV head, before the columns.
    head_dim_ckv: the columns of a latent and of o; FlashMLA calls it head_dim_v. None is the columns of q if q_pe is given,
        else those of ckv if kpe is, else 512. head_dim_kpe follows from the tensors, and may be 0.
    page_table, kv_lens: int32 or int64 on the GPU, [batch, pages a sequence] and [batch]: the pages of each sequence in
        order, and its number of keys. FlashMLA calls them block_table and cache_seqlens. Without a table, kv_lens says how
        many keys of a dense ckv count. Entries of the table after a sequence's end are never read.
    page_indptr, page_indices, last_page_len: int32 or int64 [batch + 1], [pages of all sequences] and [batch] on the GPU,
        as FlashInfer has them, instead of page_table and kv_lens. last_page_len is (kv_len - 1) % page_size + 1.
    table_rows: int32 or int64 [batch] on the GPU: the row of page_table that each sequence uses; page_table is then [rows,
        pages a sequence]. A sequence whose row does not exist has no keys, which the status reports.
    q_indptr, kv_indptr: int32 or int64 [batch + 1] on the GPU: where each sequence begins, and the end of the last.
    q_lens: int32 or int64 [batch] on the GPU: how many of the q_len queries of each sequence count. None counts all.
    max_q_len, max_kv_len: bounds of one sequence's queries and keys, numbers of the host. Longer sequences are clamped,
        which the status reports. None or 0 takes what the shapes allow.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    scale: the factor of the products; FlashMLA calls it softmax_scale, FlashInfer sm_scale. It is required, because the
        shapes do not imply it: it is the scale of the keys before W_UK was absorbed, 1 / sqrt(128 + 64) in DeepSeek-V3,
        times the square of YaRN's mscale if the model has one.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    return_status: True also returns, last, an int32 tensor without axes on the GPU, which CallStatus() reads.
    out: a tensor for o that overlaps no other tensor. None allocates one.
    o_dtype: "fp32", or the dtype of q. None is the dtype of out, or without out that of q.
    consistency: "standard", or "bitwise", with which the bits of a row depend on neither batch nor phase.
    k_scale: fp32 [1] on the GPU, for ckv and kpe of 8 bits, which it scales as keys and as values; None is 1. With the axes
        of ckv except the last, each token has its own scale. With one axis more, of head_dim_ckv / 128 scales, each 128
        columns of the latent have; kpe is then separate, of the dtype of q and not scaled. Rows of 656 bytes are three such
        views: ``ckv = rows[..., :512]``, ``k_scale = rows[..., 512:528].view(torch.float32)`` and ``kpe = rows[...,
        528:].view(torch.bfloat16)``.
    kv_dtype: "e4m3" or "e5m2" for ckv and kpe that are tensors of uint8. None is their own dtype.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns o of q's shape with head_dim_ckv columns; with return_lse (o, lse), lse fp32 of q's shape without its last axis;
    with return_status the status follows. A query that sees no key gets o = 0 and lse = -inf.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    if head_dim_ckv is not None:
        head_dim_ckv = fitting("head_dim_ckv", head_dim_ckv, c_int64, 1)
    form, tensors = _LATENT, (q, ckv, None, out, None, None, q_pe, kpe, q_indptr, q_lens, kv_indptr, kv_lens, page_table,
                              page_indptr, page_indices, last_page_len, table_rows)
    lse = return_lse if lse_order.__class__ is str and lse_order == "NHD" else ordered_lse(return_lse, lse_order)
    options: Options = (causal, None, None, None, scale, lse, "standard", consistency, o_dtype,
                        _limit("max_q_len", max_q_len), _limit("max_kv_len", max_kv_len), head_dim_ckv)
    if k_scale is not None or kv_dtype is not None:
        form, tensors, options = form.scaled(tensors, options, k_scale, None, kv_dtype)
    return attend(form, tensors, options, stream, return_status)


def _latent(views: List[Any], options: Options) -> Problem:
    q, ckv, _, _, _, _, q_pe, kpe, *in_batch = views
    q_indptr, _, kv_indptr, _, *paging = in_batch
    table, _, pages, _, table_rows = paging
    max_q_len, max_kv_len, head_dim_ckv = options[COMMON:]
    storage, axes = "dense", "[batch, kv_len, columns]"
    if any(view is not None for view in paging):
        storage, axes = "paged", "[pages, page_size, columns]"
    elif kv_indptr is not None:
        storage, axes = "ragged", "[kv_tokens, columns]"
    queries, batch, longest, as_kernel = _queries(q, q_indptr)
    if q_pe is not None and tuple(q_pe[1][:-1]) != tuple(q[1][:-1]):
        raise _other_axes("q_pe", q_pe, "q", q)
    rows = _latent_rows("ckv", ckv, axes)
    if kpe is not None and _latent_rows("kpe", kpe, axes) != rows:
        raise _other_axes("kpe", kpe, "ckv", ckv)
    head_dim_ckv, head_dim_kpe = _latent_dims(q, q_pe, ckv, kpe, head_dim_ckv)
    capacity = _capacity(table, table_rows, pages, rows[-1]) if storage == "paged" else rows[-1]
    values = _views.shortened(ckv, len(ckv[1]) - 1, head_dim_ckv)
    return Problem(queries, ckv, values, tuple(in_batch), storage, None, batch, _bound(max_q_len, longest),
                   _bound(max_kv_len, capacity), options[:COMMON], q[1][:-1], as_kernel, head_dim_kpe=head_dim_kpe,
                   q_pe=None if q_pe is None else as_kernel(q_pe), kpe=kpe)


def _latent_rows(name: str, view: View, axes: str) -> Tuple[int, ...]:
    """The axes before the columns, of which that of the KV head may be left out."""
    count, shape = axes.count(","), tuple(view[1])
    if len(shape) != count + 1 and (len(shape) != count + 2 or shape[count] != 1):
        raise InvalidRequest(f"{name}.shape", str(shape), f"{axes}, or with an axis of 1 before the columns")
    return shape[:count]


def _other_axes(name: str, view: View, name_of_whole: str, whole: View) -> InvalidRequest:
    return InvalidRequest(f"{name}.shape", str(tuple(view[1])),
                          f"the axes of {name_of_whole}, {tuple(whole[1])}, but for the last")


def _latent_dims(q: View, q_pe: Optional[View], ckv: View, kpe: Optional[View],
                 given: Optional[int]) -> Tuple[int, int]:
    """head_dim_ckv and head_dim_kpe, which tensors tell that are apart. Raises InvalidRequest for one that has other
    columns."""
    if ckv[1][-1] == _ROW_BYTES and _views.ITEM_BYTES[ckv[3]] == 1 and kpe is None:
        raise InvalidRequest("ckv.shape", str(tuple(ckv[1])),
                             "512 columns: rows of 656 bytes are three views of one cache, ckv=rows[..., :512], "
                             "k_scale=rows[..., 512:528].view(torch.float32) and "
                             "kpe=rows[..., 528:].view(torch.bfloat16)")
    pairs = (("q", q, "q_pe", q_pe), ("ckv", ckv, "kpe", kpe))
    apart = [(name, whole[1][-1], position[1][-1]) for name, whole, _, position in pairs if position is not None]
    source, head_dim_ckv = latent_columns([(name, columns) for name, columns, _ in apart], given)
    # Where both are joined, the one with fewer columns lacks some, and is refused below.
    head_dim_kpe = apart[0][2] if apart else max(q[1][-1], ckv[1][-1], head_dim_ckv) - head_dim_ckv
    for name, whole, name_of_position, position in pairs:
        if position is not None and position[1][-1] != head_dim_kpe:
            raise InvalidRequest(f"{name_of_position}.shape", str(tuple(position[1])),
                                 f"{head_dim_kpe} columns, as q_pe has")
        joined = head_dim_kpe if position is None else 0
        if whole[1][-1] != head_dim_ckv + joined:
            wanted = f"{head_dim_ckv} columns ({source})"
            if joined:
                wanted += f" and then {joined} of the position, or {name_of_position} with those"
            raise InvalidRequest(f"{name}.shape", str(tuple(whole[1])), wanted)
    return head_dim_ckv, head_dim_kpe


_ROW_BYTES = 656  # of DeepSeek-V3.2's cache: 512 columns of 8 bits, four scales, 64 columns of 16 bits
_LATENT = Form(("q", "ckv", "v", *_COMMON, "q_pe", "kpe", *abi.BATCH_FIELDS), {0, 1}, _latent, {"k": "ckv"})


@traceable
def merge_states(o_states: Any, lse_states: Any, *, out: Any = None, return_lse: bool = True,
                 stream: Any = None) -> Any:
    """Merges attention over parts of the keys into attention over all of them.

    o_states: a sequence of tensors [tokens, heads, head_dim], or one tensor [tokens, states, heads, head_dim].
    lse_states: a sequence of fp32 tensors [tokens, heads], or one tensor [tokens, states, heads]: the natural-log
        log-sum-exp that return_lse returns. FlashInfer's is in base 2: multiply it by log(2). More than 32 states are
        merged in steps, whose results are rounded to the dtype of o_states.
    out: a tensor for o, which may be one of the states. None allocates one.
    return_lse: False returns o alone.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns (o [tokens, heads, head_dim], lse fp32 [tokens, heads]), without return_lse o alone. A row that attended to
    nothing in all of the states gets 0 and -inf.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    dispatch = dispatch_now()
    several = isinstance(o_states, (list, tuple))
    if several and not o_states:
        raise InvalidRequest("o_states", "no states", "at least one")
    like = o_states[0] if several else o_states
    framework, index, number, scope = begin(like, "o_states[0]" if several else "o_states", stream)
    order = Order(number, dispatch.wait)
    o_views, lse_views = merge_states_views(o_states, lse_states, order)
    need_axes("o_states", o_views[0], "[tokens, heads, head_dim]")
    return_lse = flag("return_lse", return_lse)
    if index < 0:  # no tensor says its GPU: a kernel is made for the current one
        index = _merge_kernel(dispatch, o_views[0], alignment_of(o_views), return_lse, index).kernel.device
    if scope is None:
        return _merge_all(dispatch, framework, index, order, like, o_views, lse_views, out, return_lse)
    with scope:
        return _merge_all(dispatch, framework, index, order, like, o_views, lse_views, out, return_lse)


def _merge_all(dispatch: Dispatch, framework: Framework, index: int, order: Order, like: Any, o_views: List[View],
               lse_views: List[View], out: Any, return_lse: bool) -> Any:
    """In steps where there are more states than one kernel takes."""
    made = []
    while len(o_views) > _MOST_STATES:
        groups = [slice(i, i + _MOST_STATES) for i in range(0, len(o_views), _MOST_STATES)]
        made = [_merge(dispatch, framework, index, order, like, o_views[group], lse_views[group], None, True)
                for group in groups]
        o_views, lse_views = merge_states_views([o for o, _ in made], [lse for _, lse in made], order)
    o, lse = _merge(dispatch, framework, index, order, like, o_views, lse_views, out, return_lse)
    if order.held or not framework.ordered:
        dispatch.settle(index, order.stream)
    o = framework.result(o) if out is None else o
    return (o, framework.result(lse)) if return_lse else o


def _merge(dispatch: Dispatch, framework: Framework, index: int, order: Order, like: Any, o_views: List[View],
           lse_views: List[View], out: Any, return_lse: bool) -> Tuple[Any, Any]:
    _, shape, _, kind, _ = o_views[0]
    tokens, heads, head_dim = shape
    if out is None:
        out = framework.empty(like, (tokens, heads, head_dim), kind, dispatch.runtime.allocate, index)
    o = frameworks.of(out, "out").view(out, "out", order)
    lse = lse_view = None
    if return_lse:
        lse = framework.empty(like, (tokens, heads), _views.FP32, dispatch.runtime.allocate, index)
        lse_view = frameworks.of(lse, "lse").view(lse, "lse", order)
    alignment = alignment_of((*o_views, o))
    entry = _merge_kernel(dispatch, o_views[0], alignment, return_lse, index)
    count = len(o_views)
    free = dispatch.merge_blocks.setdefault(count, [])
    try:
        block = free.pop()
    except IndexError:
        block = MergeBlock(count)
    block.fill(o_views, lse_views, o, lse_view)
    code = dispatch.run_merge(entry.pointer, block.address, None, None, order.stream, block.error)
    if code:
        raise dispatch.library.error(code, block.failure())
    free.append(block)
    return out, lse


def _merge_kernel(dispatch: Dispatch, state: View, alignment: int, return_lse: bool, index: int) -> Prepared:
    tokens, heads, head_dim = state[1]
    q_len = min(1 << (tokens - 1).bit_length() if tokens > 2 else tokens, LONGEST)
    key = ("merge", index, state[3], heads, head_dim, alignment, return_lse, q_len)
    return dispatch.prepared.get(key) or dispatch.prepare(
        key, {"op": "merge", "dtype": _views.WORDS[state[3]], "head_dim": head_dim, "q_heads": heads,
              "lse": return_lse, "alignment": alignment, "q_len": q_len}, index)


@traceable
def append(k: Any = None, v: Any = None, k_cache: Any = None, v_cache: Any = None, *, q: Any = None, q_out: Any = None,
           kpe: Any = None, kpe_cache: Any = None, head_dim_ckv: Optional[int] = None, slot_mapping: Any = None,
           positions: Any = None, rope_table: Any = None, rope: Optional[Rope] = None,
           rope_factor: Optional[float] = None, q_norm_weight: Any = None, k_norm_weight: Any = None,
           v_norm: bool = False, norm_eps: Optional[float] = None, k_scale: Any = None, v_scale: Any = None,
           q_scale: Any = None, kv_dtype: Optional[KvDType] = None, q_dtype: Optional[KvDType] = None,
           page_order: Optional[PageOrder] = None, q_indptr: Any = None, q_lens: Any = None, kv_lens: Any = None,
           page_table: Any = None, table_rows: Any = None, page_indptr: Any = None, page_indices: Any = None,
           last_page_len: Any = None, max_q_len: Optional[int] = None, max_kv_len: Optional[int] = None,
           check_slots: bool = False, return_status: bool = False, stream: Any = None) -> Any:
    """Writes the keys and values of new tokens into a cache, and their queries, in one launch: normalises and rotates them,
    and rounds once to the dtype of the cache.

    k, v: the new keys and values, [tokens, kv_heads, head_dim] or [batch, q_len, kv_heads, head_dim], fp16 or bf16. They
        may be views of a fused tensor.
    k_cache, v_cache: dense [batch, kv_len, kv_heads, head_dim], or, where page_order is given, pages: [pages, page_size,
        kv_heads, head_dim] for "NHD" or [pages, kv_heads, page_size, head_dim] for "HND". They have the dtype of k, or 8
        bits.
    head_dim_ckv: the columns of a latent. Latents have neither v nor v_cache: k is [tokens, columns], the head_dim_ckv
        columns and after them those of the position, and k_cache is [pages, page_size, columns]. An axis of 1, the head,
        may precede columns.
    kpe, kpe_cache: the position columns of latents where they are separate, [tokens, columns] and [pages, page_size,
        columns].
    q: the new queries, [tokens, q_heads, head_dim] or [batch, q_len, q_heads, head_dim]; of latents the position columns
        alone. Without k and v, only q is written.
    q_out: where q is written, [tokens, q_heads, head_dim]; it may be q itself. None allocates a tensor.
    slot_mapping: [tokens] or [batch, q_len] of int32 or int64 on the GPU: page * page_size + offset, dense sequence *
        kv_len + position. A token with a negative slot is skipped. Instead of slots, lengths may be given, which are those
        after the append: token i of a sequence with q_len new tokens goes to position kv_len - q_len + i.
    q_indptr: int32 or int64 [batch + 1] on the GPU: where each sequence's packed tokens begin, and the end of the last.
        q_lens: [batch]: how many of the q_len tokens of each sequence count.
    kv_lens: [batch], with page_table, [batch, pages a sequence], for pages. table_rows: [batch]: the row of the table that
        each sequence uses. Or page_indptr [batch + 1], page_indices [pages of all sequences] and last_page_len [batch].
    positions: [tokens] or [batch, q_len] of int32 or int64: the position that each token is rotated by. None with lengths:
        its position in its sequence.
    rope_table: [positions, rotary_dim], cosines and then sines; or frequencies, fp32 [rotary_dim / 2] in radians a
        position, whose cosines and sines are multiplied by rope_factor. rope: "half" (the default with a table: GPT-NeoX,
        Llama) or "interleaved" (GPT-J).
    q_norm_weight, k_norm_weight: [head_dim]: weights of an RMS norm of each head, applied before the rotation. v_norm: True
        normalises v, without weights. norm_eps: is added to the mean of squares; None is 1e-6.
    k_scale, v_scale: fp32 [1] or [kv_heads], for a cache of 8 bits: the stored number times its scale is the number that
        was given. With the axes of k_cache and v_cache except the last, the scale of each token and head is computed and
        written; with one axis more, that of each 128 columns (kpe_cache then has the dtype of k). They may be views of the
        cache's own rows. Latents have k_scale alone. q_scale: fp32 [1], for a q_dtype of 8 bits.
    kv_dtype: "e4m3" or "e5m2", or torch's dtype, for a cache of uint8. q_dtype: the dtype of a new q_out, or of one of
        uint8.
    max_q_len, max_kv_len: bounds of one sequence's new tokens and keys, numbers of the host. Longer sequences are clamped,
        which the status reports. None or 0 takes what the shapes allow.
    check_slots: True makes the status report two tokens with one slot of slot_mapping.
    return_status: True also returns, last, an int32 tensor on the GPU, which CallStatus() reads: slots and positions out of
        range, whose tokens were not written.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns q_out, or None without q; with return_status the status follows.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    words = {"rope": rope, "rope_factor": number("rope_factor", rope_factor), "v_norm": flag("v_norm", v_norm),
             "norm_eps": number("norm_eps", norm_eps),
             "kv_dtype": kv_dtype, "q_dtype": q_dtype, "page_order": page_order, "head_dim_ckv": head_dim_ckv,
             "check_slots": flag("check_slots", check_slots)}
    tensors = (q, k, v, q_out, k_cache, v_cache, kpe, kpe_cache, slot_mapping, positions, rope_table, q_norm_weight,
               k_norm_weight, k_scale, v_scale, q_scale, q_indptr, q_lens, None, kv_lens, page_table, page_indptr,
               page_indices, last_page_len, table_rows)
    bounds = _limit("max_q_len", max_q_len) or 0, _limit("max_kv_len", max_kv_len) or 0
    return append_all(dispatch_now(), tensors, words, bounds, flag("return_status", return_status), stream)


@named
def top_k(scores: Any, k: int, *, row_starts: Any = None, row_ends: Any = None, out: Any = None,
          return_status: bool = False, stream: Any = None) -> Any:
    """Selects the columns of the k largest scores of each row: the keys that an indexer chooses for a sparse attention.

    scores: fp32 [rows, columns] on the GPU, whose last stride is 1. k: how many columns each row gets.
    row_starts, row_ends: int32 or int64 [rows] on the GPU: row r is selected from the columns row_starts[r] to row_ends[r]
        - 1. None is 0, and all columns.
    out: int32 [rows, k]. None allocates a tensor.
    return_status: True also returns an int32 tensor on the GPU, which CallStatus() reads: it reports row_ends past the
        columns, which are clamped.
    stream: a CUstream as a number, or a stream object of a framework. None is the framework's current stream.

    Returns int32 [rows, k], the columns in ascending order; with return_status the status follows. In a row with fewer than
    k columns, -1 follows them. Of equal scores the lower columns are selected first, and NaN is below every score, so every
    call gives the same bits.

    Raises InvalidRequest, which names the tensor or argument, Unsupported, CompileError, DriverError, LibraryMissing.
    """
    dispatch = dispatch_now()
    k = fitting("k", k, c_int32, 0)
    framework, index, number_of_stream, scope = begin(scores, "scores", stream)
    order = Order(number_of_stream, dispatch.wait)
    views = [None if tensor is None else frameworks.of(tensor, name).view(tensor, name, order)
             for name, tensor in (("scores", scores), ("row_starts", row_starts), ("row_ends", row_ends), ("out", out))]
    rows = views[0]
    assert rows is not None
    if len(rows[1]) != 2:
        raise InvalidRequest("scores.shape", str(tuple(rows[1])), "[rows, columns]")
    shape = rows[1][0], k
    written = views[3]
    if written is not None and (tuple(written[1]), written[3]) != (shape, _views.INT32):
        raise InvalidRequest("out", f"{_views.WORDS.get(written[3], 'another dtype')} {tuple(written[1])}", f"int32 {shape}")
    index_kind = index_kind_of({"row_starts": views[1], "row_ends": views[2]})
    request = {"op": "top_k", "index_dtype": _views.WORDS[index_kind or _views.INT32]}
    key = ("top_k", index, index_kind)
    with scope or nullcontext():
        entry = dispatch.prepared.get(key) or dispatch.prepare(key, request, index)
        if index < 0:  # no tensor says its GPU: the kernel was made for the current one
            index = entry.kernel.device
        indices = out
        if out is None:
            indices = framework.empty(scores, shape, _views.INT32, dispatch.runtime.allocate, index)
            views[3] = frameworks.of(indices, "out").view(indices, "out", order)
        status = None
        if flag("return_status", return_status):
            status = framework.empty(scores, (), _views.INT32, dispatch.runtime.allocate, index)
        launch_op(dispatch, "top_k", framework, index, order, entry, views + [None] * len(abi.BATCH_FIELDS), (0, 0), status)
        if order.held or not framework.ordered:
            dispatch.settle(index, order.stream)
    result = framework.result(indices) if out is None else out
    return result if status is None else (result, framework.result(status))

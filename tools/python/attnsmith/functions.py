"""attention(), varlen_attention(), paged_attention() and merge_states(): the kernel is found, bound and launched in one
call. What a problem needs is prepared at its first call and looked up after that.

Tensors are those of PyTorch, CuPy, JAX, or anything with ``__dlpack__`` or ``__cuda_array_interface__``, of fp16 or
bf16, with any strides but the last, which is 1. Outputs are made by the framework of q. Work goes on that framework's
current stream, or on ``stream``. There is no backward pass: a torch tensor that requires a gradient is refused.

Words common to the three:

causal: queries are aligned with the end of the keys: the last query sees the last key.
window: (left, right): query i, so aligned, sees keys i - left .. i + right. None or -1 on a side is no bound.
softcap: logits become softcap * tanh(logit / softcap). scale: of q k^T; None is 1 / sqrt(head_dim).
sinks: fp32 [q_heads]: exp(sink) is added to each row's denominator. alibi_slopes: fp32 [q_heads].
return_lse: also gives the fp32 natural-log log-sum-exp, of q's shape without the last axis.
out: a tensor to write to. precision: "default" or "high". consistency: "default" or "bitwise".
stream: a CUstream as a number, or a stream of torch or CuPy.

Lengths, offsets and page tables stay on the GPU, so a captured CUDA graph is right as they change; call once before the
capture, so that the kernel is loaded. Errors: InvalidRequest (names the tensor or word), Unsupported, CompileError,
DriverError, LibraryMissing.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import _frameworks, _views
from ._attend import LONGEST, Dispatch, Form, Options, Problem, alignment_of, attend, begin, dispatch_now, need_axes
from ._blocks import MergeBlock
from ._frameworks import Framework, Order
from ._views import View
from .errors import InvalidRequest
from .kernels import merge_states_views

_MOST_STATES = 32  # that one kernel merges


def _bound(given: Optional[int], most: int) -> int:
    return min(given, most) if given else most


def _whole(number: Any) -> Optional[int]:
    return None if number is None else int(number)


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, window: Any = None, softcap: Optional[float] = None,
              sinks: Any = None, scale: Optional[float] = None, alibi_slopes: Any = None, kv_lens: Any = None,
              q_lens: Any = None, return_lse: bool = False, out: Any = None, precision: str = "default",
              consistency: str = "default", stream: Any = None) -> Any:
    """Attention of a batch of sequences of one length.

    q [batch, q_len, q_heads, head_dim_qk]; k [batch, kv_len, kv_heads, head_dim_qk]; v the same with head_dim_vo.
    q_lens, kv_lens: int32 or int64 [batch] on the GPU, how many queries and keys of each sequence are in use.
    Gives o [batch, q_len, q_heads, head_dim_vo], with return_lse (o, lse [batch, q_len, q_heads]). The other words and
    the errors: see the module.
    """
    return attend(_DENSE, (q, k, v, out, sinks, alibi_slopes, q_lens, kv_lens),
                  (causal, window, softcap, scale, return_lse, precision, consistency), stream)


def _dense(views: List[Any], options: Options) -> Problem:
    q, k, v, _, _, _, q_lens, kv_lens = views
    need_axes("q", q, "[batch, q_len, q_heads, head_dim]")
    need_axes("k", k, "[batch, kv_len, kv_heads, head_dim]")
    need_axes("v", v, "[batch, kv_len, kv_heads, head_dim]")
    return Problem(q, k, v, (None, q_lens, None, kv_lens, None, None, None, None), "dense", None, q[1][0], q[1][1],
                   k[1][1], options, q[1][:-1])


_COMMON = ("out", "sinks", "alibi_slopes")
_DENSE = Form(("q", "k", "v", *_COMMON, "q_lens", "kv_lens"), {0, 1, 2}, _dense)


def varlen_attention(q: Any, k: Any, v: Any, q_indptr: Any, kv_indptr: Any, *, max_q_len: Optional[int] = None,
                     max_kv_len: Optional[int] = None, causal: bool = False, window: Any = None,
                     softcap: Optional[float] = None, sinks: Any = None, scale: Optional[float] = None,
                     alibi_slopes: Any = None, return_lse: bool = False, out: Any = None, precision: str = "default",
                     consistency: str = "default", stream: Any = None) -> Any:
    """Attention of sequences of different lengths, which lie one after the other.

    q [q_tokens, q_heads, head_dim_qk]; k [kv_tokens, kv_heads, head_dim_qk]; v the same with head_dim_vo.
    q_indptr, kv_indptr: int32 or int64 [batch + 1] on the GPU: the first token of each sequence, and the end.
    max_q_len, max_kv_len: bounds of one sequence, known to the host. None takes all tokens, which is right but slower.
    Gives o [q_tokens, q_heads, head_dim_vo], with return_lse (o, lse [q_tokens, q_heads]). The other words and the
    errors: see the module.
    """
    return attend(_RAGGED, (q, k, v, out, sinks, alibi_slopes, q_indptr, kv_indptr),
                  (causal, window, softcap, scale, return_lse, precision, consistency, _whole(max_q_len),
                   _whole(max_kv_len)), stream)


def _ragged(views: List[Any], options: Options) -> Problem:
    q, k, v, _, _, _, q_indptr, kv_indptr = views
    need_axes("q", q, "[q_tokens, q_heads, head_dim]")
    need_axes("k", k, "[kv_tokens, kv_heads, head_dim]")
    need_axes("v", v, "[kv_tokens, kv_heads, head_dim]")
    need_axes("q_indptr", q_indptr, "[batch + 1]")
    return Problem(q, k, v, (q_indptr, None, kv_indptr, None, None, None, None, None), "ragged", None,
                   q_indptr[1][0] - 1, _bound(options[7], q[1][0]), _bound(options[8], k[1][0]), options[:7],
                   q[1][:-1])


_RAGGED = Form(("q", "k", "v", *_COMMON, "q_indptr", "kv_indptr"), {0, 1, 2, 6, 7}, _ragged)


def paged_attention(q: Any, kv_cache: Any, page_table: Any = None, kv_lens: Any = None, *, q_indptr: Any = None,
                    page_indptr: Any = None, page_indices: Any = None, last_page_len: Any = None,
                    page_order: str = "NHD", max_q_len: Optional[int] = None, max_kv_len: Optional[int] = None,
                    causal: bool = False, window: Any = None, softcap: Optional[float] = None, sinks: Any = None,
                    scale: Optional[float] = None, alibi_slopes: Any = None, q_lens: Any = None,
                    return_lse: bool = False, out: Any = None, precision: str = "default",
                    consistency: str = "default", stream: Any = None) -> Any:
    """Attention to keys and values in pages.

    q: [batch, q_len, q_heads, head_dim], or [batch, q_heads, head_dim] for one query each, or, with q_indptr
    ([batch + 1]), [q_tokens, q_heads, head_dim].
    kv_cache: (k_cache, v_cache), each [pages, page_size, kv_heads, head_dim] for page_order "NHD" or [pages, kv_heads,
    page_size, head_dim] for "HND"; or one tensor [pages, 2, ...] of both.
    Where the pages of a sequence are, as int32 or int64 on the GPU: either page_table [batch, pages a sequence] with
    kv_lens [batch]; or, as FlashInfer has them, page_indptr [batch + 1], page_indices and last_page_len [batch].
    Entries of the table past a sequence's end are never read.
    max_q_len, max_kv_len: bounds of one sequence, known to the host. None takes what the shapes allow.
    Gives o of q's shape with head_dim_vo; with return_lse (o, lse of q's shape without its last axis). The other words
    and the errors: see the module.
    """
    if page_order != "NHD" and page_order != "HND":
        raise InvalidRequest("page_order", repr(page_order), '"NHD" or "HND"')
    if not isinstance(kv_cache, (tuple, list)):
        form, k, v = _PAGED, kv_cache, None
    elif len(kv_cache) == 2:
        form, (k, v) = _PAGED_PAIR, kv_cache
    else:
        raise InvalidRequest("kv_cache", f"{len(kv_cache)} tensors", "(k_cache, v_cache), or one tensor of both")
    return attend(form, (q, k, v, out, sinks, alibi_slopes, q_indptr, q_lens, kv_lens, page_table, page_indptr,
                         page_indices, last_page_len),
                  (causal, window, softcap, scale, return_lse, precision, consistency,
                   _whole(max_q_len), _whole(max_kv_len), page_order), stream)


def _paged(views: List[Any], options: Options) -> Problem:
    q, k, v, _, _, _, q_indptr, q_lens, kv_lens, table, page_indptr, pages, last_page_len = views
    max_q_len, max_kv_len, page_order = options[7:]
    if v is None:
        if len(k[1]) != 5 or k[1][1] != 2:
            raise InvalidRequest("kv_cache.shape", str(tuple(k[1])), "[pages, 2, page_size, kv_heads, head_dim] (NHD), "
                                 "[pages, 2, kv_heads, page_size, head_dim] (HND), or a pair (k_cache, v_cache)")
        k, v = _views.selected(k, 1, 0), _views.selected(k, 1, 1)
    else:
        need_axes("k_cache", k, "[pages, page_size, kv_heads, head_dim]")
        need_axes("v_cache", v, "[pages, page_size, kv_heads, head_dim]")
    rows, as_kernel = q[1][:-1], _same
    if q_indptr is None:
        if len(q[1]) == 3:
            q, as_kernel = _one_query(q), _one_query
        need_axes("q", q, "[batch, q_len, q_heads, head_dim]")
        batch, longest = q[1][0], q[1][1]
    else:
        need_axes("q", q, "[q_tokens, q_heads, head_dim]")
        need_axes("q_indptr", q_indptr, "[batch + 1]")
        batch, longest = q_indptr[1][0] - 1, q[1][0]
    if table is not None:
        need_axes("page_table", table, "[batch, pages a sequence]")
    if pages is not None:
        need_axes("page_indices", pages, "[pages of all sequences]")
    listed = table[1][-1] if table is not None else pages[1][-1] if pages is not None else 0
    capacity = min(listed * k[1][1 if page_order == "NHD" else 2], LONGEST)
    return Problem(q, k, v, (q_indptr, q_lens, None, kv_lens, table, page_indptr, pages, last_page_len), "paged",
                   page_order, batch, _bound(max_q_len, longest), _bound(max_kv_len, capacity), options[:7], rows,
                   as_kernel)


def _same(view: View) -> View:
    return view


def _one_query(view: View) -> View:
    return _views.inserted(view, 1)


_BATCH = ("q_indptr", "q_lens", "kv_lens", "page_table", "page_indptr", "page_indices", "last_page_len")
_PAGED = Form(("q", "kv_cache", "v_cache", *_COMMON, *_BATCH), {0, 1}, _paged)
_PAGED_PAIR = Form(("q", "k_cache", "v_cache", *_COMMON, *_BATCH), {0, 1, 2}, _paged)


def merge_states(o_states: Any, lse_states: Any, *, out: Any = None, return_lse: bool = True,
                 stream: Any = None) -> Any:
    """Merges attention over parts of the keys into attention over all of them.

    o_states: a sequence of tensors [tokens, heads, head_dim], or one tensor [tokens, states, heads, head_dim].
    lse_states: a sequence of fp32 tensors [tokens, heads], or one tensor [tokens, states, heads]: natural-log
    log-sum-exp, as return_lse gives it (FlashInfer's is in base 2: multiply it by log(2)). More than 32 states are
    merged in steps, whose results are rounded to the dtype of o_states.
    Gives (o [tokens, heads, head_dim], lse [tokens, heads]), without return_lse o alone. A row that attended to nothing
    in all of the states gives 0 and -inf. Raises InvalidRequest naming the tensor.
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
    o = _frameworks.of(out, "out").view(out, "out", order)
    lse = lse_view = None
    if return_lse:
        lse = framework.empty(like, (tokens, heads), _views.FP32, dispatch.runtime.allocate, index)
        lse_view = _frameworks.of(lse, "lse").view(lse, "lse", order)
    alignment = alignment_of((*o_views, o))
    q_len = min(1 << (tokens - 1).bit_length() if tokens > 2 else tokens, LONGEST)
    key = ("merge", index, kind, heads, head_dim, alignment, return_lse, q_len)
    entry = dispatch.prepared.get(key)
    if entry is None:
        words = {"op": "merge", "dtype": _views.WORDS[kind], "head_dim": head_dim, "q_heads": heads, "lse": return_lse,
                 "alignment": alignment, "q_len": q_len}
        entry = dispatch.prepare(key, words, index)
    count = len(o_views)
    free = dispatch.merge_blocks.setdefault(count, [])
    try:
        block = free.pop()
    except IndexError:
        block = MergeBlock(count)
    block.fill(o_views, lse_views, o, lse_view)
    code = dispatch.run_merge(entry.pointer, block.address, order.stream, block.error)
    if code:
        raise dispatch.library.error(code, block.failure())
    free.append(block)
    return out, lse

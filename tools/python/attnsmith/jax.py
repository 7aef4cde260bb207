"""attnsmith under jax.jit: the functions, as calls that XLA compiles into its programs.

    import attnsmith.jax

    @jax.jit
    def layer(q, k, v, kv_lens):
        return attnsmith.jax.attention(q, k, v, causal=True, kv_lens=kv_lens)

They take the words of attnsmith's functions of the same names, and work eagerly, too. A kernel is prepared when its
program is lowered; running the program plans and compiles nothing, and XLA may capture it into a CUDA graph. Lengths
and page tables stay on the GPU, so that one program is right as they change.

There is no gradient: jax.grad raises Unsupported. jax.vmap of attention() makes its axis part of the batch, where q, k
and v all have it; of the others it is refused. Under a mesh, call them inside jax.shard_map.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from ._base.arguments import named
from ._base.integers import shown
from ._base.options import Options, check_order, ordered_lse, plain, refuse_unhashable
from .errors import InvalidRequest
from .functions import _limit
from .words import Consistency, ODType, PageOrder, Precision, Window

__all__ = ["attention", "paged_attention", "register", "varlen_attention"]


@named
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, window: Window = None,
              attention_chunk: Optional[int] = None, softcap: Optional[float] = None, sinks: Any = None,
              scale: Optional[float] = None, alibi_slopes: Any = None, q_lens: Any = None, kv_lens: Any = None,
              return_lse: bool = False, lse_order: PageOrder = "NHD", o_dtype: Optional[ODType] = None,
              precision: Precision = "standard", consistency: Consistency = "standard") -> Any:
    """Computes attention of a batch of sequences of one length, for arrays of JAX: attnsmith.attention under jax.jit.

    q: the queries, [batch, q_len, q_heads, head_dim_qk], fp16 or bf16.
    k: the keys, [batch, kv_len, kv_heads, head_dim_qk]; kv_heads divides q_heads. v: the values, [batch, kv_len, kv_heads,
        head_dim_vo]. Both have the dtype of q.
    q_lens, kv_lens: int32 or int64 [batch]: how many queries and keys of each sequence count. None counts all.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    window: (left, right): a query sees at most `left` keys before its own position and `right` keys after it. None or -1 on
        a side is no bound.
    attention_chunk: the length of a chunk in tokens: a query sees only the keys of its own chunk. None or 0 is no chunks.
    softcap: logits become softcap * tanh(logit / softcap). None or 0 is off.
    scale: the factor of q k^T. None is 1 / sqrt(head_dim_qk).
    sinks, alibi_slopes: fp32 [q_heads]. exp(sink) is added to the denominator of each row, and slope * (key position -
        query position) to each logit.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    o_dtype: "fp32", or the dtype of q. None is that of q.
    precision: "standard", or "high", which keeps products and probabilities in fp32. consistency: "standard", or "bitwise",
        with which the bits of a row depend on neither batch nor phase.

    Returns o [batch, q_len, q_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [batch, q_len, q_heads].

    Raises InvalidRequest, which names the array or argument, Unsupported, CompileError, DriverError, LibraryMissing,
    ImportError.
    """
    options = _options(causal, window, attention_chunk, softcap, scale, return_lse, lse_order, precision, consistency,
                       o_dtype)
    return _call("attention", (q, k, v, None, sinks, alibi_slopes, q_lens, kv_lens), options)


@named
def varlen_attention(q: Any, k: Any, v: Any, q_indptr: Any, kv_indptr: Any, *, max_q_len: Optional[int] = None,
                     max_kv_len: Optional[int] = None, causal: bool = False, window: Window = None,
                     attention_chunk: Optional[int] = None, softcap: Optional[float] = None, sinks: Any = None,
                     scale: Optional[float] = None, alibi_slopes: Any = None, return_lse: bool = False,
                     lse_order: PageOrder = "NHD", o_dtype: Optional[ODType] = None, precision: Precision = "standard",
                     consistency: Consistency = "standard") -> Any:
    """Computes attention of packed sequences of different lengths, for arrays of JAX: attnsmith.varlen_attention under
    jax.jit.

    q: the queries, [q_tokens, q_heads, head_dim_qk], fp16 or bf16. k: the keys, [kv_tokens, kv_heads, head_dim_qk]. v: the
        values, [kv_tokens, kv_heads, head_dim_vo]. k and v have the dtype of q.
    q_indptr, kv_indptr: int32 or int64 [batch + 1]: where each sequence begins, in tokens, and the end of the last.
    max_q_len, max_kv_len: bounds of one sequence's queries and keys, known when the call is traced. Longer sequences are
        clamped. None or 0 takes all tokens as the bound, which is correct but slower.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    window: (left, right): a query sees at most `left` keys before its own position and `right` keys after it. None or -1 on
        a side is no bound.
    attention_chunk: the length of a chunk in tokens: a query sees only the keys of its own chunk. None or 0 is no chunks.
    softcap: logits become softcap * tanh(logit / softcap). None or 0 is off.
    scale: the factor of q k^T. None is 1 / sqrt(head_dim_qk).
    sinks, alibi_slopes: fp32 [q_heads]. exp(sink) is added to the denominator of each row, and slope * (key position -
        query position) to each logit.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    o_dtype: "fp32", or the dtype of q. None is that of q.
    precision: "standard", or "high", which keeps products and probabilities in fp32. consistency: "standard", or "bitwise",
        with which the bits of a row depend on neither batch nor phase.

    Returns o [q_tokens, q_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [q_tokens, q_heads].

    Raises InvalidRequest, which names the array or argument, Unsupported, CompileError, DriverError, LibraryMissing,
    ImportError.
    """
    options = _options(causal, window, attention_chunk, softcap, scale, return_lse, lse_order, precision, consistency,
                       o_dtype, _limit("max_q_len", max_q_len), _limit("max_kv_len", max_kv_len))
    return _call("varlen_attention", (q, k, v, None, sinks, alibi_slopes, q_indptr, kv_indptr), options)


@named
def paged_attention(q: Any, kv_cache: Any, page_table: Any, kv_lens: Any, *, table_rows: Any = None,
                    q_indptr: Any = None, page_order: PageOrder = "NHD", max_q_len: Optional[int] = None,
                    max_kv_len: Optional[int] = None, causal: bool = False, window: Window = None,
                    attention_chunk: Optional[int] = None, softcap: Optional[float] = None, sinks: Any = None,
                    scale: Optional[float] = None, alibi_slopes: Any = None, q_lens: Any = None,
                    return_lse: bool = False, lse_order: PageOrder = "NHD", o_dtype: Optional[ODType] = None,
                    precision: Precision = "standard", consistency: Consistency = "standard") -> Any:
    """Computes attention to keys and values in pages, for arrays of JAX: attnsmith.paged_attention under jax.jit.

    q: the queries, [batch, q_len, q_heads, head_dim_qk], or [batch, q_heads, head_dim_qk] for one query each, or, with
        q_indptr, [q_tokens, q_heads, head_dim_qk]; fp16 or bf16.
    kv_cache: a pair (k_cache, v_cache) of [pages, page_size, kv_heads, head_dim], or one array of both, [pages, 2,
        page_size, kv_heads, head_dim], of the dtype of q. page_order: "HND" has the heads before the tokens of a page.
    page_table: int32 or int64 [batch, pages a sequence]: the pages of each sequence in order. kv_lens: int32 or int64
        [batch]: its number of keys.
    table_rows: int32 or int64 [batch]: the row of page_table that each sequence uses.
    q_indptr: int32 or int64 [batch + 1]: where each sequence's queries begin, and the end of the last.
    q_lens: int32 or int64 [batch]: how many of the q_len queries of each sequence count. None counts all.
    max_q_len, max_kv_len: bounds of one sequence's queries and keys, known when the call is traced. Longer sequences are
        clamped. None or 0 takes what the shapes allow.
    causal: True aligns the last query with the last key, and hides the keys after each query.
    window: (left, right): a query sees at most `left` keys before its own position and `right` keys after it. None or -1 on
        a side is no bound.
    attention_chunk: the length of a chunk in tokens: a query sees only the keys of its own chunk. None or 0 is no chunks.
    softcap: logits become softcap * tanh(logit / softcap). None or 0 is off.
    scale: the factor of q k^T. None is 1 / sqrt(head_dim_qk).
    sinks, alibi_slopes: fp32 [q_heads]. exp(sink) is added to the denominator of each row, and slope * (key position -
        query position) to each logit.
    return_lse: True also returns the log-sum-exp of each row, a natural logarithm. lse_order: "NHD" has the tokens of lse
        before its heads, "HND" its heads before its tokens.
    o_dtype: "fp32", or the dtype of q. None is that of q.
    precision: "standard", or "high", which keeps products and probabilities in fp32. consistency: "standard", or "bitwise",
        with which the bits of a row depend on neither batch nor phase.

    Returns o of q's shape with head_dim_vo columns; with return_lse (o, lse), lse fp32 of q's shape without its last axis.

    Raises InvalidRequest, which names the array or argument, Unsupported, CompileError, DriverError, LibraryMissing,
    ImportError.
    """
    check_order("page_order", page_order)
    options = _options(causal, window, attention_chunk, softcap, scale, return_lse, lse_order, precision, consistency,
                       o_dtype, _limit("max_q_len", max_q_len), _limit("max_kv_len", max_kv_len), page_order)
    function, pair = "paged_attention of joined pages", (kv_cache, None)
    if isinstance(kv_cache, (tuple, list)):
        if len(kv_cache) != 2:
            raise InvalidRequest("kv_cache", f"{len(kv_cache)} arrays", "(k_cache, v_cache), or one array of both")
        function, pair = "paged_attention", (kv_cache[0], kv_cache[1])
    for name, array in (("page_table", page_table), ("kv_lens", kv_lens)):
        if array is None:
            raise InvalidRequest(name, "None", "an array of int32 or int64")
    return _call(function, (q, *pair, None, sinks, alibi_slopes, q_indptr, q_lens, kv_lens, page_table, None, None,
                            None, table_rows), options)


@named
def register() -> None:
    """Registers the handler of the calls with XLA. The functions do that themselves: only a program that was lowered
    elsewhere, such as by jax.export, needs it before it is run.

    Raises ImportError without JAX, LibraryMissing without the handler's library, Unsupported for a jax that is too old.
    """
    from ._jax import primitive
    primitive.register()


def _options(causal: Any, window: Any, attention_chunk: Any, softcap: Any, scale: Any, return_lse: Any, lse_order: Any,
             precision: Any, consistency: Any, o_dtype: Any, *more: Any) -> Options:
    lse = return_lse if lse_order.__class__ is str and lse_order == "NHD" else ordered_lse(return_lse, lse_order)
    options = plain((causal, window, attention_chunk, softcap, scale, lse, precision, consistency, _word(o_dtype)))
    refuse_unhashable(options)
    return (*options, *more)


def _word(o_dtype: Any) -> Any:
    """A dtype, which JAX takes in many forms, by its name."""
    if o_dtype is None or isinstance(o_dtype, str):
        return o_dtype
    import numpy
    try:
        return numpy.dtype(o_dtype).name
    except TypeError:
        raise InvalidRequest("o_dtype", shown(o_dtype), '"fp32", a dtype or None') from None


def _call(function: str, arrays: Tuple[Any, ...], options: Options) -> Any:
    from ._jax import calls, primitive
    form = calls.FORMS[function]
    for i, (name, array) in enumerate(zip(form.names, arrays)):
        if array is None and i in form.required or array is not None and not primitive.is_array(array):
            said = "None" if array is None else f"an object of type {type(array).__name__}"
            raise InvalidRequest(name, said, "an array of JAX")
    o, *lse = primitive.bind(function, arrays, options)
    return (o, *lse) if lse else o

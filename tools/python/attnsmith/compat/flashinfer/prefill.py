"""flashinfer.prefill: any number of queries of each sequence."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Tuple

import torch

from ... import functions
from ...errors import InvalidRequest
from . import _plans, _words
from ._plans import PagedWrapper, Plan, Result, Wrapper
from ._words import Cache, DType, Scale

_MASK = "causal and window_left are, and a mask of another form has no kernel; leave it out"
_JIT = "attnsmith builds its own kernels; leave it out"


def single_prefill_with_kv_cache(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                                 scale_q: Optional[torch.Tensor] = None, scale_k: Optional[torch.Tensor] = None,
                                 scale_v: Optional[torch.Tensor] = None, o_dtype: Optional[torch.dtype] = None,
                                 custom_mask: Optional[torch.Tensor] = None,
                                 packed_custom_mask: Optional[torch.Tensor] = None, causal: bool = False,
                                 kv_layout: str = "NHD", pos_encoding_mode: str = "NONE",
                                 use_fp16_qk_reduction: bool = False, sm_scale: Optional[float] = None,
                                 window_left: int = -1, logits_soft_cap: Optional[float] = None,
                                 rope_scale: Optional[float] = None, rope_theta: Optional[float] = None,
                                 backend: str = "auto", return_lse: bool = False, kv_cache_sf: Any = None,
                                 k_scale: Scale = None, v_scale: Scale = None) -> Result:
    """Attention of one sequence.

    q: [qo_len, num_qo_heads, head_dim], fp16 or bf16. k: [kv_len, num_kv_heads, head_dim] for kv_layout "NHD", or
        [num_kv_heads, kv_len, head_dim] for "HND". v: the axes of k, with head_dim_vo. k and v are of q's dtype or floats of
        8 bits.
    causal: the last query sees the last key, each one before it a key less. pos_encoding_mode: "NONE", or "ALIBI"
        without logits_soft_cap and return_lse. window_left: keys before a query's own that it sees, or -1.
        logits_soft_cap: None or 0 is off. sm_scale: None is 1 / sqrt(head_dim).
    k_scale: multiplies sm_scale. v_scale: multiplies the output. They may be tensors of one float32 with k and v of 8
        bits. o_dtype: of o: None is that of q; or torch.float32.
    Hints, which change nothing: backend, use_fp16_qk_reduction, and without "ROPE_LLAMA" rope_scale and rope_theta.
    Refused: custom_mask, packed_custom_mask, kv_cache_sf, and scale_q, scale_k and scale_v, which are those of q of 8
        bits.

    Gives o [qo_len, num_qo_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [qo_len, num_qo_heads], in base 2. A
    query that sees no key gets 0 and -inf.

    Raises InvalidRequest and Unsupported naming the argument, and what attnsmith.attention raises.
    """
    _words.refuse("q is of 16 bits; scale keys and values of 8 bits by k_scale and v_scale", scale_q=scale_q,
                  scale_k=scale_k, scale_v=scale_v)
    _words.refuse(_MASK, custom_mask=custom_mask, packed_custom_mask=packed_custom_mask)
    _words.refuse("keys and values are of 8 or 16 bits; pass None", kv_cache_sf=kv_cache_sf)
    _words.backend(backend)
    layout = _words.layout(kv_layout)
    scores = _words.scores(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
    scales = _words.scales(None, k_scale, v_scale)
    kind = _words.o_dtype("o_dtype", o_dtype, q.dtype)
    finish = _plans.Finish(q, None, return_lse, scales.output)
    if layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    return finish(functions.attention(q[None], k[None], v[None], return_lse=finish.needs_lse, k_scale=scales.k,
                                      v_scale=scales.v, o_dtype=None if kind == q.dtype else kind,
                                      **scores.words(q, scales.products, finish.needs_lse)), None)


single_prefill_with_kv_cache_return_lse: "functools.partial[Result]" = functools.partial(single_prefill_with_kv_cache,
                                                                                         return_lse=True)


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    """Prefill and append of a batch of sequences whose keys and values are in pages.

    float_workspace_buffer: says the device; attnsmith has workspaces of its own. kv_layout: "NHD" or "HND".
    use_cuda_graph: plan() then copies into qo_indptr_buf and paged_kv_indptr_buf [batch + 1], paged_kv_indices_buf, for
        the most pages that there will be, and paged_kv_last_page_len_buf [batch], int32 on the device, so that a
        captured graph sees what later plans say.
    Hints: backend, one of FlashInfer's words, and custom_mask_buf and mask_indptr_buf, since masks are refused by
        plan().
    Refused: jit_args, jit_kwargs and variant_owns_mask.

    Raises InvalidRequest and Unsupported naming the argument.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Optional[torch.Tensor] = None, paged_kv_indptr_buf: Optional[torch.Tensor] = None,
                 paged_kv_indices_buf: Optional[torch.Tensor] = None,
                 paged_kv_last_page_len_buf: Optional[torch.Tensor] = None,
                 custom_mask_buf: Optional[torch.Tensor] = None, mask_indptr_buf: Optional[torch.Tensor] = None,
                 backend: str = "auto", jit_args: Optional[List[Any]] = None,
                 jit_kwargs: Optional[Dict[str, Any]] = None, variant_owns_mask: bool = False) -> None:
        _words.refuse(_JIT, jit_args=jit_args, jit_kwargs=jit_kwargs, variant_owns_mask=variant_owns_mask)
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend, {
            "q_indptr": ("qo_indptr_buf", qo_indptr_buf), "page_indptr": ("paged_kv_indptr_buf", paged_kv_indptr_buf),
            "page_indices": ("paged_kv_indices_buf", paged_kv_indices_buf),
            "last_page_len": ("paged_kv_last_page_len_buf", paged_kv_last_page_len_buf)})

    def plan(self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
             paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
             page_size: int, head_dim_vo: Optional[int] = None, custom_mask: Optional[torch.Tensor] = None,
             packed_custom_mask: Optional[torch.Tensor] = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, sm_scale: Optional[float] = None, window_left: int = -1,
             logits_soft_cap: Optional[float] = None, rope_scale: Optional[float] = None,
             rope_theta: Optional[float] = None, q_data_type: DType = "float16", kv_data_type: Optional[DType] = None,
             o_data_type: Optional[DType] = None, non_blocking: bool = True,
             prefix_len_ptr: Optional[torch.Tensor] = None, token_pos_in_items_ptr: Optional[torch.Tensor] = None,
             token_pos_in_items_len: int = 0, max_item_len_ptr: Optional[torch.Tensor] = None,
             seq_lens: Optional[torch.Tensor] = None, seq_lens_q: Optional[torch.Tensor] = None,
             block_tables: Optional[torch.Tensor] = None, max_token_per_sequence: Optional[int] = None,
             max_sequence_kv: Optional[int] = None, fixed_split_size: Optional[int] = None,
             disable_split_kv: bool = False) -> None:
        """Says the queries, pages and lengths of the next runs. Where tensors are on the GPU it waits for them, as in
        FlashInfer.

        qo_indptr: [batch + 1]: where each sequence's queries begin. In graph mode later plans have no more queries than
            the first, nor than a captured run. paged_kv_indptr: [batch + 1]: where its pages begin in paged_kv_indices,
            [pages of all]. paged_kv_last_page_len: [batch]: tokens of the last page, from 0 to page_size; of a sequence
            without pages anything.
        num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo (None: head_dim_qk), page_size, and the dtypes q_data_type,
            kv_data_type (None: as q_data_type) and o_data_type (None: as q_data_type; or float32): run() compares its
            tensors with them.
        causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale: as single_prefill_with_kv_cache has them.
        seq_lens, seq_lens_q: [batch], compared with what the offsets and last pages say.
        fixed_split_size, disable_split_kv: keep a row's bits from depending on the batch, as consistency="bitwise"
            does.
        non_blocking: whether copies to the device are.
        Hints: use_fp16_qk_reduction, rope_scale, rope_theta, max_token_per_sequence and max_sequence_kv.
        Refused: custom_mask, packed_custom_mask, block_tables, and of multi-item scoring prefix_len_ptr,
            token_pos_in_items_ptr, token_pos_in_items_len and max_item_len_ptr.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        _words.refuse(_MASK, custom_mask=custom_mask, packed_custom_mask=packed_custom_mask)
        _words.refuse("the offsets and indices say the pages; leave it out", block_tables=block_tables)
        _plans.refuse_items(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr,
                            token_pos_in_items_len=token_pos_in_items_len or None, max_item_len_ptr=max_item_len_ptr)
        _words.check_counts(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim_qk=head_dim_qk,
                            head_dim_vo=head_dim_qk if head_dim_vo is None else head_dim_vo, page_size=page_size)
        dtypes = _words.dtypes(q_data_type, kv_data_type, o_data_type)
        scores = _words.scores(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        q_indptr, page_indptr = (_plans.on_host(qo_indptr, "qo_indptr"),
                                 _plans.on_host(paged_kv_indptr, "paged_kv_indptr"))
        queries, pages = (_plans.lengths_of(q_indptr, "qo_indptr"), _plans.lengths_of(page_indptr, "paged_kv_indptr"))
        _plans.check_batch(queries, paged_kv_indptr=pages)
        lengths = _plans.paged_lengths(pages, _plans.on_host(paged_kv_last_page_len, "paged_kv_last_page_len"),
                                       page_size, "paged_kv_last_page_len")
        _plans.check_pages(page_indptr, paged_kv_indices, "paged_kv_indices")
        _plans.check_lengths("seq_lens", seq_lens, lengths)
        _plans.check_lengths("seq_lens_q", seq_lens_q, queries)
        rows = int(q_indptr[-1])
        plan = Plan(rows, self._bound(queries), self._bound(lengths), num_qo_heads, num_kv_heads,
                    (head_dim_qk, head_dim_qk if head_dim_vo is None else head_dim_vo), page_size, dtypes, scores,
                    _plans.consistency(fixed_split_size, disable_split_kv))
        self._adopt(plan, non_blocking, {"q": ("qo_indptr", rows)},
                    {"q_indptr": qo_indptr, **_plans.used_pages(page_indptr, lengths, page_size, paged_kv_indptr,
                                                                paged_kv_indices, paged_kv_last_page_len)})

    begin_forward = plan

    def run(self, q: torch.Tensor, paged_kv_cache: Cache, *args: Any, q_scale: Optional[float] = None,
            k_scale: Scale = None, v_scale: Scale = None, out: Optional[torch.Tensor] = None,
            lse: Optional[torch.Tensor] = None, return_lse: bool = False, lse_base: str = "log2",
            lse_layout: str = "NH", enable_pdl: Optional[bool] = None, window_left: Optional[int] = None,
            sinks: Optional[torch.Tensor] = None, kv_cache_sf: Any = None,
            skip_softmax_threshold_scale_factor: Optional[float] = None, use_fp16_softmax: Optional[bool] = None,
            uses_spcompress: Optional[bool] = None) -> Result:
        """Attention of what was planned. It neither waits nor looks at lengths, so that a graph can capture it.

        q: [qo_indptr[-1], num_qo_heads, head_dim_qk]. paged_kv_cache: (k_cache, v_cache), each [pages, page_size,
            num_kv_heads, head_dim] for "NHD" or [pages, num_kv_heads, page_size, head_dim] for "HND"; or one tensor
            [pages, 2, ...] of both. Pages of one token may lack their axis.
        q_scale, k_scale: multiply sm_scale. v_scale: multiplies the output. k_scale and v_scale may be tensors of one
            float32 with a cache of 8 bits. window_left: None is what was planned.
        sinks: fp32 [num_qo_heads]: exp(sink) is added to each row's denominator, and counts in the lse.
        out: a tensor for o, of the dtype that was planned. lse: fp32, for the lse, which is written wherever it is
            given. lse_base: "log2" or "ln". lse_layout: "NH", or "HN", [num_qo_heads, qo_indptr[-1]].
        Hints: enable_pdl, use_fp16_softmax and uses_spcompress.
        Refused: args, kv_cache_sf and skip_softmax_threshold_scale_factor.

        Gives o [qo_indptr[-1], num_qo_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [qo_indptr[-1],
        num_qo_heads]. A query that sees no key gets 0 and -inf.

        Raises InvalidRequest and Unsupported naming the argument, and what attnsmith.paged_attention raises.
        """
        more = self._of_variant(args, sinks)
        _words.refuse("caches are of 8 or 16 bits; pass None", kv_cache_sf=kv_cache_sf)
        _words.refuse("every key counts here; pass None",
                      skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
        return self._run_paged(q, paged_kv_cache, scales=_words.scales(q_scale, k_scale, v_scale),
                               window_left=window_left, out=out, lse=lse, return_lse=return_lse, lse_base=lse_base,
                               lse_layout=lse_layout, **more)

    def _of_variant(self, args: Tuple[Any, ...], sinks: Optional[torch.Tensor]) -> Dict[str, Any]:
        """What run()'s arguments without names say. Those of a variant are its own."""
        _words.refuse("attnsmith's kernels take no more arguments; leave them out", args=args or None)
        return {"sinks": sinks}

    run_return_lse: "functools.partialmethod[Result]" = functools.partialmethod(run, return_lse=True)

    def forward(self, q: torch.Tensor, paged_kv_cache: Cache, causal: bool = False, pos_encoding_mode: str = "NONE",
                use_fp16_qk_reduction: bool = False, k_scale: Scale = None, v_scale: Scale = None,
                window_left: int = -1, logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None,
                rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Result:
        """run(q, paged_kv_cache, k_scale, v_scale) with causal, pos_encoding_mode, window_left, logits_soft_cap and
        sm_scale in the place of those that were planned, for later runs too, as in FlashInfer. Hints:
        use_fp16_qk_reduction, rope_scale, rope_theta."""
        self._rescore(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(self, q: torch.Tensor, paged_kv_cache: Cache, causal: bool = False,
                           pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, k_scale: Scale = None,
                           v_scale: Scale = None, window_left: int = -1, logits_soft_cap: Optional[float] = None,
                           sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                           rope_theta: Optional[float] = None) -> Result:
        """forward() of the same q, paged_kv_cache, causal, pos_encoding_mode, k_scale, v_scale, window_left,
        logits_soft_cap and sm_scale, that gives (o, lse). Hints: use_fp16_qk_reduction, rope_scale, rope_theta."""
        self._rescore(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=True)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Prefill of a batch of sequences whose keys and values lie one after another.

    float_workspace_buffer: says the device; attnsmith has workspaces of its own. kv_layout: "NHD" or "HND".
    use_cuda_graph: plan() then copies into qo_indptr_buf and kv_indptr_buf [batch + 1], int32 on the device, so that a
        captured graph sees what later plans say.
    Hints: backend, one of FlashInfer's words, and custom_mask_buf and mask_indptr_buf, since masks are refused by
        plan().
    Refused: jit_args, jit_kwargs and variant_owns_mask.

    Raises InvalidRequest and Unsupported naming the argument.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Optional[torch.Tensor] = None, kv_indptr_buf: Optional[torch.Tensor] = None,
                 custom_mask_buf: Optional[torch.Tensor] = None, mask_indptr_buf: Optional[torch.Tensor] = None,
                 backend: str = "auto", jit_args: Optional[List[Any]] = None,
                 jit_kwargs: Optional[Dict[str, Any]] = None, variant_owns_mask: bool = False) -> None:
        _words.refuse(_JIT, jit_args=jit_args, jit_kwargs=jit_kwargs, variant_owns_mask=variant_owns_mask)
        _words.backend(backend)
        self._kv_layout = _words.layout(kv_layout)
        super().__init__(float_workspace_buffer, use_cuda_graph, {"q_indptr": ("qo_indptr_buf", qo_indptr_buf),
                                                                  "kv_indptr": ("kv_indptr_buf", kv_indptr_buf)})

    def plan(self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, num_qo_heads: int, num_kv_heads: int,
             head_dim_qk: int, head_dim_vo: Optional[int] = None, custom_mask: Optional[torch.Tensor] = None,
             packed_custom_mask: Optional[torch.Tensor] = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: Optional[float] = None,
             sm_scale: Optional[float] = None, rope_scale: Optional[float] = None, rope_theta: Optional[float] = None,
             q_data_type: DType = "float16", kv_data_type: Optional[DType] = None,
             o_data_type: Optional[DType] = None, non_blocking: bool = True,
             prefix_len_ptr: Optional[torch.Tensor] = None, token_pos_in_items_ptr: Optional[torch.Tensor] = None,
             token_pos_in_items_len: int = 0, max_item_len_ptr: Optional[torch.Tensor] = None,
             fixed_split_size: Optional[int] = None, disable_split_kv: bool = False,
             seq_lens: Optional[torch.Tensor] = None, seq_lens_q: Optional[torch.Tensor] = None,
             max_token_per_sequence: Optional[int] = None, max_sequence_kv: Optional[int] = None,
             v_indptr: Optional[torch.Tensor] = None, o_indptr: Optional[torch.Tensor] = None) -> None:
        """Says the queries and keys of the next runs. Where tensors are on the GPU it waits for them, as in FlashInfer.

        qo_indptr, kv_indptr: [batch + 1]: where each sequence's queries and keys begin. In graph mode later plans have
            no more queries than the first, nor more queries and keys than a captured run.
        num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo (None: head_dim_qk), and the dtypes q_data_type,
            kv_data_type (None: as q_data_type) and o_data_type (None: as q_data_type; or float32): run() compares its
            tensors with them.
        causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale: as single_prefill_with_kv_cache has them.
        seq_lens, seq_lens_q: [batch], compared with what the offsets say.
        fixed_split_size, disable_split_kv: keep a row's bits from depending on the batch, as consistency="bitwise"
            does.
        non_blocking: whether copies to the device are.
        Hints: use_fp16_qk_reduction, rope_scale, rope_theta, max_token_per_sequence and max_sequence_kv.
        Refused: custom_mask, packed_custom_mask, v_indptr, o_indptr, and of multi-item scoring prefix_len_ptr,
            token_pos_in_items_ptr, token_pos_in_items_len and max_item_len_ptr.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        _words.refuse(_MASK, custom_mask=custom_mask, packed_custom_mask=packed_custom_mask)
        _words.refuse("values lie as keys do, and outputs as queries; leave it out", v_indptr=v_indptr,
                      o_indptr=o_indptr)
        _plans.refuse_items(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr,
                            token_pos_in_items_len=token_pos_in_items_len or None, max_item_len_ptr=max_item_len_ptr)
        _words.check_counts(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim_qk=head_dim_qk,
                            head_dim_vo=head_dim_qk if head_dim_vo is None else head_dim_vo)
        dtypes = _words.dtypes(q_data_type, kv_data_type, o_data_type)
        scores = _words.scores(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        q_ends, kv_ends = _plans.on_host(qo_indptr, "qo_indptr"), _plans.on_host(kv_indptr, "kv_indptr")
        queries, lengths = _plans.lengths_of(q_ends, "qo_indptr"), _plans.lengths_of(kv_ends, "kv_indptr")
        _plans.check_batch(queries, kv_indptr=lengths)
        _plans.check_lengths("seq_lens", seq_lens, lengths)
        _plans.check_lengths("seq_lens_q", seq_lens_q, queries)
        rows, keys = int(q_ends[-1]), int(kv_ends[-1])
        plan = Plan(rows, self._bound(queries), self._bound(lengths), num_qo_heads, num_kv_heads,
                    (head_dim_qk, head_dim_qk if head_dim_vo is None else head_dim_vo), 1, dtypes, scores,
                    _plans.consistency(fixed_split_size, disable_split_kv))
        self._adopt(plan, non_blocking, {"q": ("qo_indptr", rows), "k": ("kv_indptr", keys)},
                    {"q_indptr": qo_indptr, "kv_indptr": kv_indptr})
        self._keys = keys

    begin_forward = plan

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, q_scale: Optional[float] = None,
            k_scale: Scale = None, v_scale: Scale = None, o_scale: Optional[float] = None,
            out: Optional[torch.Tensor] = None, lse: Optional[torch.Tensor] = None, return_lse: bool = False,
            lse_base: str = "log2", lse_layout: str = "NH", enable_pdl: Optional[bool] = None,
            kv_cache_sf: Any = None) -> Result:
        """Attention of what was planned. It neither waits nor looks at lengths, so that a graph can capture it.

        q: [qo_indptr[-1], num_qo_heads, head_dim_qk]. k: [kv_indptr[-1] or more, num_kv_heads, head_dim_qk] for "NHD",
            or [num_kv_heads, kv_indptr[-1] or more, head_dim_qk] for "HND". v: the axes of k, with head_dim_vo.
        k_scale, v_scale: of k and v of 8 bits, which FlashInfer applies to no others: k_scale multiplies sm_scale,
            v_scale the output. They may be tensors of one float32. out, lse, lse_base, lse_layout: as
            BatchPrefillWithPagedKVCacheWrapper.run has them.
        Hint: enable_pdl. Refused: args, kv_cache_sf, and a q_scale or o_scale other than 1.

        Gives o [qo_indptr[-1], num_qo_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [qo_indptr[-1],
        num_qo_heads]. A query that sees no key gets 0 and -inf.

        Raises InvalidRequest and Unsupported naming the argument, and what attnsmith.varlen_attention raises.
        """
        _words.refuse("attnsmith's kernels take no more arguments; leave them out", args=args or None)
        _words.refuse("keys and values are of 8 or 16 bits; pass None", kv_cache_sf=kv_cache_sf)
        _words.refuse("queries and outputs are of 16 bits or more and have no scale; pass None",
                      q_scale=None if q_scale == 1 else q_scale, o_scale=None if o_scale == 1 else o_scale)
        plan = self._plan
        self._check_queries(q, "num_qo_heads")
        _words.check_size("q", q.shape[2], plan.head_dims[0], "head_dim_qk")
        if self._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        for name, tensor, head_dim in (("k", k, plan.head_dims[0]), ("v", v, plan.head_dims[1])):
            _words.check_dtype(name, tensor, plan.dtypes.kv, "kv_data_type")
            if tensor.dim() != 3 or len(tensor) < self._keys:
                raise InvalidRequest(f"{name}.shape", str(tuple(tensor.shape)), f"{self._keys} tokens or more")
            _words.check_size(name, tensor.shape[1], plan.kv_heads, "num_kv_heads")
            _words.check_size(name, tensor.shape[2], head_dim, "the head dim")
            self._seen("k", tensor)
        if plan.dtypes.kv == plan.dtypes.q:
            _words.refuse("FlashInfer applies it to k and v of 8 bits alone; multiply sm_scale or the output by it",
                          k_scale=None if k_scale == 1 else k_scale, v_scale=None if v_scale == 1 else v_scale)
        scales = _words.scales(None, k_scale, v_scale)
        words = {**plan.bounds, "k_scale": scales.k, "v_scale": scales.v,
                 **plan.scores.words(q, scales.products, return_lse or lse is not None)}
        return self._attend(functions.varlen_attention,
                            (q, k, v, self._arrays["q_indptr"], self._arrays["kv_indptr"]), q, words, out=out, lse=lse,
                            return_lse=return_lse, factor=scales.output, lse_base=lse_base, lse_layout=lse_layout)

    run_return_lse: "functools.partialmethod[Result]" = functools.partialmethod(run, return_lse=True)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False,
                pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, window_left: int = -1,
                logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None,
                rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Result:
        """run(q, k, v) with causal, pos_encoding_mode, window_left, logits_soft_cap and sm_scale in the place of those
        that were planned, for later runs too, as in FlashInfer. Hints: use_fp16_qk_reduction, rope_scale,
        rope_theta."""
        self._rescore(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, k, v)

    def forward_return_lse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False,
                           pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, window_left: int = -1,
                           logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None,
                           rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Result:
        """forward() of the same q, k, v, causal, pos_encoding_mode, window_left, logits_soft_cap and sm_scale, that
        gives (o, lse). Hints: use_fp16_qk_reduction, rope_scale, rope_theta."""
        self._rescore(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, k, v, return_lse=True)

"""flashinfer.decode: one query, or a few, of each sequence."""

from __future__ import annotations

import functools
from ctypes import c_int32
from typing import Any, List, Optional, Tuple

import torch

from ... import functions
from ..._base.integers import fitting, shown
from ...errors import InvalidRequest, Unsupported
from . import _plans, _words
from ._plans import PagedWrapper, Plan, Result
from ._words import Cache, DType, Scale


def single_decode_with_kv_cache(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_layout: str = "NHD",
                                pos_encoding_mode: str = "NONE", use_tensor_cores: bool = False,
                                q_scale: Optional[float] = None, k_scale: Scale = None, v_scale: Scale = None,
                                window_left: int = -1, logits_soft_cap: Optional[float] = None,
                                sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                                rope_theta: Optional[float] = None, return_lse: bool = False) -> Result:
    """Attention of one query.

    q: [num_qo_heads, head_dim], fp16 or bf16. k: [kv_len, num_kv_heads, head_dim] for kv_layout "NHD", or
        [num_kv_heads, kv_len, head_dim] for "HND". v: the axes of k, with head_dim_vo. k and v are of q's dtype or floats of
        8 bits.
    pos_encoding_mode: "NONE", or "ALIBI" without logits_soft_cap and return_lse. window_left: keys before the last one
        that are seen, or -1. logits_soft_cap: None or 0 is off. sm_scale: None is 1 / sqrt(head_dim).
    q_scale, k_scale: multiply sm_scale. v_scale: multiplies the output. k_scale and v_scale may be tensors of one
        float32 with k and v of 8 bits.
    Hints, which change nothing: use_tensor_cores, and without "ROPE_LLAMA" rope_scale and rope_theta.

    Gives o [num_qo_heads, head_dim_vo]; with return_lse (o, lse), lse fp32 [num_qo_heads], in base 2.

    Raises InvalidRequest and Unsupported naming the argument, and what attnsmith.attention raises.
    """
    layout = _words.layout(kv_layout)
    scores = _words.scores(False, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
    scales = _words.scales(q_scale, k_scale, v_scale)
    finish = _plans.Finish(q, None, return_lse, scales.output)
    if layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    return finish(functions.attention(q[None, None], k[None], v[None], return_lse=finish.needs_lse, k_scale=scales.k,
                                      v_scale=scales.v, **scores.words(q, scales.products, finish.needs_lse)), None)


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    """Decode of a batch of sequences whose keys and values are in pages.

    float_workspace_buffer: says the device; attnsmith has workspaces of its own. kv_layout: "NHD" or "HND".
    use_cuda_graph: plan() then copies into paged_kv_indptr_buffer [batch + 1], paged_kv_indices_buffer, for the most
        pages that there will be, and paged_kv_last_page_len_buffer [batch], int32 on the device, so that a captured
        graph sees what later plans say. The kernels are bound by the shapes of these: each sequence might have all
        the pages.
    Hints, which only change the speed: use_tensor_cores, and backend, one of FlashInfer's words.
    jit_args are refused.

    Raises InvalidRequest and Unsupported naming the argument.
    """

    _BUFFERS = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 use_tensor_cores: bool = False, paged_kv_indptr_buffer: Optional[torch.Tensor] = None,
                 paged_kv_indices_buffer: Optional[torch.Tensor] = None,
                 paged_kv_last_page_len_buffer: Optional[torch.Tensor] = None, backend: str = "auto",
                 jit_args: Optional[List[Any]] = None) -> None:
        _words.refuse("attnsmith builds its own kernels; leave it out", jit_args=jit_args)
        kinds = ("page_indptr", "page_indices", "last_page_len")
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend,
                         dict(zip(kinds, zip(self._BUFFERS, buffers))))
        self._use_tensor_cores = use_tensor_cores

    @property
    def use_tensor_cores(self) -> bool:
        """What the wrapper was made with. The kernels have tensor cores where that is faster."""
        return self._use_tensor_cores

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, num_qo_heads: int,
             num_kv_heads: int, head_dim: int, page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1,
             logits_soft_cap: Optional[float] = None, q_data_type: Optional[DType] = "float16",
             kv_data_type: Optional[DType] = None, o_data_type: Optional[DType] = None,
             data_type: Optional[DType] = None, sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
             rope_theta: Optional[float] = None, non_blocking: bool = True,
             block_tables: Optional[torch.Tensor] = None, seq_lens: Optional[torch.Tensor] = None,
             fixed_split_size: Optional[int] = None, disable_split_kv: bool = False, q_len_per_req: int = 1, *,
             window_right: int = 0, is_causal: Optional[bool] = None) -> None:
        """Says the pages and lengths of the next runs. Where tensors are on the GPU it waits for them, as in
        FlashInfer.

        indptr: [batch + 1]: where each sequence's pages begin in indices, [pages of all]. last_page_len: [batch]:
            tokens of the last page, from 0 to page_size; of a sequence without pages anything.
        num_qo_heads, num_kv_heads, head_dim, page_size, and the dtypes q_data_type, kv_data_type (None: as q_data_type)
            and o_data_type (None: as q_data_type; or float32): run() compares its tensors with them. data_type: of
            those of the first two that are None.
        pos_encoding_mode, window_left, logits_soft_cap, sm_scale: as single_decode_with_kv_cache has them.
        q_len_per_req: queries of each sequence. The last sees all of its keys, each query before it a key less.
            It is fixed by the first plan in graph mode. is_causal: None, or what q_len_per_req says.
        seq_lens: [batch], compared with what indptr and last_page_len say.
        fixed_split_size, disable_split_kv: keep a row's bits from depending on the batch, as consistency="bitwise"
            does.
        non_blocking: whether copies to the device are.
        Hints: rope_scale and rope_theta. Refused: block_tables, and a window_right other than 0.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        _words.refuse("indptr and indices say the pages; leave it out", block_tables=block_tables)
        if window_right != 0:
            raise Unsupported(f"window_right {window_right} is not supported: no query here sees keys behind its own; "
                              "pass 0")
        queries = fitting("q_len_per_req", q_len_per_req, c_int32, 1)
        if is_causal is not None and is_causal != (queries > 1):
            raise Unsupported(f"is_causal {is_causal} is not supported with q_len_per_req {queries}: pass None")
        _words.check_counts(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=page_size)
        dtypes = _words.dtypes(data_type if q_data_type is None else q_data_type,
                               data_type if kv_data_type is None else kv_data_type, o_data_type)
        scores = _words.scores(queries > 1, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        host_indptr = _plans.on_host(indptr, "indptr")
        pages = _plans.lengths_of(host_indptr, "indptr")
        lengths = _plans.paged_lengths(pages, _plans.on_host(last_page_len, "last_page_len"), page_size,
                                       "last_page_len")
        _plans.check_pages(host_indptr, indices, "indices")
        _plans.check_lengths("seq_lens", seq_lens, lengths)
        if self._use_cuda_graph and self._made is not None and self._made.max_q_len != queries:
            raise InvalidRequest("q_len_per_req", str(queries), f"{self._made.max_q_len}, as a captured graph has it; "
                                 "use another wrapper")
        plan = Plan(len(lengths) * queries, queries, self._bound(lengths), num_qo_heads, num_kv_heads,
                    (head_dim, head_dim), page_size, dtypes, scores,
                    _plans.consistency(fixed_split_size, disable_split_kv))
        self._adopt(plan, non_blocking, {},
                    _plans.used_pages(host_indptr, lengths, page_size, indptr, indices, last_page_len))

    begin_forward = plan

    def run(self, q: torch.Tensor, paged_kv_cache: Cache, *args: Any, q_scale: Optional[float] = None,
            k_scale: Scale = None, v_scale: Scale = None, out: Optional[torch.Tensor] = None,
            lse: Optional[torch.Tensor] = None, return_lse: bool = False, enable_pdl: Optional[bool] = None,
            window_left: Optional[int] = None, sinks: Optional[torch.Tensor] = None,
            q_len_per_req: Optional[int] = None, skip_softmax_threshold_scale_factor: Optional[float] = None,
            kv_cache_sf: Any = None) -> Result:
        """Attention of what was planned. It neither waits nor looks at lengths, so that a graph can capture it.

        q: [batch * q_len_per_req, num_qo_heads, head_dim]. paged_kv_cache: (k_cache, v_cache), each [pages, page_size,
            num_kv_heads, head_dim] for "NHD" or [pages, num_kv_heads, page_size, head_dim] for "HND"; or one tensor
            [pages, 2, ...] of both. Pages of one token may lack their axis.
        q_scale, k_scale, v_scale: as single_decode_with_kv_cache has them. window_left: None is what was planned.
        sinks: fp32 [num_qo_heads]: exp(sink) is added to each row's denominator, and counts in the lse.
        out: a tensor for o, of the dtype that was planned. lse: fp32 [batch * q_len_per_req, num_qo_heads], which is
            written wherever it is given. q_len_per_req: None, or what was planned.
        Hint: enable_pdl. Refused: args, skip_softmax_threshold_scale_factor and kv_cache_sf.

        Gives o of q's shape; with return_lse (o, lse), lse in base 2. A query that sees no key gets 0 and -inf.

        Raises InvalidRequest and Unsupported naming the argument, and what attnsmith.paged_attention raises.
        """
        _words.refuse("attnsmith's kernels take no more arguments; leave them out", args=args or None)
        _words.refuse("every key counts here; pass None",
                      skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
        _words.refuse("caches are of 8 or 16 bits; pass None", kv_cache_sf=kv_cache_sf)
        plan = self._plan
        queries = plan.max_q_len or 1
        if q_len_per_req is not None and q_len_per_req != queries:
            raise InvalidRequest("q_len_per_req", shown(q_len_per_req), f"{queries}, as plan() was told, or None")
        rows = (plan.rows // queries, queries)
        return self._run_paged(q, paged_kv_cache, scales=_words.scales(q_scale, k_scale, v_scale),
                               window_left=window_left, sinks=sinks, out=out, lse=lse, return_lse=return_lse, rows=rows)

    run_return_lse: "functools.partialmethod[Result]" = functools.partialmethod(run, return_lse=True)

    def forward(self, q: torch.Tensor, paged_kv_cache: Cache, pos_encoding_mode: str = "NONE",
                q_scale: Optional[float] = None, k_scale: Scale = None, v_scale: Scale = None, window_left: int = -1,
                logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None,
                rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Result:
        """run(q, paged_kv_cache, q_scale, k_scale, v_scale) with pos_encoding_mode, window_left, logits_soft_cap and
        sm_scale in the place of those that were planned, for later runs too, as in FlashInfer. Hints: rope_scale,
        rope_theta."""
        self._rescore(self._plan.scores.causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(self, q: torch.Tensor, paged_kv_cache: Cache, pos_encoding_mode: str = "NONE",
                           q_scale: Optional[float] = None, k_scale: Scale = None, v_scale: Scale = None,
                           window_left: int = -1, logits_soft_cap: Optional[float] = None,
                           sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                           rope_theta: Optional[float] = None) -> Result:
        """forward() of the same q, paged_kv_cache, pos_encoding_mode, q_scale, k_scale, v_scale, window_left,
        logits_soft_cap and sm_scale, that gives (o, lse). Hints: rope_scale, rope_theta."""
        self._rescore(self._plan.scores.causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=True)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """BatchDecodeWithPagedKVCacheWrapper with use_cuda_graph=True: workspace_buffer, and indptr_buffer [batch + 1],
    indices_buffer and last_page_len_buffer [batch], int32 on the device; kv_layout; hint: use_tensor_cores."""

    _BUFFERS = ("indptr_buffer", "indices_buffer", "last_page_len_buffer")

    def __init__(self, workspace_buffer: torch.Tensor, indptr_buffer: torch.Tensor, indices_buffer: torch.Tensor,
                 last_page_len_buffer: torch.Tensor, kv_layout: str = "NHD", use_tensor_cores: bool = False) -> None:
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer,
                         last_page_len_buffer)


def fast_decode_plan(self: BatchDecodeWithPagedKVCacheWrapper, indptr: torch.Tensor, indices: torch.Tensor,
                     last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
                     pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: Optional[float] = None,
                     q_data_type: Optional[DType] = None, kv_data_type: Optional[DType] = None,
                     data_type: Optional[DType] = None, sm_scale: Optional[float] = None,
                     rope_scale: Optional[float] = None, rope_theta: Optional[float] = None, non_blocking: bool = True,
                     fixed_split_size: Optional[int] = None, disable_split_kv: bool = False, q_len_per_req: int = 1,
                     global_override_indptr_cpu: Optional[torch.Tensor] = None) -> None:
    """plan() of the decode wrapper `self`, as engines call it: fast_decode_plan(wrapper, ...), or in the place of
    wrapper.plan by functools.partial. The output's dtype is that of the plan before.

    indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode, window_left,
    logits_soft_cap, q_data_type (None: as data_type, or float16), kv_data_type, data_type, sm_scale, non_blocking,
    fixed_split_size, disable_split_kv, q_len_per_req: as plan() has them. Hints: rope_scale and rope_theta.
    global_override_indptr_cpu: indptr [batch + 1] on the host, for which plan() then does not wait.

    Raises InvalidRequest and Unsupported naming the argument.
    """
    made = self._made
    o_data_type = torch.float32 if made is not None and made.dtypes.o == torch.float32 else None
    if q_data_type is None:
        q_data_type = "float16" if data_type is None else data_type
    # That of the class, since a caller may have put this function in the place of the wrapper's own.
    BatchDecodeWithPagedKVCacheWrapper.plan(
        self, indptr if global_override_indptr_cpu is None else global_override_indptr_cpu, indices, last_page_len,
        num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode, window_left, logits_soft_cap, q_data_type,
        kv_data_type, o_data_type, data_type, sm_scale, rope_scale, rope_theta, non_blocking,
        fixed_split_size=fixed_split_size, disable_split_kv=disable_split_kv, q_len_per_req=q_len_per_req)

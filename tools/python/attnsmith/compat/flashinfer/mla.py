"""flashinfer.mla: attention to latents in pages, as DeepSeek's models decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple, Union

import torch

from ... import functions
from ..._base.integers import shown
from ..._base.options import flag, number
from ...errors import InvalidRequest, Unsupported
from . import _plans, _words
from ._plans import Plan, Result, Wrapper

Parts = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class MLAPlanMetadata:
    """The lengths and pages of a batch, by lists or by a table. Made by csr() or dense().

    qo_indptr [batch + 1], kv_indptr [batch + 1], kv_indices [pages of all] and kv_len_arr [batch]; or cum_seq_lens_q
    [batch + 1], block_tables [batch, pages a sequence], seq_lens [batch] and the hint max_q_len.
    """

    qo_indptr: Optional[torch.Tensor] = None
    kv_indptr: Optional[torch.Tensor] = None
    kv_indices: Optional[torch.Tensor] = None
    kv_len_arr: Optional[torch.Tensor] = None
    cum_seq_lens_q: Optional[torch.Tensor] = None
    block_tables: Optional[torch.Tensor] = None
    seq_lens: Optional[torch.Tensor] = None
    max_q_len: Optional[int] = None

    @classmethod
    def csr(cls, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor,
            kv_len_arr: torch.Tensor) -> MLAPlanMetadata:
        """By qo_indptr, kv_indptr, kv_indices and kv_len_arr."""
        return cls(qo_indptr, kv_indptr, kv_indices, kv_len_arr)

    @classmethod
    def dense(cls, cum_seq_lens_q: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor,
              max_q_len: Optional[int] = None) -> MLAPlanMetadata:
        """By cum_seq_lens_q, block_tables and seq_lens; max_q_len is a hint."""
        return cls(cum_seq_lens_q=cum_seq_lens_q, block_tables=block_tables, seq_lens=seq_lens, max_q_len=max_q_len)


class BatchMLAPagedAttentionWrapper(Wrapper):
    """Attention to latents in pages.

    float_workspace_buffer: says the device; attnsmith has workspaces of its own.
    use_cuda_graph: plan() then copies into qo_indptr and kv_indptr [batch + 1], kv_indices, for the most pages that
        there will be, and kv_len_arr [batch], int32 on the device, so that a captured graph sees what later plans say.
    Hint: backend, one of FlashInfer's words.

    Raises InvalidRequest naming the argument.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, use_cuda_graph: bool = False,
                 qo_indptr: Optional[torch.Tensor] = None, kv_indptr: Optional[torch.Tensor] = None,
                 kv_indices: Optional[torch.Tensor] = None, kv_len_arr: Optional[torch.Tensor] = None,
                 backend: str = "auto") -> None:
        _words.backend(backend)
        super().__init__(float_workspace_buffer, use_cuda_graph, {
            "q_indptr": ("qo_indptr", qo_indptr), "page_indptr": ("kv_indptr", kv_indptr),
            "page_indices": ("kv_indices", kv_indices), "kv_lens": ("kv_len_arr", kv_len_arr)})
        self._last_page_len = torch.zeros_like(self._arrays["kv_lens"]) if self._use_cuda_graph else None

    def plan(self, qo_indptr: Optional[torch.Tensor] = None, kv_indptr: Optional[torch.Tensor] = None,
             kv_indices: Optional[torch.Tensor] = None, kv_len_arr: Optional[torch.Tensor] = None,
             num_heads: Optional[int] = None, head_dim_ckv: Optional[int] = None, head_dim_kpe: Optional[int] = None,
             page_size: Optional[int] = None, causal: Optional[bool] = None, sm_scale: Optional[float] = None,
             q_data_type: Optional[torch.dtype] = None, kv_data_type: Optional[torch.dtype] = None,
             use_profiler: bool = False, *, metadata: Optional[MLAPlanMetadata] = None,
             cum_seq_lens_q: Optional[torch.Tensor] = None, block_tables: Optional[torch.Tensor] = None,
             seq_lens: Optional[torch.Tensor] = None, max_q_len: Optional[int] = None,
             query_layout: Optional[str] = None, kv_cache_layout: Optional[str] = None, lse_mode: str = "none",
             output_dtype: Optional[torch.dtype] = None, output_scale: str = "none", scale_mode: str = "default",
             skip_softmax: bool = False, enable_pdl: Optional[bool] = None, use_sinks: bool = False) -> None:
        """Says the queries, pages and lengths of the next runs. Where tensors are on the GPU it waits for them, as in
        FlashInfer.

        qo_indptr: [batch + 1]: where each sequence's queries begin; in graph mode later plans have no more queries than
            the first, nor than a captured run. kv_indptr: [batch + 1], or more, whose rest is not read: where its
            pages begin in kv_indices, [pages of all]. kv_len_arr: [batch], in tokens, which the pages have room for.
        Or cum_seq_lens_q [batch + 1], block_tables [batch, pages a sequence] and seq_lens [batch], without graph mode;
            or metadata, of either kind.
        num_heads, head_dim_ckv, head_dim_kpe, page_size, q_data_type, kv_data_type: run() compares its tensors with
            them.
        causal: the last query sees the last key, each one before it a key less. sm_scale: of the products. These eight
            words must be given.
        output_dtype: None is q_data_type; or torch.float32. lse_mode: "none" leaves it to run(); "base2" or "basee" is
            the base that run() must ask for.
        Hints: max_q_len, enable_pdl, and query_layout and kv_cache_layout, "packed" or "split": run() takes both.
        scale_mode: "default" or "kv-per-tensor", which run() finds out by itself.
        Refused: use_profiler, skip_softmax, use_sinks, and an output_scale.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        _words.refuse("leave it out", use_profiler=use_profiler)
        _words.refuse("every key counts here; leave it out", skip_softmax=skip_softmax)
        _words.refuse("latent attention has no sinks; leave it out", use_sinks=use_sinks)
        _words.refuse("outputs are not of 8 bits; leave it out",
                      output_scale=None if output_scale == "none" else output_scale)
        modes = ("default", "kv-per-tensor", "bmm-scalar", "bmm-tensor")
        if _words.one_of("scale_mode", scale_mode, modes) in modes[2:]:
            raise Unsupported(f'scale_mode "{scale_mode}" is not supported: scale latents of 8 bits by ckv_scale and '
                              "kpe_scale")
        for name, layout in (("query_layout", query_layout), ("kv_cache_layout", kv_cache_layout)):
            if layout is not None:
                _words.one_of(name, layout, ("packed", "split"))
        lists = MLAPlanMetadata(qo_indptr, kv_indptr, kv_indices, kv_len_arr, cum_seq_lens_q, block_tables, seq_lens,
                                max_q_len)
        if metadata is not None:
            if not isinstance(metadata, MLAPlanMetadata) or any(said is not None for said in vars(lists).values()):
                raise InvalidRequest("metadata", shown(metadata),
                                     "MLAPlanMetadata.csr() or .dense() alone, or lists alone")
            lists = metadata
        needed = {"num_heads": num_heads, "head_dim_ckv": head_dim_ckv, "head_dim_kpe": head_dim_kpe,
                  "page_size": page_size, "causal": causal, "sm_scale": sm_scale, "q_data_type": q_data_type,
                  "kv_data_type": kv_data_type}
        for name, value in needed.items():
            if value is None:
                raise InvalidRequest(name, "nothing", "it, since nothing else says it")
        assert num_heads is not None and head_dim_ckv is not None and head_dim_kpe is not None
        assert page_size is not None and causal is not None
        _words.check_counts(num_heads=num_heads, head_dim_ckv=head_dim_ckv, head_dim_kpe=head_dim_kpe, page_size=page_size)
        dtypes = _words.dtypes(q_data_type, kv_data_type, output_dtype, "output_dtype")
        scores = _words.scores(causal, "NONE", -1, None, sm_scale)
        self._lse_base = _words.one_of("lse_mode", lse_mode, ("none", "base2", "basee"))
        rows, queries, lengths, arrays = self._lists(lists, page_size)
        plan = Plan(rows, self._bound(queries), self._bound(lengths), num_heads, 1,
                    (head_dim_ckv + head_dim_kpe, head_dim_ckv), page_size, dtypes, scores, "standard")
        self._adopt(plan, True, {"q": ("qo_indptr", rows)}, arrays)
        self._batch = dict(self._arrays)
        if "page_table" in arrays:
            return
        # FlashInfer's kernels read lengths beside lists of pages, these the tokens of the last page.
        del self._batch["kv_lens"]
        last_page_len = _plans.last_page_lengths(lengths, page_size)
        if self._last_page_len is None:
            self._batch["last_page_len"] = last_page_len.to(self.device, torch.int32)
        else:
            self._batch["last_page_len"] = self._last_page_len.copy_(last_page_len)

    def _lists(self, given: MLAPlanMetadata, page_size: int) -> Tuple[int, torch.Tensor, torch.Tensor,
                                                                     Dict[str, torch.Tensor]]:
        """The rows of q, the queries and keys of each sequence on the host, and what goes to the device."""
        csr = (("qo_indptr", given.qo_indptr), ("kv_indptr", given.kv_indptr), ("kv_indices", given.kv_indices),
               ("kv_len_arr", given.kv_len_arr))
        dense = (("cum_seq_lens_q", given.cum_seq_lens_q), ("block_tables", given.block_tables),
                 ("seq_lens", given.seq_lens))
        by_table = any(tensor is not None for _, tensor in dense)
        for name, tensor in dense if by_table else csr:
            if tensor is None:
                raise InvalidRequest(name, "nothing", "a tensor beside the others")
        for name, tensor in csr if by_table else ():
            if tensor is not None:
                raise Unsupported(f"{name} is not supported beside block_tables: pass lists or a table, not both")
        q_name, q_ends, lens_name, lens = ("cum_seq_lens_q", given.cum_seq_lens_q, "seq_lens", given.seq_lens) \
            if by_table else ("qo_indptr", given.qo_indptr, "kv_len_arr", given.kv_len_arr)
        assert q_ends is not None and lens is not None
        host_ends, lengths = _plans.on_host(q_ends, q_name), _plans.on_host(lens, lens_name)
        queries = _plans.lengths_of(host_ends, q_name)
        _plans.check_batch(queries, **{lens_name: lengths})
        arrays = {"q_indptr": q_ends, "kv_lens": lens}
        needed = -torch.div(-lengths, page_size, rounding_mode="floor")
        if given.block_tables is not None:
            if self._use_cuda_graph:
                raise Unsupported("block_tables is not supported with use_cuda_graph: pass qo_indptr, kv_indptr, "
                                  "kv_indices and kv_len_arr, for which the wrapper has buffers")
            if given.block_tables.dim() != 2 or len(given.block_tables) != len(lengths):
                raise InvalidRequest("block_tables.shape", str(tuple(given.block_tables.shape)),
                                     "[batch, pages a sequence]")
            arrays["page_table"] = given.block_tables
            pages = torch.full_like(lengths, given.block_tables.shape[1])
        else:
            assert given.kv_indptr is not None and given.kv_indices is not None
            # As in FlashInfer, kv_indptr may go on after what the lengths count.
            kv_indptr = given.kv_indptr[:len(lengths) + 1]
            host_indptr = _plans.on_host(kv_indptr, "kv_indptr")
            pages = _plans.lengths_of(host_indptr, "kv_indptr")
            _plans.check_batch(pages, **{lens_name: lengths})
            _plans.check_pages(host_indptr, given.kv_indices, "kv_indices")
            arrays["page_indptr"], arrays["page_indices"] = kv_indptr, given.kv_indices
            if bool((pages > needed).any()):
                arrays["page_indptr"], arrays["page_indices"] = _plans.listed(host_indptr, needed, given.kv_indices)
        if bool((needed > pages).any()):
            raise InvalidRequest(lens_name, str(lengths.tolist()), f"at most {(pages * page_size).tolist()}, for which "
                                 "there are pages")
        return int(host_ends[-1]), queries, lengths, arrays

    def run(self, q_nope: Optional[torch.Tensor] = None, q_pe: Optional[torch.Tensor] = None,
            ckv_cache: Optional[torch.Tensor] = None, kpe_cache: Optional[torch.Tensor] = None,
            out: Optional[torch.Tensor] = None, lse: Optional[torch.Tensor] = None, return_lse: bool = False,
            profiler_buffer: Optional[torch.Tensor] = None, kv_len: Optional[torch.Tensor] = None,
            page_table: Optional[torch.Tensor] = None, return_lse_base_on_e: bool = False,
            o_scale: Optional[float] = None, *, query: Optional[Parts] = None, kv_cache: Optional[Parts] = None,
            ckv_scale: Optional[float] = None, ckv_scale_arr: Optional[torch.Tensor] = None,
            kpe_scale: Optional[float] = None, sinks: Optional[torch.Tensor] = None,
            skip_softmax_threshold_scale_factor: Optional[float] = None, bmm1_scale: Any = None,
            bmm2_scale: Any = None) -> Result:
        """Attention of what was planned. It neither waits nor looks at lengths, so that a graph can capture it.

        q_nope: [qo_indptr[-1], num_heads, head_dim_ckv], and q_pe with head_dim_kpe columns; or query, of both, as a
            pair or as one tensor that has the columns of the position after the others.
        ckv_cache: [pages, page_size, head_dim_ckv], and kpe_cache with head_dim_kpe columns; or kv_cache, a pair or one
            tensor of both.
        ckv_scale, kpe_scale: of latents and positions of 8 bits, numbers which must be the same.
        out: a tensor for o, of the dtype that was planned. lse: fp32 [qo_indptr[-1], num_heads], which is written
            wherever it is given. return_lse_base_on_e: the lse is a natural logarithm, and not in base 2.
        Refused: profiler_buffer, kv_len, page_table, o_scale, ckv_scale_arr, sinks, bmm1_scale, bmm2_scale and
            skip_softmax_threshold_scale_factor.

        Gives o [qo_indptr[-1], num_heads, head_dim_ckv]; with return_lse (o, lse). A query that sees no key gets 0 and
        -inf.

        Raises InvalidRequest and Unsupported naming the argument, and what attnsmith.mla_attention raises.
        """
        _words.refuse("leave it out", profiler_buffer=profiler_buffer)
        _words.refuse("plan() says the lengths and pages; leave it out", kv_len=kv_len, page_table=page_table)
        _words.refuse("outputs are not of 8 bits; leave it out", o_scale=o_scale)
        _words.refuse("ckv_scale is, and scales of blocks are k_scale of attnsmith.mla_attention; leave it out",
                      ckv_scale_arr=ckv_scale_arr)
        _words.refuse("latent attention has no sinks; leave it out", sinks=sinks)
        _words.refuse("every key counts here; pass None",
                      skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
        _words.refuse("sm_scale is, and for latents of 8 bits ckv_scale", bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale)
        plan = self._plan
        factor = self._factor(ckv_scale, kpe_scale)
        base = "basee" if flag("return_lse_base_on_e", return_lse_base_on_e) else "base2"
        if (return_lse or lse is not None) and self._lse_base not in ("none", base):
            raise InvalidRequest("return_lse_base_on_e", shown(return_lse_base_on_e),
                                 f'what lse_mode "{self._lse_base}" of plan() says')
        q, q_position = _parts(query, "query", q_nope, "q_nope", q_pe, "q_pe")
        latents, position = _parts(kv_cache, "kv_cache", ckv_cache, "ckv_cache", kpe_cache, "kpe_cache")
        self._check_queries(q, "num_heads", "query")
        _words.check_dtype("kv_cache", latents, plan.dtypes.kv, "kv_data_type")
        _words.check_size("kv_cache", latents.shape[1], plan.page_size, "page_size")
        for name, part, other in (("query", q, q_position), ("kv_cache", latents, position)):
            columns = part.shape[-1] + (0 if other is None else other.shape[-1])
            _words.check_size(name, columns, plan.head_dims[0], "head_dim_ckv and head_dim_kpe")
        words = {**self._batch, **plan.bounds, "q_pe": q_position, "kpe": position, "head_dim_ckv": plan.head_dims[1],
                 "causal": plan.scores.causal, "scale": (plan.scores.sm_scale or 0.0) * factor}
        return self._attend(functions.mla_attention, (q, latents), q, words, out=out, lse=lse, return_lse=return_lse,
                            factor=factor, lse_base="ln" if base == "basee" else "log2")

    def _factor(self, ckv_scale: Optional[float], kpe_scale: Optional[float]) -> float:
        """What keys and values of 8 bits are multiplied by: the products' scale and the output have it."""
        scales = number("ckv_scale", ckv_scale), number("kpe_scale", kpe_scale)
        if scales == (None, None):
            return 1.0
        if self._plan.dtypes.kv == self._plan.dtypes.q:
            raise InvalidRequest("ckv_scale", shown(ckv_scale), f"None, since latents are of {self._plan.dtypes.kv}")
        if scales[0] is None or scales[0] != scales[1]:
            raise Unsupported(f"kpe_scale {kpe_scale} is not supported beside ckv_scale {ckv_scale}: latents and their "
                              "positions have one scale; store both with the same")
        return scales[0]


def _parts(whole: Optional[Parts], name: str, one: Optional[torch.Tensor], one_name: str, other: Optional[torch.Tensor],
           other_name: str) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """A tensor of all columns, or two; by the one argument or by the two."""
    if whole is None:
        if one is None or other is None:
            raise InvalidRequest(one_name if one is None else other_name, "nothing",
                                 f"{one_name} and {other_name}, or {name}")
        return one, other
    if one is not None or other is not None:
        raise InvalidRequest(name, f"{name} and {one_name if one is not None else other_name}", "one of them")
    if isinstance(whole, torch.Tensor):
        return whole, None
    if len(whole) != 2:
        raise InvalidRequest(name, f"{len(whole)} tensors", "a tensor, or a pair")
    return whole[0], whole[1]

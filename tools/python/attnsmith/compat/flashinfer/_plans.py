"""What the wrappers share: plan() keeps lengths and page lists on the device, and run() attends by them."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import torch

from ... import functions
from ..._base.integers import shown
from ..._base.options import flag
from ...errors import InvalidRequest
from . import _words
from ._words import LOG2_E, Cache, DTypes, Scales, Scores

Result = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


class Plan(NamedTuple):
    """What plan() was told, and what it found of the lengths on the host."""

    rows: int  # of q
    max_q_len: Optional[int]  # None: what the shapes allow
    max_kv_len: Optional[int]
    q_heads: int
    kv_heads: int
    head_dims: Tuple[int, int]  # of keys, and of values
    page_size: int
    dtypes: DTypes
    scores: Scores
    consistency: str

    @property
    def bounds(self) -> Dict[str, Optional[int]]:
        return {"max_q_len": self.max_q_len, "max_kv_len": self.max_kv_len}


class Wrapper:
    """The private base of all wrappers: buffers, which of them a graph has, and the end of each run()."""

    def __init__(self, float_workspace_buffer: torch.Tensor, use_cuda_graph: bool,
                 buffers: Dict[str, Tuple[str, Optional[torch.Tensor]]]) -> None:
        """buffers: by what they hold, the argument that brings it, and the tensor. They count in graph mode alone."""
        self.device: torch.device = float_workspace_buffer.device
        # Programs that have several wrappers read FlashInfer's buffer of this name and assign it to the others.
        self._int_workspace_buffer = torch.empty(0, dtype=torch.uint8, device=self.device)
        self._use_cuda_graph = flag("use_cuda_graph", use_cuda_graph)
        self._arguments = {kind: argument for kind, (argument, _) in buffers.items()}
        self._arrays: Dict[str, torch.Tensor] = {}
        self._most: Dict[str, int] = {}  # rows of tensors that a later plan must not exceed
        self._made: Optional[Plan] = None
        if not self._use_cuda_graph:
            return
        for kind, (argument, buffer) in buffers.items():
            if buffer is None:
                raise InvalidRequest(argument, "nothing", "an int32 tensor on the device, with use_cuda_graph=True")
            if buffer.dtype != torch.int32 or buffer.device != self.device:
                raise InvalidRequest(argument, f"{buffer.dtype} on {buffer.device}",
                                     f"an int32 tensor on {self.device}")
            self._arrays[kind] = buffer

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether plan() copies into the buffers that the wrapper was made with."""
        return self._use_cuda_graph

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: Any) -> None:
        """Keeps neither float_workspace_buffer nor int_workspace_buffer: attnsmith has workspaces of its own."""

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer, which had it up to 0.2."""

    @property
    def _plan(self) -> Plan:
        if self._made is None:
            raise InvalidRequest("plan", "nothing", "a call of plan() before run()")
        return self._made

    def _adopt(self, plan: Plan, non_blocking: bool, rows: Dict[str, Tuple[str, int]],
               arrays: Dict[str, torch.Tensor]) -> None:
        """Takes a plan over, and copies its arrays to the device: in graph mode into the buffers, whose addresses a
        graph has captured. rows: by the tensor of run(), the argument that says how many rows are used, and how many.
        What does not fit is refused before anything is written."""
        for what, (argument, count) in rows.items():
            most = self._most.get(what, count)
            if self._use_cuda_graph and count > most:
                raise InvalidRequest(argument, f"{count} rows of {what}", f"at most {most}, which this wrapper was "
                                     "first planned or captured with in graph mode; use another wrapper")
        self._keep(non_blocking, arrays)
        self._most.setdefault("q", plan.rows)  # as in FlashInfer, the first plan has the most queries
        self._made = plan

    def _keep(self, non_blocking: bool, arrays: Dict[str, torch.Tensor]) -> None:
        if not self._use_cuda_graph:
            self._arrays = {kind: array.to(self.device, torch.int32, non_blocking=non_blocking, copy=True)
                            for kind, array in arrays.items()}
            return
        for kind, array in arrays.items():
            room, count = len(self._arrays[kind]), len(array)
            # A list of pages may be shorter than its buffer. The others say how many sequences there are.
            if count > room or count < room and kind != "page_indices":
                raise InvalidRequest(self._arguments[kind], f"room for {room}", f"room for {count}: in graph mode the "
                                     "buffers fix the batch size and the most pages")
        for kind, array in arrays.items():
            self._arrays[kind][:len(array)].copy_(array, non_blocking=non_blocking)

    def _seen(self, what: str, tensor: torch.Tensor) -> None:
        """A graph that is being captured keeps this tensor, so that later plans have no more rows."""
        if self._use_cuda_graph and tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            self._most[what] = min(self._most.get(what, len(tensor)), len(tensor))

    def _bound(self, lengths: torch.Tensor) -> Optional[int]:
        """The host's bound of these lengths. In graph mode there is none but what the shapes allow, since a captured
        graph keeps its bounds while later plans bring longer sequences, which the kernels would clamp. The shapes of q
        and of the buffers hold for every plan that `_adopt` lets pass."""
        return None if self._use_cuda_graph else int(lengths.max()) if len(lengths) else 0

    def _rescore(self, causal: bool, pos_encoding_mode: str, window_left: int, logits_soft_cap: Optional[float],
                 sm_scale: Optional[float]) -> None:
        """What forward() says takes the place of what plan() said."""
        self._made = self._plan._replace(scores=_words.scores(causal, pos_encoding_mode, window_left, logits_soft_cap,
                                                              sm_scale))

    def _check_queries(self, q: torch.Tensor, heads: str, name: str = "q") -> None:
        """Those of run(), of which `heads` of plan() says how many heads there are."""
        plan = self._plan
        _words.check_dtype(name, q, plan.dtypes.q, "q_data_type")
        if q.dim() != 3:
            raise InvalidRequest(f"{name}.shape", str(tuple(q.shape)), "[tokens, q_heads, head_dim]")
        _words.check_size(name, q.shape[0], plan.rows, "the number of queries")
        _words.check_size(name, q.shape[1], plan.q_heads, heads)
        self._seen("q", q)

    def _attend(self, call: Callable[..., Any], tensors: Tuple[Any, ...], q: torch.Tensor, words: Dict[str, Any], *,
                out: Optional[torch.Tensor], lse: Optional[torch.Tensor], return_lse: bool, factor: float,
                lse_base: str = "log2", lse_layout: str = "NH", rows: Optional[Tuple[int, ...]] = None) -> Result:
        """One of the plain functions, with an output whose dtype was planned."""
        plan = self._plan
        _words.check_output("out", out, (*q.shape[:-1], plan.head_dims[1]), plan.dtypes.o)
        finish = Finish(q, lse, return_lse, factor, lse_base, lse_layout)
        if out is None and plan.dtypes.o != q.dtype:
            words["o_dtype"] = plan.dtypes.o
        given = out if out is None or rows is None else out.view(*rows, *out.shape[1:])
        result = call(*tensors, out=given, return_lse=finish.needs_lse, consistency=plan.consistency, **words)
        return finish(result, out)


class Finish:
    """What FlashInfer gives of what the plain functions give: an lse in its base and layout, and outputs times the
    scale of the values. Bad words are refused before anything is launched."""

    def __init__(self, q: torch.Tensor, lse: Optional[torch.Tensor], return_lse: bool, factor: float,
                 lse_base: str = "log2", lse_layout: str = "NH") -> None:
        self._shape = tuple(q.shape[:-1])
        self._lse, self._return_lse, self._factor = lse, flag("return_lse", return_lse), factor
        base = _words.one_of("lse_base", lse_base, ("log2", "ln"))
        self._to_base = LOG2_E if base == "log2" else 1.0
        self._transposed = _words.one_of("lse_layout", lse_layout, ("NH", "HN")) == "HN"
        _words.check_output("lse", lse, self._shape[::-1] if self._transposed else self._shape, torch.float32)

    @property
    def needs_lse(self) -> bool:
        return self._return_lse or self._lse is not None

    def __call__(self, result: Any, out: Optional[torch.Tensor]) -> Result:
        o, natural = result if self.needs_lse else (result, None)
        o = o.view(*self._shape, o.shape[-1]) if out is None else out
        if self._factor != 1:
            o.mul_(self._factor)
        if natural is None:
            return o
        natural = natural.view(self._shape)
        lse = self._lse
        if lse is None:
            lse = torch.empty(self._shape[::-1], device=natural.device) if self._transposed else natural
        if lse is not natural or self._to_base != 1:
            torch.mul(natural.t() if self._transposed else natural, self._to_base, out=lse)
        return (o, lse) if self._return_lse else o


def on_host(array: torch.Tensor, name: str) -> torch.Tensor:
    """Lengths and offsets as the host has them. This waits for a tensor on the GPU, in plan() alone, as FlashInfer
    does."""
    if not isinstance(array, torch.Tensor) or array.dim() != 1:
        raise InvalidRequest(name, str(tuple(array.shape)) if isinstance(array, torch.Tensor) else shown(array),
                             "a tensor of one axis")
    if array.is_floating_point() or array.dtype == torch.bool:
        raise InvalidRequest(f"{name}.dtype", str(array.dtype), "torch.int32 or torch.int64")
    return array.to("cpu", torch.int64)


def lengths_of(indptr: torch.Tensor, name: str) -> torch.Tensor:
    """From [batch + 1] on the host, which do not fall."""
    if not len(indptr) or int(indptr[0]) < 0 or bool((indptr[1:] < indptr[:-1]).any()):
        raise InvalidRequest(name, str(indptr.tolist()), "offsets [batch + 1] from 0 on that do not fall")
    return indptr[1:] - indptr[:-1]


def check_batch(lengths: torch.Tensor, **arrays: torch.Tensor) -> None:
    for name, array in arrays.items():
        if len(array) != len(lengths):
            raise InvalidRequest(f"{name}.shape", str(tuple(array.shape)), f"one of each of {len(lengths)} sequences")


def check_pages(indptr: torch.Tensor, indices: torch.Tensor, name: str) -> None:
    """Whether the list has the pages that the offsets count."""
    if indices.is_floating_point():
        raise InvalidRequest(f"{name}.dtype", str(indices.dtype), "torch.int32 or torch.int64")
    if indices.dim() != 1 or len(indices) < int(indptr[-1]):
        raise InvalidRequest(f"{name}.shape", str(tuple(indices.shape)), f"{int(indptr[-1])} pages, as offsets count")


def paged_lengths(pages: torch.Tensor, last_page_len: torch.Tensor, page_size: int, name: str) -> torch.Tensor:
    """Tokens of each sequence: none of one without pages, whatever its last page is said to have. A last page may have
    none, as in FlashInfer."""
    check_batch(pages, **{name: last_page_len})
    wrong = (pages > 0) & ((last_page_len < 0) | (last_page_len > page_size))
    if bool(wrong.any()):
        raise InvalidRequest(name, str(int(last_page_len[wrong][0])), f"from 0 to {page_size}, which page_size is")
    return torch.where(pages > 0, (pages - 1) * page_size + last_page_len, torch.zeros_like(pages))


def used_pages(host_indptr: torch.Tensor, lengths: torch.Tensor, page_size: int, indptr: torch.Tensor,
               indices: torch.Tensor, last_page_len: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The lists of pages as the kernels read them: each page of a sequence has tokens. Where all pages have, they are the
    lists that are given."""
    needed = -torch.div(-lengths, page_size, rounding_mode="floor")
    if not bool((host_indptr[1:] - host_indptr[:-1] > needed).any()):
        return {"page_indptr": indptr, "page_indices": indices, "last_page_len": last_page_len}
    ends, indices = listed(host_indptr, needed, indices)
    return {"page_indptr": ends, "page_indices": indices, "last_page_len": last_page_lengths(lengths, page_size)}


def last_page_lengths(lengths: torch.Tensor, page_size: int) -> torch.Tensor:
    """The tokens of each sequence's last page that has some."""
    return (lengths - 1) % page_size + 1


def listed(indptr: torch.Tensor, needed: torch.Tensor, indices: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Offsets and list of the first `needed` pages of each sequence, where sequences have pages beyond these. Lengths are
    told by the number of pages here."""
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), needed.cumsum(0)])
    places = torch.repeat_interleave(indptr[:-1] - ends[:-1], needed) + torch.arange(int(ends[-1]))
    return ends, indices[places.to(indices.device)]


def check_lengths(name: str, given: Optional[torch.Tensor], lengths: torch.Tensor) -> None:
    """What says again what offsets say must say the same. That of a sequence without pages is free, since FlashInfer's
    own get_seq_lens gives its last page's there."""
    if given is None:
        return
    said = on_host(given.flatten(), name)
    check_batch(lengths, **{name: said})
    if bool(((said != lengths) & (lengths > 0)).any()):
        raise InvalidRequest(name, str(said.tolist()), f"{lengths.tolist()}, as offsets and last pages say, or None")


def consistency(fixed_split_size: Optional[int], disable_split_kv: bool) -> str:
    """Both keep a row's bits from depending on the batch, which attnsmith calls bitwise. None and -1 are no size."""
    fixed = fixed_split_size is not None and fixed_split_size != -1
    return "bitwise" if flag("disable_split_kv", disable_split_kv) or fixed else "standard"


def refuse_items(**items: Any) -> None:
    """The arguments of multi-item scoring."""
    _words.refuse("score items by calls of their own, and leave it out", **items)


class PagedWrapper(Wrapper):
    """The base of those whose keys and values are in pages with heads."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, use_cuda_graph: bool, backend: str,
                 buffers: Dict[str, Tuple[str, Optional[torch.Tensor]]]) -> None:
        self._kv_layout = _words.layout(kv_layout)
        _words.backend(backend)
        super().__init__(float_workspace_buffer, use_cuda_graph, buffers)

    def _checked_cache(self, cache: Cache) -> Tuple[torch.Tensor, torch.Tensor]:
        """(k_cache, v_cache) of what was planned."""
        plan = self._plan
        k, v = _words.unpacked(cache, "paged_kv_cache", self._kv_layout)
        for name, tensor, head_dim in (("k_cache", k, plan.head_dims[0]), ("v_cache", v, plan.head_dims[1])):
            _words.check_dtype(name, tensor, plan.dtypes.kv, "kv_data_type")
            if tensor.dim() != 4:
                raise InvalidRequest(f"{name}.shape", str(tuple(tensor.shape)),
                                     "four axes, or three of pages of one token")
            page_size, heads = tensor.shape[1:3] if self._kv_layout == "NHD" else (tensor.shape[2], tensor.shape[1])
            _words.check_size(name, page_size, plan.page_size, "page_size")
            _words.check_size(name, heads, plan.kv_heads, "num_kv_heads")
            _words.check_size(name, tensor.shape[3], head_dim, "the head dim")
        return k, v

    def _run_paged(self, q: torch.Tensor, paged_kv_cache: Cache, *, scales: Scales,
                   window_left: Optional[int], sinks: Optional[torch.Tensor], lse: Optional[torch.Tensor],
                   return_lse: bool, rows: Optional[Tuple[int, ...]] = None, sm_scale: Optional[float] = None,
                   **results: Any) -> Result:
        """The plain function takes q as [*rows, heads, head_dim] where rows are given. What plan() keeps has its words.
        sm_scale: in the place of what was planned."""
        plan = self._plan
        self._check_queries(q, "num_qo_heads")
        _words.check_size("q", q.shape[2], plan.head_dims[0], "the head dim")
        cache = self._checked_cache(paged_kv_cache)
        scores = plan.scores
        if window_left is not None:
            scores = scores._replace(window_left=_words.left_window(window_left))
        if sm_scale is not None:
            scores = scores._replace(sm_scale=sm_scale)
        words = {**self._arrays, **plan.bounds, "page_order": self._kv_layout, "sinks": sinks, "k_scale": scales.k,
                 "v_scale": scales.v, **scores.words(q, scales.products, return_lse or lse is not None, sinks)}
        queries = q if rows is None else q.view(*rows, *q.shape[1:])
        return self._attend(functions.paged_attention, (queries, cache), q, words, lse=lse, return_lse=return_lse,
                            factor=scales.output, rows=rows, **results)

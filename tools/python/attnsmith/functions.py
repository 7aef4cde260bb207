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

from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _frameworks, _requests, _views
from ._blocks import AttentionBlock, MergeBlock
from ._frameworks import Framework, Order, Torch
from ._views import View
from ._workspaces import Workspaces, torch_memory
from .errors import InvalidRequest
from .kernels import Kernel, merge_states_views
from .runtime import Runtime, default_runtime

_MOST_KERNELS = 4096  # distinct problems that are remembered; beyond, finding one starts over
_MOST_SIZES = 1024  # of one of them
_MOST_STATES = 32  # that one kernel merges
_LONGEST = 1 << 30
_MOST_PACKED = (1 << 31) - 1  # queries times group size


class _Prepared:
    """A kernel, and how much workspace it needs for the sizes met."""

    __slots__ = ("kernel", "pointer", "workspace_bytes")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.pointer = kernel._pointer
        self.workspace_bytes: Dict[Tuple[int, int], int] = {}

    def needed(self, batch: int, q_tokens: int, max_kv_len: int) -> int:
        nbytes = self.kernel.workspace_bytes(batch, q_tokens, max_kv_len)
        if len(self.workspace_bytes) >= _MOST_SIZES:
            self.workspace_bytes.clear()
        self.workspace_bytes[q_tokens, max_kv_len] = nbytes
        return nbytes


class _Dispatch:
    """What the plain functions keep for one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        library = runtime._library
        self.runtime = runtime
        self.library = library
        self.run = library.functions.attnsmith_run
        self.run_merge = library.functions.attnsmith_run_merge
        self.prepared: Dict[Tuple[Any, ...], _Prepared] = {}
        self.workspaces = Workspaces(runtime.allocate, runtime.synchronize)
        self.blocks: List[AttentionBlock] = []
        self.merge_blocks: Dict[int, List[MergeBlock]] = {}
        self.wait = runtime.synchronize

    def prepare(self, key: Tuple[Any, ...], words: Dict[str, Any], index: int) -> _Prepared:
        spec, sizes = _requests.parse(self.library, words)
        entry = _Prepared(self.runtime._prepare(spec, sizes, None if index < 0 else index))
        if index >= 0:  # else the device is whichever is current
            if len(self.prepared) >= _MOST_KERNELS:
                self.prepared.clear()
            self.prepared[key] = entry
        return entry

    def settle(self, index: int, stream: int) -> None:
        """For frameworks whose memory is not given back in the stream's order: waits, so that it may be."""
        if stream:
            self.runtime.synchronize(stream)
        else:  # of this device, whichever is current: a copy from its memory waits for its default stream
            self.runtime.allocate(256, max(index, 0)).download(4)


_current: Optional[_Dispatch] = None


def _dispatch() -> _Dispatch:
    global _current
    runtime = default_runtime()
    current = _current
    if current is None or current.runtime is not runtime:
        current = _current = _Dispatch(runtime)
    return current


def _view(tensor: Any, name: str, order: Order) -> View:
    return _frameworks.of(tensor, name).view(tensor, name, order)


def _begin(dispatch: _Dispatch, tensor: Any, name: str, stream: Any) -> Tuple[Framework, int, Order, Any]:
    """The framework of a call, its GPU, its stream, and what is to be current meanwhile, if it is not."""
    framework = _frameworks.of(tensor, name)
    index = framework.index(tensor, name)
    current = framework.stream(index)
    number = current if stream is None else _frameworks.raw_stream(stream)
    scope = framework.scope(index, None if number == current else number)
    return framework, index, Order(number, dispatch.wait), scope


def _bound(given: Optional[int], most: int) -> int:
    return most if not given else min(int(given), most)


def _need_axes(name: str, view: View, accepted: str) -> None:
    if len(view[1]) != accepted.count(",") + 1:
        raise InvalidRequest(f"{name}.shape", str(tuple(view[1])), accepted)


def _pair(window: Any) -> Tuple[Any, Any]:
    """(left, right), with None for no bound."""
    if isinstance(window, int) or not hasattr(window, "__len__") or len(window) != 2:
        remedy = f", such as ({window - 1}, 0)" if isinstance(window, int) and window > 0 else ""
        raise InvalidRequest("window", repr(window), "a pair (left, right), with None for no bound; a sliding window "
                             f"of W tokens is (W - 1, 0){remedy}")
    left, right = (None if side is None or side == -1 else side for side in window)
    return left, right


def _alignment(views: Sequence[View]) -> int:
    """The class that bases and strides of the real tensors are of: 16, 8, 4 or 2 bytes."""
    bits = _views.reach_bits(views, 2) & 15
    return max(bits & -bits, 2) if bits else 16


def _words(q: View, geometry: Tuple[Any, ...], sizes: Tuple[int, int, int], alignment: int,
           options: Tuple[Any, ...]) -> Dict[str, Any]:
    """The request of a call, in the words that prepare() takes."""
    kv, page_size, page_order, index_kind, kv_heads, head_dim_vo = geometry
    causal, window, softcap, scale, sink, alibi, lse, precision, consistency = options
    dtype = _views.WORDS[q[3]]
    if dtype not in ("fp16", "bf16"):
        raise InvalidRequest("q.dtype", dtype, "fp16 or bf16")
    if index_kind is not None and index_kind not in (_views.INT32, _views.INT64):
        raise InvalidRequest("index dtype", _views.WORDS[index_kind], "lengths, offsets and tables of int32 or int64")
    left, right = (None, None) if window is None else _pair(window)
    q_heads, head_dim_qk = q[1][-2:]
    batch, q_len, kv_len = sizes
    group = max(q_heads // max(kv_heads, 1), 1)
    return {
        "dtype": dtype, "head_dim_qk": head_dim_qk, "head_dim_vo": head_dim_vo, "q_heads": q_heads,
        "kv_heads": kv_heads, "mask": "causal" if causal else "full", "window_left": left, "window_right": right,
        "softcap": softcap, "scale": scale, "sink": sink, "alibi": alibi, "lse": lse, "kv": kv,
        "page_size": page_size, "page_order": page_order, "alignment": alignment, "precision": precision,
        "consistency": consistency, "index_dtype": None if index_kind is None else _views.WORDS[index_kind],
        "batch": min(max(batch, 1), 1 << 20), "q_len": min(q_len, _LONGEST, _MOST_PACKED // group),
        "kv_len": min(kv_len, _LONGEST)}


def _attend(dispatch: _Dispatch, framework: Framework, index: int, order: Order, scope: Any, like: Any, q: View,
            k: View, v: View, batch_views: Tuple[Optional[View], ...], kv: str, page_order: Optional[str], batch: int,
            max_q_len: int, max_kv_len: int, causal: bool, window: Any, softcap: Any, sinks: Any, scale: Any,
            alibi_slopes: Any, return_lse: bool, out: Any, precision: str, consistency: str, result: Any = None) -> Any:
    """The common end of all: `q`, `k` and `v` have the axes of AttentionTensors, and the bounds are resolved.

    `result`: None where outputs have the axes of q, else (shape of o without its last axis, view as `out` -> view as
    the kernel has it, what the caller gets of a tensor made here).
    """
    if scope is not None:
        with scope:
            return _attend(dispatch, framework, index, order, None, like, q, k, v, batch_views, kv, page_order, batch,
                           max_q_len, max_kv_len, causal, window, softcap, sinks, scale, alibi_slopes, return_lse, out,
                           precision, consistency, result)
    is_torch = framework.__class__ is Torch
    view = framework.view if is_torch else _view
    q_shape = q[1]
    head_dim_vo = v[1][-1]
    rows = q_shape[:-1] if result is None else result[0]
    made = out is None
    if made:
        out = framework.empty(like, (*rows, head_dim_vo), q[3], dispatch.runtime.allocate, index)
    o = view(out, "out", order)
    lse = lse_view = None
    if return_lse:
        lse = framework.empty(like, rows, _views.FP32, dispatch.runtime.allocate, index)
        lse_view = view(lse, "lse", order)
    if result is not None:
        o = result[1](o)
        lse_view = lse_view and result[1](lse_view)
    sink_view = None if sinks is None else view(sinks, "sinks", order)
    alibi_view = None if alibi_slopes is None else view(alibi_slopes, "alibi_slopes", order)

    bits = q[0] | k[0] | v[0] | o[0]
    for strides in (q[2], k[2], v[2], o[2]):
        for stride in strides[:-1]:
            bits |= stride << 1
    alignment = _alignment((q, k, v, o)) if bits & 15 else 16

    q_len, q_tokens = max_q_len, q_shape[0] if len(q_shape) == 3 else q_shape[0] * q_shape[1]
    if q_len > 2:
        q_len = 1 << (q_len - 1).bit_length()
    kv_len = max_kv_len
    if kv_len > 2:
        kv_len = 1 << (kv_len - 1).bit_length()
    index_kind = None
    for one in batch_views:
        if one is not None:
            index_kind = one[3]
            break
    page_size = None
    if kv == "paged":
        page_size, kv_heads = (k[1][2], k[1][1]) if page_order == "HND" else (k[1][1], k[1][2])
    else:
        kv_heads = k[1][-2]
    if window is not None and window.__class__ is not tuple:
        window = _pair(window)
    geometry = (kv, page_size, page_order, index_kind, kv_heads, head_dim_vo)
    options = (causal, window, softcap, scale, sinks is not None, alibi_slopes is not None, return_lse, precision,
               consistency)
    key = (index, q[3], q_shape[-2], q_shape[-1], batch, q_len, kv_len, alignment, geometry, options)
    entry = dispatch.prepared.get(key)
    if entry is None:
        entry = dispatch.prepare(key, _words(q, geometry, (batch, q_len, kv_len), alignment, options), index)
    nbytes = entry.workspace_bytes.get((q_tokens, max_kv_len))
    if nbytes is None:
        nbytes = entry.needed(batch, q_tokens, max_kv_len)

    try:
        block = dispatch.blocks.pop()
    except IndexError:
        block = AttentionBlock()
    views = (q, k, v, o, lse_view, sink_view, alibi_view, *batch_views)
    if is_torch and framework.is_capturing():  # type: ignore[attr-defined]
        memory, data = torch_memory(framework, nbytes, index)  # type: ignore[arg-type]
        block.fill(views, max_q_len, max_kv_len, data, nbytes)
        code = dispatch.run(entry.pointer, block.tensors, block.batch, block.workspace, order.stream, block.error)
        del memory  # behind the launch, in the graph's own pool
    else:
        workspace = dispatch.workspaces.of(index, order.stream)
        with workspace.lock:
            if workspace.nbytes < nbytes:
                dispatch.workspaces.grow(workspace, nbytes, framework, index, order.stream)
            block.fill(views, max_q_len, max_kv_len, workspace.data, workspace.nbytes)
            code = dispatch.run(entry.pointer, block.tensors, block.batch, block.workspace, order.stream, block.error)
    if code:
        raise dispatch.library.error(code, block.failure())
    dispatch.blocks.append(block)
    if order.held or not framework.ordered:
        dispatch.settle(index, order.stream)
    if made:
        out = framework.result(out)
        if result is not None:
            out = result[2](out)
    return (out, framework.result(lse)) if return_lse else out


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
    dispatch = _dispatch()
    framework, index, order, scope = _begin(dispatch, q, "q", stream)
    view = framework.view if framework.__class__ is Torch else _view
    q_view, k_view, v_view = view(q, "q", order), view(k, "k", order), view(v, "v", order)
    if not len(q_view[1]) == len(k_view[1]) == len(v_view[1]) == 4:
        _need_axes("q", q_view, "[batch, q_len, q_heads, head_dim]")
        _need_axes("k", k_view, "[batch, kv_len, kv_heads, head_dim]")
        _need_axes("v", v_view, "[batch, kv_len, kv_heads, head_dim]")
    batch_views = (None, None if q_lens is None else view(q_lens, "q_lens", order), None,
                   None if kv_lens is None else view(kv_lens, "kv_lens", order), None, None, None, None)
    return _attend(dispatch, framework, index, order, scope, q, q_view, k_view, v_view, batch_views, "dense", None,
                   q_view[1][0], q_view[1][1], k_view[1][1], causal, window, softcap, sinks, scale, alibi_slopes,
                   return_lse, out, precision, consistency)


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
    dispatch = _dispatch()
    framework, index, order, scope = _begin(dispatch, q, "q", stream)
    view = framework.view if framework.__class__ is Torch else _view
    q_view, k_view, v_view = view(q, "q", order), view(k, "k", order), view(v, "v", order)
    if not len(q_view[1]) == len(k_view[1]) == len(v_view[1]) == 3:
        _need_axes("q", q_view, "[q_tokens, q_heads, head_dim]")
        _need_axes("k", k_view, "[kv_tokens, kv_heads, head_dim]")
        _need_axes("v", v_view, "[kv_tokens, kv_heads, head_dim]")
    q_offsets, kv_offsets = view(q_indptr, "q_indptr", order), view(kv_indptr, "kv_indptr", order)
    _need_axes("q_indptr", q_offsets, "[batch + 1]")
    return _attend(dispatch, framework, index, order, scope, q, q_view, k_view, v_view,
                   (q_offsets, None, kv_offsets, None, None, None, None, None), "ragged", None, q_offsets[1][0] - 1,
                   _bound(max_q_len, q_view[1][0]), _bound(max_kv_len, k_view[1][0]), causal, window, softcap, sinks,
                   scale, alibi_slopes, return_lse, out, precision, consistency)


def _one_query(view: View) -> View:
    return _views.inserted(view, 1)


def _same(tensor: Any) -> Any:
    return tensor


def _caches(kv_cache: Any, view: Any, order: Order) -> Tuple[View, View]:
    if isinstance(kv_cache, (tuple, list)):
        if len(kv_cache) != 2:
            raise InvalidRequest("kv_cache", f"{len(kv_cache)} tensors", "(k_cache, v_cache), or one tensor of both")
        k, v = view(kv_cache[0], "k_cache", order), view(kv_cache[1], "v_cache", order)
        for name, cache in (("k_cache", k), ("v_cache", v)):
            _need_axes(name, cache, "[pages, page_size, kv_heads, head_dim]")
        return k, v
    both = view(kv_cache, "kv_cache", order)
    if len(both[1]) != 5 or both[1][1] != 2:
        raise InvalidRequest("kv_cache.shape", str(tuple(both[1])), "[pages, 2, page_size, kv_heads, head_dim] (NHD), "
                             "[pages, 2, kv_heads, page_size, head_dim] (HND), or a pair (k_cache, v_cache)")
    return _views.selected(both, 1, 0), _views.selected(both, 1, 1)


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
    dispatch = _dispatch()
    framework, index, order, scope = _begin(dispatch, q, "q", stream)
    view = framework.view if framework.__class__ is Torch else _view
    q_view = view(q, "q", order)
    k_view, v_view = _caches(kv_cache, view, order)
    if page_order != "NHD" and page_order != "HND":
        raise InvalidRequest("page_order", repr(page_order), '"NHD" or "HND"')
    result = None
    if q_indptr is None:
        if len(q_view[1]) == 3:
            result = (q_view[1][:-1], _one_query, _same)
            q_view = _one_query(q_view)
        _need_axes("q", q_view, "[batch, q_len, q_heads, head_dim]")
        batch, longest = q_view[1][0], q_view[1][1]
        q_offsets = None
    else:
        _need_axes("q", q_view, "[q_tokens, q_heads, head_dim]")
        q_offsets = view(q_indptr, "q_indptr", order)
        _need_axes("q_indptr", q_offsets, "[batch + 1]")
        batch, longest = q_offsets[1][0] - 1, q_view[1][0]
    table = None if page_table is None else view(page_table, "page_table", order)
    pages = None if page_indices is None else view(page_indices, "page_indices", order)
    if table is not None:
        _need_axes("page_table", table, "[batch, pages a sequence]")
    if pages is not None:
        _need_axes("page_indices", pages, "[pages of all sequences]")
    batch_views = (q_offsets, None if q_lens is None else view(q_lens, "q_lens", order), None,
                   None if kv_lens is None else view(kv_lens, "kv_lens", order), table,
                   None if page_indptr is None else view(page_indptr, "page_indptr", order), pages,
                   None if last_page_len is None else view(last_page_len, "last_page_len", order))
    listed = pages[1][-1] if table is None and pages is not None else table[1][-1] if table is not None else 0
    capacity = min(listed * k_view[1][1 if page_order == "NHD" else 2], _LONGEST)
    return _attend(dispatch, framework, index, order, scope, q, q_view, k_view, v_view, batch_views, "paged",
                   page_order, batch, _bound(max_q_len, longest), _bound(max_kv_len, capacity), causal, window, softcap,
                   sinks, scale, alibi_slopes, return_lse, out, precision, consistency, result)


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
    dispatch = _dispatch()
    several = isinstance(o_states, (list, tuple))
    if several and not o_states:
        raise InvalidRequest("o_states", "no states", "at least one")
    like = o_states[0] if several else o_states
    framework, index, order, scope = _begin(dispatch, like, "o_states[0]" if several else "o_states", stream)
    o_views, lse_views = merge_states_views(o_states, lse_states, order)
    _need_axes("o_states", o_views[0], "[tokens, heads, head_dim]")
    if scope is None:
        return _merge_all(dispatch, framework, index, order, like, o_views, lse_views, out, return_lse)
    with scope:
        return _merge_all(dispatch, framework, index, order, like, o_views, lse_views, out, return_lse)


def _merge_all(dispatch: _Dispatch, framework: Framework, index: int, order: Order, like: Any, o_views: List[View],
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


def _merge(dispatch: _Dispatch, framework: Framework, index: int, order: Order, like: Any, o_views: List[View],
           lse_views: List[View], out: Any, return_lse: bool) -> Tuple[Any, Any]:
    _, shape, _, kind, _ = o_views[0]
    tokens, heads, head_dim = shape
    if out is None:
        out = framework.empty(like, (tokens, heads, head_dim), kind, dispatch.runtime.allocate, index)
    o = _view(out, "out", order)
    lse = lse_view = None
    if return_lse:
        lse = framework.empty(like, (tokens, heads), _views.FP32, dispatch.runtime.allocate, index)
        lse_view = _view(lse, "lse", order)
    alignment = _alignment((*o_views, o))
    q_len = min(1 << (tokens - 1).bit_length() if tokens > 2 else tokens, _LONGEST)
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

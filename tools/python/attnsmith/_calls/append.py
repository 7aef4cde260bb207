"""How append() calls: the request that its tensors describe, and one launch."""

from __future__ import annotations

from ctypes import c_int32
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._base.integers import fitting, shown
from .._base.options import check_order
from .._c_api import abi, requests
from .._tensors import frameworks, views as _views
from .._tensors.frameworks import Framework, Order
from .._tensors.views import View
from ..errors import InvalidRequest
from .attend import begin
from .dispatch import Dispatch, Prepared, check_blocks, index_kind_of
from .forms import alignment_of
from .ops import launch_op
from .outputs import dtype_of

_FIELDS = abi.AppendTensors.FIELDS + abi.BATCH_FIELDS
_AT = {name: place for place, name in enumerate(_FIELDS)}
_LENGTHS = range(len(abi.AppendTensors.FIELDS), len(_FIELDS))
_SCALES = ("k_scale", "v_scale", "q_scale")
_OF_TOKENS = ("slot_mapping", "positions")  # one of each token
_ALIGNED = [_AT[name] for name in ("q", "k", "v", "q_out", "k_cache", "v_cache", "kpe", "kpe_cache", "q_norm_weight",
                                   "k_norm_weight")]
_FLOAT8 = (_views.E4M3, _views.E5M2)
_QUERY_KINDS = {"e4m3": _views.E4M3, "fp8": _views.E4M3, "fp8_e4m3": _views.E4M3, "float8_e4m3fn": _views.E4M3,
                "e5m2": _views.E5M2, "fp8_e5m2": _views.E5M2, "float8_e5m2": _views.E5M2}


def append_all(dispatch: Dispatch, tensors: Tuple[Any, ...], words: Dict[str, Any], bounds: Tuple[int, int],
               return_status: bool, stream: Any) -> Any:
    """`tensors`: the fields of attnsmith_append_tensors, then those of attnsmith_batch. `words`: what they do not say."""
    q, k = tensors[:2]
    if q is None and k is None:
        raise InvalidRequest("k", "None", "a tensor, or q alone")
    framework, index, number, scope = begin(*((k, "k") if q is None else (q, "q")), stream)
    order = Order(number, dispatch.wait)
    views = [None if tensor is None else frameworks.of(tensor, name).view(tensor, name, order)
             for name, tensor in zip(_FIELDS, tensors)]
    for name in _SCALES:
        view = views[_AT[name]]
        views[_AT[name]] = view and _views.as_vector(view)
    for name in _OF_TOKENS:
        view = views[_AT[name]]
        views[_AT[name]] = view and _of_tokens(name, view, (views[_AT["q"]], views[_AT["k"]]))
    if scope is None:
        return _run(dispatch, framework, index, order, tensors, views, words, bounds, return_status)
    with scope:
        return _run(dispatch, framework, index, order, tensors, views, words, bounds, return_status)


def _run(dispatch: Dispatch, framework: Framework, index: int, order: Order, tensors: Tuple[Any, ...],
         views: List[Optional[View]], words: Dict[str, Any], bounds: Tuple[int, int], return_status: bool) -> Any:
    like = tensors[1] if tensors[0] is None else tensors[0]
    q, q_out = views[0], tensors[_AT["q_out"]]
    _check(dict(zip(_FIELDS, views)), words)
    made = q is not None and q_out is None
    kind = 0
    if made:
        assert q is not None
        kind = q[3] if words["q_dtype"] is None else _kind_of_queries(q, words["q_dtype"])
        views[_AT["q_out"]] = _row_major(q[1], kind)
    entry = _kernel(dispatch, views, words, index)
    if index < 0:  # no tensor says its GPU: the kernel was made for the current one
        index = entry.kernel.device
    if made:
        q_out = framework.empty(like, tuple(q[1]), kind, dispatch.runtime.allocate, index)  # type: ignore[index]
        views[_AT["q_out"]] = frameworks.of(q_out, "q_out").view(q_out, "q_out", order)
    status = None
    if return_status:
        status = framework.empty(like, (), _views.INT32, dispatch.runtime.allocate, index)
    launch_op(dispatch, "append", framework, index, order, entry, views, bounds, status)
    if order.held or not framework.ordered:
        dispatch.settle(index, order.stream)
    result = framework.result(q_out) if made else q_out
    return result if status is None else (result, framework.result(status))


def _of_tokens(name: str, view: View, rows_of: Sequence[Optional[View]]) -> View:
    """[batch, q_len] as [tokens] of the same memory, where q or k is [batch, q_len, ...]. All else is left to be refused."""
    pointer, shape, strides, kind, device = view
    if len(shape) != 2 or not any(rows is not None and tuple(rows[1][:2]) == tuple(shape) for rows in rows_of):
        return view
    rows, columns = shape
    if rows > 1 and columns > 1 and strides[0] != columns * strides[1]:
        raise InvalidRequest(f"{name}.strides", str(tuple(strides)), f"[batch, q_len] whose rows lie one after the other; pass "
                             f"{name}.contiguous()")
    return pointer, (rows * columns,), (strides[1] if columns > 1 else strides[0],), kind, device


def _row_major(shape: Sequence[int], kind: int) -> View:
    """A new tensor before it is there: at an address of any alignment."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return 0, shape, strides, kind, -1


def _kind_of_queries(q: View, q_dtype: Any) -> int:
    """What q_dtype says that q is written as."""
    word = q_dtype if isinstance(q_dtype, str) else requests.dtype_name(q_dtype)
    kind = _QUERY_KINDS.get(word or "")
    if kind is None and word in (_views.WORDS[q[3]], dtype_of(q)):
        return q[3]
    if kind is None:
        raise InvalidRequest("q_dtype", shown(q_dtype), f'"e4m3", "e5m2", or "{dtype_of(q)}", as q is')
    return kind


def _check(named: Dict[str, Optional[View]], words: Dict[str, Any]) -> None:
    """What would say nothing, or contradict another word, in a request that is made of the tensors."""
    for name in ("q", "k", "v", "q_out", "k_cache", "v_cache", "kpe", "kpe_cache", "rope_table"):
        view = named[name]
        if view is not None and not view[1]:
            raise InvalidRequest(f"{name}.shape", "()", "a tensor with axes")
    q, k, out, cache = (named[name] for name in ("q", "k", "q_out", "k_cache"))
    if q is not None and len(q[1]) < 3:
        raise InvalidRequest("q.shape", str(tuple(q[1])), "[tokens, q_heads, head_dim] or [batch, q_len, ...]")
    lengths = [_FIELDS[place] for place in _LENGTHS if named[_FIELDS[place]] is not None]
    if named["slot_mapping"] is not None and lengths:
        raise InvalidRequest("slot_mapping", "a tensor", f"None beside {lengths[0]}, or no lengths: either says the slots")
    _check_queries(q, out, words)
    _check_cache(k, named["v"], cache, named["k_scale"], words)
    if cache is not None and named["kpe_cache"] is not None:
        check_blocks(cache, named["kpe_cache"], named["k_scale"], "kpe_cache")
    if words["rope"] is not None and not isinstance(words["rope"], str):
        raise InvalidRequest("rope", shown(words["rope"]), '"half", "interleaved" or "none"')
    for name in ("rope", "rope_factor"):
        if words[name] is not None and words[name] != "none" and named["rope_table"] is None:
            raise InvalidRequest("rope_table", "nothing", f"a tensor with {name}={shown(words[name])}: cosines and sines "
                                 "[positions, rotary_dim], or frequencies [rotary_dim / 2]")
    if words["rope"] == "none" and named["rope_table"] is not None:
        raise InvalidRequest("rope", "'none'", '"half" or "interleaved" beside rope_table, or no rope_table')


def _check_queries(q: Optional[View], out: Optional[View], words: Dict[str, Any]) -> None:
    q_dtype = words["q_dtype"]
    if q is None:
        if q_dtype is not None:
            raise InvalidRequest("q_dtype", shown(q_dtype), "None without q")
        return
    if out is None:
        return
    if out[3] == _views.UINT8 and q_dtype is None:
        raise InvalidRequest("q_dtype", "None", '"e4m3" or "e5m2", which this q_out of uint8 is of')
    if q_dtype is None:
        return
    kind = _kind_of_queries(q, q_dtype)
    if out[3] != kind and not (out[3] == _views.UINT8 and _views.ITEM_BYTES[kind] == 1):
        raise InvalidRequest("q_out.dtype", _views.WORDS.get(out[3], "another"),
                             f"{_views.WORDS[kind]}, as q_dtype says")


def _check_cache(k: Optional[View], v: Optional[View], cache: Optional[View], scale: Optional[View],
                 words: Dict[str, Any]) -> None:
    if k is None:
        for name, nothing in (("kv_dtype", None), ("page_order", None), ("v_norm", False), ("check_slots", False),
                              ("head_dim_ckv", None)):
            if words[name] is not nothing and words[name] != nothing:
                raise InvalidRequest(name, shown(words[name]), f"{nothing} without k")
    if v is not None and words["head_dim_ckv"] is not None:
        raise InvalidRequest("head_dim_ckv", shown(words["head_dim_ckv"]), "None beside v: latents have none")
    if words["head_dim_ckv"] is not None:
        words["head_dim_ckv"] = fitting("head_dim_ckv", words["head_dim_ckv"], c_int32, 1)
    if words["page_order"] is not None:
        check_order("page_order", words["page_order"])
    if words["kv_dtype"] is not None and not isinstance(words["kv_dtype"], str):
        kv_dtype = requests.dtype_name(words["kv_dtype"])
        if kv_dtype is None:
            raise InvalidRequest("kv_dtype", shown(words["kv_dtype"]), '"e4m3", "e5m2", or None')
        words["kv_dtype"] = kv_dtype
    if scale is not None and cache is not None and _views.ITEM_BYTES[cache[3]] != 1:
        raise InvalidRequest("k_scale", "a tensor", f"None, since k_cache is of {_views.WORDS[cache[3]]}; scales are of "
                             "e4m3 and e5m2")


def _kernel(dispatch: Dispatch, views: List[Optional[View]], words: Dict[str, Any], index: int) -> Prepared:
    """By all that a request is made of: sizes and lengths have no part in it."""
    request = _request(views, words)
    key = ("append", index, *request.items())
    return dispatch.prepared.get(key) or dispatch.prepare(key, request, index)


def _request(views: List[Optional[View]], words: Dict[str, Any]) -> Dict[str, Any]:
    named: Dict[str, Optional[View]] = dict(zip(_FIELDS, views))
    q, k, cache = named["q"], named["k"], named["k_cache"]
    lengths = [view for view in (views[place] for place in _LENGTHS) if view is not None]
    table = named["rope_table"]
    request = {"op": "append", "dtype": dtype_of(k or q), "slots": "table" if lengths else "mapping",  # type: ignore[arg-type]
               **_columns(named, words), **_storage(cache, named, words),
               "q_norm": named["q_norm_weight"] is not None, "k_norm": named["k_norm_weight"] is not None,
               "v_norm": words["v_norm"], "norm_eps": words["norm_eps"], "check_slots": words["check_slots"],
               "alignment": alignment_of([view for view in (views[place] for place in _ALIGNED) if view is not None])}
    if lengths:
        kind_of_index = index_kind_of({_FIELDS[place]: views[place] for place in _LENGTHS})
        assert kind_of_index is not None
        request["index_dtype"] = _views.WORDS[kind_of_index]
    out = named["q_out"]
    if out is not None and _views.ITEM_BYTES[out[3]] == 1:
        request["q_dtype"] = _views.WORDS[out[3] if out[3] in _FLOAT8 else _kind_of_queries(q or out, words["q_dtype"])]
    if table is None:
        request.update(rope=words["rope"], rope_factor=words["rope_factor"])
        return request
    frequencies = len(table[1]) == 1
    columns = request.get("head_dim_qk") or request.get("head_dim_kpe") or 0
    rotary_dim = 2 * table[1][0] if frequencies else table[1][-1]
    if not 0 < rotary_dim <= columns or rotary_dim % 2:
        raise InvalidRequest("rope_table.shape", str(tuple(table[1])),
                             f"[positions, rotary_dim], or frequencies [rotary_dim / 2], rotary_dim even and to {columns}")
    request.update(rope=words["rope"] or "half", rotary_dim=rotary_dim, rope_factor=words["rope_factor"],
                   rope_table="frequencies" if frequencies else "cos_sin")
    if not frequencies:  # which a kernel reads in the class of its alignment
        request["alignment"] = min(request["alignment"], alignment_of([table]))
    return request


def _columns(named: Dict[str, Optional[View]], words: Dict[str, Any]) -> Dict[str, Any]:
    """The head dims and the heads."""
    q, k, v, kpe = (named[name] for name in ("q", "k", "v", "kpe"))
    head_dim_ckv = words["head_dim_ckv"]
    if k is None:  # q alone: the heads of no cache count
        assert q is not None
        return {"head_dim_qk": q[1][-1], "head_dim_vo": q[1][-1], "q_heads": q[1][-2]}
    q_heads = 1 if q is None else q[1][-2]
    if v is not None:
        if len(k[1]) < 3:
            raise InvalidRequest("k.shape", str(tuple(k[1])), "[tokens, kv_heads, head_dim] or [batch, q_len, ...]")
        # Without q any multiple of kv_heads will do.
        return {"head_dim_qk": k[1][-1], "head_dim_vo": v[1][-1], "q_heads": k[1][-2] if q is None else q_heads,
                "kv_heads": k[1][-2]}
    if head_dim_ckv is None and kpe is None:
        raise InvalidRequest("v", "None", "the values, or head_dim_ckv where k has latents")
    if head_dim_ckv is None:
        head_dim_ckv = k[1][-1]
    head_dim_kpe = kpe[1][-1] if kpe is not None else k[1][-1] - head_dim_ckv
    if head_dim_kpe < 0:
        raise InvalidRequest("k.shape", str(tuple(k[1])), f"{head_dim_ckv} columns (head_dim_ckv), or more")
    return {"head_dim_ckv": head_dim_ckv, "head_dim_kpe": head_dim_kpe, "q_heads": q_heads}


def _storage(cache: Optional[View], named: Dict[str, Optional[View]], words: Dict[str, Any]) -> Dict[str, Any]:
    page_order, kv_dtype = words["page_order"], words["kv_dtype"]
    paged = page_order is not None or any(named[name] is not None for name in ("page_table", "page_indptr"))
    storage: Dict[str, Any] = {"kv": "paged" if paged else "dense"}
    if cache is None:
        storage["page_size"] = 1 if paged else None
        return storage
    if paged:
        if len(cache[1]) < 3:
            raise InvalidRequest("k_cache.shape", str(tuple(cache[1])), "[pages, page_size, ...]")
        storage["page_size"] = cache[1][2 if page_order == "HND" else 1]
        if named["v"] is not None or page_order == "HND":
            storage["page_order"] = page_order or "NHD"
    if _views.ITEM_BYTES[cache[3]] == 1:
        if cache[3] == _views.UINT8 and kv_dtype is None:
            raise InvalidRequest("kv_dtype", "None", '"e4m3" or "e5m2", which this cache of uint8 is of')
        storage["kv_dtype"] = _views.WORDS[cache[3]] if kv_dtype is None else kv_dtype
    elif kv_dtype is not None:
        storage["kv_dtype"] = kv_dtype
    scale = named["k_scale"]
    if scale is not None:
        storage["kv_scale"] = _scaled_by(scale, cache)
    return storage


def _scaled_by(scale: View, cache: View) -> str:
    """A scale with axes of the cache is written: one axis less is its columns' scale, as many are those of blocks."""
    if len(scale[1]) > 1:
        return "token_head" if len(scale[1]) < len(cache[1]) else "block128"
    return "tensor" if tuple(scale[1]) == (1,) else "head"

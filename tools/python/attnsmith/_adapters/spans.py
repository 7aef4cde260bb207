"""Attention of padded batches without copies: a span of each row's queries attends to a span of the row's keys.

The spans are told to varlen_attention as sequences of ragged tensors, with sequences between them that lack either keys
or queries. Keys are not moved, and nothing is read back, so a CUDA graph that is replayed sees the spans of then.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple, cast

import torch

from .. import functions
from .._base.options import Options, to_either_side
from .._calls.attend import attend
from .._calls.forms import Form, Problem, batch_views, need_same_tokens
from .._operators import torch_ops  # noqa: F401  (so that no operator is defined while a graph is compiled)
from .._operators.tracing import wants_operators
from .._tensors.views import View

#: The columns of spans, which are in the order of rows, and ascend within one: the row, then the half-open ranges of its
#: queries and of its keys.
COLUMNS = 5


def attend_spans(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: torch.Tensor, *, causal: bool,
                 window: Optional[int], scale: Optional[float], softcap: Optional[float],
                 sinks: Optional[torch.Tensor]) -> torch.Tensor:
    """q [rows, q_heads, q_len, head_dim_qk], k and v [rows, kv_heads, kv_len, ...]. spans: int32 [spans, 5] on the GPU, with
    which is kept what is made of it, so that the layers of a model do well to give the same tensor. causal and window are
    counted from the ends of each span, window to either side; scale, softcap, sinks: those of varlen_attention.

    Gives o [rows, q_len, q_heads, head_dim_vo], 0 for queries of no span.
    """
    if wants_operators():
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        pitch = pitch_of(1, k, v)
        if not pitch:
            k, v, pitch = k.contiguous(), v.contiguous(), k.shape[1]
        q_indptr, kv_indptr = _indptr(spans, q.shape[0], q.shape[1], pitch)  # a compiler computes equal terms once
        operator = torch.ops.attnsmith._attend_in_a_row.default
        return cast(torch.Tensor, operator(q, k, v, q_indptr, kv_indptr, pitch, causal, window, scale, softcap, sinks))
    pitch = pitch_of(2, k, v)
    if not pitch:
        k, v = k.contiguous(), v.contiguous()
        pitch = pitch_of(2, k, v)
    rows, _, q_len, _ = q.shape
    if rows > 1 and q_len > 1 and q.stride(0) != q_len * q.stride(2):
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    q_indptr, kv_indptr = _sequences(spans, rows, q_len, pitch)
    options = (causal, to_either_side(window, causal), None, softcap, scale, False, "standard", "standard", None, pitch)
    return cast(torch.Tensor, attend(_FORM, (q, k, v, None, sinks, None, q_indptr, kv_indptr), options, None))


def _resolve(views: List[Any], options: Options) -> Problem:
    """Each tensor as a ragged one of the same memory."""
    *common, pitch = options
    q, k, v, _, _, _, q_indptr, kv_indptr = views
    rows, heads, q_len, _ = q[1]
    kv_len = k[1][2]
    need_same_tokens(k, v, 2)
    queries = _of_tokens(q, rows * q_len)
    keys, values = (_of_tokens(view, max((rows - 1) * pitch + kv_len, 0)) for view in (k, v))
    return Problem(queries, keys, values, batch_views(q_indptr=q_indptr, kv_indptr=kv_indptr), "ragged", None,
                   q_indptr[1][0] - 1, q_len, kv_len, tuple(common), (rows, q_len, heads), _without_rows)


def _of_tokens(view: View, tokens: int) -> View:
    """[rows, heads, length, columns] as [tokens of all rows and between them, heads, columns]."""
    pointer, (_, heads, length, columns), (of_row, of_head, of_token, of_column), kind, device = view
    return pointer, (tokens, heads, columns), (of_row if length == 1 else of_token, of_head, of_column), kind, device


def _without_rows(view: View) -> View:
    """A new o [rows, q_len, heads, columns] as [rows x q_len, heads, columns]."""
    pointer, (rows, tokens, *others), (_, *strides), kind, device = view
    return pointer, (rows * tokens, *others), tuple(strides), kind, device


_FORM = Form(("q", "k", "v", "out", "sinks", "alibi_slopes", "q_indptr", "kv_indptr"), {0, 1, 2, 6, 7}, _resolve)


def _attend_in_a_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_indptr: torch.Tensor, kv_indptr: torch.Tensor,
                     pitch: int, causal: bool, window: Optional[int], scale: Optional[float], softcap: Optional[float],
                     sinks: Optional[torch.Tensor]) -> torch.Tensor:
    """Takes rows of k and v that lie `pitch` tokens apart as one ragged tensor. An operator in graphs, since only a tensor
    that has memory says how it lies: a compiler may lay out one of its own in another way than it says while it traces."""
    rows, q_len = q.shape[:2]
    if pitch_of(1, k, v) != pitch:
        k, v = _with_pitch(k, pitch), _with_pitch(v, pitch)
    o = functions.varlen_attention(
        q.reshape(rows * q_len, *q.shape[2:]), in_a_row(k, pitch), in_a_row(v, pitch), q_indptr, kv_indptr, max_q_len=q_len,
        max_kv_len=k.shape[1], causal=causal, window=to_either_side(window, causal), scale=scale,
        softcap=softcap, sinks=sinks)
    return cast(torch.Tensor, o.view(rows, q_len, *o.shape[1:]))


_library: Any = torch.library  # whose functions say no types
_LIBRARY = _library.Library("attnsmith", "FRAGMENT")
_LIBRARY.define("_attend_in_a_row(Tensor q, Tensor k, Tensor v, Tensor q_indptr, Tensor kv_indptr, SymInt pitch, bool causal, "
                "SymInt? window, float? scale, float? softcap, Tensor? sinks) -> Tensor")
for _backend in ("CUDA", "CPU"):  # whose tensors varlen_attention refuses by name
    _LIBRARY.impl("_attend_in_a_row", _attend_in_a_row, _backend)
_library.register_fake("attnsmith::_attend_in_a_row", lambda q, k, v, *others: q.new_empty(*q.shape[:-1], v.shape[-1]),
                       lib=_LIBRARY)


def pitch_of(axis: int, *tensors: torch.Tensor) -> int:
    """How many tokens a row lies behind the row before, in all of these tensors, whose `axis` has the tokens, or 0 where there
    is no such number: the rows of a cache [rows, heads, tokens, columns] lie heads x tokens tokens apart."""
    pitches: List[int] = []
    for tensor in tensors:
        rows, tokens = tensor.shape[0], tensor.shape[axis]
        row, token = tensor.stride(0), tensor.stride(axis)
        if rows == 1 or tokens == 1:  # where a stride says nothing
            pitches.append(tokens)
        elif token > 0 and row % token == 0 and row >= tokens * token:
            pitches.append(row // token)
        else:
            return 0
    # Compared and not put into a set, which would have a graph be of one length alone.
    return pitches[0] if all(pitch == pitches[0] for pitch in pitches) else 0


def in_a_row(tensor: torch.Tensor, pitch: int) -> torch.Tensor:
    """[rows, tokens, heads, columns] as [tokens of all rows and between them, heads, columns], of the same memory."""
    rows, tokens, heads, columns = tensor.shape
    row, token, head, column = tensor.stride()
    return tensor.as_strided(((rows - 1) * pitch + tokens, heads, columns), (row if tokens == 1 else token, head, column))


def _with_pitch(tensor: torch.Tensor, pitch: int) -> torch.Tensor:
    rows, tokens, *others = tensor.shape
    return tensor.new_empty(rows, pitch, *others)[:, :tokens].copy_(tensor)


def _sequences(spans: torch.Tensor, rows: int, q_len: int, pitch: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """q_indptr and kv_indptr, which all layers of a model share that lie alike: they are kept with the spans."""
    key = (rows, q_len, pitch)
    kept = getattr(spans, "_attnsmith_sequences", None)
    if kept is None or kept[0] != key:
        on_host = getattr(spans, "_attnsmith_on_host", None)
        if on_host is None:
            kept = key, _indptr(spans, rows, q_len, pitch)
        else:  # some twenty small operators take a tenth of the time there
            kept = key, torch.stack(_indptr(on_host, rows, q_len, pitch)).to(spans.device, non_blocking=True).unbind(0)
        spans._attnsmith_sequences = kept  # type: ignore[attr-defined]
    return cast(Tuple[torch.Tensor, torch.Tensor], kept[1])


def on_device(spans: torch.Tensor, device: Any) -> torch.Tensor:
    """Spans that the host knows, for attend_spans()."""
    there = spans.to(device, non_blocking=True)
    there._attnsmith_on_host = spans  # type: ignore[attr-defined]
    return there


def _indptr(spans: torch.Tensor, rows: int, q_len: int, pitch: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Three sequences for each span: the queries before it, which get no keys and so 0; the keys before it, which get no
    queries; and the span. Behind the last the queries that are left."""
    row, q_begin, q_end, kv_begin, kv_end = spans.unbind(1)
    q_begin, q_end = q_begin + row * q_len, q_end + row * q_len
    kv_begin, kv_end = kv_begin + row * pitch, kv_end + row * pitch
    none = spans.new_zeros(1)
    before = torch.cat((none, kv_end))[:-1]
    q_indptr = torch.cat((none, torch.stack((q_begin, q_begin, q_end), 1).flatten(), none + rows * q_len))
    kv_indptr = torch.cat((none, torch.stack((before, kv_begin, kv_end), 1).flatten(), torch.cat((none, kv_end))[-1:]))
    return q_indptr, kv_indptr

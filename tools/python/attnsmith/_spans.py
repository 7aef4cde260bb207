"""Attention of padded batches without copies: a span of each row's queries attends to a span of the row's keys.

The spans are told to varlen_attention as sequences of ragged tensors, with sequences between them that lack either keys
or queries. Keys are not moved, and nothing is read back, so a CUDA graph that is replayed sees the spans of then.
"""

from __future__ import annotations

from typing import Any, Tuple, cast

import torch

from . import functions
from ._tracing import is_tracing

#: The columns of spans, which are in the order of rows, and ascend within one: the row, then the half-open ranges of its
#: queries and of its keys.
COLUMNS = 5


def attend_spans(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: torch.Tensor, **words: Any) -> torch.Tensor:
    """q [rows, q_len, q_heads, head_dim_qk], k and v [rows, kv_len, kv_heads, ...]. spans: int32 [spans, 5] on the GPU, with
    which is kept what is made of it, so that the layers of a model do well to give the same tensor. words: others of
    varlen_attention, which counts causal and window from the ends of each span.

    Gives o [rows, q_len, q_heads, head_dim_vo], 0 for queries of no span.
    """
    rows, q_len = q.shape[:2]
    pitch = _pitch(k, v)
    if not pitch:
        k, v, pitch = k.contiguous(), v.contiguous(), k.shape[1]
    q_indptr, kv_indptr = _sequences(spans, rows, q_len, pitch)
    o = functions.varlen_attention(q.reshape(rows * q_len, *q.shape[2:]), _in_a_row(k, pitch), _in_a_row(v, pitch), q_indptr,
                                   kv_indptr, max_q_len=q_len, max_kv_len=k.shape[1], **words)
    return cast(torch.Tensor, o.view(rows, q_len, *o.shape[1:]))


def _pitch(*tensors: torch.Tensor) -> int:
    """How many tokens a row lies behind the row before, in all of these tensors, or 0 where there is no such number: the
    rows of a cache [rows, heads, tokens, columns] lie heads x tokens tokens apart."""
    pitches = set()
    for tensor in tensors:
        rows, tokens = tensor.shape[:2]
        row, token = tensor.stride(0), tensor.stride(1)
        if rows == 1:
            pitches.add(tokens)
        elif token > 0 and row % token == 0 and row >= tokens * token:
            pitches.add(row // token)
        else:
            return 0
    return pitches.pop() if len(pitches) == 1 else 0


def _in_a_row(tensor: torch.Tensor, pitch: int) -> torch.Tensor:
    """[rows, tokens, heads, columns] as [tokens of all rows and between them, heads, columns], of the same memory."""
    rows, tokens, heads, columns = tensor.shape
    _, token, head, column = tensor.stride()
    return tensor.as_strided(((rows - 1) * pitch + tokens, heads, columns), (token, head, column))


def _sequences(spans: torch.Tensor, rows: int, q_len: int, pitch: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """q_indptr and kv_indptr, which all layers of a model share that lie alike: they are kept with the spans."""
    if is_tracing():  # where equal terms are computed once anyway
        return _indptr(spans, rows, q_len, pitch)
    key = (rows, q_len, pitch)
    kept = getattr(spans, "_attnsmith_sequences", None)
    if kept is None or kept[0] != key:
        kept = key, _indptr(spans, rows, q_len, pitch)
        spans._attnsmith_sequences = kept  # type: ignore[attr-defined]
    return cast(Tuple[torch.Tensor, torch.Tensor], kept[1])


def _indptr(spans: torch.Tensor, rows: int, q_len: int, pitch: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Three sequences for each span: the queries before it, which get no keys and so 0; the keys before it, which get no
    queries; and the span. Behind the last the queries that are left."""
    row, q_begin, q_end, kv_begin, kv_end = spans.unbind(1)
    q_begin, q_end = q_begin + row * q_len, q_end + row * q_len
    kv_begin, kv_end = kv_begin + row * pitch, kv_end + row * pitch
    none = spans.new_zeros(1)
    before = torch.cat((none, kv_end[:-1]))
    q_indptr = torch.cat((none, torch.stack((q_begin, q_begin, q_end), 1).flatten(), none + rows * q_len))
    kv_indptr = torch.cat((none, torch.stack((before, kv_begin, kv_end), 1).flatten(), kv_end[-1:]))
    return q_indptr, kv_indptr

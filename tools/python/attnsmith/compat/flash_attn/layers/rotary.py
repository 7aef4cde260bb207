"""flash_attn.layers.rotary: rotary embeddings by torch's own operators. New keys of a cache are rotated by
flash_attn_with_kvcache in one launch; this is for what is rotated elsewhere."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch

from ....errors import InvalidRequest, Unsupported
from .._tokens import sequences_of

__all__ = ["RotaryEmbedding", "apply_rotary", "apply_rotary_emb", "apply_rotary_emb_func", "apply_rotary_emb_kv_",
           "apply_rotary_emb_qkv_", "apply_rotary_emb_torch", "rotate_half"]


def apply_rotary_emb(x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False,
                     seqlen_offsets: Union[int, Any] = 0, cu_seqlens: Optional[Any] = None,
                     max_seqlen: Optional[int] = None) -> Any:
    """The first columns of x, rotated in fp32 and rounded to x's dtype; the others as they are.

    x: [batch, seqlen, heads, head_dim], or, with cu_seqlens, [total, heads, head_dim].
    cos, sin: [positions, rotary_dim / 2].
    interleaved: True turns columns 2 i and 2 i + 1, False i and i + rotary_dim / 2.
    inplace: x itself is written to, and given.
    seqlen_offsets: the position of the first token, an integer or [batch].
    cu_seqlens: [batch + 1], where each sequence begins, and the end; other tokens are not rotated. max_seqlen: not needed here.

    Raises InvalidRequest naming the argument.
    """
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary(x: Any, cos: Any, sin: Any, seqlen_offsets: Union[int, Any] = 0, cu_seqlens: Optional[Any] = None,
                 max_seqlen: Optional[int] = None, interleaved: bool = False, inplace: bool = False,
                 conjugate: bool = False) -> Any:
    """apply_rotary_emb in the order of flash_attn.ops.triton.rotary. conjugate: rotates back."""
    _check(x, cos, sin, seqlen_offsets, cu_seqlens)
    positions, outside = _positions(x, seqlen_offsets, cu_seqlens)
    turned = _turned(x, cos[positions].unsqueeze(-2), (-sin if conjugate else sin)[positions].unsqueeze(-2), interleaved)
    if outside is not None:
        turned = torch.where(outside[:, None, None], x, turned)
    return x.copy_(turned) if inplace else turned


def apply_rotary_emb_torch(x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    """x [batch, seqlen, heads, head_dim] rotated by cos and sin, [seqlen, rotary_dim / 2] or [batch, seqlen,
    rotary_dim / 2]."""
    return _turned(x, cos.unsqueeze(-2), sin.unsqueeze(-2), interleaved)


def rotate_half(x: Any, interleaved: bool = False) -> Any:
    """x with each pair of columns (a, b) as (-b, a)."""
    a, b = _pairs(x, interleaved)
    return _joined(-b, a, interleaved)


def apply_rotary_emb_qkv_(qkv: Any, cos: Any, sin: Any, cos_k: Optional[Any] = None, sin_k: Optional[Any] = None,
                          interleaved: bool = False, seqlen_offsets: Union[int, Any] = 0,
                          num_heads_q: Optional[int] = None) -> Any:
    """Queries and keys of qkv rotated in place. Gives qkv.

    qkv: [batch, seqlen, 3, heads, head_dim], or, with num_heads_q, [batch, seqlen, heads + 2 * kv_heads, head_dim].
    cos, sin: [positions, rotary_dim / 2]. cos_k, sin_k: the tables of keys; None is cos and sin.
    interleaved, seqlen_offsets: as in apply_rotary_emb.
    """
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    if num_heads_q is None:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        kv_heads = (qkv.shape[2] - num_heads_q) // 2
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:num_heads_q + kv_heads]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(k, cos_k, sin_k, interleaved, True, seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(kv: Any, cos: Any, sin: Any, interleaved: bool = False,
                         seqlen_offsets: Union[int, Any] = 0) -> Any:
    """Keys of kv [batch, seqlen, 2, kv_heads, head_dim] rotated in place. Gives kv. The rest is apply_rotary_emb's."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


class RotaryEmbedding(torch.nn.Module):
    """Rotates queries and keys by base ** (-2 i / dim) a position.

    dim: the columns that are rotated. base: of the frequencies. interleaved: as in apply_rotary_emb. scale_base: None;
    xPos, which it is of, is refused. device: where the frequencies are.
    """

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: Optional[float] = None,
                 device: Any = None) -> None:
        super().__init__()
        if scale_base is not None:
            raise Unsupported("scale_base is not supported: xPos is not served; pass None")
        self.dim: int = dim
        self.base: float = float(base)
        self.interleaved: bool = interleaved
        self.scale_base: None = None
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", 1.0 / self.base ** exponents, persistent=False)
        self._tables: Optional[Tuple[Any, Any]] = None

    def forward(self, qkv: Any, kv: Optional[Any] = None, seqlen_offset: Union[int, Any] = 0,
                max_seqlen: Optional[int] = None, num_heads_q: Optional[int] = None) -> Any:
        """Rotates in place: of qkv its queries and keys, as apply_rotary_emb_qkv_ takes it; with kv [batch, seqlen, 2,
        kv_heads, head_dim], qkv [batch, seqlen, heads, head_dim] itself and the keys of kv.

        seqlen_offset: the position of the first token, an integer or [batch]. max_seqlen: no position is beyond it; a
        seqlen_offset that is a tensor needs it.

        Gives qkv, or (qkv, kv).
        """
        if max_seqlen is None:
            if not isinstance(seqlen_offset, int):
                raise InvalidRequest("max_seqlen", "None", "a bound on positions, for a seqlen_offset that is a tensor")
            max_seqlen = qkv.shape[1] + seqlen_offset
        cos, sin = self._table(max_seqlen, qkv)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset,
                                         num_heads_q=num_heads_q)
        apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return qkv, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)

    def _table(self, positions: int, like: Any) -> Tuple[Any, Any]:
        kept = self._tables
        if kept is None or kept[0].shape[0] < positions or (kept[0].device, kept[0].dtype) != (like.device, like.dtype):
            # The frequencies again in fp32, should the module have been cast to 16 bits.
            exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=like.device) / self.dim
            angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=like.device),
                                 1.0 / self.base ** exponents)
            self._tables = kept = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return kept


def _check(x: Any, cos: Any, sin: Any, offsets: Any, cu_seqlens: Any) -> None:
    axes = "[batch, seqlen, heads, head_dim]" if cu_seqlens is None else "[total, heads, head_dim]"
    if x.dim() != axes.count(",") + 1:
        raise InvalidRequest("x.shape", str(tuple(x.shape)), axes)
    if cos.dim() != 2:
        raise InvalidRequest("cos.shape", str(tuple(cos.shape)), "[positions, rotary_dim / 2]")
    if sin.shape != cos.shape:
        raise InvalidRequest("sin.shape", str(tuple(sin.shape)), f"{tuple(cos.shape)}, as cos has")
    if 2 * cos.shape[1] > x.shape[-1]:
        raise InvalidRequest("cos.shape", str(tuple(cos.shape)), f"at most {x.shape[-1] // 2} columns, half of x's")
    if cu_seqlens is None and isinstance(offsets, int) and not 0 <= offsets <= cos.shape[0] - x.shape[1]:
        raise InvalidRequest("seqlen_offsets", str(offsets),
                             f"0 or more, and with x's {x.shape[1]} tokens no more than cos's {cos.shape[0]} positions")


def _positions(x: Any, offsets: Any, cu_seqlens: Any) -> Tuple[Any, Optional[Any]]:
    """[batch or 1, seqlen] of each token, or [total], and then which tokens are of no sequence: their position is 0."""
    if cu_seqlens is None:
        first = offsets[:, None] if isinstance(offsets, torch.Tensor) else offsets
        return torch.arange(x.shape[1], device=x.device)[None] + first, None
    tokens, sequences = sequences_of(x.shape[0], cu_seqlens)
    first = offsets[sequences] if isinstance(offsets, torch.Tensor) else offsets
    outside = (tokens < cu_seqlens[0]) | (tokens >= cu_seqlens[-1])
    return (tokens - cu_seqlens[sequences] + first).masked_fill(outside, 0), outside


def _pairs(x: Any, interleaved: bool) -> Tuple[Any, Any]:
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def _joined(a: Any, b: Any, interleaved: bool) -> Any:
    return torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)


def _turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    columns = 2 * cos.shape[-1]
    exact = x.dtype if x.dtype == torch.float64 else torch.float32
    a, b = _pairs(x[..., :columns].to(exact), interleaved)
    turned = _joined(a * cos - b * sin, a * sin + b * cos, interleaved).to(x.dtype)
    return torch.cat((turned, x[..., columns:]), -1)

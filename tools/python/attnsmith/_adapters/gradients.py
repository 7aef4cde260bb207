"""attention() in training, for what torch's SDPA has no words: o and the log-sum-exp are attnsmith's, and the gradients come
from the backward of torch's flash attention, which needs no more of the forward than these two."""

from __future__ import annotations

from typing import Any, Optional, Tuple, cast

import torch
from torch.autograd.function import once_differentiable

from .. import functions
from .._base.options import to_either_side

Offsets = Tuple[torch.Tensor, torch.Tensor, int, int]  # q_indptr and kv_indptr, int32, and their longest sequences
_LARGEST_HEAD_DIM = 256


def why_not(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Optional[str]:
    """What the backward of torch's flash attention does not take, or None."""
    if q.device.type != "cuda":
        return f"tensors on {q.device}"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return "a GPU before sm_80"
    if q.dtype not in (torch.float16, torch.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return f"{q.dtype}"
    head_dim = q.shape[-1]
    if head_dim % 8 or head_dim > _LARGEST_HEAD_DIM or v.shape[-1] != head_dim:
        return f"head dims {head_dim} and {v.shape[-1]}"
    if not min(*q.shape, *k.shape):
        return "tensors without elements"
    return None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window: Optional[int],
              scale: Optional[float], offsets: Optional[Offsets] = None) -> torch.Tensor:
    """q [batch, q_len, q_heads, head_dim], k and v [batch, kv_len, kv_heads, head_dim], or with offsets [tokens, heads,
    head_dim]. window: to either side, counted from the ends as attention() has it. Gives o like q."""
    apply: Any = _Attention.apply  # which says no types
    return cast(torch.Tensor, apply(q, k, v, causal, to_either_side(window, causal), scale, offsets))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
                window: Optional[Tuple[int, Optional[int]]], scale: Optional[float], offsets: Optional[Offsets]) -> torch.Tensor:
        words: Any = {"causal": causal, "window": window, "scale": scale, "return_lse": True, "lse_order": "HND"}
        if offsets is None:
            o, lse = functions.attention(q, k, v, **words)
        else:
            o, lse = functions.varlen_attention(q, k, v, *offsets[:2], max_q_len=offsets[2], max_kv_len=offsets[3], **words)
        ctx.save_for_backward(q, k, v, o, lse, *(offsets[:2] if offsets else ()))
        ctx.longest = offsets[2:] if offsets else (q.shape[1], k.shape[1])
        ctx.words = causal, window, scale
        return cast(torch.Tensor, o)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Any, ...]:
        q, k, v, o, lse, *indptr = ctx.saved_tensors
        causal, window, scale = ctx.words
        left, right = window or (None, None)
        # Nothing of dropout is read where there is none.
        rest = torch.empty(2, dtype=torch.uint64, device=q.device), torch.empty(0, dtype=torch.uint64, device=q.device)
        grads = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, o, lse, *(indptr or (None, None)), *ctx.longest, 0.0, causal, *rest, scale=scale,
            window_size_left=left, window_size_right=0 if causal and window else right)
        return (*grads, None, None, None, None)

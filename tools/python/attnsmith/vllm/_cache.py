"""Views of a layer's KV cache. vLLM packs K and V of a token and head into one row: [blocks, kv_heads, block_size, columns], in
any physical order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import torch

from ..errors import InvalidRequest
from ._layers import SCALE_BYTES, Storage


@dataclass
class CacheViews:
    """k, v: [blocks, kv_heads, block_size, head_dim], of the cache's memory; uint8 where they are floats of 8 bits.
    k_scale, v_scale: fp32 [1] or [kv_heads], or [blocks, kv_heads, block_size] within the cache's rows; None without."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: Optional[torch.Tensor]
    v_scale: Optional[torch.Tensor]


def views_of(cache: torch.Tensor, layer: Any, head_dim: int, storage: Storage) -> CacheViews:
    """Raises InvalidRequest for a cache of other columns."""
    if storage.kv_dtype is None:
        _check_columns(cache, 2 * head_dim)
        return CacheViews(cache[..., :head_dim], cache[..., head_dim:], None, None)
    rows = cache if cache.dtype == torch.uint8 else cache.view(torch.uint8)
    if storage.is_per_token:
        _check_columns(rows, 2 * (head_dim + SCALE_BYTES))
        (k, k_scale), (v, v_scale) = (_with_scale(half, head_dim) for half in torch.split(rows, head_dim + SCALE_BYTES, dim=-1))
        return CacheViews(k, v, k_scale, v_scale)
    _check_columns(rows, 2 * head_dim)
    return CacheViews(rows[..., :head_dim], rows[..., head_dim:], _vector(layer._k_scale), _vector(layer._v_scale))


def _check_columns(rows: torch.Tensor, columns: int) -> None:
    if rows.dim() != 4 or rows.shape[-1] != columns:
        raise InvalidRequest("kv_cache.shape", str(tuple(rows.shape)), f"[blocks, kv_heads, block_size, {columns}]")


def _with_scale(rows: torch.Tensor, head_dim: int) -> Tuple[torch.Tensor, torch.Tensor]:
    return rows[..., :head_dim], rows[..., head_dim:].view(torch.float32)[..., 0]


def _vector(scale: torch.Tensor) -> torch.Tensor:
    return scale.reshape(-1)

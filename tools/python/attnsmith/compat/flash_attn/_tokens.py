"""Tokens of sequences that lie one after the other."""

from __future__ import annotations

from typing import Any, Tuple

import torch


def sequences_of(count: int, offsets: Any) -> Tuple[Any, Any]:
    """The places of `count` tokens, and the sequence of each by offsets [batch + 1]. Tokens before the first sequence get the
    first one and tokens after the last get the last one, so that a look-up by it always has an entry."""
    tokens = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
    return tokens, torch.searchsorted(offsets[1:], tokens, right=True).clamp(max=offsets.shape[0] - 2)

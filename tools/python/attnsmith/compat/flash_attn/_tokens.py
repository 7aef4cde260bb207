"""Tokens of sequences that lie one after the other."""

from __future__ import annotations

from typing import Any, Tuple

import torch


def sequences_of(count: int, offsets: Any) -> Tuple[Any, Any]:
    """`count` tokens, from 0 on, and the sequence of each by offsets [batch + 1]. A token before the first sequence is as if it
    were of that, one after the last as if it were of that, so that a look-up by it has an entry."""
    tokens = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
    return tokens, torch.searchsorted(offsets[1:], tokens, right=True).clamp(max=offsets.shape[0] - 2)

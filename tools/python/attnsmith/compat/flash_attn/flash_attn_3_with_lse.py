"""flash_attn_interface as FlashAttention 3 was until 2025: each call gives (out, softmax_lse)."""

from __future__ import annotations

from typing import Any

from . import flash_attn_3
from .flash_attn_3 import _flash_attn_backward, _flash_attn_forward, flash_attn_with_kvcache
from .flash_attn_interface import get_scheduler_metadata

__all__ = ["_flash_attn_backward", "_flash_attn_forward", "flash_attn_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]


def flash_attn_func(*arguments: Any, **words: Any) -> Any:
    """flash_attn_3.flash_attn_func with its LSE."""
    return flash_attn_3.flash_attn_func(*arguments, **{**words, "return_attn_probs": True})


def flash_attn_qkvpacked_func(*arguments: Any, **words: Any) -> Any:
    """flash_attn_3.flash_attn_qkvpacked_func with its LSE."""
    return flash_attn_3.flash_attn_qkvpacked_func(*arguments, **{**words, "return_attn_probs": True})


def flash_attn_varlen_func(*arguments: Any, **words: Any) -> Any:
    """flash_attn_3.flash_attn_varlen_func with its LSE."""
    return flash_attn_3.flash_attn_varlen_func(*arguments, **{**words, "return_attn_probs": True})

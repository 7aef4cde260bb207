"""attnsmith's FlashAttention functions as the `kernels` package loads them, for names of transformers that have flash3."""

from attnsmith.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

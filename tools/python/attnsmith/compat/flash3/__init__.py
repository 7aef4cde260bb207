"""attnsmith's FlashAttention functions as the `kernels` package loads them, for programs that take FlashAttention 3's, such
as transformers under names that have flash3."""

from attnsmith.compat.flash_attn import flash_attn_3 as flash_attn_interface
from attnsmith.compat.flash_attn.flash_attn_3 import *  # noqa: F403

__all__ = [*flash_attn_interface.__all__, "flash_attn_interface"]

"""attnsmith's FlashAttention functions as the `kernels` package loads them, for programs that take FlashAttention 2's."""

from attnsmith.compat.flash_attn import bert_padding, flash_attn_interface, layers
from attnsmith.compat.flash_attn.flash_attn_interface import *  # noqa: F403

__all__ = [*flash_attn_interface.__all__, "bert_padding", "flash_attn_interface", "layers"]

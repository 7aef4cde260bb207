"""attnsmith's functions as flash_attn.ops.triton.rotary."""

from attnsmith.compat.flash_attn.layers.rotary import apply_rotary

__all__ = ["apply_rotary"]

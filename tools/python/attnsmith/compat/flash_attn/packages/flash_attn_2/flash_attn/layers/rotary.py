"""attnsmith's functions as flash_attn.layers.rotary."""

from attnsmith.compat.flash_attn.layers.rotary import *  # noqa: F403

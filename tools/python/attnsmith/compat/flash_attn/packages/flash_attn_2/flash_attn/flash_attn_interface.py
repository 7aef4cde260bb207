"""attnsmith's functions as flash_attn.flash_attn_interface."""

from attnsmith.compat.flash_attn.flash_attn_interface import *  # noqa: F403

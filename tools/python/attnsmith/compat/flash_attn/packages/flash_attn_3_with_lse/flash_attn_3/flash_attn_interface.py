"""attnsmith's functions as flash_attn_3.flash_attn_interface."""

from attnsmith.compat.flash_attn.flash_attn_3_with_lse import *  # noqa: F403

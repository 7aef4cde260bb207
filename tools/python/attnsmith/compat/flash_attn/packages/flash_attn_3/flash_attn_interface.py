"""attnsmith's functions as flash_attn_interface."""

from attnsmith.compat.flash_attn.flash_attn_3 import *  # noqa: F403

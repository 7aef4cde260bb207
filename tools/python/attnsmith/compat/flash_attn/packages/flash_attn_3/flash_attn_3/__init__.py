"""attnsmith's functions as flash_attn_3."""

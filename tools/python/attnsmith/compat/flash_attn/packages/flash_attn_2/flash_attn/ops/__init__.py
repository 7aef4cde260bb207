"""attnsmith's functions as flash_attn.ops."""

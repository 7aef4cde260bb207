"""attnsmith's functions as flash_attn.layers."""

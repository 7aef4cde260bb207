"""flash_attn, FlashAttention 2."""

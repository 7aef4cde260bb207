"""flash_attn_interface and flash_attn_3, FlashAttention 3."""

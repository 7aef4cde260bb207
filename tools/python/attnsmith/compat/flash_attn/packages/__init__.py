"""Each folder is put on sys.path by install(), or on PYTHONPATH by `python -m attnsmith.compat.flash_attn`. Its packages
have FlashAttention's names and attnsmith's functions."""

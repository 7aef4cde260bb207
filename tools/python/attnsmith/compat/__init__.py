"""Modules that have the names, arguments and results of other attention libraries, for code that was written for them.

``attnsmith.compat.flash_attn`` has the functions of FlashAttention, and ``attnsmith.compat.flashinfer`` those of
FlashInfer. Each says what it serves and what it refuses; none needs the library whose names it has.
"""

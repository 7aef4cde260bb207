"""attnsmith's functions as flash_attn 2.8."""

from attnsmith.compat.flash_attn.flash_attn_interface import (flash_attn_func, flash_attn_kvpacked_func,
                                                              flash_attn_qkvpacked_func, flash_attn_varlen_func,
                                                              flash_attn_varlen_kvpacked_func,
                                                              flash_attn_varlen_qkvpacked_func,
                                                              flash_attn_with_kvcache)

from . import flash_attn_interface

__all__ = ["flash_attn_func", "flash_attn_interface", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func",
           "flash_attn_with_kvcache"]
__version__ = "2.8.3"

from __future__ import annotations

from .sdpa import Sdpa


class SdpaFlash(Sdpa):
    name = "sdpa-fa2"
    title = "FlashAttention-2, through PyTorch's SDPA"
    backend = "FLASH_ATTENTION"

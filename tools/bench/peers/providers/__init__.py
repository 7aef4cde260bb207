"""The providers, one a file; the first is ours."""

from __future__ import annotations

from typing import Dict

from .base import Provider, Refused
from .attnsmith import Attnsmith, AttnsmithBf16
from .sdpa_cudnn import SdpaCudnn
from .sdpa_flash import SdpaFlash
from .flash_attention_2 import FlashAttention2
from .flash_attention_3 import FlashAttention3
from .flash_attention_4 import FlashAttention4
from .flashinfer import FlashInfer, FlashInferFa2, FlashInferMla
from .flash_mla import FlashMla

OURS = Attnsmith.name
OURS_BF16 = AttnsmithBf16.name
PROVIDERS: Dict[str, Provider] = {
    provider.name: provider
    for provider in (Attnsmith(), AttnsmithBf16(), SdpaCudnn(), SdpaFlash(), FlashAttention2(), FlashAttention3(),
                     FlashAttention4(), FlashInfer(), FlashInferFa2(), FlashInferMla(), FlashMla())
}

__all__ = ["OURS", "OURS_BF16", "PROVIDERS", "Provider", "Refused"]

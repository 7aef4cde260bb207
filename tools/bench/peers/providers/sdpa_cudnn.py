from __future__ import annotations

from typing import Dict

from .sdpa import Sdpa


class SdpaCudnn(Sdpa):
    name = "cudnn"
    title = "cuDNN, through PyTorch's SDPA"
    backend = "CUDNN_ATTENTION"

    def versions(self) -> Dict[str, str]:
        import torch

        found = super().versions()
        number = torch.backends.cudnn.version()
        if number:
            found["cudnn"] = str(number)
        return found

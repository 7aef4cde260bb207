"""What the backends of both kinds of attention tell vLLM alike."""

from __future__ import annotations

from typing import Any, List

import torch
from attnsmith_vllm import backend_name
from vllm.v1.attention.backend import MultipleOf


class CommonBackend:
    """To be derived from before vLLM's class."""

    supported_dtypes = [torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        return backend_name()

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> List[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability >= (8, 0))

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return True  # kernels read the lengths on the device

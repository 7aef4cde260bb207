"""The names of FlashInfer 0.7, computed by attnsmith: ``import attnsmith.compat.flashinfer as flashinfer``.

Arguments have FlashInfer's names, order, defaults and layouts, and an lse is in base 2. Each is honoured, or
refused by its name with what to do instead; hints are those that only change how fast FlashInfer is.
docs/replace-flashinfer.md lists them all. plan() reads lengths on the host, as FlashInfer's does, and keeps int32
copies on the device; run() looks at no lengths, and is captured by CUDA graphs, for which call it once before. Needs
PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._base.extras import missing

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise missing("attnsmith.compat.flashinfer", "PyTorch", "torch", _error) from _error

from . import attention, cascade, decode, mla, page, prefill
from .attention import BatchAttentionWithAttentionSinkWrapper
from .cascade import (BatchDecodeWithSharedPrefixPagedKVCacheWrapper, BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
                      MultiLevelCascadeAttentionWrapper, merge_state, merge_state_in_place, merge_states)
from .decode import (BatchDecodeWithPagedKVCacheWrapper, CUDAGraphBatchDecodeWithPagedKVCacheWrapper, fast_decode_plan,
                     single_decode_with_kv_cache)
from .mla import BatchMLAPagedAttentionWrapper
from .page import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions, get_seq_lens
from .prefill import (BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper,
                      single_prefill_with_kv_cache, single_prefill_with_kv_cache_return_lse)

__all__ = ["BatchAttentionWithAttentionSinkWrapper", "BatchDecodeWithPagedKVCacheWrapper",
           "BatchDecodeWithSharedPrefixPagedKVCacheWrapper", "BatchMLAPagedAttentionWrapper",
           "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper",
           "BatchPrefillWithSharedPrefixPagedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
           "MultiLevelCascadeAttentionWrapper", "append_paged_kv_cache", "append_paged_mla_kv_cache", "attention", "cascade",
           "decode", "fast_decode_plan", "get_batch_indices_positions", "get_seq_lens", "merge_state", "merge_state_in_place",
           "merge_states", "mla", "page", "prefill", "single_decode_with_kv_cache", "single_prefill_with_kv_cache",
           "single_prefill_with_kv_cache_return_lse"]


if not TYPE_CHECKING:  # a type checker would take any name for one of the module's

    def __getattr__(name: str) -> Any:
        raise AttributeError(f"attnsmith.compat.flashinfer has no {name}: it has attention, merges of states and appends to "
                             "pages, and what is neither comes from flashinfer itself")

"""flashinfer.attention: attention whose rows have a sink."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from ..._base.options import number
from ...errors import InvalidRequest, Unsupported
from . import _words
from .prefill import BatchPrefillWithPagedKVCacheWrapper


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """BatchPrefillWithPagedKVCacheWrapper whose run() takes the sinks and the scale after the cache: run(q,
    paged_kv_cache, sink, sm_scale). sink: fp32 [num_qo_heads]. sm_scale: a number, in the place of what plan() said.

    float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf,
    paged_kv_last_page_len_buf: as BatchPrefillWithPagedKVCacheWrapper takes them.
    window_left: whether there is a window at all; plan() says how long it is, and has none where this is negative.
    pos_encoding_mode: "NONE", here and in plan().
    Hints: backend, custom_mask_buf, mask_indptr_buf, use_fp16_qk_reduction, and what plan() says again: q_data_type,
        kv_data_type, head_dim_qk, head_dim_vo.

    Raises InvalidRequest and Unsupported naming the argument.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Optional[torch.Tensor] = None, paged_kv_indptr_buf: Optional[torch.Tensor] = None,
                 paged_kv_indices_buf: Optional[torch.Tensor] = None,
                 paged_kv_last_page_len_buf: Optional[torch.Tensor] = None,
                 custom_mask_buf: Optional[torch.Tensor] = None, mask_indptr_buf: Optional[torch.Tensor] = None,
                 backend: str = "auto", pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
                 q_data_type: torch.dtype = torch.bfloat16, kv_data_type: torch.dtype = torch.bfloat16,
                 head_dim_qk: int = 128, head_dim_vo: int = 128, window_left: int = -1) -> None:
        if _words.encoding(pos_encoding_mode) == "ALIBI":
            raise Unsupported(_words.NO_ALIBI)
        self._has_window = _words.left_window(window_left) >= 0
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, paged_kv_indptr_buf,
                         paged_kv_indices_buf, paged_kv_last_page_len_buf, custom_mask_buf, mask_indptr_buf, backend)

    def _of_variant(self, args: Tuple[Any, ...], sinks: Optional[torch.Tensor]) -> Dict[str, Any]:
        if len(args) != 2 or sinks is not None:
            raise InvalidRequest("args", f"{len(args)} values" if sinks is None else "sinks as well",
                                 "sink and sm_scale after paged_kv_cache, and no sinks")
        if self._plan.scores.window_left >= 0 and not self._has_window:
            raise InvalidRequest("window_left", str(self._plan.scores.window_left),
                                 "-1, since the wrapper was made without a window_left")
        sink, sm_scale = args
        if number("sm_scale", sm_scale) is None:
            raise InvalidRequest("sm_scale", "None", "a number")
        return {"sinks": sink, "sm_scale": float(sm_scale)}

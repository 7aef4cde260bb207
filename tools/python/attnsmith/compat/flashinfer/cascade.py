"""flashinfer.cascade: attention over parts of the keys, merged."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple, cast

import torch

from ... import functions
from ..._base.integers import shown
from ...errors import InvalidRequest, Unsupported
from ._plans import Result
from ._words import LN_2, LOG2_E, Cache, DType, check_counts, dtype
from .decode import BatchDecodeWithPagedKVCacheWrapper
from .prefill import BatchPrefillWithPagedKVCacheWrapper, single_prefill_with_kv_cache


def merge_state(v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor,
                s_b: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Merges attention over two parts of the keys.

    v_a, v_b: [seq_len, num_heads, head_dim]. s_a, s_b: [seq_len, num_heads], log-sum-exp in base 2, read as fp32.

    Gives (v, s), s fp32 in base 2. Raises what attnsmith.merge_states raises.
    """
    return _merged([v_a, v_b], [s_a.float() * LN_2, s_b.float() * LN_2])


def merge_state_in_place(v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor,
                         mask: Optional[torch.Tensor] = None) -> None:
    """merge_state(v, s, v_other, s_other), whose results replace v and s.

    v, v_other: [seq_len, num_heads, head_dim]. s: fp32 [seq_len, num_heads], and s_other, in base 2. mask: bool
        [seq_len]: rows whose entry is False stay as they are.

    Raises InvalidRequest for an s of another dtype, and what attnsmith.merge_states raises.
    """
    if s.dtype != torch.float32:
        raise InvalidRequest("s.dtype", str(s.dtype), "torch.float32, since it is written")
    if mask is None:
        _, merged_s = _merged([v, v_other], [s * LN_2, s_other.float() * LN_2], v)
        s.copy_(merged_s)
        return
    merged_v, merged_s = _merged([v, v_other], [s * LN_2, s_other.float() * LN_2])
    rows = mask.bool()
    v.copy_(torch.where(rows[:, None, None], merged_v, v))
    s.copy_(torch.where(rows[:, None], merged_s, s))


def merge_states(v: torch.Tensor, s: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Merges attention over several parts of the keys.

    v: [seq_len, num_states, num_heads, head_dim]. s: [seq_len, num_states, num_heads], in base 2, read as fp32.

    Gives (v, s) without the axis of states, s fp32 in base 2. Raises what attnsmith.merge_states raises.
    """
    return _merged(v, s.float() * LN_2)


def _merged(v: Any, s: Any, out: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """States whose log-sum-exp is natural, merged into one where it is in base 2."""
    merged, lse = functions.merge_states(v, s, out=out)
    return merged, lse.mul_(LOG2_E)


class MultiLevelCascadeAttentionWrapper:
    """Attention to keys of several levels, such as a prefix that sequences share and what each has of its own.

    num_levels: how many. float_workspace_buffer: says the device; attnsmith has workspaces of its own. kv_layout: "NHD"
        or "HND".
    use_cuda_graph: plan() then copies into qo_indptr_buf_arr, paged_kv_indptr_buf_arr, paged_kv_indices_buf_arr and
        paged_kv_last_page_len_buf_arr, of one buffer for each level, as BatchPrefillWithPagedKVCacheWrapper has them.

    Raises InvalidRequest naming the argument.
    """

    def __init__(self, num_levels: int, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, qo_indptr_buf_arr: Optional[List[torch.Tensor]] = None,
                 paged_kv_indptr_buf_arr: Optional[List[torch.Tensor]] = None,
                 paged_kv_indices_buf_arr: Optional[List[torch.Tensor]] = None,
                 paged_kv_last_page_len_buf_arr: Optional[List[torch.Tensor]] = None) -> None:
        buffers = [[None] * num_levels] * 4
        if use_cuda_graph:
            buffers = _of_levels(num_levels, qo_indptr_buf_arr=qo_indptr_buf_arr,
                                 paged_kv_indptr_buf_arr=paged_kv_indptr_buf_arr,
                                 paged_kv_indices_buf_arr=paged_kv_indices_buf_arr,
                                 paged_kv_last_page_len_buf_arr=paged_kv_last_page_len_buf_arr)
        self._use_cuda_graph = use_cuda_graph
        self._levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph, *level)
                        for level in zip(*buffers)]

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether plan() copies into the buffers that the wrapper was made with."""
        return self._use_cuda_graph

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffers: Any) -> None:
        """Keeps neither float_workspace_buffer nor int_workspace_buffers: attnsmith has workspaces of its own."""

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer, which had it up to 0.2."""

    def plan(self, qo_indptr_arr: List[torch.Tensor], paged_kv_indptr_arr: List[torch.Tensor],
             paged_kv_indices_arr: List[torch.Tensor], paged_kv_last_page_len: List[torch.Tensor], num_qo_heads: int,
             num_kv_heads: int, head_dim: int, page_size: int, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, sm_scale: Optional[float] = None, window_left: int = -1,
             logits_soft_cap: Optional[float] = None, rope_scale: Optional[float] = None,
             rope_theta: Optional[float] = None, q_data_type: DType = "float16",
             kv_data_type: Optional[DType] = None) -> None:
        """BatchPrefillWithPagedKVCacheWrapper.plan() of each level. Only the last level is causal.

        qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len: tensors of each level; the
            offsets of queries all end at the same number.
        num_qo_heads, num_kv_heads, head_dim, page_size, causal, sm_scale, window_left, logits_soft_cap, q_data_type,
            kv_data_type: as that plan() takes them. pos_encoding_mode: "NONE".
        Hints: use_fp16_qk_reduction, rope_scale and rope_theta.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        if pos_encoding_mode != "NONE":
            raise Unsupported(f"pos_encoding_mode {shown(pos_encoding_mode)} is not supported: levels are merged by "
                              'their lse, which "ALIBI" has not; pass "NONE"')
        check_counts(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=page_size)
        lists = _of_levels(len(self._levels), qo_indptr_arr=qo_indptr_arr, paged_kv_indptr_arr=paged_kv_indptr_arr,
                           paged_kv_indices_arr=paged_kv_indices_arr, paged_kv_last_page_len=paged_kv_last_page_len)
        for level, (wrapper, q_indptr, indptr, indices, last) in enumerate(zip(self._levels, *lists)):
            wrapper.plan(q_indptr, indptr, indices, last, num_qo_heads, num_kv_heads, head_dim, page_size,
                         causal=causal and level == len(self._levels) - 1, sm_scale=sm_scale, window_left=window_left,
                         logits_soft_cap=logits_soft_cap, q_data_type=q_data_type, kv_data_type=kv_data_type)

    begin_forward = plan

    def run(self, q: torch.Tensor, paged_kv_cache: Cache) -> Result:
        """Attention of what was planned, over the keys of all levels.

        q: [qo_indptr[-1], num_qo_heads, head_dim]. paged_kv_cache: as BatchPrefillWithPagedKVCacheWrapper.run has it,
            of all levels.

        Gives o of q's shape. Raises InvalidRequest and Unsupported naming the argument.
        """
        states = [cast(Tuple[torch.Tensor, torch.Tensor], level.run(q, paged_kv_cache, return_lse=True, lse_base="ln"))
                  for level in self._levels]
        merged = functions.merge_states([o for o, _ in states], [lse for _, lse in states], return_lse=False)
        return cast(torch.Tensor, merged)

    forward = run


class _SharedPrefix:
    """The base of the two below: what run() of a paged wrapper gives of each sequence's own keys, merged with attention to
    keys that all sequences share."""

    _kv_layout: str

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: Any) -> None:
        """Keeps neither float_workspace_buffer nor int_workspace_buffer: attnsmith has workspaces of its own."""

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""

    def _merged_with_shared(self, q: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor,
                            sm_scale: Optional[float], unique: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        v, s = cast(Tuple[torch.Tensor, torch.Tensor], single_prefill_with_kv_cache(
            q, k_shared, v_shared, kv_layout=self._kv_layout, sm_scale=sm_scale, return_lse=True))
        merge_state_in_place(v, s, *unique)
        return v


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(_SharedPrefix):
    """Decode of a batch of sequences that share a prefix, whose keys are one tensor; those of their own are in pages.

    float_workspace_buffer: says the device; attnsmith has workspaces of its own. kv_layout: "NHD" or "HND".

    Raises InvalidRequest naming the argument.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._decode = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._kv_layout = kv_layout

    def begin_forward(self, unique_kv_indptr: torch.Tensor, unique_kv_indices: torch.Tensor,
                      unique_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
                      page_size: int, data_type: str = "float16") -> None:
        """BatchDecodeWithPagedKVCacheWrapper.plan() of the sequences' own keys: unique_kv_indptr [batch + 1],
        unique_kv_indices [pages of all] and unique_kv_last_page_len [batch], num_qo_heads, num_kv_heads, head_dim and
        page_size. data_type: of the pages, and where they are of 16 bits of q, which is of float16 else.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        kind = dtype("data_type", data_type, torch.float16)
        self._decode.plan(unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, num_qo_heads, num_kv_heads,
                          head_dim, page_size, q_data_type=kind if kind.itemsize == 2 else torch.float16,
                          kv_data_type=kind)

    def forward(self, q: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor,
                unique_kv_cache: Cache) -> torch.Tensor:
        """Attention to the shared keys and to each sequence's own.

        q: [batch, num_qo_heads, head_dim]. k_shared, v_shared: [shared_prefix_len, num_kv_heads, head_dim] for "NHD", or
            [num_kv_heads, shared_prefix_len, head_dim] for "HND". unique_kv_cache: as
            BatchDecodeWithPagedKVCacheWrapper.run has paged_kv_cache.

        Gives o of q's shape. Raises InvalidRequest and Unsupported naming the argument.
        """
        unique = cast(Tuple[torch.Tensor, torch.Tensor], self._decode.run(q, unique_kv_cache, return_lse=True))
        return self._merged_with_shared(q, k_shared, v_shared, None, unique)


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper(_SharedPrefix):
    """Prefill and append of a batch of sequences that share a prefix, whose keys are one tensor; those of their own are in
    pages.

    float_workspace_buffer: says the device; attnsmith has workspaces of its own. kv_layout: "NHD" or "HND".

    Raises InvalidRequest naming the argument.
    """

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        self._prefill = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._kv_layout = kv_layout

    def begin_forward(self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
                      paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
                      page_size: int) -> None:
        """BatchPrefillWithPagedKVCacheWrapper.plan() of the sequences' own keys: qo_indptr and paged_kv_indptr [batch +
        1], paged_kv_indices [pages of all], paged_kv_last_page_len [batch], num_qo_heads, num_kv_heads, head_dim and
        page_size. Queries and pages are of float16, as in FlashInfer.

        Raises InvalidRequest and Unsupported naming the argument.
        """
        self._prefill.plan(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
                           num_kv_heads, head_dim, page_size)

    def forward(self, q: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor, unique_kv_cache: Cache,
                causal: bool = False, use_fp16_qk_reduction: bool = False, sm_scale: Optional[float] = None,
                rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> torch.Tensor:
        """Attention to all of the shared keys, and to each sequence's own by `causal`.

        q: [qo_indptr[-1], num_qo_heads, head_dim]. k_shared, v_shared: [shared_prefix_len, num_kv_heads, head_dim] for
            "NHD", or [num_kv_heads, shared_prefix_len, head_dim] for "HND". unique_kv_cache: as
            BatchPrefillWithPagedKVCacheWrapper.run has paged_kv_cache. sm_scale: None is 1 / sqrt(head_dim).
        Hints: use_fp16_qk_reduction, rope_scale and rope_theta.

        Gives o of q's shape. Raises InvalidRequest and Unsupported naming the argument.
        """
        unique = self._prefill.forward_return_lse(q, unique_kv_cache, causal, sm_scale=sm_scale)
        return self._merged_with_shared(q, k_shared, v_shared, sm_scale, cast(Tuple[torch.Tensor, torch.Tensor], unique))


def _of_levels(num_levels: int, **lists: Any) -> List[List[Any]]:
    """Lists of as many tensors as there are levels."""
    for name, tensors in lists.items():
        if tensors is None or len(tensors) != num_levels:
            raise InvalidRequest(name, "nothing" if tensors is None else f"{len(tensors)} tensors",
                                 f"a list of {num_levels} tensors, one of each level")
    return [list(tensors) for tensors in lists.values()]

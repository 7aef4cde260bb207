"""What the layers of one step share: vLLM's device tensors and the bounds of their lengths. Nothing is copied to the host."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional, Tuple

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder,
                                       CommonAttentionMetadata)

from . import _layers

_EXACT = 16  # bounds to here are not rounded: a decode step's queries, with those of a draft


def bound_of(length: int) -> int:
    """A bound of a length that takes few values, since kernels are looked up by it. The length may be an integer of NumPy."""
    length = int(length)
    return length if length <= _EXACT else 1 << (length - 1).bit_length()


def part_of_context() -> Tuple[int, int]:
    """In how many parts decode context parallelism divides a context, and which this rank has."""
    from vllm.distributed.parallel_state import get_dcp_group
    try:
        group = get_dcp_group()
    except AssertionError:  # there are no groups, as in tests
        return 1, 0
    return group.world_size, group.rank_in_group


@dataclass
class AttnsmithMetadata(AttentionMetadata):  # type: ignore[misc]  # a class of vLLM, which mypy does not see
    """One step of one KV cache group. The tensors are vLLM's own, int32 on the device unless said.

    query_start_loc: [requests + 1], the first token of each request, and the end. seq_lens: [requests], keys of each with its
        new tokens. block_table: [requests, blocks]. slot_mapping: int64 [tokens].
    max_query_len, max_seq_len: bounds of one request's queries and keys.
    causal: False where a query sees the keys after it, too.
    context_lens, max_context_len: with decode context parallelism, the keys before the new tokens in this rank's cache, int32
        [requests] on the device, and their bound.
    """

    num_actual_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
    causal: bool
    context_lens: Optional[torch.Tensor] = None
    max_context_len: int = 0


class AttnsmithMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Every step may be part of a CUDA graph: kernels read all lengths from the device."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    reorder_batch_threshold: Optional[int] = None
    supports_update_block_table: bool = True
    supports_draft_decode_metadata_update: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # A draft's cache may be whole on every rank.
        self._parts, self._part = part_of_context() if getattr(kv_cache_spec, "dcp_sharded", True) else (1, 0)
        self._interleave: int = vllm_config.parallel_config.cp_kv_cache_interleave_size
        if self._parts > 1:
            self._context_lens = torch.zeros(vllm_config.scheduler_config.max_num_seqs, dtype=torch.int32, device=device)
        if self._parts > 1:  # what is computed of the lengths is copied from the host
            self.supports_draft_decode_metadata_update = False
        if getattr(vllm_config.parallel_config, "use_ubatching", False):  # parts of a batch have other lengths
            self.supports_update_block_table = False
        impls = [impl for _, impl in _layers.impls_of(vllm_config, layer_names)]
        for impl in impls:
            impl.forget_cache()  # vLLM makes another one now
        self._sinks: List[Tuple[torch.Tensor, torch.Tensor]] = [
            impl.sinks_and_copies for impl in impls if impl.sinks_and_copies is not None]
        requests = _layers.requests_of(vllm_config, layer_names, kv_cache_spec.block_size)
        self._kernels = _layers.prepared(requests, device)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata,
              fast_build: bool = False) -> AttnsmithMetadata:
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            _layers.refuse_causal_by_request()
        self._copy_sinks()
        metadata = AttnsmithMetadata(
            num_actual_tokens=common.num_actual_tokens, query_start_loc=common.query_start_loc, seq_lens=common.seq_lens,
            block_table=common.block_table_tensor, slot_mapping=common.slot_mapping,
            max_query_len=bound_of(common.max_query_len), max_seq_len=bound_of(common.max_seq_len), causal=common.causal)
        if self._parts > 1:
            turn = self._parts * self._interleave
            metadata.max_context_len = bound_of(-(-common.max_seq_len // turn) * self._interleave)
            self._divide_context(metadata)
        return metadata

    def _copy_sinks(self) -> None:
        """Of this builder's layers: weights may have been written in their places since."""
        if self._sinks:
            given, copies = zip(*self._sinks)
            with torch.no_grad():
                torch._foreach_copy_(copies, given)

    def update_draft_decode_metadata(self, metadata: AttnsmithMetadata) -> None:
        """Lengths have changed in vLLM's tensors, which the metadata holds. Only what was computed from them is old."""
        if self._parts > 1:
            self._divide_context(metadata)

    def _divide_context(self, metadata: AttnsmithMetadata) -> None:
        from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens
        query_lens = metadata.query_start_loc[1:] - metadata.query_start_loc[:-1]
        own = get_dcp_local_seq_lens(metadata.seq_lens - query_lens, self._parts, self._part, self._interleave)
        metadata.context_lens = self._context_lens[:own.shape[0]]
        metadata.context_lens.copy_(own)  # in memory that a captured graph keeps reading

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> AttnsmithMetadata:
        """A graph of mode FULL is replayed with any batch of its tokens, even one request that has them all. Some releases
        capture it with requests of one token."""
        common = common_attn_metadata
        if self.vllm_config.compilation_config.cudagraph_mode.mixed_mode().name == "FULL":
            common = common.replace(max_query_len=common.num_actual_tokens)
        return self.build(0, common)

    def update_block_table(self, metadata: AttnsmithMetadata, blk_table: torch.Tensor,
                           slot_mapping: torch.Tensor) -> AttnsmithMetadata:
        """Metadata that another KV cache group's builder made, for this one's group."""
        self._copy_sinks()
        changed = copy.copy(metadata)
        changed.block_table, changed.slot_mapping = blk_table, slot_mapping
        if self._parts > 1:
            self._divide_context(changed)
        return changed

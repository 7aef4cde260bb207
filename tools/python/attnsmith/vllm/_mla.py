"""The backend for latent attention (MLA): decodes over the latent cache. _mla_prefill.py has the prefill, with unabsorbed
heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Iterator, List, Optional, Tuple, Union

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.attention.mla_attention import (MLACommonBackend, MLACommonDecodeMetadata, MLACommonImpl,
                                                                MLACommonMetadata, MLACommonMetadataBuilder,
                                                                QueryLenSupport)
from vllm.v1.attention.backend import AttentionCGSupport

from .. import functions
from .._calls.workspaces import in_turn
from ..kernels import KernelSet
from . import _layers, _mla_prefill
from ._common import CommonBackend
from ._layers import Float8, Words
from ._metadata import bound_of, part_of_context

_KV_CACHE_DTYPES = [word for word in _layers.KV_CACHE_DTYPES if not _layers.storage_of(word).is_per_token]
#: Requests with no more new tokens than this are computed as decodes, over the latents.
_LONGEST_DECODE = 128


class AttnsmithMLABackend(CommonBackend, MLACommonBackend):  # type: ignore[misc]  # of vLLM, which mypy does not see
    """What vLLM asks before it chooses a backend. A configuration that is not served is rejected here, with the reason."""

    supported_kv_cache_dtypes = _KV_CACHE_DTYPES

    @staticmethod
    def get_impl_cls() -> Any:
        return AttnsmithMLAImpl

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # the bound of a decode's queries comes from the host

    @staticmethod
    def get_builder_cls() -> Any:
        return AttnsmithMLAMetadataBuilder

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> Tuple[int, ...]:
        """Of releases before 0.30."""
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Optional[str],
                             block_size: Optional[int], use_mla: bool, has_sink: bool, use_sparse: bool,
                             use_mm_prefix: bool, device_capability: Any) -> Optional[str]:
        return _layers.why_not_stored(kv_cache_dtype, dtype, _KV_CACHE_DTYPES)


@dataclass
class AttnsmithMLADecodeMetadata(MLACommonDecodeMetadata):  # type: ignore[misc]
    """The requests of a step that are computed as decodes. query_start_loc: int32 [requests + 1] on the device.
    max_query_len, max_seq_len: bounds of one request's queries and keys."""

    query_start_loc: torch.Tensor
    max_query_len: int
    max_seq_len: int


class AttnsmithMLAMetadataBuilder(MLACommonMetadataBuilder):  # type: ignore[misc]
    """vLLM captures MLA's decodes alone in CUDA graphs."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.VARLEN
    reorder_batch_threshold: int = _LONGEST_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: Any, device: torch.device) -> None:
        if _layers.consistency() == "bitwise":  # else whether a short prompt is a decode depends on what it follows
            self.reorder_batch_threshold = 1
        # With context parallelism a causal mask of several queries would count keys of other ranks.
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, MLACommonMetadata, supports_dcp_with_varlen=False)
        requests = _layers.requests_of(vllm_config, layer_names, kv_cache_spec.block_size)
        self._kernels: List[KernelSet] = _layers.prepared(requests, device)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        if vllm_config.parallel_config.decode_context_parallel_size > 1:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return cls._cudagraph_support

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if metadata.prefill is not None:
            _mla_prefill.count_tokens_with_context(
                metadata.prefill.chunked_context, common_attn_metadata.query_start_loc_cpu[metadata.num_decodes:])
        return metadata

    def _build_decode(self, block_table_tensor: torch.Tensor, seq_lens_device: torch.Tensor, max_seq_len: int,
                      query_start_loc_cpu: torch.Tensor, query_start_loc_device: torch.Tensor, num_decode_tokens: int,
                      max_query_len: Optional[int] = None, dcp_tot_seq_lens_device: Optional[torch.Tensor] = None,
                      ) -> AttnsmithMLADecodeMetadata:
        """Releases before 0.33 pass all by name but max_query_len."""
        if max_query_len is None:
            max_query_len = int((query_start_loc_cpu[1:] - query_start_loc_cpu[:-1]).max())
        return AttnsmithMLADecodeMetadata(
            block_table=block_table_tensor, seq_lens=seq_lens_device, dcp_tot_seq_lens=dcp_tot_seq_lens_device,
            query_start_loc=query_start_loc_device, max_query_len=bound_of(max(max_query_len, 1)),
            max_seq_len=bound_of(max_seq_len))


class AttnsmithMLAImpl(MLACommonImpl):  # type: ignore[misc]
    """The attention of one layer. Raises NotImplementedError for an argument of vLLM that attnsmith does not serve."""

    supports_dcp = True
    supports_pcp = False
    can_return_lse_for_decode = True
    lse_base_on_e = True

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int,
                 alibi_slopes: Optional[List[float]], sliding_window: Optional[int], kv_cache_dtype: str,
                 logits_soft_cap: Optional[float], attn_type: str, kv_sharing_target_layer_name: Optional[str],
                 *latent: Any, **mla_arguments: Any) -> None:
        for name, value in (("alibi_slopes", alibi_slopes), ("sliding_window", sliding_window),
                            ("logits_soft_cap", logits_soft_cap)):
            if value is not None:
                raise NotImplementedError(f"attnsmith: {name} with MLA is not supported")
        _refuse_guessed_lengths(get_current_vllm_config_or_none())
        _mla_prefill.choose()  # vLLM chooses the prefill of a layer after its attention
        super().__init__(num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
                         logits_soft_cap, attn_type, kv_sharing_target_layer_name, *latent, **mla_arguments)
        self.supports_quant_query_input = False  # queries stay in 16 bits
        self.storage = _layers.storage_of(kv_cache_dtype)
        self._consistency = _layers.consistency()
        self._begun = _layers.begin(self, get_current_vllm_config_or_none())

    def requests(self, page_size: int, vllm_config: Any) -> Iterator[Tuple[str, Words]]:
        """What this layer prepares when the engine starts."""
        dtype, item = _layers.dtype_word(vllm_config.model_config.dtype), 2 if self.storage.kv_dtype is None else 1
        latent: Words = {"dtype": dtype, "head_dim_ckv": self.kv_lora_rank, "head_dim_kpe": self.qk_rope_head_dim,
                         **_layers.cache_words(self.storage, page_size)}
        del latent["page_order"]  # latents have one head
        latent["alignment"] = _layers.alignment_of(self.kv_lora_rank, self.qk_rope_head_dim, item=item)
        yield "latent attention", {**latent, "op": "mla", "q_heads": self.num_heads * part_of_context()[0],
                                   "scale": self.scale, "index_dtype": "int32", "mask": "causal",
                                   "consistency": self._consistency}
        yield "the latent cache's update", {**latent, "op": "append", "q_heads": 1, "slots": "mapping"}
        prefill = _mla_prefill.request_of(dtype, self.num_heads, self.qk_head_dim, self.v_head_dim, self.scale,
                                          self._consistency)
        yield "prefill", {**prefill, "mask": "causal"}
        yield "prefill with context", {**prefill, "mask": "full"}

    def forward_mqa(self, q: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], kv_c_and_k_pe_cache: torch.Tensor,
                    attn_metadata: Any, layer: Any) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """q: [tokens, heads, kv_lora_rank + qk_rope_head_dim], or these columns apart. kv_c_and_k_pe_cache: [blocks,
        block_size, kv_lora_rank + qk_rope_head_dim].

        Gives o [tokens, heads, kv_lora_rank] and, where context parallelism needs it, the natural-log log-sum-exp, fp32
        [tokens, heads].
        """
        step = attn_metadata.decode
        q_nope, q_pe = q if isinstance(q, tuple) else (q, None)
        cache, k_scale, kv_dtype = self._stored(kv_c_and_k_pe_cache, layer._k_scale)
        with in_turn:
            results = functions.mla_attention(
                q_nope, cache, step.block_table, step.seq_lens, q_pe=q_pe, head_dim_ckv=self.kv_lora_rank,
                q_indptr=step.query_start_loc, max_q_len=step.max_query_len, max_kv_len=step.max_seq_len,
                causal=True, scale=self.scale, return_lse=self.need_to_return_lse_for_decode,
                consistency=self._consistency, k_scale=k_scale, kv_dtype=kv_dtype)
        return results if isinstance(results, tuple) else (results, None)

    def do_kv_cache_update(self, kv_c_normed: torch.Tensor, k_pe: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor, kv_cache_dtype: str, k_scale: torch.Tensor,
                           skip_scale: bool = False) -> None:
        """Writes latents, [tokens, kv_lora_rank], and positions, [tokens, 1, qk_rope_head_dim] or without the axis of 1, to the
        slots, int64 [tokens]. Negative slots are padding."""
        slots = slot_mapping.flatten()
        tokens = slots.shape[0]
        if kv_cache.numel() == 0 or tokens == 0:
            return
        cache, scale, kv_dtype = self._stored(kv_cache, k_scale)
        split = self.kv_lora_rank
        with in_turn:
            functions.append(kv_c_normed[:tokens], k_cache=cache[..., :split],
                             kpe=k_pe.reshape(k_pe.shape[0], -1)[:tokens], kpe_cache=cache[..., split:], head_dim_ckv=split,
                             slot_mapping=slots, page_order="NHD", k_scale=scale, kv_dtype=kv_dtype)

    def _stored(self, cache: torch.Tensor, k_scale: torch.Tensor) -> Tuple[torch.Tensor, Optional[torch.Tensor],
                                                                          Optional[Float8]]:
        if self.storage.kv_dtype is None:
            return cache, None, None
        return cache.view(torch.uint8), k_scale.reshape(-1), self.storage.kv_dtype


def _refuse_guessed_lengths(config: Any) -> None:
    """With context parallelism drafts are verified as prefills, whose context vLLM gathers by lengths on the host. Asynchronous
    scheduling guesses these before it knows which drafts were accepted. Raises NotImplementedError."""
    if config is not None and config.parallel_config.decode_context_parallel_size > 1 \
            and config.speculative_config is not None and config.scheduler_config.async_scheduling:
        raise NotImplementedError("attnsmith: speculative decoding and decode context parallelism with MLA is not supported with "
                                  "asynchronous scheduling: set --no-async-scheduling")

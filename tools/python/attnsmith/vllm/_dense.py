"""The backend for attention with keys and values: decoders, encoders and cross attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType

from .. import functions
from .._calls.workspaces import in_turn
from . import _layers
from ._cache import CacheViews, views_of
from ._common import CommonBackend
from ._context_parallel import ContextParallel
from ._layers import Storage, Words
from ._metadata import AttnsmithMetadata, AttnsmithMetadataBuilder

_LARGEST_HEAD = 512
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)  # which have no cache
_TYPES = (AttentionType.DECODER, *_ENCODERS, AttentionType.ENCODER_DECODER)
_ITEM = 2  # bytes of an element of Q and O


class AttnsmithDenseBackend(CommonBackend, AttentionBackend):  # type: ignore[misc]  # of vLLM, which mypy does not see
    """What vLLM asks before it chooses a backend. A configuration that is not served is rejected here, with the reason."""

    supported_kv_cache_dtypes = list(_layers.KV_CACHE_DTYPES)
    forward_includes_kv_cache_update = False
    supports_kv_cache_update_bypass = True  # forward() reads keys and values from the cache alone

    @staticmethod
    def get_impl_cls() -> Any:
        return AttnsmithImpl

    @staticmethod
    def get_builder_cls() -> Any:
        return AttnsmithMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> Tuple[int, ...]:
        """Of releases before 0.30; later ones take it from the cache's spec."""
        scale = _layers.SCALE_BYTES if _layers.storage_of(cache_dtype_str).is_per_token else 0
        return num_blocks, num_kv_heads, block_size, 2 * (head_size + scale)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> Tuple[int, ...]:
        """Of releases before 0.30."""
        from vllm.v1.attention.backends.utils import get_kv_cache_layout
        is_nhd = get_kv_cache_layout() == "NHD"
        if include_num_layers_dimension:
            return (1, 0, 3, 2, 4) if is_nhd else (1, 2, 0, 3, 4)
        return (0, 2, 1, 3) if is_nhd else (0, 1, 2, 3)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Of later releases: room for the scale of each token and head, within its row."""
        if spec.state_content_bytes is not None or not spec.kv_quant_mode.is_per_token_head:
            return spec
        columns = spec.head_size + spec.head_size_v
        return replace(spec, state_content_bytes=columns + 2 * _layers.SCALE_BYTES)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 8 <= head_size <= _LARGEST_HEAD

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in _TYPES

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """The connectors of 0.24 take a cache with as many axes as this one has for two, of K and of V."""
        try:
            from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology
        except ImportError:
            return True
        return not hasattr(TransferTopology, "split_k_and_v")

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Optional[str],
                             block_size: Optional[int], use_mla: bool, has_sink: bool, use_sparse: bool,
                             use_mm_prefix: bool, device_capability: Any) -> Optional[str]:
        reason = _layers.why_not_stored(kv_cache_dtype, dtype)
        if reason or not (dtype in cls.supported_dtypes and cls.supports_head_size(head_size)
                          and cls.supports_compute_capability(device_capability)):
            return reason  # vLLM has reported the others
        storage = _layers.storage_of(kv_cache_dtype or "auto")
        words = {**_plain_words(_layers.dtype_word(dtype), head_size), **_stored_words(head_size, storage, block_size or _layers.PAGE_SIZE)}
        return _layers.why_not_planned({**words, "sink": has_sink}, (device_capability.major, device_capability.minor))


class AttnsmithImpl(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer.

    Raises NotImplementedError for an argument of vLLM that attnsmith does not serve.
    """

    supports_dcp = True
    can_return_lse_for_decode = True
    lse_base_on_e = True

    _of_cache: Tuple[Any, Any, Any, Optional[CacheViews]]

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: Optional[int] = None,
                 alibi_slopes: Optional[List[float]] = None, sliding_window: Optional[int] = None,
                 kv_cache_dtype: str = "auto", logits_soft_cap: Optional[float] = None,
                 attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: Optional[str] = None,
                 sinks: Optional[torch.Tensor] = None, **others: Any) -> None:
        _refuse_others(others)
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sliding_window = sliding_window
        self.kv_cache_dtype, self.logits_soft_cap = kv_cache_dtype, logits_soft_cap or None
        self.attn_type, self.kv_sharing_target_layer_name = attn_type, kv_sharing_target_layer_name
        if sinks is not None and tuple(sinks.shape) != (num_heads,):
            raise NotImplementedError(f"attnsmith: sinks {tuple(sinks.shape)}; one for each of the {num_heads} heads is needed")
        self._given_sinks = self.sinks = sinks
        config = get_current_vllm_config_or_none()
        if config is not None and getattr(config.model_config, "is_diffusion", False):
            _layers.refuse_causal_by_request()
        self._may_be_non_causal = config is not None and _uses_non_causal(config)  # of a draft, the engine's may not say so
        self.storage = Storage(None, "none") if attn_type in _ENCODERS else _layers.storage_of(kv_cache_dtype)
        self._consistency = _layers.consistency()
        if self.dcp_world_size > 1:
            for name, value in (("sliding_window", sliding_window), ("alibi_slopes", alibi_slopes), ("sinks", sinks)):
                if value is not None:
                    raise NotImplementedError(f"attnsmith: {name} with decode context parallelism is not supported")
            self._context_parallel = ContextParallel()
        self.forget_cache()
        self._begun = _layers.begin(self, config)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Kernels read sinks as fp32. Captured graphs keep the copy."""
        if self._given_sinks is None:
            return
        given = self._given_sinks.detach()
        if self.sinks is None or self.sinks is self._given_sinks:
            self.sinks = given.to(torch.float32, copy=True)
        else:
            self.sinks.copy_(given)

    @property
    def sinks_and_copies(self) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        """vLLM's sinks and what kernels read, for each step to copy: vLLM may write weights without a word."""
        if self._given_sinks is None or self.sinks is None or self.sinks is self._given_sinks:
            return None
        return self._given_sinks, self.sinks

    def requests(self, page_size: int, vllm_config: Any) -> Iterator[Tuple[str, Words]]:
        """What this layer prepares when the engine starts."""
        dtype = _layers.dtype_word(vllm_config.model_config.dtype)
        plain, cached = self._call_words(dtype), _stored_words(self.head_size, self.storage, page_size)
        if self.attn_type in _ENCODERS:
            yield "attention of an encoder", {**plain, **self._mask_words(False), "kv": "ragged"}
            return
        if self.kv_sharing_target_layer_name is None:
            yield "the cache's update", _append_words(dtype, self.num_kv_heads, self.head_size, cached)
        if self.dcp_world_size > 1:
            heads = self.num_heads * self.dcp_world_size
            yield "attention to a part of the context", {**plain, **cached, **self._mask_words(False), "q_heads": heads}
            yield "attention among new tokens", {**plain, **self._mask_words(True), "kv": "ragged"}
            yield "merging", {"op": "merge", "dtype": dtype, "head_dim": self.head_size, "q_heads": self.num_heads}
            return
        causal = self.attn_type == AttentionType.DECODER
        yield "attention", {**plain, **cached, **self._mask_words(causal)}
        if causal and (self._may_be_non_causal or _uses_non_causal(vllm_config)):
            yield "attention without a causal mask", {**plain, **cached, **self._mask_words(False)}

    def _call_words(self, dtype: str) -> Words:
        return {**self._logits_words(), **_plain_words(dtype, self.head_size), "q_heads": self.num_heads,
                "kv_heads": self.num_kv_heads}

    def _mask_words(self, causal: bool) -> Words:
        window = self._window(causal)
        words: Words = {"mask": "causal" if causal else "full"}
        if window is not None:
            words["window_left"] = window[0]
            if not causal:
                words["window_right"] = window[1]
        return words

    def _logits_words(self) -> Words:
        words: Words = {"scale": self.scale, "consistency": self._consistency}
        if self.logits_soft_cap is not None:
            words["softcap"] = self.logits_soft_cap
        if self.alibi_slopes is not None:
            words["alibi"] = True
        if self.sinks is not None:
            words["sink"] = True
        return words

    def _window(self, causal: bool) -> Optional[Tuple[int, int]]:
        if self.sliding_window is None:
            return None
        left = self.sliding_window - 1
        return (left, 0) if causal else (left, left)

    def _views(self, layer: Any, cache: torch.Tensor) -> CacheViews:
        """Made once for a cache: a step has many layers, and views take longer than a launch."""
        of_cache, k_scale, v_scale, views = self._of_cache
        if views is None or of_cache is not cache or k_scale is not layer._k_scale or v_scale is not layer._v_scale:
            views = views_of(cache, layer, self.head_size, self.storage)
            self._of_cache = cache, layer._k_scale, layer._v_scale, views
        return views

    def forget_cache(self) -> None:
        """Drops the references to the last call's cache, so that vLLM can free it."""
        self._of_cache = (None, None, None, None)

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Optional[AttnsmithMetadata], output: torch.Tensor,
                output_scale: Optional[torch.Tensor] = None,
                output_block_scale: Optional[torch.Tensor] = None) -> torch.Tensor:
        """query, output: [tokens, heads, head_size], the tokens of all requests in a row; rows past the last request are left
        alone. key, value: [tokens, kv_heads, head_size], read by encoders alone. kv_cache: [blocks, kv_heads, block_size,
        columns]. Gives output.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attnsmith: output that is quantised by the attention")
        if attn_metadata is None:  # a run that measures memory
            return output.fill_(0)
        step, causal = attn_metadata, attn_metadata.causal and self.attn_type not in _ENCODERS
        common: Dict[str, Any] = {
            "causal": causal, "window": self._window(causal), "softcap": self.logits_soft_cap, "sinks": self.sinks,
            "scale": self.scale, "alibi_slopes": self._slopes_on(query), "out": output, "consistency": self._consistency,
            "max_q_len": step.max_query_len}
        if self.attn_type in _ENCODERS:
            with in_turn:
                functions.varlen_attention(query, key, value, step.query_start_loc, step.query_start_loc,
                                           max_kv_len=step.max_query_len, **common)
            return output
        views = self._views(layer, kv_cache)
        stored: Dict[str, Any] = {"page_order": "HND", "k_scale": views.k_scale, "v_scale": views.v_scale,
                                  "kv_dtype": self.storage.kv_dtype}
        if self.dcp_world_size > 1:
            with in_turn:
                self._context_parallel.attend(query, key, value, (views.k, views.v), step, {**common, **stored})
            return output
        with in_turn:
            functions.paged_attention(query, (views.k, views.v), step.block_table, step.seq_lens,
                                      q_indptr=step.query_start_loc, max_kv_len=step.max_seq_len, **stored, **common)
        return output

    def _slopes_on(self, query: torch.Tensor) -> Optional[torch.Tensor]:
        if self.alibi_slopes is not None and self.alibi_slopes.device != query.device:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        return self.alibi_slopes

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor) -> None:
        """Writes key and value, [tokens, kv_heads, head_size], to the slots, int64 [tokens]. There may be fewer slots than
        tokens; the tokens past them, and those of negative slots, are padding."""
        if self.attn_type not in _ENCODERS:
            self._append(layer, key, value, kv_cache, slot_mapping)

    def fused_rope_kvcache_supported(self) -> bool:
        return bool(self.attn_type == AttentionType.DECODER)

    def do_rope_and_kv_cache_update(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                    positions: torch.Tensor, cos_sin_cache: torch.Tensor, is_neox: bool,
                                    kv_cache: torch.Tensor, layer_slot_mapping: torch.Tensor) -> None:
        """Rotates query and key in their places and writes key and value to the slots. positions: int64 [tokens].
        cos_sin_cache: [positions, rotary_dim], the cosines and then the sines."""
        rope: Dict[str, Any] = {"positions": positions, "rope_table": cos_sin_cache, "rope": _kind_of_rope(is_neox)}
        self._append(layer, key, value, kv_cache, layer_slot_mapping, q=query, q_out=query, **rope)
        if self._reads_key:
            self._rotate(key, key, layer_slot_mapping.shape[0], **rope)

    def fused_qk_norm_rope_kvcache_supported(self) -> bool:
        return bool(self.attn_type == AttentionType.DECODER)

    def do_qk_norm_rope_kvcache_update(self, layer: Any, qkv: torch.Tensor, q_out: torch.Tensor, k_out: torch.Tensor,
                                       positions: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor,
                                       rms_norm_eps: float, cos_sin_cache: torch.Tensor, is_neox: bool,
                                       kv_cache: torch.Tensor, layer_slot_mapping: torch.Tensor) -> None:
        """RMS norms of each head of Q and K, then as do_rope_and_kv_cache_update(). qkv: [tokens, (heads + 2 * kv_heads) *
        head_size], which is only read. q_out: the queries that the attention reads. k_out is written only where the
        attention reads it; else K is in the cache alone."""
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        q, k, v = torch.split(qkv.view(qkv.shape[0], -1, self.head_size), heads, dim=1)
        rope: Dict[str, Any] = {"positions": positions, "rope_table": cos_sin_cache, "rope": _kind_of_rope(is_neox),
                                "norm_eps": rms_norm_eps}
        self._append(layer, k, v, kv_cache, layer_slot_mapping, q=q, q_out=q_out.view(q.shape), q_norm_weight=q_weight,
                     k_norm_weight=k_weight, **rope)
        if self._reads_key:
            self._rotate(k, k_out.view(k.shape), layer_slot_mapping.shape[0], q_norm_weight=k_weight, **rope)

    @property
    def _reads_key(self) -> bool:
        """Whether forward() reads the new keys from its argument, too."""
        return bool(self.dcp_world_size > 1)

    def _append(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                slot_mapping: torch.Tensor, q: Optional[torch.Tensor] = None, q_out: Optional[torch.Tensor] = None,
                positions: Optional[torch.Tensor] = None, **words: Any) -> None:
        tokens = slot_mapping.shape[0]
        if tokens == 0:
            return
        views = self._views(layer, kv_cache)
        first = [None if tensor is None else tensor if tensor.shape[0] == tokens else tensor[:tokens]
                 for tensor in (key, value, q, q_out, positions)]
        with in_turn:
            functions.append(first[0], first[1], views.k, views.v, q=first[2], q_out=first[3], positions=first[4],
                             slot_mapping=slot_mapping, page_order="HND", k_scale=views.k_scale, v_scale=views.v_scale,
                             kv_dtype=self.storage.kv_dtype, **words)

    def _rotate(self, rows: torch.Tensor, out: torch.Tensor, tokens: int, positions: torch.Tensor, **words: Any) -> None:
        if tokens == 0:
            return
        with in_turn:
            functions.append(q=rows[:tokens], q_out=out[:tokens], positions=positions[:tokens], **words)


def _uses_non_causal(vllm_config: Any) -> bool:
    return bool(getattr(vllm_config.attention_config, "use_non_causal", False))


def _kind_of_rope(is_neox: bool) -> str:
    return "half" if is_neox else "interleaved"


def _refuse_others(others: Dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None and value is not False and not (type(value) is int and value == -1):
            raise NotImplementedError(f"attnsmith: the attention's argument {name} = {value!r} is not supported")


def _plain_words(dtype: str, head_size: int) -> Words:
    return {"op": "attention", "dtype": dtype, "head_dim": head_size, "q_heads": 1, "kv_heads": 1, "index_dtype": "int32",
            "alignment": _layers.alignment_of(head_size, item=_ITEM)}


def _stored_words(head_size: int, storage: Storage, page_size: int) -> Words:
    """V follows K within a row, and with scales of tokens the scale of K."""
    words = _layers.cache_words(storage, page_size)
    item = _ITEM if storage.kv_dtype is None else 1
    row = head_size + (_layers.SCALE_BYTES if storage.is_per_token else 0)
    return {**words, "alignment": min(_layers.alignment_of(row, item=item), _layers.alignment_of(head_size, item=_ITEM))}


def _append_words(dtype: str, kv_heads: int, head_size: int, stored: Words) -> Words:
    return {"op": "append", "dtype": dtype, "head_dim": head_size, "q_heads": kv_heads, "kv_heads": kv_heads,
            "slots": "mapping", **stored}

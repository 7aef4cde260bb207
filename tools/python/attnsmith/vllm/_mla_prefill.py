"""MLA's prefill, which vLLM computes with unabsorbed heads: attention of ragged sequences whose keys are wider than their
values."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend

from .. import functions
from . import _layers
from ._layers import Words
from ._metadata import bound_of

PATH = f"{__name__}.AttnsmithMLAPrefill"
Results = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


def request_of(dtype: str, heads: int, qk_head_dim: int, v_head_dim: int, scale: float, consistency: str) -> Words:
    """V is a slice of a tensor that has the columns of K without positions, too."""
    return {"op": "attention", "dtype": dtype, "head_dim_qk": qk_head_dim, "head_dim_vo": v_head_dim, "q_heads": heads,
            "kv_heads": heads, "scale": scale, "kv": "ragged", "index_dtype": "int32", "consistency": consistency,
            "alignment": _layers.alignment_of(qk_head_dim, v_head_dim, item=2)}


def choose() -> None:
    """Has vLLM take attnsmith's prefill for the configuration at hand, unless that names another one."""
    config = get_current_vllm_config_or_none()
    custom = MLAPrefillBackendEnum.CUSTOM
    if config is None or config.attention_config.mla_prefill_backend is not None:
        return
    if not custom.is_overridden():
        register_mla_prefill_backend(custom, PATH)
    if custom.get_path() == PATH:  # else it is another plugin's
        config.attention_config.mla_prefill_backend = custom


def count_tokens_with_context(context: Any, query_start_loc: torch.Tensor) -> None:
    """Has vLLM merge the context into every request that has one. Releases before 0.30 merge it into the first tokens of a
    batch and count these as if requests with context came first, but model runner V2 orders requests by their new tokens.
    What is merged into a request without context is empty.

    context: the metadata of the context's chunks, or None. query_start_loc: [requests + 1], on the host.
    """
    if getattr(context, "prefill_tokens_with_context", None) is None:
        return
    last = int(context.seq_lens[0].nonzero()[-1])  # in the first chunk each request that has a context has keys
    context.prefill_tokens_with_context = int(query_start_loc[last + 1] - query_start_loc[0])


class AttnsmithMLAPrefill(MLAPrefillBackend):  # type: ignore[misc]  # a class of vLLM, which mypy does not see
    """Chosen with attnsmith's MLA backend, unless the engine's configuration names another one."""

    supported_dtypes = [torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        return bool(device_capability >= (8, 0))

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        columns = mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim
        return all(dim % 8 == 0 and dim <= 512 for dim in (columns, mla_dimensions.v_head_dim))

    def run_prefill_new_tokens(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_softmax_lse: bool,
                               out: Optional[torch.Tensor] = None, output_scale: Optional[torch.Tensor] = None) -> Results:
        """Causal attention among the new tokens. q, k: [tokens, heads, qk_head_dim]; v: [tokens, heads, v_head_dim].

        Gives o [tokens, heads, v_head_dim]; with return_softmax_lse also the natural-log log-sum-exp, fp32 [heads, tokens].
        """
        if output_scale is not None:
            raise NotImplementedError("attnsmith: output that is quantised by the attention")
        step = self._prefill_metadata
        bound = bound_of(step.max_query_len)
        return self._attend(q, k, v, step.query_start_loc, step.query_start_loc, bound, bound, True, return_softmax_lse, out)

    def run_prefill_context_chunk(self, chunk: Any = None, q: Any = None, k: Any = None, v: Any = None,
                                  out: Optional[torch.Tensor] = None, *, chunk_idx: Optional[int] = None) -> Results:
        """Attention of the new tokens to all keys of a part of their context. chunk: its metadata; before release 0.30 its
        index, which is called chunk_idx there. Results as with return_softmax_lse."""
        step = self._prefill_metadata
        index = chunk if chunk_idx is None else chunk_idx
        if isinstance(index, int):
            context = step.chunked_context
            q_indptr, kv_indptr = step.query_start_loc, context.cu_seq_lens[index]
            max_q_len, max_kv_len = step.max_query_len, context.max_seq_lens[index]
        else:
            q_indptr, kv_indptr = chunk.query_start_loc, chunk.cu_seq_lens
            max_q_len, max_kv_len = chunk.max_query_len, chunk.max_seq_len
        return self._attend(q, k, v, q_indptr, kv_indptr, bound_of(max_q_len), bound_of(max_kv_len), False, True, out)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_indptr: torch.Tensor, kv_indptr: torch.Tensor,
                max_q_len: int, max_kv_len: int, causal: bool, return_lse: bool, out: Optional[torch.Tensor]) -> Results:
        results: Results = functions.varlen_attention(
            q, k, v, q_indptr, kv_indptr, max_q_len=max_q_len, max_kv_len=max_kv_len, causal=causal, scale=self.scale,
            return_lse=return_lse, lse_order="HND", out=out,
            consistency=_layers.consistency())
        return results

"""Decode context parallelism: each rank's cache has a part of every request's context, and all ranks have the same new tokens.

A rank attends to its part of the context with the queries of all ranks, and the parts are combined by their log-sum-exps, which
gives each rank its own heads again. Attention among the new tokens, which every rank computes by itself, is merged with that.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, Tuple

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.parallel_state import get_dcp_group

from .. import functions

_OF_CACHE = ("page_order", "k_scale", "v_scale", "kv_dtype")


def _found(name: str, *modules: str) -> Any:
    """A function of vllm.v1.attention.ops, from the first of these modules that has it: releases differ."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"vllm.v1.attention.ops.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise NotImplementedError(f"attnsmith: decode context parallelism needs vLLM's {name}, which this release does not have")


class ContextParallel:
    """The attention of one layer. The log-sum-exps are natural, as vLLM is told by lse_base_on_e."""

    def __init__(self) -> None:
        config = get_current_vllm_config_or_none()
        by_all_to_all = config is not None and config.parallel_config.dcp_comm_backend == "a2a"
        self._combine = _found("dcp_a2a_lse_reduce", "dcp", "dcp_alltoall") if by_all_to_all else _found(
            "cp_lse_ag_out_rs", "dcp", "common")

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: Tuple[torch.Tensor, torch.Tensor],
               step: Any, words: Dict[str, Any]) -> None:
        """query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim]; cache: the views of K and V. words: those
        of paged_attention(), whose `out` is written."""
        out, causal = words.pop("out"), words.pop("causal")
        of_cache = {name: words.pop(name) for name in _OF_CACHE}
        group = get_dcp_group()
        context, context_lse = functions.paged_attention(
            group.all_gather(query.contiguous(), dim=1), cache, step.block_table, step.context_lens,
            q_indptr=step.query_start_loc, max_kv_len=step.max_context_len, return_lse=True, **words, **of_cache)
        context, context_lse = self._combine(context, context_lse, group, return_lse=True)
        new, new_lse = functions.varlen_attention(
            query, key, value, step.query_start_loc, step.query_start_loc, max_kv_len=step.max_query_len, causal=causal,
            return_lse=True, **words)
        functions.merge_states([context, new], [context_lse, new_lse], out=out)

"""Releases of vLLM to run the attention backend on, without vLLM: stand-ins made from their tables."""

import contextlib
import importlib
import types

import attnsmith_vllm
from vllm_stand_in import load, releases, stand_in

try:
    import torch
except ImportError:
    torch = None

OURS = [f"attnsmith.vllm{name}" for name in ("", "._cache", "._common", "._context_parallel", "._dense", "._layers", "._metadata",
                                              "._mla", "._mla_prefill")]
NEWEST = releases()[-1]


def config_of(block_size=None, **model):
    """What attnsmith reads of a VllmConfig."""
    spaces = types.SimpleNamespace
    model = {"dtype": torch.bfloat16, "use_mla": False, **model}
    return spaces(model_config=spaces(**model), cache_config=spaces(block_size=block_size), attention_config=spaces(
        mla_prefill_backend=None, use_non_causal=False), compilation_config=spaces(static_forward_context={}),
        parallel_config=spaces(cp_kv_cache_interleave_size=1, dcp_comm_backend="ag_rs", decode_context_parallel_size=1,
                               use_ubatching=False),
        scheduler_config=spaces(max_num_seqs=64, async_scheduling=True), speculative_config=None)


def no_group():
    raise AssertionError("there are no groups of ranks")


@contextlib.contextmanager
def release(name, config=None, **answers):
    """A stand-in of a release in which attnsmith is registered. Gives its backend."""
    given = {"VLLM_BATCH_INVARIANT": False, "get_current_vllm_config_or_none": lambda: config,
             "get_kv_cache_layout": lambda: "NHD", "get_dcp_group": no_group, **answers}
    with stand_in(load(name), given, fresh=OURS) as vllm:
        attnsmith_vllm.register()
        path = next(iter(vllm.registered.values()))
        yield resolved(path), vllm


def resolved(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)

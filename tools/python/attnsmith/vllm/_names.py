"""The name that vLLM knows the backend by."""

from __future__ import annotations

from attnsmith_vllm import NAME


def registered() -> str:
    """ "ATTNSMITH" in releases that can add a name, else "CUSTOM"; a member of vLLM's AttentionBackendEnum in any case."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    return NAME if NAME in AttentionBackendEnum.__members__ else "CUSTOM"

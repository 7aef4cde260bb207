"""attnsmith as an attention backend of vLLM.

    vllm serve MODEL --attention-backend ATTNSMITH        # CUSTOM in releases that cannot add a name

vLLM finds it by the entry point of the package attnsmith_vllm; nothing has to be imported. docs/vllm.md says what is served.

Decoder layers, encoders and cross attention are served, with grouped heads, head dims to 512, sliding windows, softcap, ALiBi,
sinks, and fp8 caches with scales of tensors, heads, or each token and head; and MLA. What is not served is refused by name when
the engine starts.
"""

from __future__ import annotations

from typing import Any

from .._base.extras import missing

try:
    import vllm as _vllm  # noqa: F401
except ImportError as _error:
    raise missing("attnsmith.vllm", "vLLM", "vllm", _error) from _error


def __getattr__(name: str) -> Any:
    # vLLM asks for the class by this name with the model's configuration at hand.
    if name == "AttnsmithBackend":
        return _backend()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _backend() -> Any:
    from vllm.config import get_current_vllm_config_or_none
    config = get_current_vllm_config_or_none()
    if config is not None and config.model_config is not None and config.model_config.use_mla:
        from ._mla import AttnsmithMLABackend
        return AttnsmithMLABackend
    from ._dense import AttnsmithDenseBackend
    return AttnsmithDenseBackend

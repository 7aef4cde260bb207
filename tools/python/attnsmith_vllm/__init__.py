"""vLLM's entry point `vllm.general_plugins`: makes attnsmith's attention backend known to vLLM.

The name is "ATTNSMITH" in releases that can add one, and "CUSTOM" in the others:

    vllm serve MODEL --attention-backend ATTNSMITH

vLLM calls register() in each of its processes. It imports nothing of attnsmith, so vLLM starts no slower without the backend.
`VLLM_PLUGINS` switches it off as any other plugin.
"""

import logging
from typing import Any, Optional

NAME = "ATTNSMITH"
#: The class is chosen when vLLM asks for it, since MLA models need another one.
BACKEND = "attnsmith.vllm.AttnsmithBackend"

_log = logging.getLogger("attnsmith.vllm")


def register() -> None:
    """Registers the backend. Raises nothing: a release without the registry is logged, and vLLM starts without attnsmith."""
    try:
        from vllm.v1.attention.backends import registry
        name = _register(registry)
    except Exception as error:  # of any release: a plugin must not stop an engine that may not use it
        _log.warning("attnsmith's attention backend is not available in this vLLM: %s: %s", type(error).__name__, error)
        return
    if name is None:
        _log.warning("attnsmith's attention backend is not available: this vLLM has only the name CUSTOM, and another plugin "
                     "has registered that. Leave that plugin out of VLLM_PLUGINS to use attnsmith.")


def backend_name() -> str:
    """What vLLM calls the backend that register() has made known: a member of its AttentionBackendEnum."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    return NAME if NAME in AttentionBackendEnum.__members__ else str(AttentionBackendEnum.CUSTOM.name)


def _register(registry: Any) -> Optional[str]:
    """The name under which the backend is known now; None if it could not have one."""
    members = registry.AttentionBackendEnum
    if NAME in members.__members__:  # from an earlier call in this process
        return NAME
    if hasattr(members, "register"):
        registry.register_backend(NAME, BACKEND)
        return NAME
    if members.CUSTOM.is_overridden() and members.CUSTOM.get_path() != BACKEND:
        return None
    registry.register_backend(members.CUSTOM, BACKEND)
    return str(members.CUSTOM.name)

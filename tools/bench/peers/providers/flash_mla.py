"""FlashMLA: latent attention's decode only."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Optional

from ..cases import Case
from ..tensors import Tensors
from .base import Provider


class FlashMla(Provider):
    name = "flashmla"
    title = "FlashMLA"
    install = "sgl-flash-mla, or build FlashMLA"
    modules = ("flash_mla",)
    distributions = ("flash-mla", "sgl-flash-mla", "tokenspeed-flashmla")
    isolated = True

    def refuses(self, case: Case) -> Optional[str]:
        if not case.shared_kv:
            return "latent attention only (--cases mla)"
        if case.kv != "paged" or case.page_size != 64:
            return "pages of 64 only"
        return super().refuses(case)

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        module = self.module()
        # Older versions need the arguments, newer ones ignore them.
        schedule, splits = module.get_mla_metadata(tensors.kv_lens, case.q_len * case.group, case.kv_heads)
        options: Dict[str, Any] = dict(causal=case.causal)
        if "use_legacy" in inspect.signature(module.flash_mla_with_kvcache).parameters:
            options["use_legacy"] = True  # where that fork keeps Hopper and dense caches

        def call() -> Any:
            return module.flash_mla_with_kvcache(tensors.q, tensors.k, tensors.page_table, tensors.kv_lens,
                                                 case.head_dim_vo, schedule, splits, **options)[0]

        return call

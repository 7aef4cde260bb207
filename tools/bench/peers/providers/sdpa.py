"""PyTorch's scaled_dot_product_attention, held to one backend."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Optional

from ..cases import Case
from ..tensors import Tensors
from .base import Provider, Refused


class Sdpa(Provider):
    install = "torch"
    distributions = ("torch",)
    backend = ""  # a member of torch.nn.attention.SDPBackend

    def refuses(self, case: Case) -> Optional[str]:
        if case.kv != "dense":
            return "SDPA takes dense tensors, no %s KV" % case.kv
        if case.window is not None:
            return "SDPA has no window without a mask tensor"
        if case.causal and case.q_len != case.kv_len:
            return "SDPA's causal mask is top-left aligned"
        return super().refuses(case)

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, self.backend)
        q, k, v = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v))
        options: Dict[str, Any] = dict(is_causal=case.causal)
        if case.group > 1:
            options["enable_gqa"] = True

        def call() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

        # A backend says why it refuses in warnings, and then only that there is no kernel.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                call()
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                whys = [str(warning.message).split(" (Triggered")[0].strip() for warning in said]
                whys = [why for why in whys if not why.endswith("because:")]
                raise Refused("; ".join(dict.fromkeys(whys))[:200] or "no available kernel") from error
        return call

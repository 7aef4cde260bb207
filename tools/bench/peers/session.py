"""Measures one case at a time inside one process: what a worker answers with. Needs torch and a GPU."""

from __future__ import annotations

import gc
import time
from typing import Any, Dict, List, Optional

from .cases import Case
from .providers import PROVIDERS, Refused
from .reference import Reference, check, make_reference
from .tensors import Tensors, how_many_sets, make_tensors
from .timing import Batch, ceilings


class FatalError(Exception):
    """The CUDA context is lost: the process has to end."""


class Session:
    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.case: Optional[Case] = None
        self.inputs: List[Tensors] = []
        self.reference: Optional[Reference] = None
        self.rounded_reference: Optional[Reference] = None  # for who rounds Q and the weights to 8 bits
        self.batches: Dict[str, Batch] = {}
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")  # makes the context

    def describe(self, providers: List[str]) -> Dict[str, Any]:
        torch = self.torch
        if not torch.cuda.is_available():
            return {"error": "PyTorch sees no GPU"}
        versions = {}
        for name in providers:
            try:
                versions[name] = PROVIDERS[name].versions()
            except Exception as error:
                versions[name] = {"error": one_line(error)}
        properties = torch.cuda.get_device_properties(0)
        return {"device": properties.name, "sms": properties.multi_processor_count,
                "l2_bytes": getattr(properties, "L2_cache_size", None),
                "torch": torch.__version__, "cuda": torch.version.cuda, "versions": versions}

    def ceilings(self) -> Dict[str, float]:
        return ceilings(self.torch)

    def begin(self, case: Dict[str, Any]) -> Dict[str, Any]:
        self.end()
        self.case = Case.from_json(case)
        self.inputs = [make_tensors(self.torch, self.case, i) for i in range(how_many_sets(self.case))]
        self.reference = make_reference(self.torch, self.case, self.inputs[0])
        self.torch.cuda.synchronize()
        return {"sets": len(self.inputs)}

    def end(self) -> Dict[str, Any]:
        if self.case is None:
            return {}
        self.batches.clear()
        self.inputs, self.reference, self.rounded_reference, self.case = [], None, None, None
        gc.collect()
        gc.freeze()  # packages' objects stay: the next collection need not go through them
        self.torch.cuda.empty_cache()  # another process may need it
        return {}

    def add(self, provider: str, build_only: bool = False) -> Dict[str, Any]:
        """Builds, runs and checks; its status is ok, wrong, refused or failed."""
        assert self.case is not None
        started = time.monotonic()
        refusal = PROVIDERS[provider].refuses(self.case)
        if refusal:
            return {"status": "refused", "reason": refusal}
        try:
            calls = [PROVIDERS[provider].make(self.case, tensors) for tensors in self.inputs]
            out = calls[0]()
            self.torch.cuda.synchronize()
            first_call = time.monotonic() - started
            if build_only:
                return {"status": "ok", "first_call_s": round(first_call, 3)}
            reference = self.reference_for(provider)
            verdict = check(self.torch, self.case, reference, out)
            del out
            if not verdict.right:
                return {"status": "wrong", "reason": verdict.reason, "max_error": finite(verdict.max_error)}
            batch = Batch(self.torch, calls)
            if batch.graph is not None:
                again = check(self.torch, self.case, reference, batch.replay_into_nan())
                if not again.right:
                    return {"status": "wrong", "reason": "as a CUDA graph: " + again.reason,
                            "max_error": finite(again.max_error)}
            self.batches[provider] = batch
            found = {"status": "ok", "max_error": verdict.max_error, "first_call_s": round(first_call, 3),
                     "method": "graph" if batch.graph is not None else "launches", "launches": batch.launches,
                     "sets": len(self.inputs)}
            if batch.why_not_graph:
                found["why_not_graph"] = batch.why_not_graph
            return found
        except Refused as error:
            return {"status": "refused", "reason": one_line(error)}
        except Exception as error:
            self.batches.pop(provider, None)
            self._still_alive(error)
            return {"status": "failed", "reason": "%s: %s" % (type(error).__name__, one_line(error))}

    def reference_for(self, provider: str) -> Reference:
        assert self.case is not None and self.reference is not None
        if not (self.case.kv_dtype and PROVIDERS[provider].rounds_q):
            return self.reference
        if self.rounded_reference is None:
            self.rounded_reference = make_reference(self.torch, self.case, self.inputs[0], rounded=True)
        return self.rounded_reference

    def round(self, provider: str, seconds: float) -> Dict[str, Any]:
        try:
            return {"ms": self.batches[provider].measure_ms(seconds)}
        except Exception as error:
            self._still_alive(error)
            return {"status": "failed", "reason": one_line(error)}

    def _still_alive(self, error: Exception) -> None:
        """After an illegal access nothing works any more in this process."""
        try:
            self.torch.cuda.synchronize()
            self.torch.zeros(1, device="cuda").add_(1).item()
        except Exception:
            raise FatalError(one_line(error)) from error


def one_line(error: object) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:240]


def finite(value: float) -> Optional[float]:
    return value if value == value and abs(value) != float("inf") else None  # JSON has no infinity

"""attnsmith through its Python package, bound once: what is timed is its launch."""

from __future__ import annotations

import os
import pathlib
import sys
from dataclasses import replace
from typing import Any, Callable, Dict, Optional

from ..cases import Case
from ..tensors import Tensors, numbers_of, torch_dtype
from .base import Provider, Refused

IN_TREE = pathlib.Path(__file__).resolve().parents[4] / "tools/python"


class Attnsmith(Provider):
    name = "attnsmith"
    title = "attnsmith"
    install = "attnsmith, or build it and set ATTNSMITH_LIBRARY"
    modules = ("attnsmith",)
    distributions = ("attnsmith",)
    takes_8_bits = True

    def __init__(self) -> None:
        self._runtime: Any = None

    def module_name(self) -> Optional[str]:
        found = super().module_name()
        if found is None and (IN_TREE / "attnsmith").is_dir():
            sys.path.insert(0, str(IN_TREE))
            found = super().module_name()
        return found

    def available(self) -> Optional[str]:
        library = os.environ.get("ATTNSMITH_LIBRARY")
        if library and not os.path.exists(library):
            return "ATTNSMITH_LIBRARY names a file that is not there"
        return super().available()

    def versions(self) -> Dict[str, str]:
        version = getattr(self.module(), "__version__", None)
        return {"attnsmith": str(version)} if version else super().versions()

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        module = self.module()
        if self._runtime is None:
            self._runtime = module.Runtime()
        asked: Dict[str, Any] = dict(dtype=case.dtype, q_heads=case.q_heads, kv_heads=case.kv_heads, kv=case.kv,
                                     mask="causal" if case.causal else "full",
                                     batch=case.batch, q_len=case.q_len, kv_len=case.kv_len)
        if case.shared_kv:
            asked.update(op="mla", head_dim_ckv=case.head_dim_vo, head_dim_kpe=case.head_dim_qk - case.head_dim_vo,
                         scale=case.head_dim_qk**-0.5)
        elif case.head_dim_qk == case.head_dim_vo:
            asked["head_dim"] = case.head_dim_qk
        else:
            asked.update(head_dim_qk=case.head_dim_qk, head_dim_vo=case.head_dim_vo)
        if case.kv_dtype:
            asked.update(kv_dtype=case.kv_dtype, kv_scale=case.kv_scale)
        if case.window is not None:
            asked["window_left"] = case.window[0]
            if not case.causal:
                asked["window_right"] = case.window[1]
        if case.kv == "paged":
            asked["page_size"] = case.page_size
        out = tensors.empty_output(case)
        given: Dict[str, Any] = dict(q=tensors.q, k=tensors.k, o=out)
        if not case.shared_kv:
            given["v"] = tensors.v
        if case.kv_dtype:
            given["k_scale"] = tensors.k_scale
            if not case.shared_kv:  # whose scale is one for keys and values
                given["v_scale"] = tensors.v_scale
        if case.kv == "ragged":
            given.update(kv_indptr=tensors.kv_indptr, max_kv_len=case.kv_len)
        elif case.kv == "paged":
            given.update(page_table=tensors.page_table, kv_lens=tensors.kv_lens, max_kv_len=case.kv_len)
        if case.ragged_q:
            given.update(q_indptr=tensors.q_indptr, max_q_len=case.q_len)
        try:
            call = self._runtime.prepare(**asked).bind(**given)
        except getattr(module, "Unsupported", Refused) as error:
            raise Refused(str(error)) from error

        def launch() -> Any:
            call.launch()  # on torch's current stream: a graph is captured on one of its own
            return out

        return launch


class AttnsmithBf16(Attnsmith):
    """attnsmith itself with the keys and values of a case of 8 bits in its 16: what these are compared with, in turn in
    the same rounds. Speeds are by the bytes of the case, as of all, so that columns compare as times do."""

    name = Attnsmith.name + "-bf16"
    title = "attnsmith, KV of 16 bits in cases of 8"

    def refuses(self, case: Case) -> Optional[str]:
        if not case.kv_dtype:
            return "only where KV is of 8 bits; for the others see attnsmith"
        return super().refuses(case)

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        import torch

        dtype = torch_dtype(torch, case.dtype)
        # Rounded once more, to 8 significant bits from 4 and the scale: well within the tolerance of 16-bit inputs.
        k = numbers_of(tensors.k, tensors.k_scale, torch.float32).to(dtype)
        v = k[..., :case.head_dim_vo] if case.shared_kv else numbers_of(
            tensors.v, tensors.v_scale, torch.float32).to(dtype)
        return super().make(replace(case, kv_dtype="", kv_scale=""), replace(tensors, k=k, v=v))

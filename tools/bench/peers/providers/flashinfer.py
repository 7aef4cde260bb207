"""FlashInfer's wrappers: planned once, as an engine does once a step, then run. nvcc builds kernels when first used."""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable

from ..cases import Case
from ..tensors import Tensors, indptr, torch_dtype
from .base import Provider, Refused

WORKSPACE_BYTES = 256 << 20
DENSE_PAGE = 64  # a dense cache is given to the decode wrapper as pages of this size, in order


class FlashInfer(Provider):
    name = "flashinfer"
    title = "FlashInfer"
    install = "flashinfer-python (and flashinfer-jit-cache, or nvcc and ninja)"
    modules = ("flashinfer",)
    needs = ("tvm_ffi",)
    distributions = ("flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin")
    isolated = True
    compiles = True

    def compile_key(self, case: Case) -> Hashable:
        wrapper = "decode" if self._decodes_on_cuda_cores(case) else "prefill"
        return (wrapper, case.dtype, case.head_dims, case.window is not None)

    @staticmethod
    def _decodes_on_cuda_cores(case: Case) -> bool:
        return case.is_decode and case.group < 4

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        import torch

        module = self.module()
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=tensors.q.device)
        dtype = torch_dtype(torch, case.dtype)
        window_left = case.window[0] if case.window is not None else -1
        if case.window is not None and not (case.causal and case.window[1] == 0):
            raise Refused("windows are to the left, with a causal mask")
        common: Dict[str, Any] = dict(window_left=window_left, q_data_type=dtype, kv_data_type=dtype)
        if case.is_decode or case.kv == "paged":
            return self._paged(module, torch, case, tensors, workspace, common)
        q, k, v = (t.flatten(0, -3) for t in (tensors.q, tensors.k, tensors.v))
        wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(tensors.q_indptr, tensors.kv_indptr, case.q_heads, case.kv_heads, case.head_dim_qk,
                     head_dim_vo=case.head_dim_vo, causal=case.causal, **common)
        return lambda: wrapper.run(q, k, v)

    def _paged(self, module: Any, torch: Any, case: Case, tensors: Tensors, workspace: Any,
               common: Dict[str, Any]) -> Callable[[], Any]:
        device = tensors.q.device
        page_size = case.page_size or DENSE_PAGE
        if case.kv_len % page_size:
            raise Refused("a dense cache of %d keys is not whole pages of %d" % (case.kv_len, page_size))
        columns = case.kv_len // page_size
        cache = (tensors.k, tensors.v)
        if case.kv == "paged":
            indices = tensors.page_table.flatten()
        else:
            cache = tuple(t.view(case.batch * columns, page_size, *t.shape[2:]) for t in cache)
            indices = torch.arange(case.batch * columns, dtype=torch.int32, device=device)
        pages = indptr(torch, (columns,) * case.batch, device)
        last = torch.full((case.batch,), page_size, dtype=torch.int32, device=device)
        if case.is_decode:
            q = tensors.q.squeeze(1)
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
                workspace, "NHD", use_tensor_cores=not self._decodes_on_cuda_cores(case))
            wrapper.plan(pages, indices, last, case.q_heads, case.kv_heads, case.head_dim_qk, page_size, **common)
        else:
            q = tensors.q.flatten(0, 1)
            wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            wrapper.plan(tensors.q_indptr, pages, indices, last, case.q_heads, case.kv_heads, case.head_dim_qk,
                         page_size, head_dim_vo=case.head_dim_vo, causal=case.causal, **common)
        return lambda: wrapper.run(q, cache)

"""FlashInfer's wrappers: planned once, as an engine does once a step, then run. nvcc builds kernels when first used."""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, Optional, Tuple

from ..cases import Case
from ..tensors import Tensors, indptr, torch_dtype, torch_kv_dtype
from .base import Provider, Refused

WORKSPACE_BYTES = 256 << 20
DENSE_PAGE = 64  # a dense cache is given to the wrappers of paged ones as pages of this size, in order
COPIED_ELEMENTS = 64  # of a row at a time, by all kernels on tensor cores


class FlashInfer(Provider):
    name = "flashinfer"
    title = "FlashInfer"
    install = "flashinfer-python (and flashinfer-jit-cache, or nvcc and ninja)"
    modules = ("flashinfer",)
    needs = ("tvm_ffi",)
    distributions = ("flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin")
    isolated = True
    takes_8_bits = True
    compiles = True

    def __init__(self) -> None:
        self._workspace: Any = None

    def refuses(self, case: Case) -> Optional[str]:
        if case.shared_kv:
            return "latent attention has a wrapper of its own (flashinfer-mla)"
        if case.kv_scale == "head":
            return "one scale of all keys and one of all values"
        on_cuda_cores = self._wrapper(case) == "decode on CUDA cores"
        if not on_cuda_cores and (case.head_dim_qk % COPIED_ELEMENTS or case.head_dim_vo % COPIED_ELEMENTS):
            return "head dims of a multiple of %d only" % COPIED_ELEMENTS
        return super().refuses(case)

    def compile_key(self, case: Case) -> Hashable:
        return (self._wrapper(case), self._backend(case), case.dtype, case.kv_dtype, case.head_dims,
                case.window is not None)

    @staticmethod
    def _wrapper(case: Case) -> str:
        """Decode's takes one head dim for K and V, and one query a sequence."""
        if not case.is_decode or case.head_dim_qk != case.head_dim_vo:
            return "prefill"
        return "decode on CUDA cores" if case.group < 4 else "decode on tensor cores"

    def _backend(self, case: Case) -> str:
        """Of the prefill wrapper, which on Hopper takes kernels that do not split KV unless told otherwise."""
        return "fa2" if case.has_few_queries else "auto"

    def _shared_workspace(self, tensors: Tensors) -> Any:
        """One for all calls, as they follow each other."""
        import torch

        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=tensors.q.device)
        return self._workspace

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        import torch

        module = self.module()
        dtype = torch_dtype(torch, case.dtype)
        window_left = case.window[0] if case.window is not None else -1
        if case.window is not None and not (case.causal and case.window[1] == 0):
            raise Refused("windows are to the left, with a causal mask")
        common: Dict[str, Any] = dict(window_left=window_left, q_data_type=dtype,
                                      kv_data_type=torch_kv_dtype(torch, case))
        if case.has_few_queries or case.kv == "paged" or case.kv_dtype:  # ragged ones take no scales
            return self._paged(module, torch, case, tensors, common)
        q, k, v = (t.flatten(0, -3) for t in (tensors.q, tensors.k, tensors.v))
        wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(self._shared_workspace(tensors), "NHD")
        wrapper.plan(tensors.q_indptr, tensors.kv_indptr, case.q_heads, case.kv_heads, case.head_dim_qk,
                     head_dim_vo=case.head_dim_vo, causal=case.causal, **common)
        return lambda: wrapper.run(q, k, v)

    def _paged(self, module: Any, torch: Any, case: Case, tensors: Tensors,
               common: Dict[str, Any]) -> Callable[[], Any]:
        q = tensors.q.flatten(0, -3)
        cache, page_size = (tensors.k, tensors.v), case.page_size
        pages = (tensors.page_indptr, tensors.page_indices, tensors.last_page_lens)
        if case.kv == "dense":
            page_size = DENSE_PAGE
            cache, pages = self._as_pages(torch, case, tensors)
        if self._wrapper(case) == "prefill":
            wrapper = module.BatchPrefillWithPagedKVCacheWrapper(self._shared_workspace(tensors), "NHD",
                                                                 backend=self._backend(case))
            wrapper.plan(tensors.q_indptr, *pages, case.q_heads, case.kv_heads, case.head_dim_qk, page_size,
                         head_dim_vo=case.head_dim_vo, causal=case.causal, **common)
        else:
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
                self._shared_workspace(tensors), "NHD", use_tensor_cores=self._wrapper(case) == "decode on tensor cores")
            wrapper.plan(*pages, case.q_heads, case.kv_heads, case.head_dim_qk, page_size, **common)
        scales: Dict[str, float] = {}
        if case.kv_dtype:  # numbers on the host; that of values is a kernel of its own behind the attention
            scales = dict(k_scale=float(tensors.k_scale), v_scale=float(tensors.v_scale))
        return lambda: wrapper.run(q, cache, **scales)

    @staticmethod
    def _as_pages(torch: Any, case: Case, tensors: Tensors) -> Tuple[Tuple[Any, Any], Tuple[Any, Any, Any]]:
        """A dense cache and the indices of its pages."""
        device = tensors.q.device
        if case.kv_len % DENSE_PAGE:
            raise Refused("a dense cache of %d keys is not whole pages of %d" % (case.kv_len, DENSE_PAGE))
        columns = case.kv_len // DENSE_PAGE
        k, v = (t.view(case.batch * columns, DENSE_PAGE, *t.shape[2:]) for t in (tensors.k, tensors.v))
        return (k, v), (indptr(torch, (columns,) * case.batch, device),
                        torch.arange(case.batch * columns, dtype=torch.int32, device=device),
                        torch.full((case.batch,), DENSE_PAGE, dtype=torch.int32, device=device))


class FlashInferFa2(FlashInfer):
    """Its older kernels where it does not take them itself: they share out long keys, and no one rule says when
    that is worth more than Hopper's instructions."""

    name = "flashinfer-fa2"
    title = "FlashInfer, its fa2 kernels"

    def refuses(self, case: Case) -> Optional[str]:
        if case.kv != "paged" or not case.ragged_q:
            return "only for paged KV where sequences differ in queries; for the others see flashinfer"
        return super().refuses(case)

    def _backend(self, case: Case) -> str:
        return "fa2"


class FlashInferMla(FlashInfer):
    """Its wrapper for latent attention, by the kernels that it has for Hopper."""

    name = "flashinfer-mla"
    title = "FlashInfer, latent attention"

    def refuses(self, case: Case) -> Optional[str]:
        if not case.shared_kv:
            return "latent attention only (--cases mla)"
        if case.kv != "paged":
            return "paged KV only"
        return Provider.refuses(self, case)

    def compile_key(self, case: Case) -> Hashable:
        return ("mla", case.dtype, case.kv_dtype, case.head_dims)

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        import torch

        dtype, latent, rope = torch_dtype(torch, case.dtype), case.head_dim_vo, case.head_dim_qk - case.head_dim_vo
        wrapper = self.module().mla.BatchMLAPagedAttentionWrapper(self._shared_workspace(tensors), backend="fa3")
        wrapper.plan(tensors.q_indptr, tensors.page_indptr, tensors.page_indices, tensors.kv_lens, case.q_heads, latent,
                     rope, case.page_size, case.causal, case.head_dim_qk ** -0.5, dtype,
                     torch_kv_dtype(torch, case))
        q, cache = tensors.q.flatten(0, -3), tensors.k.squeeze(-2)
        parts = tuple(part for tensor in (q, cache) for part in tensor.split((latent, rope), dim=-1))
        scales: Dict[str, float] = {}
        if case.kv_dtype:
            scales = dict(ckv_scale=float(tensors.k_scale), kpe_scale=float(tensors.k_scale))
        return lambda: wrapper.run(*parts, **scales)

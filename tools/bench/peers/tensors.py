"""The inputs of a case: seeded, so that every process that measures it makes the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List

from .cases import Case

ROTATED_BYTES = 256 << 20  # several times any L2
MOST_SETS = 16


@dataclass
class Tensors:
    """Torch tensors. Whatever the layout, all index tensors are there, in int32.

    q is [batch, q_len, heads, dim], ragged [tokens, heads, dim]; k and v likewise, paged [pages, page_size, ...].
    """

    q: Any
    k: Any
    v: Any
    q_indptr: Any
    kv_indptr: Any
    kv_lens: Any
    page_table: Any = None  # [batch, pages of the longest]

    def empty_output(self, case: Case) -> Any:
        # NaN, so that a row that is never written cannot pass for one.
        return self.q.new_full(tuple(self.q.shape[:-1]) + (case.head_dim_vo,), float("nan"))


def how_many_sets(case: Case) -> int:
    """Launches go round this many copies of the inputs, so that none finds its own in L2."""
    return max(2, min(MOST_SETS, int(ROTATED_BYTES // (case.bytes + 1)) + 1))


def torch_dtype(torch: Any, dtype: str) -> Any:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def indptr(torch: Any, lens: Any, device: str) -> Any:
    sums = [0]
    for length in lens:
        sums.append(sums[-1] + length)
    return torch.tensor(sums, dtype=torch.int32, device=device)


def make_tensors(torch: Any, case: Case, index: int, device: str = "cuda") -> Tensors:
    random = torch.Generator(device=device)
    random.manual_seed(case.seed + index)
    dtype = torch_dtype(torch, case.dtype)

    def normal(*shape: int) -> Any:
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=random)

    page_table = None
    if case.kv == "ragged":
        q = normal(sum(case.q_lens), case.q_heads, case.head_dim_qk)
        kv_shape: List[int] = [sum(case.kv_lens)]
    else:
        q = normal(case.batch, case.q_len, case.q_heads, case.head_dim_qk)
        kv_shape = [case.batch, case.kv_len]
    if case.kv == "paged":
        # Pages in shuffled order, as a cache that has been in use has them.
        columns = -(-case.kv_len // case.page_size)
        order = torch.randperm(case.batch * columns, generator=random, device=device)
        page_table = order.to(torch.int32).view(case.batch, columns)
        kv_shape = [case.batch * columns, case.page_size]
    k = normal(*kv_shape, case.kv_heads, case.head_dim_qk)
    v = k[..., :case.head_dim_vo] if case.shared_kv else normal(*kv_shape, case.kv_heads, case.head_dim_vo)
    return Tensors(q, k, v, indptr(torch, case.q_lens, device), indptr(torch, case.kv_lens, device),
                   torch.tensor(case.kv_lens, dtype=torch.int32, device=device), page_table)

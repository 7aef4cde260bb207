"""The inputs of a case: seeded, so that every process that measures it makes the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from .cases import Case

ROTATED_BYTES = 256 << 20  # several times any L2
MOST_SETS = 160  # bounds what making calls takes; the smallest case, one sequence of 1024 keys of 8 bits, needs 127


@dataclass
class Tensors:
    """Torch tensors. Whatever the layout, all index tensors are there, in int32; those of pages where KV is paged.

    q is [batch, q_len, heads, dim], or [tokens, heads, dim] where Case.ragged_q; k and v are the same of dense and
    ragged KV, and paged [pages, page_size, ...].
    """

    q: Any
    k: Any
    v: Any
    q_indptr: Any
    kv_indptr: Any
    kv_lens: Any
    # Pages twice: as a table, and as offsets, a list and how many keys each last page has.
    page_table: Any = None  # [batch, pages of the longest]
    page_indptr: Any = None
    page_indices: Any = None
    last_page_lens: Any = None
    # Where k and v have 8 bits, fp32 [1] or [kv_heads]: the number that is meant is what is stored times its scale.
    k_scale: Any = None
    v_scale: Any = None
    # Then q in 8 bits, too, for who takes no other, with its scale [1].
    q_rounded: Any = None
    q_scale: Any = None

    def empty_output(self, case: Case) -> Any:
        # NaN, so that a row that is never written cannot pass for one.
        return self.q.new_full(tuple(self.q.shape[:-1]) + (case.head_dim_vo,), float("nan"))


def how_many_sets(case: Case) -> int:
    """Launches go round this many copies of the inputs, so that none finds its own in L2."""
    return max(2, min(MOST_SETS, int(ROTATED_BYTES // (case.bytes + 1)) + 1))


def torch_dtype(torch: Any, dtype: str) -> Any:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def torch_kv_dtype(torch: Any, case: Case) -> Any:
    return {"": torch_dtype(torch, case.dtype), "e4m3": getattr(torch, "float8_e4m3fn", None)}[case.kv_dtype]


LARGEST_E4M3 = 448.0


def in_8_bits(torch: Any, numbers: Any, by_head: bool) -> Tuple[Any, Any]:
    """Stored numbers of e4m3 and their scale, by which the largest becomes e4m3's largest: of all, or of each head."""
    scale = (numbers.abs().flatten(0, -3).amax(dim=(0, 2)) if by_head else numbers.abs().amax().view(1)).float()
    scale = (scale / LARGEST_E4M3).clamp(min=2.0 ** -30)  # of numbers that are all 0, too
    # Cut off, since what torch rounds past the largest may be NaN.
    stored = (numbers.float() / scale.view(-1, 1)).clamp(-LARGEST_E4M3, LARGEST_E4M3)
    return stored.to(torch.float8_e4m3fn), scale


def numbers_of(stored: Any, scale: Optional[Any], dtype: Any) -> Any:
    """What tensors [..., heads, dim] stand for."""
    if scale is None:
        return stored.to(dtype)
    return stored.to(dtype) * scale.to(dtype).view(-1, 1)


def gathered(torch: Any, pages: Any, indices: Any) -> Any:
    """pages[indices], of any dtype: as bytes where torch may not index floats of 8 bits."""
    if pages.element_size() > 1:
        return pages[indices]
    return pages.view(torch.uint8)[indices].view(pages.dtype)


def indptr(torch: Any, lens: Any, device: str) -> Any:
    sums = [0]
    for length in lens:
        sums.append(sums[-1] + length)
    return torch.tensor(sums, dtype=torch.int32, device=device)


def token_axes(case: Case) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """The axes of q, and of k and v, that come before the heads."""
    of_q = (sum(case.q_lens),) if case.ragged_q else (case.batch, case.q_len)
    if case.kv == "paged":
        return of_q, (sum(case.page_counts), case.page_size)
    return of_q, (sum(case.kv_lens),) if case.kv == "ragged" else (case.batch, case.kv_len)


def make_tensors(torch: Any, case: Case, index: int, device: str = "cuda") -> Tensors:
    random = torch.Generator(device=device)
    random.manual_seed(case.seed + index)
    dtype = torch_dtype(torch, case.dtype)

    def normal(*shape: int) -> Any:
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=random)

    q_shape, kv_shape = token_axes(case)
    q = normal(*q_shape, case.q_heads, case.head_dim_qk)
    pages = make_pages(torch, case, random, device) if case.kv == "paged" else {}
    k = normal(*kv_shape, case.kv_heads, case.head_dim_qk)
    scales: Dict[str, Any] = {}
    if case.kv_dtype:
        k, scales["k_scale"] = in_8_bits(torch, k, case.kv_scale == "head")
        scales["q_rounded"], scales["q_scale"] = in_8_bits(torch, q, False)
    if case.shared_kv:
        v, scales["v_scale"] = k[..., :case.head_dim_vo], scales.get("k_scale")
    else:
        v = normal(*kv_shape, case.kv_heads, case.head_dim_vo)
        if case.kv_dtype:
            v, scales["v_scale"] = in_8_bits(torch, v, case.kv_scale == "head")
    return Tensors(q, k, v, indptr(torch, case.q_lens, device), indptr(torch, case.kv_lens, device),
                   torch.tensor(case.kv_lens, dtype=torch.int32, device=device), **pages, **scales)


def make_pages(torch: Any, case: Case, random: Any, device: str) -> Dict[str, Any]:
    """The fields of Tensors for pages in shuffled order, as a cache that has been in use has them."""
    counts = case.page_counts
    indices = torch.randperm(sum(counts), generator=random, device=device).to(torch.int32)
    # Past a sequence's pages the table has page 0, as servers leave it: readable, and another sequence's.
    table = torch.zeros(case.batch, max(counts), dtype=torch.int32, device=device)
    used = torch.arange(max(counts), device=device) < torch.tensor(counts, device=device).view(-1, 1)
    table[used] = indices
    last = [length - (count - 1) * case.page_size for length, count in zip(case.kv_lens, counts)]
    return dict(page_table=table, page_indptr=indptr(torch, counts, device), page_indices=indices,
                last_page_lens=torch.tensor(last, dtype=torch.int32, device=device))

"""flashinfer.page: keys and values of new tokens on their way into pages."""

from __future__ import annotations

from typing import Optional, Tuple

import torch

from ... import functions
from ...errors import InvalidRequest
from . import _words
from ._words import Cache


def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """The tokens of each sequence, [batch], from kv_indptr [batch + 1], kv_last_page_len [batch] and page_size. That of
    a sequence without pages is its kv_last_page_len, as in FlashInfer."""
    full_pages = (kv_indptr[1:] - kv_indptr[:-1] - 1).clamp(min=0)
    return full_pages * page_size + kv_last_page_len


def get_batch_indices_positions(append_indptr: torch.Tensor, seq_lens: torch.Tensor, nnz: int,
                                batch_indices: Optional[torch.Tensor] = None,
                                positions: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    """The sequence of each new token and its place there, without waiting for the GPU.

    append_indptr: [batch + 1]: where each sequence's new tokens begin. seq_lens: [batch]: its tokens, the new ones
        included. nnz: how many new tokens there are, or more. batch_indices, positions: int32 [nnz], to be written.

    Gives (batch_indices, positions), int32 [nnz]. A token of no sequence gets -1 and, where positions were not given,
    0.

    Raises InvalidRequest naming an output that is of another shape or dtype.
    """
    _words.check_output("batch_indices", batch_indices, (nnz,), torch.int32)
    _words.check_output("positions", positions, (nnz,), torch.int32)
    device, ends = append_indptr.device, append_indptr[1:].contiguous()
    token = torch.arange(nnz, device=device, dtype=append_indptr.dtype)
    if not len(ends):  # no sequences, so no token is of one
        ends, seq_lens = append_indptr.new_zeros(1), seq_lens.new_zeros(1)
    sequence = torch.searchsorted(ends, token, right=True)
    inside = (token >= append_indptr[:1]) & (token < append_indptr[-1:])
    sequence = torch.where(inside, sequence, torch.zeros_like(sequence))
    # Places are counted from a sequence's end, where its last new token is.
    place = (token + seq_lens.to(device)[sequence] - ends[sequence]).int()
    none = torch.full((nnz,), -1, device=device, dtype=torch.int32)
    found = torch.where(inside, sequence.int(), none)
    place = torch.where(inside, place, torch.zeros_like(place) if positions is None else positions)
    return (found if batch_indices is None else batch_indices.copy_(found),
            place if positions is None else positions.copy_(place))


def _slots(batch_indices: torch.Tensor, positions: torch.Tensor, kv_indices: torch.Tensor, kv_indptr: torch.Tensor,
           page_size: int) -> torch.Tensor:
    """page * page_size + offset of each token, on the device; -1, which append() passes over, of one of no sequence."""
    known = batch_indices >= 0
    sequence, position = batch_indices.clamp(min=0).long(), torch.where(known, positions, torch.zeros_like(positions))
    page = torch.div(position, page_size, rounding_mode="floor") + kv_indptr[sequence]
    page = kv_indices[torch.where(known, page, torch.zeros_like(page)).long()].long()
    slots = page * page_size + position % page_size
    return torch.where(known, slots, torch.full_like(slots, -1))


def _rows(name: str, rows: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """New tokens as append() takes them. Those of e4m3 are widened, from which the cache's rounding takes them back to the
    same bits."""
    if rows.dtype != cache.dtype:
        raise InvalidRequest(f"{name}.dtype", str(rows.dtype), f"{cache.dtype}, as the cache is; attnsmith.append "
                             "rounds to 8 bits")
    return rows.half() if rows.dtype == torch.float8_e4m3fn else rows


def _copy_e5m2(name: str, rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """rows [tokens, ...] to their slots of cache [pages, page_size, ...], by torch and bit for bit: append() rounds, and
    rounding makes the largest number of e5m2's infinities and one NaN of all. A token of no sequence repeats what the first
    one of some sequence writes, or, where there is none, what the cache holds, so that nothing waits for the GPU."""
    if rows.shape != (*slots.shape, *cache.shape[2:]):
        raise InvalidRequest(f"{name}.shape", str(tuple(rows.shape)), str((*slots.shape, *cache.shape[2:])))
    known = slots >= 0
    tokens = torch.where(known, torch.arange(len(slots), device=slots.device), known.int().argmax())
    places = slots[tokens].clamp(min=0)
    page, offset = torch.div(places, cache.shape[1], rounding_mode="floor"), places % cache.shape[1]
    target = cache.view(torch.uint8)
    target[page, offset] = torch.where(known.any(), rows.view(torch.uint8)[tokens], target[page, offset])


def append_paged_kv_cache(append_key: torch.Tensor, append_value: torch.Tensor, batch_indices: torch.Tensor,
                          positions: torch.Tensor, paged_kv_cache: Cache, kv_indices: torch.Tensor,
                          kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, kv_layout: str = "NHD") -> None:
    """Writes keys and values of new tokens into pages, without waiting for the GPU.

    append_key, append_value: [tokens, num_kv_heads, head_dim], of the cache's dtype. batch_indices, positions:
        [tokens], as get_batch_indices_positions gives them; a token of a negative batch index is passed over.
    paged_kv_cache: (k_cache, v_cache), each [pages, page_size, num_kv_heads, head_dim] for kv_layout "NHD" or [pages,
        num_kv_heads, page_size, head_dim] for "HND"; or one tensor [pages, 2, ...] of both. kv_indices: [pages of all].
        kv_indptr: [batch + 1]. Hint: kv_last_page_len, which positions make needless, as in FlashInfer.

    Raises InvalidRequest naming the tensor, and what attnsmith.append raises.
    """
    layout = _words.layout(kv_layout)
    k_cache, v_cache = _words.unpacked(paged_kv_cache, "paged_kv_cache", layout)
    keys, values = _rows("append_key", append_key, k_cache), _rows("append_value", append_value, v_cache)
    if not len(keys):
        return
    slots = _slots(batch_indices, positions, kv_indices, kv_indptr, k_cache.shape[1 if layout == "NHD" else 2])
    if keys.dtype == values.dtype == torch.float8_e5m2:
        for name, rows, cache in (("append_key", keys, k_cache), ("append_value", values, v_cache)):
            _copy_e5m2(name, rows, cache if layout == "NHD" else cache.transpose(1, 2), slots)
        return
    functions.append(keys, values, k_cache, v_cache, slot_mapping=slots, page_order=layout)


def append_paged_mla_kv_cache(append_ckv: torch.Tensor, append_kpe: torch.Tensor, batch_indices: torch.Tensor,
                              positions: torch.Tensor, ckv_cache: Optional[torch.Tensor],
                              kpe_cache: Optional[torch.Tensor], kv_indices: torch.Tensor, kv_indptr: torch.Tensor,
                              kv_last_page_len: torch.Tensor) -> None:
    """Writes latents of new tokens, and the columns of their positions, into pages, without waiting for the GPU.

    append_ckv: [tokens, ckv_dim]. append_kpe: [tokens, kpe_dim]. ckv_cache: [pages, page_size, ckv_dim], of the same
        dtype. kpe_cache: [pages, page_size, kpe_dim]. batch_indices, positions [tokens], kv_indices [pages of all],
        kv_indptr [batch + 1] and the hint kv_last_page_len: as append_paged_kv_cache has them.

    Raises InvalidRequest naming the tensor, and what attnsmith.append raises.
    """
    if ckv_cache is None or kpe_cache is None:
        raise InvalidRequest("ckv_cache" if ckv_cache is None else "kpe_cache", "nothing", "a tensor to write to")
    latents, position = _rows("append_ckv", append_ckv, ckv_cache), _rows("append_kpe", append_kpe, kpe_cache)
    if not len(latents):
        return
    slots = _slots(batch_indices, positions, kv_indices, kv_indptr, ckv_cache.shape[1])
    if latents.dtype == position.dtype == torch.float8_e5m2:
        _copy_e5m2("append_ckv", latents, ckv_cache, slots)
        _copy_e5m2("append_kpe", position, kpe_cache, slots)
        return
    functions.append(latents, None, ckv_cache, kpe=position, kpe_cache=kpe_cache, head_dim_ckv=append_ckv.shape[-1],
                     slot_mapping=slots, page_order="NHD")

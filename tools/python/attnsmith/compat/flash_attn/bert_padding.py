"""flash_attn.bert_padding: padded sequences in a row without their padding, and back."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from ...errors import InvalidRequest

__all__ = ["index_first_axis", "index_first_axis_residual", "index_put_first_axis", "pad_input", "unpad_input",
           "unpad_input_for_concatenated_sequences"]


def index_first_axis(input: Any, indices: Any) -> Any:
    """The rows `indices` [n] of input [rows, ...]."""
    return input[indices]


def index_first_axis_residual(input: Any, indices: Any) -> Tuple[Any, Any]:
    """(The rows `indices` [n] of input [rows, ...], input without its gradient)."""
    return input[indices], input.detach()


def index_put_first_axis(values: Any, indices: Any, first_axis_dim: int) -> Any:
    """[first_axis_dim, ...] of zeros, with values [n, ...] at the rows `indices` [n]."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """[batch, seqlen, ...] of zeros, with hidden_states [total, ...] at the places `indices` [total] that unpad_input
    gave."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Optional[Any] = None) -> Tuple[Any, ...]:
    """The tokens of hidden_states [batch, seqlen, ...] that attention_mask [batch, seqlen] has, in a row.

    unused_mask: [batch, seqlen], tokens that are taken along but are no part of seqused.

    Gives (hidden_states [total, ...], indices [total], cu_seqlens int32 [batch + 1], max_seqlen, an integer, seqused
    int32 [batch]). It waits for the GPU, since the number of tokens is the result's shape.

    Raises InvalidRequest for a mask of another shape than the tokens.
    """
    _check_mask("attention_mask", attention_mask, hidden_states)
    taken = attention_mask
    if unused_mask is not None:
        _check_mask("unused_mask", unused_mask, hidden_states)
        taken = attention_mask + unused_mask
    return (*_tokens(hidden_states, taken), attention_mask.sum(-1, dtype=torch.int32))


def unpad_input_for_concatenated_sequences(hidden_states: Any, attention_mask_in_length: Any) -> Tuple[Any, ...]:
    """unpad_input where a row of hidden_states [batch, seqlen, ...] holds several sequences, one after the other, and the
    first numbers of its row of attention_mask_in_length [batch, seqlen] are their lengths, the rest 0.

    Gives (hidden_states [total, ...], indices [total], cu_seqlens int32 [sequences + 1], max_seqlen).

    Raises InvalidRequest for lengths of another shape than the tokens.
    """
    _check_mask("attention_mask_in_length", attention_mask_in_length, hidden_states)
    places = torch.arange(hidden_states.shape[1], device=attention_mask_in_length.device)
    rows, indices, _, _ = _tokens(hidden_states, places < attention_mask_in_length.sum(-1, keepdim=True))
    lengths = attention_mask_in_length[attention_mask_in_length > 0]
    return rows, indices, _offsets(lengths), _longest(lengths)


def _tokens(hidden_states: Any, mask: Any) -> Tuple[Any, ...]:
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    return hidden_states.flatten(0, 1)[indices], indices, _offsets(lengths), _longest(lengths)


def _offsets(lengths: Any) -> Any:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _longest(lengths: Any) -> int:
    return int(lengths.max()) if lengths.numel() else 0


def _check_mask(name: str, mask: Any, hidden_states: Any) -> None:
    """A mask of fewer columns would take the tokens of other sequences."""
    if tuple(mask.shape) != tuple(hidden_states.shape[:2]):
        raise InvalidRequest(f"{name}.shape", str(tuple(mask.shape)),
                             f"{tuple(hidden_states.shape[:2])}, the first two axes of hidden_states")

"""The masks that transformers asks for, once for all layers, and what a layer reads from them.

A mask that says what attnsmith's functions take is a tensor of whole numbers and four axes, which transformers hands on
as it is. A layer could read its values from the GPU alone, so all that has to be known on the host is said by extents:
[numbers, 1 or window + 1, _MARK, code]. Only the first axis has memory. What a mask says counts, and not what a layer says
of itself: not every layer knows whether it is causal or has a window, and some say the contrary.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Type, cast

import torch
from transformers import PreTrainedModel, masking_utils

from .._operators.tracing import is_tracing
from ..errors import Unsupported
from . import spans as _spans

_NUMBERS = torch.int32
_MARK = 61
# What the numbers are, and whether it is causal, by an extent. The sum of two is none, since models join masks.
_CODES = {67: ("plain", True), 71: ("plain", False), 73: ("lengths", True), 79: ("spans", True), 83: ("spans", False)}


class Said(NamedTuple):
    """What a mask says: "plain", every key; "lengths" [batch], so many keys of each row, of which the last are the queries';
    or "spans" [spans, 5], as spans.py has them."""

    kind: str
    causal: bool
    window: Optional[int]  # the most that a key may lie away, where it is no more than that
    numbers: Any  # a tensor; "plain" needs none


def _mask_of(kind: str, causal: bool, window: Optional[int], numbers: torch.Tensor) -> torch.Tensor:
    (code,) = [code for code, meant in _CODES.items() if meant == (kind, causal)]
    mask = numbers.reshape(-1, 1, 1, 1).expand(-1, 1 if window is None else window + 1, _MARK, code)
    if not is_tracing():
        mask._attnsmith_said = Said(kind, causal, window, numbers)  # type: ignore[attr-defined]
    return mask


def read(mask: Optional[torch.Tensor]) -> Optional[Said]:
    """None for no mask, and for one that is SDPA's. Raises Unsupported for one that was made here and then changed."""
    said: Optional[Said] = None if mask is None or is_tracing() else getattr(mask, "_attnsmith_said", None)
    if said is not None:  # of this very tensor, as it was made
        return said
    if mask is None or mask.dtype != _NUMBERS or mask.dim() != 4 or mask.shape[2] != _MARK:
        return None
    for code, (kind, causal) in _CODES.items():
        if mask.shape[3] == code:
            numbers = mask[:, 0, 0, 0]
            numbers = _read_spans(numbers) if kind == "spans" else numbers.contiguous()  # a model may expand it
            return Said(kind, causal, None if mask.shape[1] == 1 else mask.shape[1] - 1, numbers)
    raise Unsupported(_CHANGED)


_CHANGED = ("attention: the model's own code changes the mask that its layers are given: take "
            'attn_implementation="sdpa"')


def _read_spans(numbers: torch.Tensor) -> torch.Tensor:
    """Spans that a model has handed on as another tensor. Raises Unsupported where it has repeated or chosen rows, which the
    numbers show by their order: they are read back for it, unless that may not be waited for."""
    if numbers.shape[0] % _spans.COLUMNS:
        raise Unsupported(_CHANGED)
    spans = numbers.contiguous().view(-1, _spans.COLUMNS)
    if not _may_not_wait():
        rows, q_begin, q_end, kv_begin, kv_end = spans.cpu().unbind(1)
        ordered = (rows[1:] > rows[:-1]) | (rows[1:] == rows[:-1]) & (q_begin[1:] >= q_end[:-1])
        if not (bool(ordered.all()) and bool(((q_begin <= q_end) & (kv_begin <= kv_end)).all()) and not int(rows[:1].sum())):
            raise Unsupported(_CHANGED)
    return spans


class _Parts(NamedTuple):
    """What a mask function of transformers is made of."""

    causal: bool = False
    window: Optional[int] = None  # keys that lie further away than this many places are not seen
    to_the_left: bool = False  # the window says nothing of later keys, which causal has to
    chunk: Optional[int] = None
    packed: Optional[torch.Tensor] = None
    by_position: bool = False  # of places in their own sequence, which says the same only where it is packed
    known: bool = True  # whether that is all

    def both(self, other: "_Parts") -> "_Parts":
        window = self.window if other.window is None else other.window if self.window is None else \
            min(self.window, other.window)
        known = self.known and other.known and None in (self.chunk, other.chunk) and None in (self.packed, other.packed)
        return _Parts(self.causal or other.causal, window, self.to_the_left or other.to_the_left, self.chunk or other.chunk,
                      other.packed if self.packed is None else self.packed, self.by_position or other.by_position, known)


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
                   mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
                   attention_mask: Optional[torch.Tensor] = None, **words: Any) -> torch.Tensor:
    """transformers' AttentionMaskInterface: what of the keys each query sees.

    Reads a few numbers back from the GPU where attention_mask [batch, tokens] is given, unless torch.compile traces it or
    a CUDA graph is captured: there each row's tokens must lie together, which is asserted on the GPU.

    Raises Unsupported for a model whose layers do not call transformers' AttentionInterface, and so would see no mask.
    """
    _refuse_others(type(words.get("config")))
    device = words.get("device", "cpu")

    def by_sdpa() -> torch.Tensor:
        words.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return cast(torch.Tensor, masking_utils.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, **words))

    if attention_mask is not None and attention_mask.dim() != 2:
        return attention_mask
    parts = _parts_by_words(q_length, words) if is_tracing() else _parts_of(mask_function)
    if parts.by_position and (parts.packed is None or parts.chunk is not None):
        return by_sdpa()
    if not parts.known or (parts.to_the_left and not parts.causal):
        return by_sdpa()
    if parts.chunk is not None and kv_length + kv_offset > parts.chunk:
        return by_sdpa()
    # Keys from here on are later than the last query, such as the rest of a static cache.
    end: Any = q_offset + q_length - kv_offset if parts.causal else kv_length
    fixed = isinstance(end, (int, torch.SymInt))
    if fixed and end > kv_length:
        return by_sdpa()
    if attention_mask is not None and not _may_not_wait() and _is_of_tokens(attention_mask, kv_length, kv_offset, end, parts):
        attention_mask = None
    if parts.packed is not None:
        spans = None
        if fixed and end == q_length == kv_length and attention_mask is None and not _may_not_wait():
            spans = _packed(parts.packed, batch_size, q_length)
        return by_sdpa() if spans is None else _mask_of("spans", parts.causal, parts.window, spans)
    if attention_mask is not None:
        mask = _padded(attention_mask, q_length, kv_length, kv_offset, end, parts)
        return by_sdpa() if mask is None else mask
    if fixed and end == kv_length:
        return _plain(parts.causal, parts.window, device)
    ends = torch.full((1,), end, dtype=_NUMBERS, device=device) if fixed else end.to(_NUMBERS).reshape(1)
    return _mask_of("lengths", True, parts.window, ends.expand(batch_size).contiguous())


_kept: Dict[Any, torch.Tensor] = {}


def _plain(causal: bool, window: Optional[int], device: Any) -> torch.Tensor:
    """Its number says nothing, so one mask serves all calls."""
    if is_tracing():
        return _mask_of("plain", causal, window, torch.zeros(1, dtype=_NUMBERS, device=device))
    key = causal, window, torch.device(device)
    mask = _kept.get(key)
    if mask is None:
        with torch.inference_mode(False):  # kept for calls outside of it, too
            mask = _kept[key] = _mask_of("plain", causal, window, torch.zeros(1, dtype=_NUMBERS, device=device))
    return mask


def _may_not_wait() -> bool:
    return is_tracing() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _refuse(config: Type[Any]) -> None:
    """Raises Unsupported for the configuration of models whose own code computes attention: it would get masks that are
    none to it."""
    why = _refused.get(config)
    if why is None:
        models = [model for model in _below(PreTrainedModel) if model.config_class is config]
        others = [model.__name__ for model in models if not model._can_set_attn_implementation()]
        why = _refused[config] = (f"the layers of {', '.join(sorted(others))} do not call transformers' AttentionInterface: "
                                  'take attn_implementation="eager"') if models and len(others) == len(models) else ""
    if why:
        raise Unsupported(why)


_refused: Dict[Type[Any], str] = {}
_once_a_graph: Any = torch.compiler.assume_constant_result  # which says no types
_refuse_others: Callable[[Type[Any]], None] = _once_a_graph(_refuse)


def _below(of: Type[Any]) -> List[Type[Any]]:
    return [model for one in of.__subclasses__() for model in (one, *_below(one))]


def _parts_of(mask_function: Any) -> _Parts:
    if mask_function is masking_utils.causal_mask_function:
        return _Parts(causal=True)
    if mask_function is masking_utils.bidirectional_mask_function:
        return _Parts()
    if getattr(mask_function, "__module__", None) != masking_utils.__name__ or not hasattr(mask_function, "__code__"):
        return _Parts(known=False)
    maker = mask_function.__qualname__.partition(".")[0]
    inside = {name: cell.cell_contents for name, cell in zip(mask_function.__code__.co_freevars, mask_function.__closure__ or ())}
    if maker == "and_masks":
        parts = _Parts()
        for one in inside["mask_functions"]:
            parts = parts.both(_parts_of(one))
        return parts
    if maker == "sliding_window_overlay":
        return _Parts(window=inside["sliding_window"] - 1, to_the_left=True, known=inside["sliding_window"] > 0)
    if maker == "sliding_window_bidirectional_overlay":
        return _Parts(window=inside["sliding_window"])
    if maker == "chunked_overlay":
        return _Parts(chunk=inside["chunk_size"])
    if maker == "remap_positions_for_packed_sequence":  # from transformers 5.23 on
        return _parts_of(inside["mask_function"])._replace(by_position=True)
    if maker == "packed_sequence_mask_function":
        return _Parts(packed=inside["packed_sequence_mask"])
    return _Parts(known=False)


def _parts_by_words(q_length: int, words: Dict[str, Any]) -> _Parts:
    """The same while a graph is traced, where functions made on the way have no insides, from what transformers says
    besides. What may be either of two is not known."""
    causal = "allow_is_bidirectional_skip" not in words
    config, local = words.get("config"), words.get("local_size")
    chunk = local if local is not None and local == getattr(config, "attention_chunk_size", None) else None
    window = None if local is None or chunk is not None else local - 1 if causal else local
    # What is packed or has blocks may not be skipped. One query alone sees the same keys with these and without.
    plain = q_length == 1 or not causal or words.get("allow_is_causal_skip", True)
    return _Parts(causal, window, False, chunk, None, False, bool(plain and not words.get("use_vmap", False)))


def _packed(sequences: torch.Tensor, batch: int, tokens: int) -> Optional[torch.Tensor]:
    """The spans of sequences [batch, tokens], of which each token has its sequence's number, or None where these are not
    one after the other: a number that comes again is the same sequence."""
    if tuple(sequences.shape) != (batch, tokens) or bool((sequences[:, 1:] < sequences[:, :-1]).any()):
        return None
    first = torch.ones_like(sequences, dtype=torch.bool)
    first[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    row, begin = first.nonzero().to(_NUMBERS).unbind(1)
    end = torch.cat((begin[1:], begin.new_zeros(1)))
    end = torch.where(end == 0, tokens, end)  # the last of a row
    return torch.stack((row, begin, end, begin, end), 1)


def _is_of_tokens(mask: torch.Tensor, kv_length: int, kv_offset: int, end: Any, parts: _Parts) -> bool:
    """Whether no key that counts is padding, which is what most masks say: one number is read back for it."""
    mask = mask[:, kv_offset:kv_offset + kv_length]
    if not parts.causal and mask.shape[1] < kv_length:
        return False
    covers = mask.shape[1] >= end if parts.causal else True  # a tensor where the end is on the GPU
    return covers is not False and bool(mask.all() if covers is True else mask.all() & covers)


def _padded(mask: torch.Tensor, q_length: int, kv_length: int, kv_offset: int, end: Any, parts: _Parts) -> Optional[torch.Tensor]:
    """mask: True for tokens, False for padding, [batch, tokens seen so far]. None where there is padding between tokens."""
    waits, device = not _may_not_wait(), mask.device
    mask = mask[:, kv_offset:kv_offset + kv_length].bool()
    if not waits or mask.shape[1] != kv_length:
        mask = torch.nn.functional.pad(mask, (0, kv_length - mask.shape[1]))
    if parts.causal and not (waits and isinstance(end, int) and end == kv_length):
        mask = mask & (torch.arange(kv_length, device=device) < end)
    numbers = mask.to(torch.uint8)  # argmax takes no booleans
    facts = [mask.sum(-1), numbers.argmax(-1), numbers.flip(-1).argmax(-1)]  # of each row
    if isinstance(end, torch.Tensor):
        facts.append(end.reshape(1).expand(mask.shape[0]))
    told = torch.stack(facts).to(_NUMBERS)
    if waits:  # what is left to do takes a tenth of the time on the host
        told = told.cpu()
    count, before, behind, *ends = told.unbind(0)
    end = ends[0] if ends else end
    kv_end = torch.where(count == 0, 0, kv_length - behind)
    kv_begin = torch.where(count == 0, 0, before)
    together = (kv_end - kv_begin == count).all()
    if not waits:
        torch._assert_async(together, "attention_mask has padding between tokens")
    elif not together:
        return None
    elif parts.causal and bool(((kv_begin == 0) & (kv_end == end)).all()):
        return _mask_of("lengths", True, parts.window, kv_end.to(device, non_blocking=True))
    # Where a place counts the queries are the last of the keys, padding included, which gets 0. Without they may be of
    # another sequence, as a decoder's are that look at what was encoded, and each of them sees all keys.
    q_begin, q_end = torch.zeros_like(kv_end), torch.full_like(kv_end, q_length)
    if parts.causal or parts.window is not None:
        last = end - q_length
        q_end = (kv_end - last).clamp(0, q_length).to(_NUMBERS)
        q_begin = torch.minimum((kv_begin - last).clamp(0, q_length).to(_NUMBERS), q_end)
    rows = torch.arange(mask.shape[0], device=told.device, dtype=_NUMBERS)
    spans = torch.stack((rows, q_begin, q_end, kv_begin, kv_end), 1)
    return _mask_of("spans", parts.causal, parts.window, _spans.on_device(spans, device) if waits else spans)


def whole(said: Said, mask: Optional[torch.Tensor], batch: int, q_len: int, kv_len: int, device: Any) -> Optional[torch.Tensor]:
    """The same as SDPA takes it, [batch, 1, q_len, kv_len] of booleans, or None where its is_causal says it all. `mask`: where
    it was said, which all layers of a step have; what is made for the first of them is kept there."""
    if said.kind == "plain" and said.window is None and (q_len == kv_len or not said.causal):
        return None
    if is_tracing() or mask is None or said.kind == "plain":  # whose mask all steps have
        return _whole(said, batch, q_len, kv_len, device)
    asked = batch, q_len, kv_len, device
    kept: Any = getattr(mask, "_attnsmith_whole", None)
    if kept is None or kept[0] != asked:
        kept = mask._attnsmith_whole = asked, _whole(said, batch, q_len, kv_len, device)  # type: ignore[attr-defined]
    return cast(torch.Tensor, kept[1])


def _whole(said: Said, batch: int, q_len: int, kv_len: int, device: Any) -> torch.Tensor:
    rows = torch.arange(batch, device=device)
    q_begin, q_end = torch.zeros_like(rows), torch.full_like(rows, q_len)
    kv_begin, kv_end = torch.zeros_like(rows), torch.full_like(rows, kv_len)
    if said.kind == "lengths":
        kv_end = said.numbers.long()
    elif said.kind == "spans":
        rows, q_begin, q_end, kv_begin, kv_end = said.numbers.long().unbind(1)
    q, kv = torch.arange(q_len, device=device)[None, :, None], torch.arange(kv_len, device=device)[None, None, :]
    seen = (q >= q_begin[:, None, None]) & (q < q_end[:, None, None])
    seen = seen & (kv >= kv_begin[:, None, None]) & (kv < kv_end[:, None, None])
    ahead = kv - kv_end[:, None, None] - (q - q_end[:, None, None])  # how far behind the query's own place a key lies
    if said.causal:
        seen = seen & (ahead <= 0)
    if said.window is not None:
        seen = seen & (ahead.abs() <= said.window)
    mask = torch.zeros(batch, q_len, kv_len, dtype=torch.int32, device=device)
    mask = mask.index_add_(0, rows, seen.to(torch.int32)).bool()
    # A row that sees nothing, such as padding, has NaN as its gradient in some of SDPA's backends.
    return (mask | ~mask.any(-1, keepdim=True))[:, None]

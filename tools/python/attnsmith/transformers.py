"""attnsmith for models of transformers: ``attn_implementation="attnsmith"``.

    import attnsmith.transformers
    attnsmith.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attnsmith", dtype="bfloat16")

Grouped heads, sliding windows, softcap, attention sinks, values of other head dims than the keys, padding on either
side, sequences packed by position_ids or cu_seq_lens, dynamic and static caches, continuous batching by
``generate_batch`` and torch.compile are served. Masks that are none of these (of images, of chunks longer than they
may be, of four axes), dropout and training are passed on to torch's SDPA by way of transformers; ``report()`` counts
both, and ``register(strict=True)`` makes it an error. What SDPA would drop, softcap and sinks, is an error then, too.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Type, cast

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError as error:
    raise ImportError(f"attnsmith.transformers needs PyTorch and transformers: pip install torch transformers ({error})") from error

from . import _spans, functions
from ._served import Served
from ._tracing import is_tracing
from .errors import InvalidRequest, Unsupported

_served = Served("transformers' sdpa")


def register(name: str = "attnsmith", *, strict: bool = False) -> None:
    """Makes `name` an attn_implementation of all models, and "paged|name" that of continuous batching.

    Besides, "attnsmith/flash3-attnsmith" is transformers' own way of calling FlashAttention, with attnsmith's functions in
    the place of a kernel from the hub: in generate_batch that decodes from pages without gathering them. It needs the
    package `kernels`, which finds it by the variable LOCAL_KERNELS, in which an entry is added here.

    strict: what is passed on to SDPA otherwise raises attnsmith.Unsupported, which says why.

    Raises InvalidRequest for a name that transformers has already.
    """
    if not isinstance(name, str) or not name or "|" in name or _is_taken(name):
        raise InvalidRequest("name", repr(name), "a name that transformers does not have, without |")
    _served.strict = strict
    _mine.add(name)
    _add_local_kernel()
    AttentionInterface.register(name, attention_forward)
    AttentionInterface.register(f"paged|{name}", paged_attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


def unregister(name: str = "attnsmith") -> None:
    """Takes back what register(name) did. Models that have this attn_implementation are to be given another before.

    Raises InvalidRequest for a name that was not registered.
    """
    if name not in _mine:
        raise InvalidRequest("name", repr(name), "one that register() was given")
    _mine.remove(name)
    for interface, key in ((AttentionInterface, name), (AttentionInterface, f"paged|{name}"), (AttentionMaskInterface, name)):
        interface._global_mapping.pop(key, None)


_mine: Set[str] = set()


def _is_taken(name: str) -> bool:
    return name not in _mine and (name == "eager" or name in AttentionInterface._global_mapping)


FLASH3 = "attnsmith/flash3-attnsmith"


def _add_local_kernel() -> None:
    folder = pathlib.Path(__file__).resolve().parent / "compat" / "flash3"
    others = [entry for entry in os.environ.get("LOCAL_KERNELS", "").split(":") if entry and not entry.startswith(f"{FLASH3}=")]
    os.environ["LOCAL_KERNELS"] = ":".join([*others, f"{FLASH3}={folder}"])


def report() -> Dict[str, Any]:
    """{"served": {function: calls}, "passed_on": [{"function", "why", "to", "calls"}, ...]} since the start or reset().

    Calls in graphs of torch.compile are not counted: a graph is traced once and run any number of times.
    """
    return _served.report()


def reset() -> None:
    """Counts from 0 again."""
    _served.reset()


# What attention_mask() gives the layers. Masks have four axes already where transformers hands them on, so that it
# leaves them as they are. Of whole numbers, the last axis says by its extent what they are, since a layer could read
# their values from the GPU alone; it says too whether the mask is causal, which not every layer does of itself:
_NUMBERS = torch.int32
_LENGTHS = 1  # [batch, 1, 1, 1], causal: how many keys of each row there are, from the first; the queries are the last ones
_PLAIN, _PLAIN_BOTH_WAYS = 2, 3  # [1, 1, 1, ...], causal or not: every key, and no values
_SPANS, _SPANS_BOTH_WAYS = _spans.COLUMNS, _spans.COLUMNS + 1  # [spans, 1, 1, ...]: the spans of _spans.py
# Of another dtype they are masks for SDPA.


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
                   mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
                   attention_mask: Optional[torch.Tensor] = None, **words: Any) -> torch.Tensor:
    """transformers' AttentionMaskInterface: what of the keys each query sees, made once for all layers.

    Reads one number back from the GPU where attention_mask [batch, tokens] is given, unless torch.compile traces it or a
    CUDA graph is captured: there each row's tokens must lie together, which is asserted on the GPU.

    Raises Unsupported for a model whose layers do not call transformers' AttentionInterface, and so would see no mask.
    """
    _refuse_others(type(words.get("config")))

    def by_sdpa() -> torch.Tensor:
        words.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return cast(torch.Tensor, masking_utils.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, **words))

    if attention_mask is not None and attention_mask.dim() != 2:
        return attention_mask
    causal, chunk, packed, known = _parts_by_words(q_length, words) if is_tracing() else _parts(mask_function)
    if not known or (chunk is not None and kv_length + kv_offset > chunk):
        return by_sdpa()
    device = words["device"]
    if packed is not None:
        return by_sdpa() if _may_not_wait() else _packed(packed)
    # Keys from here on are later than the last query, such as the rest of a static cache.
    end: Any = q_offset + q_length - kv_offset if causal else kv_length
    fixed = isinstance(end, int)
    if fixed and end > kv_length:
        return by_sdpa()
    if attention_mask is None:
        if fixed and end == kv_length:
            return _plain(causal, device)
        ends = torch.full((1,), end, dtype=_NUMBERS, device=device) if fixed else end.to(_NUMBERS).reshape(1)
        return ends.expand(batch_size).reshape(batch_size, 1, 1, _LENGTHS)
    return _padded(attention_mask, q_length, kv_length, kv_offset, end, causal, words.get("local_size") is not None, by_sdpa)


_kept: Dict[Any, torch.Tensor] = {}


def _plain(causal: bool, device: Any) -> torch.Tensor:
    """The mask that hides nothing but what causal does. It has no values, so one serves all calls."""
    extent = _PLAIN if causal else _PLAIN_BOTH_WAYS
    if is_tracing():
        return torch.empty((1, 1, 1, extent), dtype=_NUMBERS, device=device)
    mask = _kept.get((causal, device))
    if mask is None:
        mask = _kept[causal, device] = torch.zeros((1, 1, 1, extent), dtype=_NUMBERS, device=device)
    return mask


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


def _may_not_wait() -> bool:
    return is_tracing() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _parts(mask_function: Callable[..., Any]) -> Tuple[bool, Optional[int], Optional[torch.Tensor], bool]:
    """Whether it is causal, its chunks, its packed sequences, and whether that and windows, of which layers know
    themselves, are all that it is."""
    causal, chunk, packed, known = False, None, None, True
    if mask_function is masking_utils.causal_mask_function:
        return True, None, None, True
    if mask_function is masking_utils.bidirectional_mask_function:
        return False, None, None, True
    maker = mask_function.__qualname__.partition(".")[0]
    inside = dict(zip(mask_function.__code__.co_freevars, mask_function.__closure__ or ()))
    if maker == "and_masks":
        for part in inside["mask_functions"].cell_contents:
            of_part = _parts(part)
            causal, known = causal or of_part[0], known and of_part[3]
            chunk = of_part[1] if chunk is None else chunk
            packed = of_part[2] if packed is None else packed
    elif maker == "chunked_overlay":
        chunk = inside["chunk_size"].cell_contents
    elif maker == "packed_sequence_mask_function":
        packed = inside["packed_sequence_mask"].cell_contents
    elif maker not in ("sliding_window_overlay", "sliding_window_bidirectional_overlay"):
        known = False
    return causal, chunk, packed, known


def _parts_by_words(q_length: int, words: Dict[str, Any]) -> Tuple[bool, Optional[int], Optional[torch.Tensor], bool]:
    """The same while a graph is traced, where functions made on the way have no insides, from what transformers says
    besides. What may be either of two is not known."""
    causal = "allow_is_bidirectional_skip" not in words
    config, local = words.get("config"), words.get("local_size")
    chunk = local if local is not None and local == getattr(config, "attention_chunk_size", None) else None
    # What is packed or has blocks may not be skipped. One query alone sees the same keys with these and without.
    plain = q_length == 1 or not causal or words.get("allow_is_causal_skip", True)
    return causal, chunk, None, bool(plain and not words.get("use_vmap", False))


def _packed(sequences: torch.Tensor) -> torch.Tensor:
    """The spans of sequences [batch, tokens], of which each token has its sequence's number."""
    batch, tokens = sequences.shape
    first = torch.ones_like(sequences, dtype=torch.bool)
    first[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    row, begin = first.nonzero().to(_NUMBERS).unbind(1)
    end = torch.cat((begin[1:], begin.new_zeros(1)))
    end = torch.where(end == 0, tokens, end)  # the last of a row
    return torch.stack((row, begin, end, begin, end), 1).view(-1, 1, 1, _SPANS)


def _padded(mask: torch.Tensor, q_length: int, kv_length: int, kv_offset: int, end: Any, causal: bool, has_window: bool,
            by_sdpa: Callable[[], torch.Tensor]) -> torch.Tensor:
    """mask: True for tokens, False for padding, [batch, tokens seen so far]."""
    mask = mask[:, kv_offset:kv_offset + kv_length].bool()
    mask = torch.nn.functional.pad(mask, (0, kv_length - mask.shape[1]))
    places = torch.arange(kv_length, device=mask.device, dtype=_NUMBERS)
    if causal:
        mask = mask & (places < end)
    count = mask.sum(-1, dtype=_NUMBERS)
    kv_begin = torch.where(mask, places, kv_length).amin(-1)
    kv_end = torch.where(mask, places + 1, 0).amax(-1)
    together = (kv_end - kv_begin == count) | (count == 0)
    kv_begin = torch.where(count == 0, kv_end, kv_begin)
    from_the_first = (kv_begin == 0) & (kv_end == end)
    if _may_not_wait():
        torch._assert_async(together.all(), "attention_mask has padding between tokens")
    else:
        facts = torch.stack((together.all(), from_the_first.all(), (count == kv_length).all())).tolist()
        if not facts[0]:
            return by_sdpa()
        if facts[2]:
            return _plain(causal, mask.device)
        if facts[1] and causal:
            return kv_end.view(-1, 1, 1, _LENGTHS)
    # Where a place counts the queries are the last of the keys, padding included, which gets 0. Without they may be of
    # another sequence, as a decoder's are that look at what was encoded, and each of them sees all keys.
    q_begin, q_end = torch.zeros_like(kv_end), torch.full_like(kv_end, q_length)
    if causal or has_window:
        last = end - q_length
        q_end = (kv_end - last).clamp(0, q_length).to(_NUMBERS)
        q_begin = torch.minimum((kv_begin - last).clamp(0, q_length).to(_NUMBERS), q_end)
    rows = torch.arange(mask.shape[0], device=mask.device, dtype=_NUMBERS)
    columns = [rows, q_begin, q_end, kv_begin, kv_end, *([] if causal else [rows])]
    return torch.stack(columns, 1).view(-1, 1, 1, _SPANS if causal else _SPANS_BOTH_WAYS)


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: Optional[torch.Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
                      sliding_window: Optional[int] = None, softcap: Optional[float] = None,
                      is_causal: Optional[bool] = None, s_aux: Optional[torch.Tensor] = None,
                      **words: Any) -> Tuple[torch.Tensor, None]:
    """transformers' AttentionInterface. query [batch, q_heads, q_len, head_dim_qk], key and value [batch, kv_heads,
    kv_len, ...]: fp16 or bf16 on a GPU. attention_mask: as attention_mask() gives it. sliding_window: of keys, the
    query's own included. s_aux: [q_heads], the sinks.

    Gives ([batch, q_len, q_heads, head_dim_vo], None). Raises InvalidRequest, Unsupported.
    """
    for name in ("indices", "block_indices"):
        if words.get(name) is not None:
            _served.refuse("attention", f"{name} are not served: which keys a query selects has its own kernels")
    if words.get("output_attentions"):
        _served.refuse("attention", "output_attentions is not served, since weights are never written: take eager")
    form, of_sdpa = None, False
    if attention_mask is not None:
        of_sdpa = attention_mask.dtype != _NUMBERS
        form = None if of_sdpa else attention_mask.shape[-1]
    if form is not None:  # the mask knows better than the layer, which may not say, or say it of another mask
        is_causal = form not in (_PLAIN_BOTH_WAYS, _SPANS_BOTH_WAYS)
    elif is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    why = _why_not(query, key, value, dropout, of_sdpa, words)
    if why is not None:
        return _by_sdpa(why, module, query, key, value, attention_mask, dropout, scaling, sliding_window, softcap,
                        is_causal, s_aux, words)
    query, key, value = _of_one_dtype(query, key, value)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    left = None if sliding_window is None else sliding_window - 1
    options: Dict[str, Any] = {"causal": is_causal, "window": None if left is None else (left, left), "scale": scaling,
                               "softcap": softcap, "sinks": None if s_aux is None else s_aux.float()}
    try:
        function, o = _attend(q, k, v, attention_mask, form, words, options)
    except InvalidRequest as error:
        raise _with_remedy(error) from None
    _served.count(function)
    return o, None


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional[torch.Tensor], form: Optional[int],
            words: Dict[str, Any], options: Dict[str, Any]) -> Tuple[str, torch.Tensor]:
    """The name of the function that served, and o."""
    q_indptr, kv_indptr = words.get("cu_seq_lens_q"), words.get("cu_seq_lens_k")
    if mask is not None and form == _LENGTHS:
        return "attention", functions.attention(q, k, v, kv_lens=mask.view(-1), **options)
    if mask is not None and form in (_SPANS, _SPANS_BOTH_WAYS):
        return "varlen_attention", _spans.attend_spans(q, k, v, mask, **options)
    if q_indptr is not None and kv_indptr is not None:
        flat = [tensor.reshape(-1, *tensor.shape[2:]) for tensor in (q, k, v)]
        o = functions.varlen_attention(
            flat[0], flat[1], flat[2], q_indptr.int(), kv_indptr.int(), max_q_len=_bound(words.get("max_length_q")),
            max_kv_len=_bound(words.get("max_length_k")), **options)
        return "varlen_attention", o.view(*q.shape[:-1], -1)
    return "attention", functions.attention(q, k, v, **options)


def _with_remedy(error: InvalidRequest) -> InvalidRequest:
    """An error about q, k or v, which the user of a model never made, with what to do about it there."""
    remedies = {"dtype": 'load the model with dtype="bfloat16", or call model.to(torch.bfloat16)',
                "device": 'move the model to a GPU, model.to("cuda")'}
    remedy = remedies.get(error.field.rpartition(".")[2])
    return error if remedy is None else InvalidRequest(error.field, error.value, f"{error.accepted}; {remedy}")


def _bound(length: Any) -> Optional[int]:
    """None, which is right for any length, where the number is on the GPU and would have to be waited for."""
    return length if isinstance(length, int) else None


def _why_not(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, mask_of_sdpa: bool,
             words: Dict[str, Any]) -> Optional[str]:
    if words.get("position_bias") is not None:
        return "position_bias"
    if mask_of_sdpa:
        return "a mask that is more than causal, windows, padding and packed sequences"
    if dropout:
        return "dropout"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        return "gradients (call under torch.no_grad() where none are wanted)"
    return None


def _of_one_dtype(*tensors: torch.Tensor) -> List[torch.Tensor]:
    """That of autocast, where that is on. A tensor of fp32 is refused by name otherwise."""
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device) and any(tensor.dtype == torch.float32 for tensor in tensors):
        dtype = torch.get_autocast_dtype(device)
        return [tensor.to(dtype) for tensor in tensors]
    return list(tensors)


def _by_sdpa(why: str, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             mask: Optional[torch.Tensor], dropout: float, scaling: Optional[float], sliding_window: Optional[int],
             softcap: Optional[float], is_causal: bool, s_aux: Optional[torch.Tensor],
             words: Dict[str, Any]) -> Tuple[torch.Tensor, None]:
    """What is passed on, with a mask that says all that SDPA has no words for."""
    for name, given in (("softcap", softcap), ("s_aux", s_aux)):
        if given is not None:
            _served.refuse("attention", f"{name} with {why} is not served, and SDPA has none: take eager")
    if words.get("cu_seq_lens_q") is not None:
        _served.refuse("attention", f"cu_seq_lens_q with {why} is not served, and SDPA has none: take eager")
    _served.pass_on("attention", why)
    if mask is None or mask.dtype == _NUMBERS:
        mask = _whole_mask(query, key, mask, is_causal, sliding_window)
    o, _ = sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling,
                                  is_causal=is_causal and mask is None, **words)
    return o, None


def _whole_mask(query: torch.Tensor, key: torch.Tensor, mask: Optional[torch.Tensor], is_causal: bool,
                sliding_window: Optional[int]) -> Optional[torch.Tensor]:
    """[batch, 1, q_len, kv_len] of booleans, or None where SDPA's is_causal says it all."""
    batch, q_len, kv_len = query.shape[0], query.shape[2], key.shape[2]
    plain = mask is None or mask.shape[-1] in (_PLAIN, _PLAIN_BOTH_WAYS)
    if plain and sliding_window is None and (q_len == kv_len or not is_causal):
        return None
    q_place, kv_place = (torch.arange(length, device=query.device) for length in (q_len, kv_len))
    if mask is None or plain:
        mask = query.new_full((batch,), kv_len, dtype=_NUMBERS).view(-1, 1, 1, _LENGTHS)
    if mask.shape[-1] == _LENGTHS:
        rows = torch.arange(batch, device=query.device)
        q_begin, q_end = torch.zeros_like(rows), torch.full_like(rows, q_len)
        kv_begin, kv_end = torch.zeros_like(rows), mask.view(-1).long()
    else:
        rows, q_begin, q_end, kv_begin, kv_end = mask.flatten(1)[:, :_spans.COLUMNS].long().unbind(1)
    q, kv = q_place[None, :, None], kv_place[None, None, :]
    seen = (q >= q_begin[:, None, None]) & (q < q_end[:, None, None])
    seen = seen & (kv >= kv_begin[:, None, None]) & (kv < kv_end[:, None, None])
    ahead = kv - kv_end[:, None, None] - (q - q_end[:, None, None])  # how far behind the query's own place a key lies
    if is_causal:
        seen = seen & (ahead <= 0)
    if sliding_window is not None:
        seen = seen & (ahead > -sliding_window) & (ahead < sliding_window)
    whole = torch.zeros(batch, q_len, kv_len, dtype=torch.int32, device=query.device)
    whole = whole.index_add_(0, rows, seen.to(torch.int32)).bool()
    # A row that sees nothing, such as padding, has NaN as its gradient in some of SDPA's backends.
    return (whole | ~whole.any(-1, keepdim=True))[:, None]


def paged_attention_forward(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                            attention_mask: Optional[torch.Tensor], cache: Any = None, cu_seq_lens_q: Any = None,
                            cu_seq_lens_k: Any = None, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
                            block_table: Optional[torch.Tensor] = None, sliding_window: Optional[int] = None,
                            softcap: Optional[float] = None, s_aux: Optional[torch.Tensor] = None,
                            **words: Any) -> Tuple[torch.Tensor, None]:
    """transformers' attention of continuous batching. query [1, q_heads, q_tokens, head_dim_qk], key and value [1,
    kv_heads, q_tokens, ...], which are written to the cache; cu_seq_lens_k, max_seqlen_k: of all layers, or by kind of
    layer. Keys and values are gathered from the cache before: the way without comes with block_table, which
    transformers makes for names of FlashAttention alone.

    Gives ([q_tokens, q_heads, head_dim_vo], None). Raises InvalidRequest, Unsupported.
    """
    if cache is None:
        raise InvalidRequest("cache", "None", "the cache of generate_batch: other calls take the name without paged|")
    if block_table is not None:
        raise Unsupported("block_table is not served by this name")
    window = sliding_window or None
    if isinstance(cu_seq_lens_k, dict):
        kind = "full_attention" if window is None else "sliding_attention"
        cu_seq_lens_k, max_seqlen_k = cu_seq_lens_k[kind], max_seqlen_k[kind]
    k, v = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=words["read_index"],
                        write_index=words["write_index"])
    o = functions.varlen_attention(
        query.transpose(1, 2).squeeze(0), k, v, cu_seq_lens_q.int(), cu_seq_lens_k.int(), max_q_len=_bound(max_seqlen_q),
        max_kv_len=_bound(max_seqlen_k), causal=True, window=None if window is None else (window - 1, None),
        scale=module.scaling, softcap=softcap, sinks=None if s_aux is None else s_aux.float())
    _served.count("varlen_attention")
    return o, None

"""attnsmith for models of transformers: ``attn_implementation="attnsmith"``.

    import attnsmith.transformers
    attnsmith.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attnsmith", dtype="bfloat16")

Grouped heads, sliding windows, softcap, attention sinks, values of other head dims than the keys, padding on either
side, sequences packed by position_ids or cu_seq_lens, dynamic and static caches, continuous batching by
``generate_batch`` and torch.compile are served.

Other masks (images, four axes, sequences longer than a chunk) and dropout are passed on to transformers' SDPA. So is
training, except with sliding windows and with sequences packed by cu_seq_lens. ``report()`` counts what was served and what
was passed on. ``register(strict=True)`` makes passing on an error. Softcap and sinks are always errors in a call that
would be passed on, because SDPA has neither.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple, cast

from ._base.extras import missing

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers import __version__ as transformers_version
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError as _error:
    raise missing("attnsmith.transformers", "PyTorch and transformers 5", "torch 'transformers>=5'", _error) from _error

from . import functions
from ._adapters import gradients, heads_first, spans, transformers_masks
from ._adapters.served import Served
from ._adapters.transformers_masks import Said
from ._base import reports
from ._base.arguments import named
from ._base.options import flag, to_either_side
from ._operators.tracing import is_tracing
from .errors import InvalidRequest, Unsupported

if TYPE_CHECKING:  # making these types takes 2 ms
    from .results import AdapterReport

__all__ = ["FLASH3", "TESTED", "register", "report", "reset", "unregister"]

_served = Served("transformers' sdpa")

# The versions of transformers that the adapter's tests run on.
TESTED = ("5.17.0", "5.24.0")


@named
def register(name: str = "attnsmith", *, strict: bool = False) -> None:
    """Makes `name` an attn_implementation of all models, and "paged|name" that of continuous batching.

    The name "attnsmith/flash3-attnsmith" is transformers' own way of calling FlashAttention, with attnsmith's functions in
    the place of a kernel from the hub: in generate_batch that decodes from pages without gathering them. It needs the
    package `kernels`, which finds it by the variable LOCAL_KERNELS. Importing this module adds an entry there, and
    register() adds it again if it is gone.

    strict: a call that would be passed on to SDPA raises attnsmith.Unsupported with the reason. It holds for all registered
        names; the last register() decides.

    From transformers 5.23 on, generate_batch rejects names that it does not know; use "attnsmith/flash3-attnsmith" there.

    Tested with transformers 5.17.0 and 5.24.0 (TESTED); warns once under any other version.

    Raises InvalidRequest for a name that transformers has already.
    """
    strict = flag("strict", strict)
    if not isinstance(name, str) or not name or "|" in name or _is_taken(name):
        raise InvalidRequest("name", repr(name), "a name that transformers does not have, without |")
    _warn_of_version(transformers_version)
    _served.strict = strict
    _mine.add(name)
    _add_local_kernel()
    AttentionInterface.register(name, attention_forward)
    AttentionInterface.register(f"paged|{name}", paged_attention_forward)
    AttentionMaskInterface.register(name, transformers_masks.attention_mask)


def _warn_of_version(version: str) -> None:
    if version not in TESTED and version not in _warned:
        _warned.add(version)
        reports.warn(f"tested with transformers {' and '.join(TESTED)}; this is {version}")


_warned: Set[str] = set()


@named
def unregister(name: str = "attnsmith") -> None:
    """Undoes register(name). Give models with this attn_implementation another one first.

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


# At import already: transformers takes the name for a repository of the hub where no entry says otherwise, and register()
# may be forgotten.
_add_local_kernel()


@named
def report() -> AdapterReport:
    """{"served": {function: calls}, "passed_on": [{"function", "why", "to", "calls"}, ...]} since the start or reset().

    Calls in graphs of torch.compile are not counted: a graph is traced once and run any number of times.
    """
    return _served.report()


@named
def reset() -> None:
    """Sets the counts of report() to 0."""
    _served.reset()


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: Optional[torch.Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
                      sliding_window: Optional[int] = None, softcap: Optional[float] = None,
                      is_causal: Optional[bool] = None, s_aux: Optional[torch.Tensor] = None,
                      **words: Any) -> Tuple[torch.Tensor, None]:
    """transformers' AttentionInterface. query [batch, q_heads, q_len, head_dim_qk], key and value [batch, kv_heads, kv_len,
    ...]: fp16 or bf16 on a GPU. attention_mask: as transformers_masks makes it, or SDPA's. sliding_window: of keys, the
    query's own included. s_aux: [q_heads], the sinks.

    Gives ([batch, q_len, q_heads, head_dim_vo], None). Raises InvalidRequest, Unsupported.
    """
    for name in ("indices", "block_indices"):
        if words.get(name) is not None:
            _served.refuse("attention", f"{name} are not served: which keys a query selects has its own kernels")
    if words.get("output_attentions"):
        _served.refuse("attention", "output_attentions is not served, since weights are never written: take eager")
    said = transformers_masks.read(attention_mask)
    if attention_mask is None:  # none was asked for, so that the layer alone says what it is
        said = Said("plain", bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal,
                    None if sliding_window is None else sliding_window - 1, None)
    why = _why_not(dropout, said is None, words)
    is_trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if why is None and is_trained:
        why = _why_not_trained(cast(Said, said), softcap, s_aux, words)
    taken = [query, key, value] if why is not None else _as_taken(query, key, value)
    if why is None and is_trained:
        refused = gradients.why_not(*taken)
        why = refused and f"gradients of {refused}"
    if why is not None:
        return _by_sdpa(why, module, query, key, value, attention_mask, said, dropout, scaling, softcap, s_aux, words)
    assert said is not None  # else there is a mask that is SDPA's, which was passed on
    query, key, value = taken
    sinks = None if s_aux is None else s_aux.float()
    try:
        if is_trained:
            o = _attend_trained(query, key, value, said, words, scaling)
            _served.count("varlen_attention" if _has_offsets(words) else "attention")
        elif said.kind == "spans" or said.kind == "plain" and _has_offsets(words):
            o = _attend_ragged(query, key, value, said, words, causal=said.causal, scale=scaling, softcap=softcap, sinks=sinks)
            _served.count("varlen_attention")
        else:
            o = heads_first.attention(
                query, key, value, causal=said.causal, window=_window_of(said), softcap=softcap, sinks=sinks, scale=scaling,
                kv_lens=said.numbers if said.kind == "lengths" else None)
            _served.count("attention")
    except InvalidRequest as error:
        raise _with_remedy(error) from None
    except Unsupported as error:
        if query.dtype in (torch.float16, torch.bfloat16):
            raise
        raise Unsupported(f"{error}; {_REMEDIES['dtype']}", error.refusals) from None
    return o, None


def _has_offsets(words: Dict[str, Any]) -> bool:
    return words.get("cu_seq_lens_q") is not None and words.get("cu_seq_lens_k") is not None


def _window_of(said: Said) -> Optional[Tuple[int, Optional[int]]]:
    return to_either_side(said.window, said.causal)


def _attend_ragged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, said: Said, words: Dict[str, Any],
                   **options: Any) -> torch.Tensor:
    if said.kind == "spans":
        return spans.attend_spans(query, key, value, said.numbers, window=said.window, **options)
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    q_indptr, kv_indptr = _offsets(words)
    o = functions.varlen_attention(
        q, k, v, q_indptr, kv_indptr, max_q_len=_bound(words.get("max_length_q")),
        max_kv_len=_bound(words.get("max_length_k")), window=_window_of(said), **options)
    return cast(torch.Tensor, o.view(query.shape[0], query.shape[2], query.shape[1], o.shape[-1]))


def _offsets(words: Dict[str, Any]) -> List[torch.Tensor]:
    offsets = {"cu_seq_lens_q": words["cu_seq_lens_q"], "cu_seq_lens_k": words["cu_seq_lens_k"]}
    for name, given in offsets.items():
        if not isinstance(given, torch.Tensor):
            raise InvalidRequest(name, f"an object of type {type(given).__name__}", "an int32 tensor on the GPU, [sequences + 1]")
    return [given.int() for given in offsets.values()]


def _attend_trained(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, said: Said, words: Dict[str, Any],
                    scaling: Optional[float]) -> torch.Tensor:
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options: Dict[str, Any] = {"causal": said.causal, "window": said.window, "scale": scaling}
    if not _has_offsets(words):
        return gradients.attention(q, k, v, **options)
    q_indptr, kv_indptr = _offsets(words)
    # The backward wants numbers; all tokens are right for any sequences.
    longest = [int(_bound(words.get(name)) or tensor.shape[0] * tensor.shape[1])
               for name, tensor in (("max_length_q", q), ("max_length_k", k))]
    o = gradients.attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1),
                            offsets=(q_indptr, kv_indptr, longest[0], longest[1]), **options)
    return o.view(q.shape)


_REMEDIES = {"dtype": 'load the model with dtype="bfloat16", or call model.to(torch.bfloat16)',
             "device": 'move the model to a GPU, model.to("cuda")'}


def _with_remedy(error: InvalidRequest) -> InvalidRequest:
    """An error about q, k or v, which the user of a model never made, with what to do about it there."""
    remedy = _REMEDIES.get(error.field.rpartition(".")[2])
    return error if remedy is None else InvalidRequest(error.field, error.value, f"{error.accepted}; {remedy}")


def _bound(length: Any) -> Any:
    """None, which is right for any length, where the number is on the GPU and would have to be waited for."""
    return length if isinstance(length, (int, torch.SymInt)) else None


def _why_not(dropout: float, mask_of_sdpa: bool, words: Dict[str, Any]) -> Optional[str]:
    if words.get("position_bias") is not None:
        return "position_bias"
    if mask_of_sdpa:
        return "a mask that is more than causal, windows, padding and packed sequences"
    if dropout:
        return "dropout"
    return None


def _why_not_trained(said: Said, softcap: Optional[float], s_aux: Optional[torch.Tensor], words: Dict[str, Any]) -> Optional[str]:
    is_plain = said.window is None and not _has_offsets(words)  # SDPA has words for that, and a backward of its choice
    if is_tracing() or said.kind != "plain" or softcap is not None or s_aux is not None or is_plain:
        return "gradients (call under torch.no_grad() where none are wanted)"
    return None


def _as_taken(*tensors: torch.Tensor) -> List[torch.Tensor]:
    """Of the dtype of autocast, where that is on; a tensor of fp32 is refused by name otherwise. Columns lie one after the
    other, in a copy where a model's own do not."""
    if any([tensor.dtype == torch.float32 for tensor in tensors]):
        device = tensors[0].device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            tensors = tuple(tensor.to(dtype) for tensor in tensors)
    return [tensor if tensor.stride()[-1] == 1 else tensor.contiguous() for tensor in tensors]


def _by_sdpa(why: str, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             mask: Optional[torch.Tensor], said: Optional[Said], dropout: float, scaling: Optional[float],
             softcap: Optional[float], s_aux: Optional[torch.Tensor],
             words: Dict[str, Any]) -> Tuple[torch.Tensor, None]:
    """What is passed on: `said` as a mask that says all that SDPA has no words for, or the mask that is SDPA's own."""
    for name, given in (("softcap", softcap), ("s_aux", s_aux)):
        if given is not None:
            _served.refuse("attention", f"{name} with {why} is not served, and SDPA has none: take eager")
    if words.get("cu_seq_lens_q") is not None:
        _served.refuse("attention", f"cu_seq_lens_q with {why} is not served, and SDPA has none: take eager")
    _served.pass_on("attention", why)
    is_causal = False
    if said is not None:
        mask = transformers_masks.whole(said, mask, query.shape[0], query.shape[2], key.shape[2], query.device)
        is_causal = said.causal and mask is None
    o, _ = sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
                                  **words)
    return o, None


def paged_attention_forward(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                            attention_mask: Optional[torch.Tensor], cache: Any = None, cu_seq_lens_q: Any = None,
                            cu_seq_lens_k: Any = None, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
                            block_table: Optional[torch.Tensor] = None, sliding_window: Optional[int] = None,
                            softcap: Optional[float] = None, s_aux: Optional[torch.Tensor] = None,
                            **words: Any) -> Tuple[torch.Tensor, None]:
    """transformers' attention of continuous batching. query [1, q_heads, q_tokens, head_dim_qk], key and value [1,
    kv_heads, q_tokens, ...], which are written to the cache; cu_seq_lens_k, max_seqlen_k: of all layers, or by kind of
    layer. Keys and values are gathered from the cache before: the way without comes with block_table, which transformers
    makes for names of FlashAttention alone.

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

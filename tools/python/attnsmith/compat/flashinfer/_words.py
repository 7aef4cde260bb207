"""What FlashInfer's words mean here: each is read in one place, and refused there by its own name."""

from __future__ import annotations

import math
from ctypes import c_int32
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union, cast

import torch

from ..._base.integers import fitting, shown
from ..._base.options import flag, number
from ...errors import InvalidRequest, Unsupported
from ...words import PageOrder

DType = Union[str, torch.dtype]
Cache = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
Scale = Union[None, float, torch.Tensor]

LOG2_E = 1.4426950408889634  # an lse in base 2 is one in base e times this
LN_2 = 0.6931471805599453
BACKENDS = ("auto", "cudnn", "cute-dsl", "cute-dsl-modular", "cute-dsl-monolithic", "cute-dsl-prims", "cutile",
            "cutlass", "fa2", "fa3", "fmha_v2", "trtllm-gen", "xqa")
NO_ALIBI = ('pos_encoding_mode "ALIBI" is not supported with return_lse, lse or sinks: FlashInfer\'s logits have another '
            "origin there; call attnsmith's functions with alibi_slopes")
_FLOATS_OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def refuse(remedy: str, **arguments: Any) -> None:
    """Raises Unsupported for the first of these arguments that says anything: None and False say nothing."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise Unsupported(f"{name} is not supported: {remedy}")


def one_of(name: str, value: Any, words: Tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        raise InvalidRequest(name, shown(value), " or ".join(f'"{word}"' for word in words))
    return value


def check_counts(**counts: Any) -> None:
    """Raises InvalidRequest for the first of these arguments that is no integer from 1 on."""
    for name, value in counts.items():
        fitting(name, value, c_int32, 1)


def backend(value: Any) -> None:
    """A backend is a hint, since which kernel runs only changes the speed, but a word that is none is a mistake."""
    one_of("backend", value, BACKENDS)


def layout(value: Any) -> PageOrder:
    return cast(PageOrder, one_of("kv_layout", value, ("NHD", "HND")))


def dtype(name: str, value: Optional[DType], default: torch.dtype) -> torch.dtype:
    """A torch.dtype, of which FlashInfer also takes the name. None is the default."""
    found = getattr(torch, value, None) if isinstance(value, str) else default if value is None else value
    if not isinstance(found, torch.dtype):
        raise InvalidRequest(name, shown(value), 'a torch.dtype, or its name, such as "float16"')
    return found


class DTypes(NamedTuple):
    """Those of queries, of keys and values, and of outputs."""

    q: torch.dtype
    kv: torch.dtype
    o: torch.dtype


def dtypes(q: Optional[DType], kv: Optional[DType], o: Optional[DType], o_name: str = "o_data_type") -> DTypes:
    """As plan() reads them. Raises Unsupported for those that no kernel has."""
    q_dtype = dtype("q_data_type", q, torch.float16)
    if q_dtype not in (torch.float16, torch.bfloat16):
        raise Unsupported(f"q_data_type {q_dtype} is not supported: queries are of float16 or bfloat16; keys and "
                          "values may be of 8 bits beside them")
    kv_dtype = dtype("kv_data_type", kv, q_dtype)
    if kv_dtype != q_dtype and kv_dtype not in _FLOATS_OF_8_BITS:
        raise Unsupported(f"kv_data_type {kv_dtype} is not supported: it is {q_dtype} as q_data_type is, "
                          "torch.float8_e4m3fn or torch.float8_e5m2")
    return DTypes(q_dtype, kv_dtype, o_dtype(o_name, o, q_dtype))


def o_dtype(name: str, value: Optional[DType], q_dtype: torch.dtype) -> torch.dtype:
    found = dtype(name, value, q_dtype)
    if found not in (q_dtype, torch.float32):
        raise Unsupported(f"{name} {found} is not supported: outputs are of {q_dtype} as queries are, or of float32")
    return found


class Scores(NamedTuple):
    """Which keys a query sees, and what becomes of q k^T."""

    causal: bool
    window_left: int
    soft_cap: Optional[float]
    sm_scale: Optional[float]
    alibi: bool

    def words(self, q: torch.Tensor, factor: float, needs_lse: bool, sinks: Optional[torch.Tensor] = None) -> Dict[str, Any]:
        """Those of the plain functions, for queries [..., heads, head_dim] whose products are multiplied by `factor`
        besides."""
        scale = self.sm_scale
        if factor != 1:
            scale = factor * (q.shape[-1] ** -0.5 if scale is None else scale)
        slopes = None
        if self.alibi:
            # FlashInfer counts the distance to a query from the first query and not from the first key. That shifts all
            # logits of a row alike. The output shows it only with sinks, which are not shifted, and the lse always.
            if needs_lse or sinks is not None:
                raise Unsupported(NO_ALIBI)
            slopes = alibi_slopes(q.shape[-2], q.device)
        window = None if self.window_left < 0 else (self.window_left, None)
        return {"causal": self.causal, "window": window, "softcap": self.soft_cap, "scale": scale,
                "alibi_slopes": slopes}


def encoding(pos_encoding_mode: Any) -> str:
    """"NONE" or "ALIBI". Raises InvalidRequest and Unsupported for others."""
    if one_of("pos_encoding_mode", pos_encoding_mode, ("NONE", "ROPE_LLAMA", "ALIBI")) == "ROPE_LLAMA":
        raise Unsupported('pos_encoding_mode "ROPE_LLAMA" is not supported: rotate q and k before, as attnsmith.append '
                          'does on the way into a cache, and pass "NONE"')
    return str(pos_encoding_mode)


def scores(causal: bool, pos_encoding_mode: str, window_left: int, logits_soft_cap: Optional[float],
           sm_scale: Optional[float]) -> Scores:
    """Raises InvalidRequest and Unsupported."""
    alibi = encoding(pos_encoding_mode) == "ALIBI"
    cap = number("logits_soft_cap", logits_soft_cap)
    cap = cap if cap is not None and cap > 0 else None
    if alibi and cap is not None:
        raise Unsupported('logits_soft_cap is not supported with pos_encoding_mode "ALIBI": pass None, or call '
                          "attnsmith's functions with softcap and alibi_slopes")
    return Scores(flag("causal", causal), left_window(window_left), cap, number("sm_scale", sm_scale),
                  alibi)


def left_window(value: Any) -> int:
    """The keys before a query's own that it sees. Any negative number is no bound."""
    return max(fitting("window_left", value, c_int32), -1)


def alibi_slopes(heads: int, device: torch.device) -> torch.Tensor:
    """fp32 [heads], by the formula that FlashInfer has: powers of 2^(-8/n) for the n heads up to a power of two, and
    for those beyond every other power of its root. They are computed on the device, so that a graph can capture it."""
    n = 1 << heads.bit_length() - 1
    slopes = torch.pow(2.0 ** (-8.0 / n), torch.arange(1, n + 1, device=device))
    beyond = torch.pow(2.0 ** (-4.0 / n), torch.arange(1, 2 * (heads - n) + 1, 2, device=device))
    return torch.cat([slopes, beyond]).float()


class Scales(NamedTuple):
    """Scales of keys and values: numbers, which are folded into the scale of the products and into the output, and
    tensors of one number, which the kernels read, so that a graph follows them."""

    products: float
    output: float
    k: Optional[torch.Tensor]
    v: Optional[torch.Tensor]


def scales(q_scale: Scale, k_scale: Scale, v_scale: Scale) -> Scales:
    k, k_tensor = _scale("k_scale", k_scale)
    v, v_tensor = _scale("v_scale", v_scale)
    if k_tensor is not None and v_tensor is None:  # attnsmith's functions take both or neither
        v_tensor = torch.ones_like(k_tensor)
    elif v_tensor is not None and k_tensor is None:
        k_tensor = torch.ones_like(v_tensor)
    return Scales((1.0 if q_scale is None else _number("q_scale", q_scale)) * k, v, k_tensor, v_tensor)


def _scale(name: str, value: Scale) -> Tuple[float, Optional[torch.Tensor]]:
    if not isinstance(value, torch.Tensor):
        return (1.0 if value is None else _number(name, value)), None
    if value.numel() != 1 or value.dtype != torch.float32:
        raise InvalidRequest(name, f"{value.dtype} {tuple(value.shape)}", "a number, or a tensor of one float32")
    return 1.0, value.reshape(1)


def _number(name: str, value: Any) -> float:
    found = number(name, value)
    if found is None or not math.isfinite(found):
        raise InvalidRequest(name, shown(value), "a finite number")
    return found


def unpacked(cache: Cache, name: str, kv_layout: PageOrder) -> Tuple[torch.Tensor, torch.Tensor]:
    """(k_cache, v_cache) of four axes each, of a pair or of one tensor of both. Caches of pages of one token may lack
    the axis of the page."""
    if isinstance(cache, (tuple, list)):
        if len(cache) != 2:
            raise InvalidRequest(name, f"{len(cache)} tensors", "(k_cache, v_cache), or one tensor of both")
        k, v = cache
    elif isinstance(cache, torch.Tensor) and cache.dim() in (4, 5) and cache.shape[1] == 2:
        k, v = cache.unbind(1)
    else:
        raise InvalidRequest(name, f"{tuple(cache.shape)}" if isinstance(cache, torch.Tensor) else shown(cache),
                             "(k_cache, v_cache), or one tensor [pages, 2, page_size, kv_heads, head_dim] (NHD) or "
                             "[pages, 2, kv_heads, page_size, head_dim] (HND)")
    axis = -3 if kv_layout == "NHD" else -2
    return k.unsqueeze(axis) if k.dim() == 3 else k, v.unsqueeze(axis) if v.dim() == 3 else v


def check_dtype(name: str, tensor: torch.Tensor, planned: torch.dtype, argument: str) -> None:
    if tensor.dtype != planned:
        raise InvalidRequest(f"{name}.dtype", str(tensor.dtype), f"{planned}, as {argument} of plan() says")


def check_size(name: str, got: int, planned: int, argument: str) -> None:
    if got != planned:
        raise InvalidRequest(f"{name}.shape", str(got), f"{planned}, as {argument} of plan() says")


def check_output(name: str, tensor: Optional[torch.Tensor], shape: Tuple[int, ...], kind: torch.dtype) -> None:
    """Checks an output that the caller brings, if it does."""
    if tensor is None:
        return
    if tuple(tensor.shape) != shape:
        raise InvalidRequest(f"{name}.shape", str(tuple(tensor.shape)), str(shape))
    if tensor.dtype != kind:
        raise InvalidRequest(f"{name}.dtype", str(tensor.dtype), str(kind))

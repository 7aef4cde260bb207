"""attnsmith with torch's arguments, and in the place of torch's flash attention and cuDNN.

    import attnsmith.torch
    attnsmith.torch.activate()     # torch.nn.functional.scaled_dot_product_attention and varlen_attn run on attnsmith

``scaled_dot_product_attention`` is torch's function, forward only, for single calls.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, cast

from . import functions
from ._base import reports
from ._base.arguments import named
from ._base.extras import missing
from ._base.options import Options, causal_from_the_top, flag
from ._calls.attend import attend
from ._calls.forms import Form, Problem, batch_views
from ._operators.tracing import wants_operators
from ._tensors import frameworks, views as _views
from ._tensors.frameworks import Torch
from ._tensors.views import View
from .errors import InvalidRequest, Unsupported

if TYPE_CHECKING:  # making these types takes 2 ms
    from .results import AdapterReport


__all__ = ("activate", "deactivate", "report", "reset", "scaled_dot_product_attention")

_deactivate: Optional[Callable[[], None]] = None


@named
def activate(*, strict: bool = False) -> None:
    """Lets attnsmith compute the calls that torch sends to its flash attention or to cuDNN: those of
    torch.nn.functional.scaled_dot_product_attention, torch.nn.attention.varlen.varlen_attn and nested tensors, in eager
    mode and in compiled graphs.

    In training, attnsmith computes the output and the log-sum-exp, and torch's backward the gradients. Calls that attnsmith
    does not support, such as dropout, are passed on to torch's own kernel, and report() counts them. With strict=True they
    raise Unsupported instead. torch still chooses the backend of each call. Calls with attn_mask, and calls that torch
    sends to another backend, do not change; report() and strict do not see them.

    Warns if nothing can be served, because there is no GPU or both backends are switched off. Raises Unsupported before
    torch 2.11.
    """
    strict = flag("strict", strict)
    try:
        import torch
    except ImportError as error:
        raise missing("attnsmith.torch.activate()", "PyTorch 2.11 or newer", "torch", error) from error
    registry: Any = torch.nn.attention
    backends: Any = torch.backends
    if not hasattr(registry, "register_flash_attention_impl"):
        raise Unsupported(f"torch {torch.__version__} has no torch.nn.attention.register_flash_attention_impl: take torch "
                          "2.11 or newer, or call attnsmith.torch.scaled_dot_product_attention")
    from ._adapters import torch_backend
    if not torch.cuda.is_available():
        reports.warn("torch finds no GPU, so nothing will be served")
    elif not (backends.cuda.flash_sdp_enabled() or backends.cuda.cudnn_sdp_enabled()):
        reports.warn("torch's flash attention and cuDNN are switched off, so scaled_dot_product_attention will not be served: "
                     "call torch.backends.cuda.enable_flash_sdp(True)")
    torch_backend.served.strict = strict
    deactivate()
    before = registry.current_flash_attention_impl()
    registry.register_flash_attention_impl(torch_backend.NAME, register_fn=lambda: torch_backend.Handle("CUDA"))
    registry.activate_flash_attention_impl(torch_backend.NAME)

    def undo() -> None:
        if registry.current_flash_attention_impl() == torch_backend.NAME:  # else another took its place
            if before is None:
                registry.restore_flash_attention_impl()
            else:
                registry.activate_flash_attention_impl(before)

    global _deactivate
    _deactivate = undo


@named
def deactivate() -> None:
    """Undoes activate(): torch's own kernels run again, or the implementation that was active before."""
    global _deactivate
    undo, _deactivate = _deactivate, None
    if undo is not None:
        undo()


@named
def report() -> AdapterReport:
    """{"served": {operator: calls}, "passed_on": [{"function", "why", "to", "calls"}, ...]} since the start or reset().

    Calls that a CUDA graph replays are not counted again. Raises ImportError without PyTorch.
    """
    return cast("AdapterReport", _backend("report").served.report())


@named
def reset() -> None:
    """Sets the counts of report() to 0. Raises ImportError without PyTorch."""
    _backend("reset").served.reset()


def _backend(function: str) -> Any:
    try:
        return importlib.import_module("._adapters.torch_backend", __package__)
    except ImportError as error:
        raise missing(f"attnsmith.torch.{function}()", "PyTorch", "torch", error) from error


def _as_batch(view: View, name: str) -> View:
    """[..., heads, len, dim] as [batch, len, heads, dim], of the same memory."""
    pointer, shape, strides, kind, device = view
    if len(shape) < 2:
        raise InvalidRequest(f"{name}.shape", str(tuple(shape)), "[..., heads, len, head_dim]")
    if len(shape) == 2:  # one head
        shape, strides = (1, *shape), (0, *strides)
    heads, length, dim = shape[-3:]
    head_stride, token_stride, inner = strides[-3:]
    batch, batch_stride = 1, 0
    for extent, stride in zip(reversed(shape[:-3]), reversed(strides[:-3])):
        if extent == 1:
            continue
        if batch == 1:
            batch_stride = stride
        elif batch > 0 and extent > 0 and stride != batch * batch_stride:
            raise InvalidRequest(f"{name}.strides", str(tuple(strides)), "leading axes that can be viewed as one "
                                 f"(nothing is copied here): pass {name}.contiguous()")
        batch *= extent
    return (pointer, (batch, length, heads, dim), (batch_stride, token_stride, head_stride, inner), kind, device)


@named
def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Any:
    """torch.nn.functional.scaled_dot_product_attention, forward only.

    query [..., q_heads, q_len, head_dim_qk]; key [..., kv_heads, kv_len, head_dim_qk]; value [..., kv_heads, kv_len,
    head_dim_vo]: torch CUDA tensors of fp16 or bf16, read through their strides. is_causal is torch's: query i sees the
    keys up to i, also where the lengths differ (attention(causal=True) aligns the ends instead). scale: None is 1 /
    sqrt(head_dim_qk). enable_gqa allows fewer key than query heads. is_causal and enable_gqa are True or False.

    Gives [..., q_heads, q_len, head_dim_vo], in memory as [..., q_len, q_heads, head_dim_vo], so that the usual transpose
    and reshape copy nothing.

    Raises Unsupported for attn_mask and dropout_p, InvalidRequest for tensors that require gradients (use torch.no_grad()
    or detach()), are on another device, or have leading axes that cannot be viewed as one.
    """
    if attn_mask is not None:
        raise Unsupported("attn_mask is not supported; is_causal is, and attnsmith.attention has causal, window, "
                          "kv_lens and alibi_slopes")
    if dropout_p:
        raise Unsupported(f"dropout_p {dropout_p} is not supported: this function is forward only; pass 0.0")
    is_causal, enable_gqa = flag("is_causal", is_causal), flag("enable_gqa", enable_gqa)
    if wants_operators():
        return _traced(query, key, value, is_causal, scale, enable_gqa)
    if not isinstance(frameworks.of(query, "query"), Torch):
        raise InvalidRequest("query", f"an object of type {type(query).__name__}", "a torch.Tensor")
    return attend(_SDPA, (query, key, value, None, None, None),
                  (is_causal, None, None, None, scale, False, "standard", "standard", None, enable_gqa), None)


def _check_shapes(query: Any, key: Any, value: Any) -> None:
    """What no longer shows when leading axes are one, and keys behind the last query cut off. Raises InvalidRequest."""
    for name, shape in (("key", key), ("value", value)):
        if len(shape) != len(query) or tuple(shape[:-3]) != tuple(query[:-3]):
            raise InvalidRequest(f"{name}.shape", str(tuple(shape)), f"{len(query)} axes as query has, and its leading ones")
    if value[-2] != key[-2]:
        raise InvalidRequest("value.shape", str(tuple(value)), f"{key[-2]} tokens, as key has")


def _traced(query: Any, key: Any, value: Any, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Any:
    """The same in torch's own views, which a graph holds, around the operator of attention()."""
    _check_shapes(query.shape, key.shape, value.shape)
    lead, heads = query.shape[:-3], query.shape[-3:-2]
    if not enable_gqa and heads != key.shape[-3:-2]:
        raise InvalidRequest("key.shape", str(tuple(key.shape)), "as many heads as query has, or enable_gqa=True")
    q, k, v = (tensor.reshape(math.prod(lead), *(tensor.shape[-3:] if heads else (1, *tensor.shape))).transpose(1, 2)
               for tensor in (query, key, value))  # -1 would not do for tensors without elements
    window = None
    if is_causal:
        keys, is_causal, window = causal_from_the_top(q.shape[1], k.shape[1])
        if keys < k.shape[1]:
            k, v = k[:, :keys], v[:, :keys]
    o = functions.attention(q, k, v, causal=is_causal, window=window, scale=scale).transpose(1, 2)
    return o.reshape(*lead, *heads, *o.shape[-2:])


def _resolve(views: List[Any], options: Options) -> Problem:
    q_shape, key_shape = views[0][1], views[1][1]
    q, k, v = (_as_batch(view, name) for view, name in zip(views[:3], _SDPA.names))
    _check_shapes(q_shape, key_shape, views[2][1])
    is_causal, _, _, _, scale, *others, enable_gqa = options
    batch, q_len, q_heads, _ = q[1]
    if not enable_gqa and q_heads != k[1][2]:
        raise InvalidRequest("key.shape", str(tuple(key_shape)), f"{q_heads} heads as query has, or enable_gqa=True")
    window = None
    if is_causal:
        keys, is_causal, window = causal_from_the_top(q_len, k[1][1])
        if keys < k[1][1]:
            k, v = _views.shortened(k, 1, keys), _views.shortened(v, 1, keys)
    lead, heads = q_shape[:-3], q_shape[-3:-2]  # none for two axes
    *outer, of_token, of_head, of_column = _views.compact_strides((*lead, q_len, q_heads, v[1][-1]))
    o_strides = (*outer, *((of_head,) if heads else ()), of_token, of_column)
    return Problem(q, k, v, batch_views(), "dense", None, batch, q_len, k[1][1],
                   (is_causal, window, None, None, scale, *others), (*lead, *heads, q_len),
                   lambda view: _as_batch(view, "out"), o_strides)


_SDPA = Form(("query", "key", "value", "out", "sinks", "alibi_slopes"), {0, 1, 2}, _resolve,
             {"q": "query", "k": "key", "v": "value", "o": "out"})


try:
    importlib.import_module("torch")
except ImportError:
    pass
else:  # torch.ops.attnsmith, for programs that call or load operators
    importlib.import_module("._operators.torch_ops", __package__)

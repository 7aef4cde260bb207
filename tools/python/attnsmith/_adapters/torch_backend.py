"""attnsmith in the place of PyTorch's flash attention and of its attention by cuDNN.

The forward operators of these two backends are given other kernels, so whatever torch sends there runs on attnsmith:
scaled_dot_product_attention, varlen_attn, nested tensors, transformer layers. What attnsmith does not serve goes on to the
kernel that was there before. Which backend a call goes to is torch's choice, as it is without attnsmith. So are the backward
operators, which get attnsmith's o and log-sum-exp: cuDNN's where torch takes cuDNN. That one is given a gradient of o with the
strides of o: torch 2.11 keeps cuDNN's graphs by the layouts of the other tensors alone, and a graph for other strides gives wrong
gradients.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .. import functions
from .._base.options import causal_from_the_top
from .._operators.torch_kernels import CUDNN, CUDNN_BACKWARD, NONE
from .._operators.torch_operators import Operators, hold, kernel_of, working_kernels
from ..errors import InvalidRequest, Unsupported
from . import heads_first
from .served import Served

NAME = "attnsmith"
served = Served("torch's own kernel")

_SDPA = "_scaled_dot_product_flash_attention"
_FLASH = "_flash_attention_forward"
_CUDNN = "_scaled_dot_product_cudnn_attention"
_CUDNN_BACKWARD = "_scaled_dot_product_cudnn_attention_backward"
_MASK = 3  # among the arguments of _CUDNN
_library: Any = torch.library  # whose functions say no types


class _Thread(threading.local):
    """Whether this thread is in a kernel of torch's that a call was passed on to."""

    own = False


_in_torchs = _Thread()


class Handle:
    """What torch keeps while this is its flash attention: kernels in Python and, where there is the library of
    torch_kernels, its kernels over these."""

    def __init__(self, key: str) -> None:
        # The kernels that are there now have to be found before others take their place.
        kernels = (*_SERVE, _CUDNN_BACKWARD)
        self._before = {name: kernel_of(f"aten::{name}", key) for name in kernels}
        self._kernels = _library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # that a kernel takes the place of another, which is what was asked for
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for name in kernels:
                self._kernels.impl(name, self._kernel(name), key, with_keyset=True, allow_override=True)
                hold(f"aten::{name}", key)
        served.elsewhere = self._operators = None
        native = working_kernels()
        if native is not None:
            operators = Operators(native, "aten", key)
            if all([operators.add(getattr(torch.ops.aten, name).default._schema, self._kernel(name), _RESULTS[name],
                                  own=_OWN.get(name, NONE)) for name in kernels]):
                served.elsewhere = self._operators = operators
            else:
                operators.remove()

    def _kernel(self, name: str) -> Callable[..., Any]:
        return self._or_before(name) if name in _SERVE else self._backward(name)

    def _backward(self, name: str) -> Callable[..., Any]:
        before = self._before[name]

        def call(keys: Any, grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
                 *arguments: Any, **words: Any) -> Any:
            if grad.stride() != out.stride():
                grad = torch.empty_strided(out.shape, out.stride(), dtype=grad.dtype, device=grad.device).copy_(grad)
            return before.call_boxed(keys, grad, query, key, value, out, *arguments, **words)

        return call

    def _or_before(self, name: str) -> Callable[..., Any]:
        before, serve = self._before[name], _SERVE[name]

        def call(keys: Any, *arguments: Any, **words: Any) -> Any:
            # Masks are cuDNN's, as torch chose.
            is_masked = name == _CUDNN and (words.get("attn_bias") if len(arguments) <= _MASK else arguments[_MASK]) is not None
            if _in_torchs.own or is_masked:  # torch's scaled_dot_product_attention calls its varlen kernel
                return before.call_boxed(keys, *arguments, **words)
            try:
                with torch.no_grad():  # torch has the gradients of its operators
                    return serve(*arguments, **words)
            except (InvalidRequest, Unsupported) as error:  # which may be neither to torch
                served.pass_on(name, str(error))
            _in_torchs.own = True
            try:
                return before.call_boxed(keys, *arguments, **words)
            finally:
                _in_torchs.own = False

        return call

    def remove(self) -> None:
        """Puts back the kernels that were there before. torch calls it."""
        if self._operators is not None:
            self._operators.remove()
        self._kernels._destroy()


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
          return_debug_mask: bool = False, *, scale: Optional[float] = None) -> Tuple[Any, ...]:
    """query, key, value: [batch, heads, tokens, head_dim]. Gives o like query and lse [batch, q_heads, q_len]."""
    _refuse_dropout(dropout_p, return_debug_mask)
    out = torch.empty_like(query)
    lse = heads_first.attention_into(out, query, key, value, causal=is_causal, scale=scale)
    served.count(_SDPA)
    return out, lse, None, None, query.shape[2], key.shape[2], *_seeds(query)


def _cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: None, compute_log_sumexp: bool,
           dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
           scale: Optional[float] = None) -> Tuple[Any, ...]:
    """query, key, value: [batch, heads, tokens, head_dim]. Gives o with query's order of axes in memory and, if it is wanted,
    lse [batch, q_heads, q_len, 1]."""
    _refuse_dropout(dropout_p, return_debug_mask)
    if compute_log_sumexp and os.environ.get(_RAGGED) == "1":
        raise Unsupported(f"{_RAGGED}, which wants another layout of the log-sum-exp")
    q_len, kv_len, window = query.shape[2], key.shape[2], None
    k, v = key, value
    if is_causal:  # counted from the first key
        keys, is_causal, window = causal_from_the_top(q_len, kv_len)
        k, v = key[:, :, :keys], value[:, :, :keys]
    out = _like_query(query, value.shape[-1])
    lse = heads_first.attention_into(out, query, k, v, causal=is_causal, window=window, scale=scale,
                                     return_lse=compute_log_sumexp)
    served.count(_CUDNN)
    if lse is not None and _axes_of_lse() > lse.dim():
        lse = lse.unsqueeze(-1)
    seed, offset = (torch.empty((), dtype=torch.int64, device=query.device) for _ in range(2))
    return out, lse, None, None, q_len, kv_len, seed, offset, None


_RAGGED = "TORCH_CUDNN_SDPA_AVOID_RECOMPILE"  # of torch: with it, its backward reads the log-sum-exp in another order


def _like_query(query: torch.Tensor, head_dim_vo: int) -> torch.Tensor:
    """What torch makes for o: for graphs that were compiled, its strides count."""
    if query.shape[-1] == head_dim_vo:
        return torch.empty_like(query)
    order = sorted(range(4), key=query.stride().__getitem__, reverse=True)
    shape = (*query.shape[:-1], head_dim_vo)
    return query.new_empty([shape[axis] for axis in order]).permute([order.index(axis) for axis in range(4)])


@functools.lru_cache(None)
def _axes_of_lse() -> int:
    """3 or 4, by this torch."""
    q = torch.empty(1, 1, 1, 8, dtype=torch.float16, device="meta")
    return int(torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, True)[1].dim())


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: Optional[torch.Tensor],
           cum_seq_k: Optional[torch.Tensor], max_q: int, max_k: int, dropout_p: float, is_causal: bool,
           return_debug_mask: bool, *, scale: Optional[float] = None, window_size_left: Optional[int] = None,
           window_size_right: Optional[int] = None, seqused_k: Optional[torch.Tensor] = None,
           alibi_slopes: Optional[torch.Tensor] = None) -> Tuple[Any, ...]:
    """query, key, value: [batch, tokens, heads, head_dim], or with cum_seq_q [tokens, heads, head_dim]. Gives o like query
    and lse [batch, q_heads, q_len], or [q_heads, tokens]."""
    _refuse_dropout(dropout_p, return_debug_mask)
    if alibi_slopes is not None and alibi_slopes.dim() != 1:
        raise Unsupported("alibi_slopes of each sequence")
    if alibi_slopes is not None and not is_causal:  # torch's fall to both sides of a query
        raise Unsupported("alibi_slopes that are not causal")
    words: Dict[str, Any] = {"causal": is_causal, "window": (window_size_left, None if is_causal else window_size_right), "scale": scale,
                             "alibi_slopes": alibi_slopes, "return_lse": True, "lse_order": "HND",
                             "out": torch.empty_like(query)}
    if cum_seq_q is None and cum_seq_k is None:
        o, lse = functions.attention(query, key, value, kv_lens=seqused_k, **words)
    elif cum_seq_q is None or cum_seq_k is None:
        raise Unsupported("one of cum_seq_q and cum_seq_k")
    elif seqused_k is not None:
        raise Unsupported("seqused_k of ragged keys")
    else:
        o, lse = functions.varlen_attention(query, key, value, cum_seq_q, cum_seq_k, max_q_len=max_q, max_kv_len=max_k,
                                            **words)
    served.count(_FLASH)
    return o, lse, *_seeds(query)


def _refuse_dropout(dropout_p: float, return_debug_mask: bool) -> None:
    if dropout_p:
        raise Unsupported("dropout")
    if return_debug_mask:
        raise Unsupported("return_debug_mask")


def _seeds(query: torch.Tensor) -> List[torch.Tensor]:
    """Of the dropout that there is not, which the backward operators take and do not read; and no debug mask."""
    return [torch.empty(2, dtype=torch.uint64, device=query.device),
            torch.empty((), dtype=torch.uint64, device=query.device), query.new_empty(0)]


_SERVE: Dict[str, Callable[..., Tuple[Any, ...]]] = {_SDPA: _sdpa, _FLASH: _flash, _CUDNN: _cudnn}
_RESULTS = {_SDPA: "oluuqkSse", _FLASH: "olSse", _CUDNN: "oluuqkiiu",  # by letters of torch_kernels/interface.h
            _CUDNN_BACKWARD: "uuu"}
_OWN = {_CUDNN: CUDNN, _CUDNN_BACKWARD: CUDNN_BACKWARD}

"""attnsmith in the place of PyTorch's flash attention and of its attention by cuDNN.

The forward operators of these two backends are given other kernels, so whatever torch sends there runs on attnsmith:
scaled_dot_product_attention, varlen_attn, nested tensors, transformer layers. What attnsmith does not serve goes on to the
kernel that was there before. Which backend a call goes to is torch's choice, as it is without attnsmith. So are the backward
operators, which get attnsmith's o and log-sum-exp: cuDNN's where torch takes cuDNN.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import _heads_first, _reports, _torch_kernels, functions
from ._attend import recipes_of_calls
from ._options import causal_from_the_top
from ._served import Served
from ._torch_kernels import Kernels
from .errors import InvalidRequest, Unsupported

NAME = "attnsmith"
served = Served("torch's own kernel")

_SDPA, _FLASH, _CUDNN = _torch_kernels.OPERATORS
_MASK = 3  # among the arguments of _CUDNN
_library: Any = torch.library  # whose functions say no types


class _Thread(threading.local):
    """Whether this thread is in a kernel of torch's that a call was passed on to."""

    own = False


_in_torchs = _Thread()


class Handle:
    """What torch keeps while this is its flash attention: kernels in Python and, where there is the library of
    _torch_kernels, its kernels over these, which send what they do not know to operators with the same in Python."""

    def __init__(self, key: str) -> None:
        # The kernels that are there now have to be found before others take their place.
        self._before = {name: _library.get_kernel(f"aten::{name}", key) for name in _SERVE}
        self._kernels = _library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # that a kernel takes the place of another, which is what was asked for
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for name in _SERVE:
                self._kernels.impl(name, self._or_before(name, None), key, with_keyset=True, allow_override=True)
        self._native = _working_kernels()
        served.elsewhere = self._native
        if self._native is not None:
            self._others = _others(self._native, key, {name: self._or_before(name, self._native) for name in _SERVE})
            if not self._native.activate(key):
                self._others._destroy()
                self._native = served.elsewhere = None

    def _or_before(self, name: str, native: Optional[Kernels]) -> Callable[..., Any]:
        """`native`: what learns the layouts that are served."""
        before, serve = self._before[name], _SERVE[name]

        def call(keys: Any, *arguments: Any, **words: Any) -> Any:
            # Masks are cuDNN's, as torch chose.
            is_masked = name == _CUDNN and (words.get("attn_bias") if len(arguments) <= _MASK else arguments[_MASK]) is not None
            if _in_torchs.own or is_masked:  # torch's scaled_dot_product_attention calls its varlen kernel
                return before.call_boxed(keys, *arguments, **words)
            try:
                with torch.no_grad():  # torch has the gradients of its operators
                    if native is None:
                        return serve(*arguments, **words)
                    with recipes_of_calls() as recipes:
                        results = serve(*arguments, **words)
                    if len(recipes) == 1:
                        native.learn(recipes[0], *results[:2])
                    return results
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
        if self._native is not None:
            self._native.deactivate()
            self._others._destroy()
        self._kernels._destroy()


def _others(native: Kernels, key: str, kernels: Dict[str, Callable[..., Any]]) -> Any:
    """Operators of torch's names and arguments in the namespace attnsmith. Of the results they have the tensors."""
    library = _library.Library("attnsmith", "FRAGMENT")
    for name, kernel in kernels.items():
        schema = getattr(torch.ops.aten, name).default._schema
        arguments = str(schema).replace("aten::", "", 1).partition(" -> ")[0]
        tensors = [i for i, result in enumerate(schema.returns) if str(result.type) == "Tensor"]
        library.define(f"{arguments} -> ({', '.join(['Tensor'] * len(tensors))})")
        library.impl(name, _or_fail(native, kernel, tensors), key, with_keyset=True)
    return library


def _or_fail(native: Kernels, kernel: Callable[..., Any], tensors: List[int]) -> Callable[..., Any]:
    """Gives those of the results that are `tensors`. torch's C interface would print an exception and lose it: the library
    gets it apart, and throws it."""
    nothing = (torch.empty(0),) * len(tensors)

    def call(keys: Any, *arguments: Any, **words: Any) -> Any:
        try:
            results = kernel(keys, *arguments, **words)
            return tuple([results[i] for i in tensors])
        except BaseException as error:
            native.fail(error)
            return nothing

    return call


def _working_kernels() -> Optional[Kernels]:
    """The library, if an exception of Python comes through it and through torch, which is tried once."""
    native = _torch_kernels.kernels(torch)
    if native is None or native.is_tried:
        return native
    thrown = Unsupported("a trial")

    def throw(*arguments: Any) -> Any:
        raise thrown

    others = _others(native, "CPU", {name: throw for name in _SERVE})
    try:
        if native.activate("CPU"):
            q = torch.empty(1, 1, 1, 8)
            torch.ops.aten._flash_attention_forward(q, q, q, None, None, 1, 1, 0.0, False, False)
    except Unsupported as error:
        native.is_tried = error is thrown
    except Exception:
        pass
    finally:
        native.deactivate()
        others._destroy()
    if native.is_tried:
        return native
    _reports.warn(f"exceptions do not come through torch {torch.__version__} from C++: calls are served in Python")
    _torch_kernels.give_up(native)
    return None


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
          return_debug_mask: bool = False, *, scale: Optional[float] = None) -> Tuple[Any, ...]:
    """query, key, value: [batch, heads, tokens, head_dim]. Gives o like query and lse [batch, q_heads, q_len]."""
    _refuse_dropout(dropout_p, return_debug_mask)
    out = torch.empty_like(query)
    lse = _heads_first.attention_into(out, query, key, value, causal=is_causal, scale=scale)
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
    lse = _heads_first.attention_into(out, query, k, v, causal=is_causal, window=window, scale=scale,
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

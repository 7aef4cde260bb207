"""attention() of torch's tensors with heads before tokens, [batch, heads, tokens, head_dim], as models and torch's SDPA
have them. The transposes that it would need otherwise take longer than the rest of a call's Python."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from .. import functions
from .._base.options import Options
from .._calls.attend import attend
from .._calls.forms import Form, Problem, batch_views, need_axes, need_same_tokens
from .._operators.tracing import wants_operators
from .._tensors.views import View


def attention(q: Any, k: Any, v: Any, *, causal: bool, window: Optional[Tuple[Any, Any]] = None,
              softcap: Optional[float] = None, sinks: Any = None, scale: Optional[float] = None,
              kv_lens: Any = None) -> Any:
    """Gives o [batch, q_len, q_heads, head_dim_vo]. Otherwise as functions.attention."""
    if wants_operators():  # a compiler makes no transposes, but wants an operator
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return functions.attention(q, k, v, causal=causal, window=window, softcap=softcap, sinks=sinks, scale=scale,
                                   kv_lens=kv_lens)
    return attend(_NEW, (q, k, v, None, sinks, None, kv_lens), _options(causal, window, softcap, scale, False), None)


def attention_into(out: Any, q: Any, k: Any, v: Any, *, causal: bool, scale: Optional[float],
                   window: Optional[Tuple[Any, Any]] = None, return_lse: bool = True) -> Any:
    """Writes o to out [batch, q_heads, q_len, head_dim_vo] and gives lse [batch, q_heads, q_len], or None. Not to be
    traced."""
    results = attend(_INTO, (q, k, v, out, None, None, None), _options(causal, window, None, scale, return_lse), None)
    return results[1] if return_lse else None


def _options(causal: bool, window: Optional[Tuple[Any, Any]], softcap: Optional[float], scale: Optional[float],
             return_lse: bool) -> Options:
    return causal, window, None, softcap, scale, return_lse, "standard", "standard", None


def _resolve(views: List[Any], options: Options) -> Problem:
    for name, view in zip("qkv", views):
        need_axes(name, view, "[batch, heads, tokens, head_dim]")
    need_same_tokens(views[1], views[2], 2)
    q, k, v = map(_transposed, views[:3])
    return Problem(q, k, v, batch_views(kv_lens=views[6]), "dense", None, q[1][0], q[1][1], k[1][1], options, q[1][:-1])


def _resolve_into(views: List[Any], options: Options) -> Problem:
    return _resolve(views, options)._replace(rows=views[0][1][:-1], as_kernel=_transposed)


def _transposed(view: View) -> View:
    """[batch, heads, tokens, ...] as [batch, tokens, heads, ...]."""
    pointer, (batch, heads, *shape), (of_batch, of_head, *strides), kind, device = view
    return (pointer, (batch, shape[0], heads, *shape[1:]), (of_batch, strides[0], of_head, *strides[1:]), kind, device)


_NAMES = ("q", "k", "v", "out", "sinks", "alibi_slopes", "kv_lens")
_NEW, _INTO = (Form(_NAMES, {0, 1, 2}, resolve) for resolve in (_resolve, _resolve_into))

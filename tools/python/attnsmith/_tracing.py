"""What torch.compile and torch.export see of the plain functions: operators, since a graph holds no Python."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def is_tracing() -> bool:
    """Whether torch.compile or torch.export traces the caller, which a program without torch does not."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def traceable(function: _Function) -> _Function:
    """The function, but an operator of torch.library with the same arguments while torch traces its call."""
    name = function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **words: Any) -> Any:
        if is_tracing():
            from ._torch_ops import TRACED
            return TRACED[name](*arguments, **words)
        return function(*arguments, **words)

    return cast(_Function, call)

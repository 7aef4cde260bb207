"""What torch.compile and torch.export see of the plain functions: operators, since a graph holds no Python."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, TypeVar, cast

from ._arguments import check_fit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def is_tracing() -> bool:
    """Whether torch.compile or torch.export traces the caller, which a program without torch does not."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def wants_operators() -> bool:
    """Whether somebody looks at the operators that are called: what traces the caller, or one of torch's dispatch modes, such
    as that of make_fx or of fake tensors, to which a launch is nothing."""
    if is_tracing():
        return True
    torch = sys.modules.get("torch")
    modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    return modes is not None and modes() > 0


def traceable(function: _Function) -> _Function:
    """The function, but an operator of torch.library with the same arguments where its call is to be seen."""
    name = function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **words: Any) -> Any:
        try:
            if wants_operators():
                from ._torch_ops import TRACED
                return TRACED[name](*arguments, **words)
            return function(*arguments, **words)
        except TypeError:
            check_fit(function, arguments, words)
            raise

    return cast(_Function, call)

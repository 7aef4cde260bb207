"""What torch.compile and torch.export see of the plain functions: operators, since a graph holds no Python."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar, cast

from .._base.arguments import check_fit
from .tracing import TRACEABLE, wants_operators

_Function = TypeVar("_Function", bound=Callable[..., Any])


def traceable(function: _Function) -> _Function:
    """The function, but an operator of torch.library with the same arguments where its call is to be seen."""
    name = function.__name__
    TRACEABLE[name] = function

    @functools.wraps(function)
    def call(*arguments: Any, **words: Any) -> Any:
        try:
            if wants_operators():
                from .torch_ops import TRACED
                return TRACED[name](*arguments, **words)
            return function(*arguments, **words)
        except TypeError:
            check_fit(function, arguments, words)
            raise

    return cast(_Function, call)

"""Whether a call is traced by torch.compile or torch.export, and what it is a call of."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict

#: By name, the functions that operators are made of, as they are without a tracer. traceable() adds them.
TRACEABLE: Dict[str, Callable[..., Any]] = {}


def is_tracing() -> bool:
    """Whether torch.compile or torch.export traces the caller, which a program without torch does not."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def wants_operators() -> bool:
    """Whether something looks at the operators that are called: what traces the caller, or one of torch's dispatch modes, such
    as that of make_fx or of fake tensors, to which a launch is nothing."""
    if is_tracing():
        return True
    torch = sys.modules.get("torch")
    modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    return modes is not None and modes() > 0

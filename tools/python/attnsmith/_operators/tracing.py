"""Whether a call is traced by torch.compile or torch.export, and what it is a call of."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict

#: By name, the functions that operators are made of, as they are without a tracer. traceable() adds them.
TRACEABLE: Dict[str, Callable[..., Any]] = {}


def is_tracing() -> bool:
    """Whether torch.compile or torch.export traces the caller, which a program without torch does not."""
    return (_torch is not None or _met_torch()) and bool(_torch.compiler.is_compiling())


_torch: Any = None
_modes: Any = None  # how many of torch's dispatch modes are active


def wants_operators() -> bool:
    """Whether something looks at the operators that are called: what traces the caller, or one of torch's dispatch modes, such
    as that of make_fx or of fake tensors, to which a launch is nothing."""
    if _torch is None and not _met_torch():
        return False
    return bool(_torch.compiler.is_compiling() or _modes() > 0)


def _met_torch() -> bool:
    global _torch, _modes
    torch: Any = sys.modules.get("torch")
    if getattr(torch, "compiler", None) is None:  # not there, or being imported
        return False
    _modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
    _torch = torch
    return True

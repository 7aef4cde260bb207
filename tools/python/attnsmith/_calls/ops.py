"""One launch of an op that binds tensors alone (abi.OP_TENSORS), with a workspace that holds no more than the status."""

from __future__ import annotations

from ctypes import byref, c_int64, c_void_p
from typing import Any, List, Optional, Tuple

from .._base.integers import fitting
from .._c_api import abi
from .._tensors import frameworks
from .._tensors.blocks import OpBlock
from .._tensors.frameworks import Framework, Order, Torch
from .._tensors.views import View
from .dispatch import Dispatch, Prepared
from .workspaces import torch_memory


def launch_op(dispatch: Dispatch, op: str, framework: Framework, index: int, order: Order, entry: Prepared,
              views: List[Optional[View]], bounds: Tuple[int, int], status: Any) -> None:
    """`views`: the op's tensors and those of the batch. `status`: the tensor that it is written to, or None."""
    nbytes = abi.WORKSPACE_ZEROED_BYTES
    if isinstance(framework, Torch) and framework.is_capturing() \
            and not dispatch.workspaces.serves_capture(index, order.stream, nbytes):
        memory, data = torch_memory(framework, nbytes, index)
        _enqueue(dispatch, op, entry, views, bounds, data, nbytes, order, status)
        del memory  # freed after the launch, in the graph's own pool
        return
    workspace = dispatch.workspaces.of(index, order.stream)
    with workspace.lock:
        if workspace.nbytes < nbytes:
            dispatch.workspaces.grow(workspace, nbytes, framework, index, order.stream)
        _enqueue(dispatch, op, entry, views, bounds, workspace.data, workspace.nbytes, order, status)


def _enqueue(dispatch: Dispatch, op: str, entry: Prepared, views: List[Optional[View]], bounds: Tuple[int, int],
             data: int, nbytes: int, order: Order, status: Any) -> None:
    functions, block = dispatch.library.functions, OpBlock(abi.OP_TENSORS[op])
    block.fill(views, fitting("max_q_len", bounds[0], c_int64), fitting("max_kv_len", bounds[1], c_int64), data, nbytes)
    arguments = (entry.pointer, block.tensors, block.batch, block.workspace)
    if status is None:
        code = getattr(functions, f"attnsmith_run_{op}")(*arguments, order.stream, block.error)
    else:
        word = frameworks.of(status, "status").view(status, "status", order)[0]
        call = c_void_p()
        code = getattr(functions, f"attnsmith_bind_{op}")(*arguments, byref(call), block.error)
        if not code:
            code = (functions.attnsmith_call_clear_status(call, order.stream, block.error)
                    or functions.attnsmith_launch(call, order.stream, block.error)
                    or functions.attnsmith_call_copy_status(call, word, order.stream, block.error))
        functions.attnsmith_call_free(call)
    if code:
        raise dispatch.library.error(code, block.failure())

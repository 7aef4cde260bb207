"""The structs of one call, in memory that is used again: packing numbers into it is several times cheaper than making
ctypes objects. A block serves one call at a time; callers take one from a list of free ones and put it back, which is
safe between threads."""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import Optional, Sequence, Type

from .._c_api import abi
from ..errors import InvalidRequest
from .views import MOST_AXES, View

_TENSOR_BYTES = ctypes.sizeof(abi.Tensor)
_SLOT_BYTES = _TENSOR_BYTES + 2 * 8 * MOST_AXES
# DLTensor (data, device, dtype and rank, shape*, strides*, byte_offset), then the shape and the strides themselves.
_PACK_TENSOR = [Struct(f"6Q{2 * rank}q").pack_into for rank in range(MOST_AXES + 1)]


class Block:
    """Room for `header` bytes, the attnsmith_error* that a call gives back, and `slots` tensors."""

    __slots__ = ("_memory", "_keep", "_slots", "address", "error")

    def __init__(self, header: int, slots: int) -> None:
        self._memory = bytearray(header + 8 + slots * _SLOT_BYTES)
        self._keep = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)  # holds it in its place
        self._slots = header + 8
        self.address = ctypes.addressof(self._keep)
        self.error = self.address + header

    def put(self, views: Sequence[Optional[View]]) -> "list[int]":
        """Packs tensors. Gives the addresses of their DLTensors, 0 for None."""
        memory, at, addresses = self._memory, self._slots, []
        address = self.address + at
        for view in views:
            if view is None:
                addresses.append(0)
                continue
            pointer, shape, strides, kind, device = view
            rank = len(shape)
            if rank > MOST_AXES:
                raise InvalidRequest("shape", str(tuple(shape)), f"a tensor of at most {MOST_AXES} axes")
            data = address + _TENSOR_BYTES
            _PACK_TENSOR[rank](memory, at, pointer, device, kind | rank, data, data + 8 * rank, 0, *shape, *strides)
            addresses.append(address)
            at += _SLOT_BYTES
            address += _SLOT_BYTES
        return addresses

    def failure(self) -> int:
        """The attnsmith_error* of the call that failed."""
        return ctypes.c_void_p.from_address(self.error).value or 0


_TENSOR_COUNT = len(abi.TENSOR_FIELDS)
# attnsmith_tensors, attnsmith_batch, attnsmith_workspace and the error.
_ATTENTION = Struct(f"{1 + _TENSOR_COUNT}Q 9Q2qQ 3Q Q")
_TENSORS_BYTES, _BATCH_BYTES = ctypes.sizeof(abi.Tensors), ctypes.sizeof(abi.Batch)
_WORKSPACE_BYTES = ctypes.sizeof(abi.Workspace)


class AttentionBlock(Block):
    """The arguments of attnsmith_bind and attnsmith_run. `words` are its memory in units of 8 bytes: in a block that is
    filled, the pointers and the workspace can be replaced there."""

    __slots__ = ("tensors", "batch", "workspace", "words", "arguments", "error_argument")
    WORKSPACE_WORD = (_TENSORS_BYTES + _BATCH_BYTES) // 8 + 1  # its data, before its bytes

    def __init__(self) -> None:
        super().__init__(_ATTENTION.size - 8, _TENSOR_COUNT + len(abi.BATCH_FIELDS))
        self.tensors = self.address
        self.batch = self.tensors + _TENSORS_BYTES
        self.workspace = self.batch + _BATCH_BYTES
        self.words = memoryview(self._memory).cast("Q")
        # Made once, since ctypes makes them of numbers at every call.
        self.arguments = tuple(map(ctypes.c_void_p, (self.tensors, self.batch, self.workspace)))
        self.error_argument = ctypes.c_void_p(self.error)

    @staticmethod
    def pointer_words(views: Sequence[Optional[View]], fields: Sequence[int]) -> "tuple[int, ...]":
        """Where the data pointers of these fields are after `fill`."""
        words, at = [], _ATTENTION.size // 8
        for view in views:
            words.append(at)
            if view is not None:
                at += _SLOT_BYTES // 8
        return tuple([words[field] for field in fields])

    def fill(self, views: Sequence[Optional[View]], max_q_len: int, max_kv_len: int, workspace: int,
             workspace_bytes: int) -> None:
        """`views`: the fields of attnsmith_tensors, then those of attnsmith_batch."""
        *at, table_rows = self.put(views)
        _ATTENTION.pack_into(self._memory, 0, _TENSORS_BYTES, *at[:_TENSOR_COUNT], _BATCH_BYTES, *at[_TENSOR_COUNT:],
                             max_q_len, max_kv_len, table_rows, _WORKSPACE_BYTES, workspace, workspace_bytes, 0)


class MergeBlock(Block):
    """The arguments of attnsmith_bind_merge and attnsmith_run_merge, for a number of states."""

    __slots__ = ("states", "_pack")

    def __init__(self, states: int) -> None:
        # attnsmith_merge_tensors, the two arrays that it points to, and the error.
        layout = Struct(f"6Q {2 * states}Q Q")
        super().__init__(layout.size - 8, 2 * states + 2)
        self.states = states
        self._pack = layout.pack_into

    def fill(self, o_states: Sequence[View], lse_states: Sequence[View], o: View, lse: Optional[View]) -> None:
        *states, at_o, at_lse = self.put([*o_states, *lse_states, o, lse])
        arrays = self.address + 48
        self._pack(self._memory, 0, 48, self.states, arrays, arrays + 8 * self.states, at_o, at_lse, *states, 0)


class OpBlock(Block):
    """The arguments of attnsmith_bind_OP and attnsmith_run_OP, of an op of abi.OP_TENSORS."""

    __slots__ = ("tensors", "batch", "workspace", "_count", "_pack")

    def __init__(self, struct: Type[abi.OpTensors]) -> None:
        count = len(struct.FIELDS)
        # The op's tensors, attnsmith_batch, attnsmith_workspace and the error.
        layout = Struct(f"{1 + count}Q 9Q2qQ 3Q Q")
        super().__init__(layout.size - 8, count + len(abi.BATCH_FIELDS))
        self.tensors = self.address
        self.batch = self.tensors + ctypes.sizeof(struct)
        self.workspace = self.batch + _BATCH_BYTES
        self._count, self._pack = count, layout.pack_into

    def fill(self, views: Sequence[Optional[View]], max_q_len: int, max_kv_len: int, workspace: int,
             workspace_bytes: int) -> None:
        """`views`: the op's fields, then those of attnsmith_batch."""
        *at, table_rows = self.put(views)
        self._pack(self._memory, 0, self.batch - self.tensors, *at[:self._count], _BATCH_BYTES, *at[self._count:],
                   max_q_len, max_kv_len, table_rows, _WORKSPACE_BYTES, workspace, workspace_bytes, 0)

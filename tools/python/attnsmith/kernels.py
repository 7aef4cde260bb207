"""Runtime -> Kernel -> Call: prepared kernels, and launches whose arguments are fixed."""

from __future__ import annotations

import math
import operator
import time
import weakref
from ctypes import byref, c_int64, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, Dict, NoReturn, Optional, Sequence, SupportsInt, Tuple, cast

from ._base.arguments import by_name, check_fit, checks_itself, named_methods
from ._base.integers import fitting, shown
from ._c_api import abi
from ._c_api.handles import Closable, Owner, Shared
from ._c_api.library import Library
from ._c_api.native_module import native, natively
from ._tensors import frameworks, interface, views as _views
from ._tensors.blocks import AttentionBlock, MergeBlock, OpBlock
from ._tensors.frameworks import Order
from .buffers import Buffer
from .errors import InvalidRequest

if TYPE_CHECKING:  # making these types takes 2 ms
    from .results import NormalizedRequest, Plan

_MOST_PICKED = 4096  # sizes that a set remembers
_MOST_STREAM = (1 << 64) - 1
_SCALES = [abi.TENSOR_FIELDS.index(name) for name in ("k_scale", "v_scale")]
_pendings: "weakref.WeakSet[Pending]" = weakref.WeakSet()


@named_methods
class CallStatus:
    """What launches found wrong on the device. It is true if anything was. The status of a Call stays set until it is
    cleared.

    bits: the status word, or the tensor that the functions return with return_status=True.

    Raises InvalidRequest for anything else.
    """

    __slots__ = ("q_len_clamped", "kv_len_clamped", "page_out_of_range", "workspace_not_zeroed",
                 "scale_not_positive", "slot_out_of_range", "position_out_of_range", "slot_written_twice")

    def __init__(self, bits: SupportsInt) -> None:
        bits = _bits_of(bits)
        #: A sequence had more queries than the bound or the tensor.
        self.q_len_clamped: bool = bool(bits & abi.Q_LEN_CLAMPED)
        #: A sequence had more keys than the bound or the tensor.
        self.kv_len_clamped: bool = bool(bits & abi.KV_LEN_CLAMPED)
        #: A page id in use was not a page, and its keys were read as zeros; or table_rows named a row that page_table
        #: does not have, and the sequence had no keys.
        self.page_out_of_range: bool = bool(bits & abi.PAGE_OUT_OF_RANGE)
        #: A counter in the workspace was too large: its first 8192 bytes were not zero before the first launch, or two
        #: launches used it at the same time. o is wrong.
        self.workspace_not_zeroed: bool = bool(bits & abi.WORKSPACE_NOT_ZEROED)
        #: A scale of keys or values was not a finite number above 0. Rows of its KV heads are NaN.
        self.scale_not_positive: bool = bool(bits & abi.SCALE_NOT_POSITIVE)
        #: Op append did not write a token: its slot is past the end of the cache, or its sequence has more new tokens
        #: than keys.
        self.slot_out_of_range: bool = bool(bits & abi.SLOT_OUT_OF_RANGE)
        #: Op append did not write a token: its position is below 0, or rope_table does not have it.
        self.position_out_of_range: bool = bool(bits & abi.POSITION_OUT_OF_RANGE)
        #: With check_slots: two tokens of one launch of op append were written to one slot. Its rows are now those of
        #: one of them, or parts of both.
        self.slot_written_twice: bool = bool(bits & abi.SLOT_WRITTEN_TWICE)

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    def __repr__(self) -> str:
        names = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"CallStatus({names})"


class _CallPointer(c_void_p):
    """An attnsmith_call. Each use of it, in any thread, has a reference: the last to go frees it."""

    _free: Any = None

    def __init__(self, pointer: int, free: Any) -> None:
        super().__init__(pointer)
        self._free = free

    def __del__(self) -> None:
        if self._free is not None:
            self._free(self.value)


@named_methods
class Call(Owner):
    """One launch with fixed arguments, made by Kernel.bind(), bind_merge(), bind_append() or bind_op(). It keeps its
    tensors alive. It holds one workspace, so launches that may run at the same time need one Call each. A CUDA graph that
    captured a launch uses the code and the workspace of the Call: keep the Call as long as the graph."""

    _another = "it holds one workspace; Kernel.bind() makes another"
    _elsewhere = "prepare() and bind() there"
    _pointer: Optional[_CallPointer] = None
    _launcher: Any = None

    def __init__(self, library: Library, pointer: int, current_stream: Any, held: Any,
                 views: "Sequence[Optional[_views.View]]" = ()) -> None:
        """`views`: of the tensors whose addresses a launch may replace."""
        self._library = library
        self._pointer = _CallPointer(pointer, library.functions.attnsmith_call_free)
        self._current_stream = current_stream
        self._held = held
        self._views = views
        self._launch = library.functions.attnsmith_launch
        if native is not None:
            self._launcher = native.launcher(
                library.address("attnsmith_launch"), library.address("attnsmith_call_launch_at"), pointer, self._pointer,
                current_stream, library.error)

    @natively("launch_method", abi.TENSOR_FIELDS)
    @checks_itself
    def launch(self, stream: Any = None, *surplus: NoReturn, q: Any = None, k: Any = None, v: Any = None, o: Any = None,
               lse: Any = None, sinks: Any = None, alibi_slopes: Any = None, q_pe: Any = None,
               kpe: Any = None, k_scale: Any = None, v_scale: Any = None, **unknown: NoReturn) -> None:
        """Enqueues the kernels on a stream. It allocates nothing, waits for nothing, and may be captured in a CUDA graph.

        stream: a CUstream as a number, a stream of torch, CuPy, Numba or any object with __cuda_stream__. None is the
            stream that is current in the framework of q.
        q, k, v, o, lse, sinks, alibi_slopes, q_pe, kpe, k_scale, v_scale: tensors for this launch in the place of those
            that were bound, or their addresses as numbers, so that a call that was bound once serves every layer. Shapes,
            strides and dtypes are those that were bound. The caller keeps these tensors until the stream has passed the
            launch. Lengths and page tables stay as bound.

        Raises InvalidRequest for a wrong stream, or naming the tensor; DriverError.
        """
        if surplus or unknown:
            check_fit(Call.launch, (self, stream, *surplus), unknown)
        error = c_void_p()
        if q is k is v is o is lse is sinks is alibi_slopes is q_pe is kpe is k_scale is v_scale is None:
            code = self._launch(self._pointer, self._stream(stream), byref(error))
        else:
            at = self._addresses((q, k, v, o, lse, sinks, alibi_slopes, q_pe, kpe, k_scale, v_scale))
            code = self._library.functions.attnsmith_call_launch_at(self._pointer, byref(at), self._stream(stream),
                                                               byref(error))
        if code:
            raise self._library.error(code, error.value)

    def _addresses(self, tensors: Sequence[Any]) -> abi.TensorAddresses:
        """Of the tensors that are given, whose layouts are those of the ones that were bound."""
        at = abi.TensorAddresses()
        for i, (name, tensor) in enumerate(zip(abi.TENSOR_FIELDS, tensors)):
            if tensor is None:
                continue
            if hasattr(tensor, "__index__") and not hasattr(tensor, "shape"):
                address = fitting(name, tensor, c_void_p)
                if address == 0:
                    raise InvalidRequest(name, "0", "an address, or None for the tensor that was bound")
            else:
                # Views are taken for whatever stream the launch comes on, so on none of their own.
                order = Order(0, lambda stream: None)
                view = frameworks.of(tensor, name).view(tensor, name, order)
                bound = self._views[i] if i < len(self._views) else None
                if bound is not None:
                    _same_layout(name, view, bound)
                address = view[0]
            setattr(at, name, address)
        return at

    def copy_status(self, word: Any, stream: Any = None) -> None:
        """Enqueues a copy of the status word, 32 bits that CallStatus() reads. It waits for nothing, and may be captured.

        word: where to copy it: a tensor of one int32 in page-locked host memory or on the GPU, or an address as a number.
            The caller keeps it until the stream has passed the copy.
        stream: as launch() takes it.

        Raises InvalidRequest, DriverError.
        """
        self._library.call(self._library.functions.attnsmith_call_copy_status, self._pointer, _address_of(word),
                           self._stream(stream))

    def status(self, stream: Any = None) -> CallStatus:
        """Returns what launches found, after all work that `stream` was given so far. It waits for that stream alone;
        `stream` is as launch() takes it.

        Raises InvalidRequest if the stream is being captured, which does not harm the capture; DriverError.
        """
        bits = c_uint32()
        self._library.call(self._library.functions.attnsmith_call_status, self._pointer,
                           self._stream(stream), byref(bits))
        return CallStatus(bits.value)

    def synchronize(self, stream: Any = None) -> None:
        """Waits until all work that `stream` was given is done; `stream` is as launch() takes it, so that after
        launch(stream) this waits for the launch.

        Raises InvalidRequest where the stream is being captured, which harms no capture; DriverError.
        """
        self._library.call(self._library.functions.attnsmith_call_synchronize, self._pointer, self._stream(stream))

    def clear_status(self, stream: Any = None) -> None:
        """Clears the status in the order of `stream`, which is as launch() takes it. It waits for nothing, and may be
        captured. Raises InvalidRequest, DriverError."""
        self._library.call(self._library.functions.attnsmith_call_clear_status, self._pointer,
                           self._stream(stream))

    def describe(self) -> str:
        """Returns a text for logs: the kernels and their grids. Raises Error."""
        return self._library.text(self._library.functions.attnsmith_call_describe, self._pointer)

    def _stream(self, stream: Any) -> Any:
        if stream is None:
            return self._current_stream()
        # As raw_stream() does, which takes longer.
        return stream if stream.__class__ is int and 0 <= stream <= _MOST_STREAM else frameworks.raw_stream(stream)

    def __repr__(self) -> str:
        return f"<attnsmith.Call: {self.describe()}>"

    def __del__(self) -> None:
        self._pointer = self._launcher = None


@named_methods
class Kernel(Owner):
    """A loaded kernel with the plan that chose it, made by Runtime.prepare(). It does not change, and any number of threads
    may use it."""

    _elsewhere = "prepare() there; the cache makes that quick"
    _pointer: Optional[int] = None

    def __init__(self, library: Library, pointer: int, keeper: Any = None) -> None:
        """`keeper`: what owns the kernel, where this does not."""
        self._library = library
        self._pointer = pointer
        self._keeper = keeper

    @property
    def device(self) -> int:
        """The ordinal of the kernel's GPU."""
        return int(self._library.functions.attnsmith_kernel_device(self._pointer))

    @property
    def spec(self) -> NormalizedRequest:
        """The request with every default filled in, without sizes, since the kernel serves any. Raises Error."""
        spec = abi.Spec()
        functions = self._library.functions
        self._library.call(functions.attnsmith_kernel_spec, self._pointer, byref(spec))
        request: Dict[str, Any] = self._library.json(functions.attnsmith_request_json, byref(spec), None)
        for size in ("batch", "q_len", "kv_len", "sm"):  # a kernel is right for any
            request.pop(size, None)
        return cast("NormalizedRequest", request)

    def plan(self) -> Plan:
        """The plan that chose the kernel (schema attnsmith.plan/1): which kernels a call launches, and why. Raises Error."""
        plan: Plan = self._library.json(self._library.functions.attnsmith_kernel_plan_json, self._pointer)
        return plan

    @by_name("batch", "q_tokens", "max_kv_len")
    def workspace_bytes(self, *, batch: int, q_tokens: int, max_kv_len: int) -> int:
        """How many bytes of workspace a call needs whose tensors have at most `batch` sequences, `q_tokens` queries of all
        sequences (batch * q_len for a dense q, q.shape[0] for a ragged one) and `max_kv_len` keys of the longest sequence.
        It is at least 8192.

        Raises InvalidRequest.
        """
        return _workspace_bytes(self._library, self._library.functions.attnsmith_kernel_workspace_bytes, self._pointer,
                                batch, q_tokens, max_kv_len)

    def bind(self, q: Any, k: Any, v: Any = None, o: Any = None, lse: Any = None, sinks: Any = None,
             alibi_slopes: Any = None, *, q_pe: Any = None, kpe: Any = None, k_scale: Any = None, v_scale: Any = None,
             q_indptr: Any = None, q_lens: Any = None, kv_indptr: Any = None, kv_lens: Any = None,
             page_table: Any = None, page_indptr: Any = None, page_indices: Any = None, last_page_len: Any = None,
             table_rows: Any = None, max_q_len: int = 0, max_kv_len: int = 0, workspace: Any = None) -> Call:
        """Checks the tensors of an attention against the spec, and fixes the arguments of a launch.

        q: the queries, [batch, q_len, q_heads, head_dim_qk], or [tokens, q_heads, head_dim_qk] with q_indptr.
        k: the keys: dense [batch, kv_len, kv_heads, head_dim_qk], ragged [kv_tokens, kv_heads, head_dim_qk], paged [pages,
            page_size, kv_heads, head_dim_qk] (NHD) or [pages, kv_heads, page_size, head_dim_qk] (HND).
        v: the values, with the axes of k and head_dim_vo columns.
        o: the output, with the axes of q and head_dim_vo columns, of the spec's o_dtype. It overlaps no other tensor.
        lse: fp32, the shape of o without its last axis, for a spec with lse and no other: the natural-log log-sum-exp.
        sinks, alibi_slopes: fp32 [q_heads], for a spec with sink and with alibi, and no other.
        q_pe, kpe: for op mla alone: the head_dim_kpe columns of the position, [batch, q_len, q_heads, head_dim_kpe] or
            [tokens, q_heads, head_dim_kpe] for q, and [pages, page_size, head_dim_kpe], [batch, kv_len, head_dim_kpe] or
            [kv_tokens, head_dim_kpe] for k. q and k, the latents, then have head_dim_ckv columns; without q_pe, or without
            kpe, their tensor has the columns of the position after its own. k and kpe may have an axis of 1, the KV head,
            before the columns. There is no v, and o has head_dim_ckv columns.
        k_scale, v_scale: fp32: [1] for kv_scale "tensor", [kv_heads] for "head", for "token_head" the axes of k, and of v,
            except the last, for "block128" those and one axis of a scale for each 128 columns; absent for "none". Each
            stored key, and value, is multiplied by its scale. Scales of tokens may have any strides. Op mla has k_scale
            alone, for both; with "block128" it scales the latent alone, and kpe is given, of the spec's dtype. Otherwise k,
            v and kpe of 8 bits may be tensors of uint8.
        q_indptr, kv_indptr: [batch + 1] of the spec's index_dtype: where each sequence begins, and the end of the last.
        q_lens, kv_lens: [batch] of the spec's index_dtype: how many queries and keys of each sequence count.
        page_table: [batch, pages a sequence] of the spec's index_dtype. Or page_indptr [batch + 1], page_indices [pages of
            all sequences] and last_page_len [batch].
        table_rows: [batch] of the spec's index_dtype: the row of page_table, then [rows, pages a sequence], that each
            sequence uses.
        max_q_len, max_kv_len: bounds of one sequence's queries and keys; 0 takes what the shapes allow.
        workspace: a Buffer or a contiguous CUDA tensor of any dtype, of at least workspace_bytes() bytes and 256-byte
            aligned, whose first 8192 bytes are zero before the first launch. None: the Call allocates its own.

        The last stride of q, k, v, o, q_pe and kpe is 1; the others may be any.

        Raises InvalidRequest, which names the tensor.
        """
        tensors = (q, k, v, o, lse, sinks, alibi_slopes, q_pe, kpe, k_scale, v_scale, q_indptr, q_lens, kv_indptr, kv_lens, page_table,
                   page_indptr, page_indices, last_page_len, table_rows)
        framework, index, order = self._begin(q)
        views = [None if tensor is None else frameworks.of(tensor, name).view(tensor, name, order)
                 for name, tensor in zip(abi.TENSOR_FIELDS + abi.BATCH_FIELDS, tensors)]
        for i in _SCALES:
            view = views[i]
            if view is not None:
                views[i] = _views.as_vector(view)
        data, nbytes = (0, 0) if workspace is None else _memory_of(workspace)
        bounds = fitting("max_q_len", max_q_len, c_int64), fitting("max_kv_len", max_kv_len, c_int64)
        pointer = None if native is None else native.bind(
            self._library.address("attnsmith_bind"), self._pointer or 0, views, *bounds, None if workspace is None else data,
            nbytes, self._library.error)
        if pointer is None:
            block, out = AttentionBlock(), c_void_p()
            block.fill(views, *bounds, data, nbytes)
            self._library.call(self._library.functions.attnsmith_bind, self._pointer, block.tensors, block.batch,
                               None if workspace is None else block.workspace, byref(out))
            pointer = out.value or 0
        return Call(self._library, pointer, framework.stream_of(index), (tensors, workspace, order.held),
                    views[:len(abi.TENSOR_FIELDS)])

    def bind_merge(self, o_states: Sequence[Any], lse_states: Sequence[Any], o: Any, lse: Any = None) -> Call:
        """Checks the tensors of a merge (op="merge"), and fixes the arguments of a launch.

        o_states: 1 to 32 tensors [tokens, heads, head_dim]. lse_states: as many fp32 tensors [tokens, heads], natural-log.
        o: [tokens, heads, head_dim]; it may be one of o_states. lse: fp32 [tokens, heads], for a spec with lse, else None.

        Raises InvalidRequest, which names the tensor.
        """
        is_listed = isinstance(o_states, (list, tuple))
        first = o_states if not is_listed else o_states[0] if o_states else None
        framework, index, order = self._begin(first, "o_states[0]" if is_listed else "o_states")
        o_views, lse_views = merge_states_views(o_states, lse_states, order)
        o_view = frameworks.of(o, "o").view(o, "o", order)
        lse_view = None if lse is None else frameworks.of(lse, "lse").view(lse, "lse", order)
        block = MergeBlock(len(o_views))
        block.fill(o_views, lse_views, o_view, lse_view)
        out = c_void_p()
        self._library.call(self._library.functions.attnsmith_bind_merge, self._pointer, block.address, None, None,
                           byref(out))
        states = [tuple(one) if is_listed else one for one in (o_states, lse_states)]  # the caller may change its lists
        held = (states, o, lse, order.held)
        return Call(self._library, out.value or 0, framework.stream_of(index), held)

    def bind_append(self, *, q: Any = None, k: Any = None, v: Any = None, k_cache: Any = None, v_cache: Any = None,
                    q_out: Any = None, kpe: Any = None, kpe_cache: Any = None, slot_mapping: Any = None,
                    positions: Any = None, rope_table: Any = None, q_norm_weight: Any = None,
                    k_norm_weight: Any = None, k_scale: Any = None, v_scale: Any = None, q_scale: Any = None,
                    q_indptr: Any = None, q_lens: Any = None, kv_lens: Any = None, page_table: Any = None,
                    page_indptr: Any = None, page_indices: Any = None, last_page_len: Any = None,
                    table_rows: Any = None, max_q_len: int = 0, max_kv_len: int = 0, workspace: Any = None) -> Call:
        """Checks the tensors of an append (op="append"), and fixes the arguments of a launch.

        q, k, v: the new tokens, each [tokens, heads, head_dim], or each [batch, q_len, heads, head_dim]. q, or k and v, may
            be absent.
        q_out: where q is written, with the shape of q and the spec's q_dtype; it may be q itself. It is given exactly if q
            is.
        k_cache, v_cache: dense [batch, kv_len, kv_heads, head_dim], paged [pages, page_size, kv_heads, head_dim] (NHD) or
            [pages, kv_heads, page_size, head_dim] (HND), of the spec's kv_dtype, or of uint8 for one of 8 bits.
        kpe, kpe_cache: for latents, which have no v and v_cache: the columns of the position where they are separate from
            those of k, [tokens, head_dim_ckv], and of k_cache. q then has the columns of the position alone.
        slot_mapping: [tokens] of int64 or the spec's index_dtype, for slots="mapping": page * page_size + offset, dense
            sequence * kv_len + position. A token with a negative slot is skipped.
        positions: [tokens] of int64 or the spec's index_dtype: the position that each token is rotated by. None with
            slots="table": its position in its sequence.
        rope_table: [positions, rotary_dim], cosines and then sines; or frequencies, fp32 [rotary_dim / 2].
        q_norm_weight, k_norm_weight: [head_dim] of fp32 or the spec's dtype, for a spec with q_norm and with k_norm, and no
            other.
        k_scale, v_scale: fp32, for a spec with a kv_scale, and no other: [1] for "tensor" and [kv_heads] for "head", which
            are read; the axes of k_cache and v_cache except the last for "token_head", and one axis more, of blocks of 128
            columns, for "block128", which are written. Latents have k_scale alone. q_scale: fp32 [1].
        q_indptr, q_lens, kv_lens, page_table, table_rows, page_indptr, page_indices, last_page_len, max_q_len, max_kv_len:
            for slots="table", as bind() takes them. Lengths are those after the append.
        workspace: as bind() takes it, of at least 8192 bytes.

        Raises InvalidRequest, which names the tensor.
        """
        tensors = (q, k, v, q_out, k_cache, v_cache, kpe, kpe_cache, slot_mapping, positions, rope_table, q_norm_weight,
                   k_norm_weight, k_scale, v_scale, q_scale, q_indptr, q_lens, None, kv_lens, page_table, page_indptr,
                   page_indices, last_page_len, table_rows)
        return self._bind_op("append", tensors, max_q_len, max_kv_len, workspace)

    def bind_op(self, *, workspace: Any = None, max_q_len: int = 0, max_kv_len: int = 0, **tensors: Any) -> Call:
        """Checks the tensors of an op that binds tensors alone, such as "append", and fixes the arguments of a launch.

        tensors: by their names in C, attnsmith_OP_tensors and attnsmith_batch, with the shapes that the op's own function
            takes.
        max_q_len, max_kv_len, workspace: as bind() takes them.

        Raises InvalidRequest, which names the tensor.
        """
        op = self.spec["op"]
        if op not in abi.OP_TENSORS:
            raise InvalidRequest("op", shown(op), f"a kernel of {' or '.join(abi.OP_TENSORS)}; bind() and bind_merge() "
                                 "take the tensors of others")
        fields = abi.OP_TENSORS[op].FIELDS + abi.BATCH_FIELDS
        for name in tensors:
            if name not in fields:
                raise InvalidRequest(name, "a tensor", f"nothing: op {op} binds {', '.join(fields)}")
        return self._bind_op(op, tuple(map(tensors.get, fields)), max_q_len, max_kv_len, workspace)

    def _bind_op(self, op: str, tensors: Tuple[Any, ...], max_q_len: int, max_kv_len: int, workspace: Any) -> Call:
        """`tensors`: the op's fields, then those of the batch."""
        named = list(zip(abi.OP_TENSORS[op].FIELDS + abi.BATCH_FIELDS, tensors))
        first = next(((tensor, name) for name, tensor in named if tensor is not None), (None, named[0][0]))
        framework, index, order = self._begin(*first)
        views = [None if tensor is None else frameworks.of(tensor, name).view(tensor, name, order)
                 for name, tensor in named]
        data, nbytes = (0, 0) if workspace is None else _memory_of(workspace)
        block = OpBlock(abi.OP_TENSORS[op])
        block.fill(views, fitting("max_q_len", max_q_len, c_int64), fitting("max_kv_len", max_kv_len, c_int64), data,
                   nbytes)
        out = c_void_p()
        self._library.call(getattr(self._library.functions, f"attnsmith_bind_{op}"), self._pointer, block.tensors,
                           block.batch, None if workspace is None else block.workspace, byref(out))
        return Call(self._library, out.value or 0, framework.stream_of(index), (tensors, workspace, order.held))

    def _begin(self, tensor: Any, name: str = "q") -> Tuple[frameworks.Framework, int, Order]:
        framework, index = frameworks.of(tensor, name), self.device
        # Views are taken for whatever stream launches come on, so on none of its own.
        return framework, index, Order(framework.stream(index), lambda stream: None)

    def __del__(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer and self._keeper is None:
            self._library.functions.attnsmith_kernel_free(pointer)


class _KernelSetHandle:
    """What a set and its kernels keep."""

    def __init__(self, library: Library, pointer: int) -> None:
        self._library = library
        self.pointer = pointer

    def __del__(self) -> None:
        self._library.functions.attnsmith_kernel_set_free(self.pointer)


@named_methods
class KernelSet(Owner):
    """Every kernel that planning could choose for a spec, loaded, made by Runtime.prepare_set(). It does not change, and
    any number of threads may use it. A call of one of its kernels divides the keys as planning would for the bounds that it
    is bound with."""

    _elsewhere = "prepare_set() there; the cache makes that quick"

    def __init__(self, library: Library, pointer: int) -> None:
        self._library = library
        self._handle = _KernelSetHandle(library, pointer)
        self._kernels: Dict[int, Kernel] = {}
        self._picked: Dict[Tuple[int, int, int], Kernel] = {}

    @checks_itself
    def pick(self, batch: int = 1, q_len: int = 1, kv_len: int = 1, *surplus: NoReturn, **unknown: NoReturn) -> Kernel:
        """Returns the kernel that prepare() would choose for `batch` sequences whose longest has q_len queries and kv_len
        keys. Sizes that were picked before are looked up; an engine whose lengths grow with each step rounds them. Raises
        InvalidRequest."""
        if surplus or unknown:
            check_fit(KernelSet.pick, (self, batch, q_len, kv_len, *surplus), unknown)
        if not type(batch) is type(q_len) is type(kv_len) is int:  # 8.0 and True are equal to numbers, and are none
            batch, q_len, kv_len = (fitting(name, size, c_int64) for name, size in (
                ("batch", batch), ("q_len", q_len), ("kv_len", kv_len)))
        known = self._picked.get((batch, q_len, kv_len))
        if known is not None:
            return known
        sizes = abi.Sizes(batch=fitting("batch", batch, c_int64, 1), q_len=fitting("q_len", q_len, c_int64, 0),
                          kv_len=fitting("kv_len", kv_len, c_int64, 0))
        out = c_void_p()
        self._library.call(self._library.functions.attnsmith_kernel_set_pick, self._handle.pointer, byref(sizes),
                           byref(out))
        pointer = out.value or 0
        kernel = self._kernels.setdefault(pointer, Kernel(self._library, pointer, self._handle))
        if len(self._picked) >= _MOST_PICKED:
            self._picked.clear()
        self._picked[batch, q_len, kv_len] = kernel
        return kernel

    @by_name("batch", "q_tokens", "max_kv_len")
    def workspace_bytes(self, *, batch: int, q_tokens: int, max_kv_len: int) -> int:
        """How many bytes a workspace has that serves every kernel of the set, for any tensors of at most `batch` sequences,
        `q_tokens` queries of all sequences and `max_kv_len` keys of the longest sequence. It is at least 8192.

        Raises InvalidRequest.
        """
        return _workspace_bytes(self._library, self._library.functions.attnsmith_kernel_set_workspace_bytes,
                                self._handle.pointer, batch, q_tokens, max_kv_len)

    @property
    def device(self) -> int:
        """The ordinal of the GPU."""
        return self.pick().device

    @property
    def spec(self) -> NormalizedRequest:
        """The request with every default filled in, without sizes. Raises Error."""
        return self.pick().spec

    def __len__(self) -> int:
        """How many kernels pick() can return."""
        return int(self._library.functions.attnsmith_kernel_set_size(self._handle.pointer))


def merge_states_views(o_states: Any, lse_states: Any, order: Order) -> "Tuple[list[_views.View], list[_views.View]]":
    """The views of each state, from sequences of tensors or from stacked tensors, whose axis 1 counts the states."""
    if isinstance(o_states, (list, tuple)) != isinstance(lse_states, (list, tuple)):
        raise InvalidRequest("lse_states", type(lse_states).__name__, "a sequence when o_states is one, else a tensor")
    if isinstance(o_states, (list, tuple)):
        if len(o_states) != len(lse_states) or not o_states:
            raise InvalidRequest("lse_states", f"{len(lse_states)} states",
                                 f"as many as o_states has ({len(o_states)}), at least one")
        return _views_of(o_states, "o_states", order), _views_of(lse_states, "lse_states", order)
    o = frameworks.of(o_states, "o_states").view(o_states, "o_states", order)
    lse = frameworks.of(lse_states, "lse_states").view(lse_states, "lse_states", order)
    if len(o[1]) != 4 or len(lse[1]) != 3 or o[1][1] != lse[1][1] or o[1][1] == 0:
        raise InvalidRequest("o_states.shape", f"{tuple(o[1])} with lse_states {tuple(lse[1])}",
                             "[tokens, states, heads, head_dim] with [tokens, states, heads]")
    count = o[1][1]
    return [_views.selected(o, 1, i) for i in range(count)], [_views.selected(lse, 1, i) for i in range(count)]


def _same_layout(name: str, view: _views.View, bound: _views.View) -> None:
    """Strides of axes that do not step say nothing, and one element may have no axes."""
    if tuple(view[1]) != tuple(bound[1]) and tuple(_views.as_vector(view)[1]) != tuple(bound[1]):
        raise InvalidRequest(f"{name}.shape", str(tuple(view[1])), f"{tuple(bound[1])}, as it was bound")
    steps = [(a, b) for extent, a, b in zip(view[1], view[2], bound[2]) if extent > 1]
    if any(a != b for a, b in steps):
        raise InvalidRequest(f"{name}.strides", str(tuple(view[2])), f"{tuple(bound[2])}, as it was bound")
    if view[4] != bound[4]:
        raise InvalidRequest(f"{name}.device", str(view[4] >> 32), f"{bound[4] >> 32}, as it was bound")
    if view[3] != bound[3]:
        raise InvalidRequest(f"{name}.dtype", _views.WORDS[view[3]], f"{_views.WORDS[bound[3]]}, as it was bound")


def _views_of(tensors: Sequence[Any], name: str, order: Order) -> "list[_views.View]":
    return [frameworks.of(tensor, name).view(tensor, f"{name}[{i}]", order) for i, tensor in enumerate(tensors)]


def _bits_of(status: Any) -> int:
    """Of an integer, or of a tensor of one: to some frameworks that is no index, and int() takes more than integers."""
    if hasattr(status, "__index__") and not isinstance(status, bool):
        try:
            return fitting("bits", operator.index(status), c_uint32)
        except TypeError:
            pass
    if "int" in str(getattr(status, "dtype", "")) and math.prod(status.shape) == 1:
        try:
            bits = int(status)
        except (TypeError, ValueError):
            pass
        else:
            return fitting("bits", bits, c_uint32)
    raise InvalidRequest("bits", shown(status), "an integer, or a tensor of one, as the functions give it with return_status=True")


def _address_of(word: Any) -> int:
    """Where the status word is to go: the memory of a tensor that has room for it, or an address."""
    data_ptr = getattr(word, "data_ptr", None)
    if data_ptr is not None and hasattr(word, "numel"):  # a tensor of torch
        if word.numel() != 1 or word.element_size() != 4 or word.is_floating_point():
            raise InvalidRequest("word", f"{word.numel()} elements of {word.dtype}", "one element of int32")
    if data_ptr is None and not hasattr(word, "__index__"):
        raise InvalidRequest("word", shown(word), "a tensor with data_ptr(), or an address as a number")
    return fitting("word", word if data_ptr is None else data_ptr(), c_void_p)


def _memory_of(workspace: Any) -> Tuple[int, int]:
    if isinstance(workspace, Buffer):
        return workspace.data, workspace.nbytes
    data_ptr = getattr(workspace, "data_ptr", None)
    if data_ptr is not None and getattr(workspace, "is_cuda", False):  # torch, of any dtype
        if not workspace.is_contiguous():
            raise InvalidRequest("workspace.strides", str(workspace.stride()), "contiguous memory")
        return data_ptr(), workspace.numel() * workspace.element_size()
    if hasattr(workspace, "__cuda_array_interface__"):
        return interface.memory(workspace.__cuda_array_interface__, "workspace")
    raise InvalidRequest("workspace", f"an object of type {type(workspace).__name__}",
                         "an attnsmith.Buffer, or a contiguous CUDA tensor")


@named_methods
class Pending(Closable):
    """A kernel that is being prepared in the background, made by Runtime.prepare_async()."""

    _elsewhere = "prepare_async() there"

    def __init__(self, library: Library, pointer: int, log: Any) -> None:
        """`log`: the callback of its runtime, which may be gone before the kernel is ready."""
        self._library = library
        self._log = log
        self._handle = Shared(pointer, library.functions.attnsmith_pending_free,  # which waits
                              "this attnsmith.Pending is closed: the interpreter is being taken down")
        _pendings.add(self)

    def ready(self) -> bool:
        """Whether result() would return without waiting."""
        with self._open() as pointer:
            return bool(self._library.functions.attnsmith_pending_ready(pointer))

    def result(self, timeout: Optional[float] = None) -> Kernel:
        """Waits for the kernel and returns it, or raises what preparing it failed with. It may be called more than once.

        timeout: how many seconds to wait; None waits without a limit.

        Raises TimeoutError, and what Runtime.prepare() raises.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.0002
        while not self.ready():  # not in the library: there Ctrl-C would have to wait, too
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"the kernel is not ready after {timeout} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        out = c_void_p()
        with self._open() as pointer:
            self._library.call(self._library.functions.attnsmith_pending_kernel, pointer, byref(out))
        return Kernel(self._library, out.value or 0)


def pendings() -> "list[Pending]":
    """All that live."""
    return list(_pendings)


def _workspace_bytes(library: Library, function: Any, pointer: Any, batch: int, q_tokens: int, max_kv_len: int) -> int:
    """What a function of a kernel or a set says for these bounds."""
    bounds = abi.WorkspaceBounds(batch=fitting("batch", batch, c_int64, 0), q_tokens=fitting("q_tokens", q_tokens, c_int64, 0),
                                 max_kv_len=fitting("max_kv_len", max_kv_len, c_int64, 0))
    out = c_size_t()
    library.call(function, pointer, byref(bounds), byref(out))
    return out.value

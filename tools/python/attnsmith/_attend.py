"""How the plain attention functions call: what a layout of tensors needs is worked out once, into a recipe, and looked
up after that. A call with a known layout then costs the reading of its tensors, one look-up, the writing of their
pointers and the launch."""

from __future__ import annotations

from ctypes import byref, c_void_p
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import _abi, _frameworks, _requests, _views
from ._blocks import AttentionBlock, MergeBlock
from ._frameworks import Framework, Order, Torch
from ._options import Options, flag, is_pair, plain, refuse_unhashable
from ._outputs import OutputKinds, dtype_of
from ._views import View
from ._workspaces import Workspaces, torch_memory
from .errors import InvalidRequest
from .kernels import Kernel
from .runtime import Runtime, default_runtime

_MOST_KERNELS = 4096  # distinct problems that are remembered; beyond, finding one starts over
_MOST_SIZES = 1024  # of one of them
_MOST_RECIPES = 1024  # each of about 6 KB
_MOST_SEEN = 1024  # layouts met once; those that come again later than that are not kept
LONGEST = 1 << 30
_MOST_PACKED = (1 << 31) - 1024  # queries times group size, as the library has it
_WORKSPACE_WORD = AttentionBlock.WORKSPACE_WORD
_FIELDS = _abi.TENSOR_FIELDS + _abi.BATCH_FIELDS

Views = List[Optional[View]]  # of the tensors of a form


class Problem(NamedTuple):
    """What a form makes of the views of its tensors: those have the axes of attnsmith_tensors here."""

    q: View
    k: View
    v: View
    batch_views: Tuple[Optional[View], ...]  # the fields of attnsmith_batch
    kv: str
    page_order: Optional[str]
    batch: int
    max_q_len: int
    max_kv_len: int
    options: Options  # causal, window, softcap, scale, return_lse, precision, consistency, o_dtype
    rows: Sequence[int]  # the shape of a new o, less its last axis
    as_kernel: Callable[[View], View] = lambda view: view  # of o and lse
    finish: Callable[[Any], Any] = lambda tensor: tensor  # of a new o


class Form:
    """One of the functions: the names of its tensors, q, k, v, out, sinks and alibi_slopes first, then some of the
    fields of attnsmith_batch; which must be given; and what they mean."""

    def __init__(self, names: Tuple[str, ...], required: Set[int],
                 resolve: Callable[[List[Any], Options], Problem]) -> None:
        self.names = names
        self.fields = (0, 1, 2, 3, 5, 6, *map(_FIELDS.index, names[6:]))
        self.required = required
        self.resolve = resolve


class Prepared:
    """A kernel, and how much workspace it needs for the sizes met."""

    __slots__ = ("kernel", "pointer", "workspace_bytes")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.pointer = c_void_p(kernel._pointer)
        self.workspace_bytes: Dict[Tuple[int, int], int] = {}

    def needed(self, batch: int, q_tokens: int, max_kv_len: int) -> int:
        nbytes = self.workspace_bytes.get((q_tokens, max_kv_len))
        if nbytes is None:
            nbytes = self.kernel.workspace_bytes(batch, q_tokens, max_kv_len)
            if len(self.workspace_bytes) >= _MOST_SIZES:
                self.workspace_bytes.clear()
            self.workspace_bytes[q_tokens, max_kv_len] = nbytes
        return nbytes


class _Recipe:
    """All that calls with the same layouts and options share."""

    __slots__ = ("entry", "nbytes", "views", "bounds", "spare", "blocks", "slots", "v_offset", "o_shape", "lse_shape",
                 "kind", "as_q", "finish")

    def __init__(self, dispatch: "Dispatch", form: Form, given: List[Any], options: Options, index: int,
                 pointer_bits: int) -> None:
        problem = form.resolve(given, options)
        q, k, v = problem.q, problem.k, problem.v
        self.kind = dispatch.output_kinds.of(q, given[3], problem.options[7])
        self.o_shape = (*problem.rows, v[1][-1])
        self.lse_shape = tuple(problem.rows) if problem.options[4] else None
        self.finish = problem.finish
        self.as_q = (self.kind == q[3] and given[0][1] == self.o_shape
                     and tuple(given[0][2]) == _views.compact_strides(self.o_shape))
        o = problem.as_kernel(given[3] or _new(self.o_shape, self.kind, q))
        lse = None if self.lse_shape is None else problem.as_kernel(_new(self.lse_shape, _views.FP32, q))
        bits = pointer_bits
        for _, _, strides, kind, _ in (q, k, v, o):
            for stride in strides[:-1]:
                bits |= stride * _views.ITEM_BYTES[kind]
        # A stride that reaches nothing does not count; most layouts need no such look.
        alignment = alignment_of((q, k, v, o), pointer_bits) if bits & 15 else 16
        self.entry = dispatch.kernel(problem, self.kind, alignment, given[4] is not None, given[5] is not None, index)
        tokens = q[1][0] if len(q[1]) == 3 else q[1][0] * q[1][1]
        try:
            self.nbytes = self.entry.needed(problem.batch, tokens, problem.max_kv_len)
        except InvalidRequest as error:
            raise _traced(error, problem) from None
        self.bounds = problem.max_q_len, problem.max_kv_len
        self.views = (q, k, v, o, lse, given[4], given[5], *problem.batch_views)
        self.spare = self.blocks = dispatch.blocks

        # Where pointers go: of the tensors that are given, in their order, then of v in one tensor with k, o and lse.
        order = [field for field, view in zip(form.fields, given) if view is not None]
        self.v_offset = None
        if given[2] is None:
            order.append(2)
            self.v_offset = 0 if 0 in k[1] else v[0] - k[0]
        order += [field for field, view in ((3, given[3]), (4, None)) if view is None and self.views[field] is not None]
        self.slots = AttentionBlock.pointer_words(self.views, order)

    def block(self) -> AttentionBlock:
        """One that has all but the pointers and the workspace. It comes back to `blocks`."""
        try:
            if self.blocks is not self.spare:
                return self.blocks.pop()
        except IndexError:
            pass
        try:
            block = self.spare.pop()
        except IndexError:
            block = AttentionBlock()
        block.fill(self.views, *self.bounds, 0, 0)
        return block


class Dispatch:
    """What the plain functions keep for one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        library = runtime._library
        self.runtime = runtime
        self.library = library
        self.run = library.functions.attnsmith_run
        self.run_merge = library.functions.attnsmith_run_merge
        self.prepared: Dict[Tuple[Any, ...], Prepared] = {}
        self.recipes: Dict[Tuple[Any, ...], _Recipe] = {}
        self.output_kinds = OutputKinds(library)
        self.seen: Set[int] = set()
        self.blocks: List[AttentionBlock] = []
        self.workspaces = Workspaces(runtime.allocate, runtime.synchronize)
        self.merge_blocks: Dict[int, List[MergeBlock]] = {}
        self.wait = runtime.synchronize

    def prepare(self, key: Tuple[Any, ...], words: Dict[str, Any], index: int) -> Prepared:
        spec, sizes = _requests.parse(self.library, words)
        entry = Prepared(self.runtime._prepare(spec, sizes, None if index < 0 else index))
        if index >= 0:  # else the device is whichever is current
            if len(self.prepared) >= _MOST_KERNELS:
                self.prepared.clear()
            self.prepared[key] = entry
        return entry

    def kernel(self, problem: Problem, o_kind: int, alignment: int, sink: bool, alibi: bool, index: int) -> Prepared:
        """The kernel of a problem: many sizes share one."""
        q_shape, kind = problem.q[1], problem.q[3]
        sizes = (problem.batch, _rounded(problem.max_q_len), _rounded(problem.max_kv_len))
        k_shape = problem.k[1]
        page_size, kv_heads = None, k_shape[-2]
        if problem.kv == "paged":
            page_size, kv_heads = k_shape[1:3] if problem.page_order == "NHD" else (k_shape[2], k_shape[1])
        index_kind = next((view[3] for view in problem.batch_views if view is not None), None)
        geometry = (problem.kv, page_size, problem.page_order, index_kind, kv_heads, problem.v[1][-1])
        options = (*problem.options[:7], o_kind, sink, alibi)
        key = (index, kind, q_shape[-2], q_shape[-1], *sizes, alignment, geometry, options)
        return self.prepared.get(key) or self.prepare(
            key, _words(problem.q, geometry, sizes, alignment, options), index)

    def recipe(self, key: Tuple[Any, ...], form: Form, views: List[Any], options: Options, index: int,
               pointer_bits: int) -> _Recipe:
        """A new one, which is kept if its key comes for the second time: layouts with token counts in them may never
        come again, and to keep many objects makes Python's garbage collector slow."""
        recipe = _Recipe(self, form, views, options, index, pointer_bits)
        if index >= 0:
            number = hash(key)
            if number in self.seen:
                if len(self.recipes) >= _MOST_RECIPES:
                    self.recipes.clear()
                recipe.blocks = []
                self.recipes[key] = recipe
            else:
                if len(self.seen) >= _MOST_SEEN:
                    self.seen.clear()
                self.seen.add(number)
        return recipe

    def run_with_status(self, word: int, kernel: c_void_p, tensors: c_void_p, batch: c_void_p, workspace: c_void_p,
                        stream: int, error: c_void_p) -> int:
        """attnsmith_run, behind which the device memory at `word` gets what this launch alone found wrong."""
        functions = self.library.functions
        call = c_void_p()
        code = functions.attnsmith_bind(kernel, tensors, batch, workspace, byref(call), error)
        if not code:
            code = (functions.attnsmith_call_clear_status(call, stream, error)
                    or functions.attnsmith_launch(call, stream, error)
                    or functions.attnsmith_call_copy_status(call, word, stream, error))
        functions.attnsmith_call_free(call)
        return int(code)

    def settle(self, index: int, stream: int) -> None:
        """For frameworks whose memory is not given back in the stream's order: waits, so that it may be."""
        if stream:
            self.runtime.synchronize(stream)
        else:  # of this device, whichever is current: a copy from its memory waits for its default stream
            self.runtime.allocate(256, index).download(4)


_current: Optional[Dispatch] = None


def dispatch_now() -> Dispatch:
    global _current
    runtime = default_runtime()
    current = _current
    if current is None or current.runtime is not runtime:
        current = _current = Dispatch(runtime)
    return current


def begin(tensor: Any, name: str, stream: Any) -> Tuple[Framework, int, int, Any]:
    """The framework of a call, its GPU, its stream, and what is to be current meanwhile, if it is not."""
    framework = _frameworks.of(tensor, name)
    index = framework.index(tensor, name)
    current = framework.stream(index)
    number = current if stream is None else _frameworks.raw_stream(stream)
    return framework, index, number, framework.scope(index, None if number == current else number)


def _new(shape: Sequence[int], kind: int, like: View) -> View:
    """A row-major tensor that is still to be made."""
    return 0, shape, _views.compact_strides(shape), kind, like[4]


def _traced(error: InvalidRequest, problem: Problem) -> InvalidRequest:
    """An error about a number that the caller has never seen as one about the tensor whose shape it comes from."""
    q_indptr = problem.batch_views[0]
    sources = {"q_tokens": ("q", problem.q),
               "batch": ("q", problem.q) if q_indptr is None else ("q_indptr", q_indptr)}
    if error.field not in sources:
        return error
    name, view = sources[error.field]
    return InvalidRequest(f"{name}.shape", str(tuple(view[1])),
                          f"a shape whose {error.field} is {error.accepted}; here it is {error.value}")


def _rounded(length: int) -> int:
    return 1 << (length - 1).bit_length() if length > 2 else length


def need_axes(name: str, view: View, accepted: str) -> None:
    if len(view[1]) != accepted.count(",") + 1:
        raise InvalidRequest(f"{name}.shape", str(tuple(view[1])), accepted)


def alignment_of(views: Sequence[View], pointer_bits: int = 0) -> int:
    """The class that bases (these, and what `pointer_bits` has set) and strides of the real tensors are of: 16, 8, 4 or
    2 bytes."""
    bits = (_views.reach_bits(views) | pointer_bits) & 15
    return max(bits & -bits, 2) if bits else 16


def _words(q: View, geometry: Tuple[Any, ...], sizes: Tuple[int, int, int], alignment: int,
           options: Options) -> Dict[str, Any]:
    """The request of a call, in the words that prepare() takes."""
    kv, page_size, page_order, index_kind, kv_heads, head_dim_vo = geometry
    causal, window, softcap, scale, lse, precision, consistency, o_kind, sink, alibi = options
    dtype = dtype_of(q)
    if index_kind is not None and index_kind not in (_views.INT32, _views.INT64):
        raise InvalidRequest("index dtype", _views.WORDS[index_kind], "lengths, offsets and tables of int32 or int64")
    left, right = (None, None) if window is None else window
    q_heads, head_dim_qk = q[1][-2:]
    batch, q_len, kv_len = sizes
    group = max(q_heads // max(kv_heads, 1), 1)
    return {
        "dtype": dtype, "head_dim_qk": head_dim_qk, "head_dim_vo": head_dim_vo, "q_heads": q_heads,
        "kv_heads": kv_heads, "mask": "causal" if causal else "full", "window_left": left, "window_right": right,
        "softcap": softcap, "scale": scale, "sink": sink, "alibi": alibi, "lse": lse, "kv": kv,
        "page_size": page_size, "page_order": page_order, "alignment": alignment, "precision": precision,
        "consistency": consistency, "o_dtype": None if o_kind == q[3] else _views.WORDS[o_kind],
        "index_dtype": None if index_kind is None else _views.WORDS[index_kind],
        "batch": min(max(batch, 1), 1 << 20), "q_len": min(q_len, LONGEST, _MOST_PACKED // group),
        "kv_len": min(kv_len, LONGEST)}


def attend(form: Form, tensors: Tuple[Any, ...], options: Options, stream: Any, return_status: bool = False) -> Any:
    """`tensors`: as form.names has them. `options`: those of Problem, and what form.resolve takes besides: numbers and
    words, since layouts are told apart by them."""
    dispatch = dispatch_now()
    causal, window, softcap, scale, return_lse = options[:5]
    if not ((causal is True or causal is False) and (return_lse is False or return_lse is True)
            and (window is None or is_pair(window)) and (softcap is None or softcap.__class__ is float)
            and (scale is None or scale.__class__ is float)):
        options = plain(options)
    if return_status.__class__ is not bool:
        return_status = flag("return_status", return_status)
    framework, index, number, scope = begin(tensors[0], form.names[0], stream)
    # Not in the scope: a framework orders what it hands over behind the stream that is current for the caller.
    views = order = None
    found = framework.layouts(tensors)
    if found is None:
        order = Order(number, dispatch.wait)
        views = _views_of(form, tensors, order)
        found = [view[0] for view in views if view is not None], [view and view[1:] for view in views]
    if scope is None:
        return _run(dispatch, framework, index, number, form, tensors, options, found, views, order,
                    return_status)
    with scope:
        return _run(dispatch, framework, index, number, form, tensors, options, found, views, order, return_status)


def _views_of(form: Form, tensors: Tuple[Any, ...], order: Order) -> Views:
    """Raises InvalidRequest, naming the tensor, for one that is missing or cannot be used."""
    return [None if tensor is None and i not in form.required else
            _frameworks.of(tensor, name).view(tensor, name, order)
            for i, (name, tensor) in enumerate(zip(form.names, tensors))]


def _run(dispatch: Dispatch, framework: Framework, index: int, stream: int, form: Form, tensors: Tuple[Any, ...],
         options: Options, found: Tuple[List[int], List[Any]], views: Optional[Views], order: Optional[Order],
         return_status: bool) -> Any:
    """`found`: the pointers of the tensors that are given, and the layouts of all. `views` and `order`: None where the
    framework told these by itself."""
    pointers, layouts = found
    like, out = tensors[0], tensors[3]
    bits = 0
    for pointer in pointers:
        bits |= pointer
    bits &= 15
    if bits:  # those of q, k, v and o alone
        bits = 0
        for pointer in pointers[:sum(tensor is not None for tensor in tensors[:4])]:
            bits |= pointer & 15
    key = (form, index, bits, options, *layouts)
    try:
        recipe = dispatch.recipes.get(key)
    except TypeError:
        refuse_unhashable(options)
        raise
    if recipe is None:
        if views is None and all(tensors[i] is not None for i in form.required):
            views = framework.views(pointers, layouts)
        views = views or _views_of(form, tensors, Order(stream, dispatch.wait))
        recipe = dispatch.recipe(key, form, views, options, index, bits)
        if index < 0:  # no tensor says its GPU: the kernel was made for the current one
            index = recipe.entry.kernel.device

    if recipe.v_offset is not None:
        pointers.append(pointers[1] + recipe.v_offset)
    torch = framework if isinstance(framework, Torch) else None
    made = out is None
    if made:
        if torch is not None and recipe.as_q:
            out = torch.empty_like(like)
        else:
            out = framework.empty(like, recipe.o_shape, recipe.kind, dispatch.runtime.allocate, index)
        pointer = _pointer(framework, out, "out", stream)
        pointers.append(pointer)
        if pointer & 15:  # of an allocator that aligns less than all that are known
            views = views or _views_of(form, tensors, Order(stream, dispatch.wait))
            recipe = dispatch.recipe((pointer & 15, key), form, views, options, index, bits | pointer & 15)
    lse = None
    if recipe.lse_shape is not None:
        lse = framework.empty(like, recipe.lse_shape, _views.FP32, dispatch.runtime.allocate, index)
        pointers.append(_pointer(framework, lse, "lse", stream))

    run, status = dispatch.run, None
    if return_status:
        status = framework.empty(like, (), _views.INT32, dispatch.runtime.allocate, index)
        run = partial(dispatch.run_with_status, _pointer(framework, status, "status", stream))

    block = recipe.block()
    words = block.words
    for slot, pointer in zip(recipe.slots, pointers):
        words[slot] = pointer
    if torch is not None and torch.is_capturing():
        memory, words[_WORKSPACE_WORD] = torch_memory(torch, recipe.nbytes, index)
        words[_WORKSPACE_WORD + 1] = recipe.nbytes
        code = run(recipe.entry.pointer, *block.arguments, stream, block.error_argument)
        del memory  # behind the launch, in the graph's own pool
    else:
        workspace = dispatch.workspaces.of(index, stream)
        with workspace.lock:
            if workspace.nbytes < recipe.nbytes:
                dispatch.workspaces.grow(workspace, recipe.nbytes, framework, index, stream)
            words[_WORKSPACE_WORD] = workspace.data
            words[_WORKSPACE_WORD + 1] = workspace.nbytes
            code = run(recipe.entry.pointer, *block.arguments, stream, block.error_argument)
    if code:
        raise dispatch.library.error(code, block.failure())
    recipe.blocks.append(block)
    if (order is not None and order.held) or not framework.ordered:
        dispatch.settle(index, stream)
    if made:
        out = recipe.finish(framework.result(out))
    if status is not None:
        status = framework.result(status)
        return (out, status) if lse is None else (out, framework.result(lse), status)
    return out if lse is None else (out, framework.result(lse))


def _pointer(framework: Framework, made: Any, name: str, stream: int) -> int:
    if framework.__class__ is Torch:
        return int(made.data_ptr())
    return _frameworks.of(made, name).view(made, name, Order(stream, lambda other: None))[0]

"""What is kept between calls: kernels by their problem, and recipes by the layouts of a call's tensors."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .._base.options import HEADS_FIRST, O_DTYPE, RETURN_LSE, Options
from .._c_api import abi, requests
from .._tensors import views as _views
from .._tensors.blocks import AttentionBlock, MergeBlock
from .._tensors.views import View
from ..errors import InvalidRequest
from ..kernels import Kernel
from ..runtime import Runtime, default_runtime
from .forms import LONGEST, Form, Problem, alignment_of
from .outputs import OutputKinds, dtype_of
from .workspaces import Workspaces

_MOST_KERNELS = 4096  # distinct problems that are remembered; beyond, finding one starts over
_MOST_SIZES = 1024  # of one of them
_MOST_RECIPES = 1024  # each of about 6 KB
_MOST_SEEN = 1024  # layouts met once; those that come again later than that are not kept
_MOST_PACKED = (1 << 31) - 1024  # queries times group size, as the library has it


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
            nbytes = self.kernel.workspace_bytes(batch=batch, q_tokens=q_tokens, max_kv_len=max_kv_len)
            if len(self.workspace_bytes) >= _MOST_SIZES:
                self.workspace_bytes.clear()
            self.workspace_bytes[q_tokens, max_kv_len] = nbytes
        return nbytes


class Recipe:
    """All that calls with the same layouts and options share."""

    __slots__ = ("entry", "nbytes", "views", "bounds", "spare", "blocks", "slots", "v_offset", "o_shape", "o_strides",
                 "lse_shape", "kind", "as_q")

    def __init__(self, dispatch: "Dispatch", form: Form, given: List[Any], options: Options, index: int,
                 pointer_bits: int) -> None:
        problem = form.resolve(given, options)
        q, k, v = problem.q, problem.k, problem.v
        self.kind = dispatch.output_kinds.of(q, given[3], problem.options[O_DTYPE])
        self.o_shape = (*problem.rows, v[1][-1])
        self.o_strides = problem.o_strides or _views.compact_strides(self.o_shape)
        self.lse_shape, lse = None, None
        if problem.options[RETURN_LSE]:
            self.lse_shape, lse = new_lse_view(problem)
        self.as_q = (self.kind == q[3] and given[0][1] == self.o_shape and tuple(given[0][2]) == self.o_strides)
        o = problem.as_kernel(given[3] or (0, self.o_shape, self.o_strides, self.kind, q[4]))
        bits = pointer_bits
        operands = (*problem.inputs, o)
        for _, _, strides, kind, _ in operands:
            for stride in strides[:-1]:
                bits |= stride * _views.ITEM_BYTES[kind]
        # A stride that reaches nothing does not count; most layouts need no such look.
        alignment = alignment_of(operands, pointer_bits) if bits & 15 else 16
        self.entry = dispatch.kernel(problem, self.kind, alignment, given[4] is not None, given[5] is not None, index)
        tokens = q[1][0] if len(q[1]) == 3 else q[1][0] * q[1][1]
        try:
            self.nbytes = self.entry.needed(problem.batch, tokens, problem.max_kv_len)
        except InvalidRequest as error:
            raise _traced(error, problem) from None
        self.bounds = problem.max_q_len, problem.max_kv_len
        is_latent = problem.op == "mla"  # whose values the library finds by itself
        self.views = (q, k, None if is_latent else v, o, lse, given[4], given[5], problem.q_pe, problem.kpe,
                      problem.k_scale, problem.v_scale, *problem.batch_views)
        self.spare = self.blocks = dispatch.blocks

        # Where pointers go: of the tensors that are given, in their order, then of v in one tensor with k, o and lse.
        order = [field for field, view in zip(form.fields, given) if view is not None]
        self.v_offset = None
        if given[2] is None and not is_latent:
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
        self.recipes: Dict[Tuple[Any, ...], Recipe] = {}
        self.output_kinds = OutputKinds(library)
        self.seen: Set[int] = set()
        self.blocks: List[AttentionBlock] = []
        self.workspaces = Workspaces(runtime.allocate, runtime.synchronize)
        self.merge_blocks: Dict[int, List[MergeBlock]] = {}
        self.wait = runtime.synchronize

    def prepare(self, key: Tuple[Any, ...], words: Dict[str, Any], index: int) -> Prepared:
        spec, sizes = requests.parse(self.library, words)
        entry = Prepared(self.runtime._prepare(spec, sizes, None if index < 0 else index))
        if index >= 0:  # else the device is whichever is current
            if len(self.prepared) >= _MOST_KERNELS:
                self.prepared.clear()
            self.prepared[key] = entry
        return entry

    def kernel(self, problem: Problem, o_kind: int, alignment: int, sink: bool, alibi: bool, index: int) -> Prepared:
        """The kernel of a problem: many sizes share one."""
        q = problem.q
        sizes, geometry, options = _described(problem, o_kind, sink, alibi)
        key = (index, q[3], *q[1][-2:], *sizes, alignment, geometry, options)
        return self.prepared.get(key) or self.prepare(key, _words(q, geometry, sizes, alignment, options), index)

    def recipe(self, key: Tuple[Any, ...], form: Form, views: List[Any], options: Options, index: int,
               pointer_bits: int) -> Recipe:
        """A new one, which is kept if its key comes for the second time: layouts with token counts in them may never
        come again, and to keep many objects makes Python's garbage collector slow."""
        recipe = Recipe(self, form, views, options, index, pointer_bits)
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


def new_view(shape: Sequence[int], kind: int, like: View) -> View:
    """A row-major tensor that is still to be made."""
    return 0, shape, _views.compact_strides(shape), kind, like[4]


def new_lse_view(problem: Problem) -> Tuple[Tuple[int, ...], View]:
    """The shape of the caller's lse, and the lse as the library has it."""
    rows = tuple(problem.rows)
    pointer, shape, strides, kind, device = new_view(rows, _views.FP32, problem.q)
    if problem.options[RETURN_LSE] is HEADS_FIRST and len(rows) == len(problem.q[1]) - 1:  # else there is one query each
        *lead, tokens, heads = rows
        shape = (*lead, heads, tokens)
        *outer, of_head, of_token = _views.compact_strides(shape)
        return shape, problem.as_kernel((pointer, rows, (*outer, of_token, of_head), kind, device))
    return rows, problem.as_kernel((pointer, shape, strides, kind, device))


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


def check_blocks(latents: View, position: View, scale: Optional[View], name: str) -> None:
    """A position of 16 bits beside latents of 8 bits is that of scales of blocks. Raises InvalidRequest."""
    if _views.ITEM_BYTES[latents[3]] != 1 or _views.ITEM_BYTES[position[3]] == 1:
        return
    if scale is None or len(scale[1]) != len(latents[1]):
        raise InvalidRequest("k_scale", "None" if scale is None else f"a tensor of {tuple(scale[1])}",
                             f"fp32 with the axes of the latents, the last of blocks of 128 columns, since {name} is of "
                             f"{_views.WORDS[position[3]]} beside latents of 8 bits")


def _stored(problem: Problem) -> Tuple[Any, Optional[str]]:
    """kv_dtype and kv_scale of a request, each None where keys and values are as q. Raises InvalidRequest."""
    kind, kv_dtype, scale = problem.k[3], problem.kv_dtype, problem.k_scale
    if problem.op != "mla" and (scale is None) != (problem.v_scale is None):
        name, other = ("k_scale", "v_scale") if scale is None else ("v_scale", "k_scale")
        raise InvalidRequest(name, "None", f"a tensor as {other} is: keys and values are scaled both or neither")
    if kv_dtype is None and kind == _views.UINT8:
        raise InvalidRequest("kv_dtype", "None", '"e4m3" or "e5m2", which these keys and values of uint8 are')
    if kv_dtype is None and kind in (_views.E4M3, _views.E5M2):
        kv_dtype = _views.WORDS[kind]
    if problem.kpe is not None:
        check_blocks(problem.k, problem.kpe, scale, "kpe")
    if scale is None:
        return kv_dtype, None
    if _views.ITEM_BYTES[kind] != 1:
        raise InvalidRequest("k_scale", "a tensor", f"None, since keys are of {_views.WORDS[kind]}; scales are of e4m3 "
                             "and e5m2")
    return kv_dtype, _scaled_by(problem, scale)


def _scaled_by(problem: Problem, scale: View) -> str:
    """kv_scale by the axes of k_scale: those of the keys but the last are of scales of each token."""
    shape, axes = tuple(scale[1]), len(problem.k[1])
    if shape == (1,):
        return "tensor"
    if len(shape) == axes - 1:
        return "token_head"
    if len(shape) == axes:
        return "block128"
    if len(shape) == 1:
        return "head"
    raise InvalidRequest("k_scale.shape", str(shape), f"[1], [kv_heads], or the axes of the keys {tuple(problem.k[1])} "
                         "but the last: one scale of each head of each token, or with a last axis one of each 128 "
                         "columns of it")


def index_kind_of(views: Mapping[str, Optional[View]]) -> Optional[int]:
    """The one dtype of lengths, offsets and tables, by their names. Raises InvalidRequest."""
    first = None
    for name, view in views.items():
        if view is None:
            continue
        if view[3] not in (_views.INT32, _views.INT64):
            raise InvalidRequest(f"{name}.dtype", _views.WORDS[view[3]], "int32 or int64")
        if first is None:
            first = name, view[3]
        elif view[3] != first[1]:
            raise InvalidRequest(f"{name}.dtype", _views.WORDS[view[3]],
                                 f"{_views.WORDS[first[1]]}, as {first[0]} is: lengths, offsets and tables of a call have one "
                                 "dtype")
    return None if first is None else first[1]


def _rounded(length: int) -> int:
    return 1 << (length - 1).bit_length() if length > 2 else length


def _described(problem: Problem, o_kind: int, sink: bool, alibi: bool) -> Tuple[
        Tuple[int, int, int], Tuple[Any, ...], Options]:
    """The sizes, the geometry and the options that a kernel is prepared for."""
    sizes = (problem.batch, _rounded(problem.max_q_len), _rounded(problem.max_kv_len))
    k_shape = problem.k[1]
    page_size, kv_heads = None, k_shape[-2]
    if problem.op == "mla":  # whose latents may have no axis of heads
        page_size, kv_heads = k_shape[1] if problem.kv == "paged" else None, 1
    elif problem.kv == "paged":
        page_size, kv_heads = k_shape[1:3] if problem.page_order == "NHD" else (k_shape[2], k_shape[1])
    index_kind = index_kind_of(dict(zip(abi.BATCH_FIELDS, problem.batch_views)))
    geometry = (problem.kv, page_size, problem.page_order, index_kind, kv_heads, problem.v[1][-1],
                problem.head_dim_kpe, *_stored(problem))
    has_lse = problem.options[RETURN_LSE] is not False
    options = (*problem.options[:RETURN_LSE], has_lse, *problem.options[RETURN_LSE + 1:O_DTYPE], o_kind, sink, alibi)
    return sizes, geometry, options


def request_words(problem: Problem, o_kind: int, alignment: int, sink: bool, alibi: bool) -> Dict[str, Any]:
    """The request of a problem, in the words that prepare() takes."""
    sizes, geometry, options = _described(problem, o_kind, sink, alibi)
    return _words(problem.q, geometry, sizes, alignment, options)


def _words(q: View, geometry: Tuple[Any, ...], sizes: Tuple[int, int, int], alignment: int,
           options: Options) -> Dict[str, Any]:
    """The request of a call, in the words that prepare() takes."""
    kv, page_size, page_order, index_kind, kv_heads, head_dim_vo, head_dim_kpe, kv_dtype, kv_scale = geometry
    causal, window, chunk, softcap, scale, lse, precision, consistency, o_kind, sink, alibi = options
    dtype = dtype_of(q)
    left, right = (None, None) if window is None else window
    q_heads, head_dim_qk = q[1][-2:]
    batch, q_len, kv_len = sizes
    group = max(q_heads // max(kv_heads, 1), 1)
    head_dims: Dict[str, Any] = {"head_dim_qk": head_dim_qk, "head_dim_vo": head_dim_vo}
    if head_dim_kpe is not None:
        head_dims = {"op": "mla", "head_dim_ckv": head_dim_vo, "head_dim_kpe": head_dim_kpe}
    return {
        **head_dims, "dtype": dtype, "q_heads": q_heads,
        "kv_heads": kv_heads, "mask": "causal" if causal else "full", "window_left": left, "window_right": right,
        "attention_chunk": chunk or None, "softcap": softcap, "scale": scale, "sink": sink, "alibi": alibi, "lse": lse,
        "kv": kv,
        "page_size": page_size, "page_order": page_order, "alignment": alignment, "precision": precision,
        "consistency": consistency, "o_dtype": None if o_kind == q[3] else _views.WORDS[o_kind],
        "kv_dtype": kv_dtype, "kv_scale": kv_scale,
        "index_dtype": None if index_kind is None else _views.WORDS[index_kind],
        "batch": min(max(batch, 1), 1 << 20), "q_len": min(q_len, LONGEST, _MOST_PACKED // group),
        "kv_len": min(kv_len, LONGEST)}

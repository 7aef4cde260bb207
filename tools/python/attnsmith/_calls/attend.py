"""How the plain attention functions call: what a layout of tensors needs is worked out once, into a recipe, and looked
up after that. A call with a known layout then costs the reading of its tensors, one look-up, the writing of their
pointers and the launch."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, List, Optional, Tuple

from .._base.options import Options, flag, is_plain, plain, refuse_unhashable
from .._tensors import frameworks, views as _views
from .._tensors.blocks import AttentionBlock
from .._tensors.frameworks import Framework, Order, Torch
from .dispatch import Dispatch, Recipe, dispatch_now
from .forms import Form, Views
from .native_calls import NativeCalls, opened
from .workspaces import torch_memory

_WORKSPACE_WORD = AttentionBlock.WORKSPACE_WORD
#: A recipe by which a call was made, and the pointers of that call, in the order of its slots.
Seen = Tuple[Recipe, List[int]]


class _Watch(threading.local):
    """What is to see the recipe of this thread's next call."""

    seen: Optional[List[Seen]] = None


_watch = _Watch()


class _Native:
    """Calls of the module _native, opened when a call with tensors of torch was made in Python."""

    calls: Optional[NativeCalls] = None
    is_open = False

    def learns_from(self, framework: Framework) -> bool:
        if not isinstance(framework, Torch) or _watch.seen is not None:
            return False
        if not self.is_open:
            self.is_open = True
            self.calls = opened()
        return self.calls is not None


_native = _Native()


@contextmanager
def recipes_of_calls() -> Iterator[List[Seen]]:
    """By what this thread's calls are made meanwhile."""
    before, _watch.seen = _watch.seen, []
    try:
        yield _watch.seen
    finally:
        _watch.seen = before


def begin(tensor: Any, name: str, stream: Any) -> Tuple[Framework, int, int, Any]:
    """The framework of a call, its GPU, its stream, and what is to be current meanwhile, if it is not."""
    framework = frameworks.of(tensor, name)
    index = framework.index(tensor, name)
    current = framework.stream(index)
    number = current if stream is None else frameworks.raw_stream(stream)
    return framework, index, number, framework.scope(index, None if number == current else number)


def attend(form: Form, tensors: Tuple[Any, ...], options: Options, stream: Any, return_status: bool = False) -> Any:
    """`tensors`: as form.names has them. `options`: those of Problem, and what form.resolve takes besides: numbers and
    words, since layouts are told apart by them."""
    calls = _native.calls
    if calls is not None and stream is None and return_status is False and _watch.seen is None:
        results = calls.module.attend(form, tensors, options)
        if results is not None:
            return results
    given, dispatch = options, dispatch_now()
    if not is_plain(options):
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
        if stream is not None or views is not None or return_status or options is not given \
                or not _native.learns_from(framework):
            return _run(dispatch, framework, index, number, form, tensors, options, found, views, order, return_status)
        with recipes_of_calls() as recipes:
            results = _run(dispatch, framework, index, number, form, tensors, options, found, views, order, return_status)
        if _native.calls is not None and len(recipes) == 1:
            _native.calls.learn(form, tensors, options, recipes[0][0], framework, index)
        return results
    with scope:
        return _run(dispatch, framework, index, number, form, tensors, options, found, views, order, return_status)


def _views_of(form: Form, tensors: Tuple[Any, ...], order: Order) -> Views:
    """Raises InvalidRequest, naming the tensor, for one that is missing or cannot be used."""
    return [None if tensor is None and i not in form.required else
            frameworks.of(tensor, name).view(tensor, name, order)
            for i, (name, tensor) in enumerate(zip(form.names, tensors))]


def _run(dispatch: Dispatch, framework: Framework, index: int, stream: int, form: Form, tensors: Tuple[Any, ...],
         options: Options, found: Tuple[List[int], List[Any]], views: Optional[Views], order: Optional[Order],
         return_status: bool) -> Any:
    """`found`: the pointers of the tensors that are given, and the layouts of all. `views` and `order`: None where the
    framework told these by itself."""
    pointers, layouts = found
    like, out = tensors[0], tensors[3]
    bits = _pointer_bits(form, pointers, tensors)
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
    made = out is None
    if made:
        out = _new_output(dispatch, framework, index, recipe, like)
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

    _launch(dispatch, framework, index, stream, form, recipe, pointers, run)
    if (order is not None and order.held) or not framework.ordered:
        dispatch.settle(index, stream)
    if made:
        out = framework.result(out)
    if status is not None:
        status = framework.result(status)
        return (out, status) if lse is None else (out, framework.result(lse), status)
    return out if lse is None else (out, framework.result(lse))


def _pointer_bits(form: Form, pointers: List[int], tensors: Tuple[Any, ...]) -> int:
    """What the tensors whose alignment counts lack of one of 16 bytes."""
    bits = 0
    for pointer in pointers:
        bits |= pointer
    if bits & 15:  # maybe of another tensor
        bits = 0
        given = [aligned for aligned, tensor in zip(form.aligned, tensors) if tensor is not None]
        for aligned, pointer in zip(given, pointers):
            if aligned:
                bits |= pointer
    return bits & 15


def _new_output(dispatch: Dispatch, framework: Framework, index: int, recipe: Recipe, like: Any) -> Any:
    if isinstance(framework, Torch):
        if recipe.as_q:
            return framework.empty_like(like)
        return framework.empty_strided(like, recipe.o_shape, recipe.o_strides, recipe.kind)
    return framework.empty(like, recipe.o_shape, recipe.kind, dispatch.runtime.allocate, index)


def _launch(dispatch: Dispatch, framework: Framework, index: int, stream: int, form: Form, recipe: Recipe,
            pointers: List[int], run: Callable[..., int]) -> None:
    """`pointers`: in the order of the recipe's slots."""
    block = recipe.block()
    words = block.words
    for slot, pointer in zip(recipe.slots, pointers):
        words[slot] = pointer
    if isinstance(framework, Torch) and framework.is_capturing() \
            and not dispatch.workspaces.serves_capture(index, stream, recipe.nbytes):
        memory, words[_WORKSPACE_WORD] = torch_memory(framework, recipe.nbytes, index)
        words[_WORKSPACE_WORD + 1] = recipe.nbytes
        code = run(recipe.entry.pointer, *block.arguments, stream, block.error_argument)
        del memory  # freed after the launch, in the graph's own pool
    else:
        workspace = dispatch.workspaces.of(index, stream)
        with workspace.lock:
            if workspace.nbytes < recipe.nbytes:
                dispatch.workspaces.grow(workspace, recipe.nbytes, framework, index, stream)
            words[_WORKSPACE_WORD] = workspace.data
            words[_WORKSPACE_WORD + 1] = workspace.nbytes
            code = run(recipe.entry.pointer, *block.arguments, stream, block.error_argument)
    if code:
        raise form.named(dispatch.library.error(code, block.failure()))
    recipe.blocks.append(block)
    if _watch.seen is not None:
        _watch.seen.append((recipe, pointers))


def _pointer(framework: Framework, made: Any, name: str, stream: int) -> int:
    if framework.__class__ is Torch:
        return int(made.data_ptr())
    return frameworks.of(made, name).view(made, name, Order(stream, lambda other: None))[0]

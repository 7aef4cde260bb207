"""The module _native: calls of known layouts without a line of Python between the tensors and the launch. Where it is
missing or torch is older than 2.10, attend.py does all in Python."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Optional, Tuple

from .._base.options import Options
from .._c_api import native_module
from .._c_api.library import address_of
from .._tensors import views as _views
from .._tensors.frameworks import Torch
from .dispatch import Recipe
from .forms import Form
from .lent import Lent, launching


class NativeCalls:
    """The module, ready for the tensors of one torch."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._lent = Lent(module.set_workspace, module.forget)

    def learn(self, form: Form, tensors: Tuple[Any, ...], options: Options, recipe: Recipe, torch: Any,
              device: int) -> None:
        """Has the next calls like this one served by the module."""
        self._lent.lend(recipe, torch, device, lambda: self.teach(form, tensors, options, recipe, torch))

    def teach(self, form: Form, tensors: Tuple[Any, ...], options: Options, recipe: Any, torch: Torch) -> None:
        """learn() of a recipe whose kernel and workspace are lent."""
        new_out = out_words = new_lse = lse_words = None
        if tensors[3] is None:
            if recipe.as_q:
                new_out = torch.empty_like
            else:
                new_out, out_words = (recipe.o_shape, recipe.o_strides), {"dtype": torch.dtypes[recipe.kind]}
        if recipe.lse_shape is not None:
            new_lse = recipe.lse_shape, _views.compact_strides(recipe.lse_shape)
            lse_words = {"dtype": torch.dtypes[_views.FP32]}
        block = recipe.block()
        self.module.learn(form, tensors, options, recipe.entry.kernel, recipe.entry.pointer.value, block.tensors, block.batch,
                          recipe.nbytes, form.fields, recipe.v_offset, new_out, out_words, new_lse, lse_words)
        recipe.blocks.append(block)


def opened() -> Optional[NativeCalls]:
    """Once torch is there. None where calls are Python's."""
    torch: Any = sys.modules.get("torch")
    module = native_module.native
    if module is None or torch is None or not hasattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__"):
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        module.use(*launching(), address_of(driver.cuStreamIsCapturing), address_of(driver.cuCtxGetDevice))
        if not module.use_torch(torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, torch.autograd.forward_ad):
            return None
        return NativeCalls(module)
    except Exception as error:
        native_module.refuse(error)
        return None

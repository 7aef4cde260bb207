"""install() and uninstall(): `import flash_attn` finds attnsmith's functions.

The folders in packages/ hold importable packages of FlashAttention's names, with the metadata of a distribution. One on
sys.path, or on a child's PYTHONPATH, is all that programs look at: import, find_spec and importlib.metadata find it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import sys
from types import ModuleType
from typing import Any, Dict, List

from ..._base import reports
from ..._base.arguments import named
from ...errors import InvalidRequest

_PACKAGES = pathlib.Path(__file__).resolve().parent / "packages"
_FA2_NAMES, _FA3_NAMES = ("flash_attn",), ("flash_attn_interface", "flash_attn_3")
# Programs that look for flash_attn once, as they are imported.
_DECIDE_AT_IMPORT = ("transformers", "diffusers")

_replaced: Dict[str, ModuleType] = {}  # modules of the real flash_attn, until uninstall()


@named
def install(*, replace: bool = False, fa3: bool = True, fa3_returns_lse: bool = False) -> None:
    """`import flash_attn`, its submodules, flash_attn.__version__ and importlib.metadata find attnsmith's functions, in
    this process and in those that multiprocessing starts. Call it before transformers, diffusers and the like are
    imported: what they decided at import stays, and a warning says so.

    replace: where the real flash_attn is installed, attnsmith's takes its place; else that is refused. Code that has
        imported functions of the real one keeps them.
    fa3: also flash_attn_interface and flash_attn_3, whose functions have FlashAttention 3's positional arguments.
    fa3_returns_lse: these give (out, softmax_lse) at each call, as FlashAttention 3 did until 2025.

    Raises InvalidRequest where the real flash_attn is installed.
    """
    wanted = folders(fa3=fa3, fa3_returns_lse=fa3_returns_lse)
    if [entry for entry in sys.path if _is_ours(entry)] == wanted:
        return
    uninstall()
    check_installed(replace=replace, fa3=fa3)
    decided = [name for name in _DECIDE_AT_IMPORT if name in sys.modules]
    for name in [name for name in sys.modules if name.partition(".")[0] in _names(fa3)]:
        _replaced[name] = sys.modules.pop(name)
    sys.path[:0] = wanted
    importlib.invalidate_caches()
    if decided:
        reports.warn(f"{' and '.join(decided)} looked for flash_attn when imported, before "
                     "attnsmith.compat.flash_attn.install(): call install() first, or run the program by python -m "
                     "attnsmith.compat.flash_attn")


@named
def uninstall() -> None:
    """Takes back what install() did; where nothing is installed it does nothing. Code that has imported attnsmith's
    functions keeps them."""
    sys.path[:] = [entry for entry in sys.path if not _is_ours(entry)]
    for name in [name for name, module in sys.modules.items() if _is_ours(getattr(module, "__file__", None))
                 and name.partition(".")[0] in _names(True)]:
        del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()
    importlib.invalidate_caches()


def folders(*, fa3: bool, fa3_returns_lse: bool) -> List[str]:
    """What goes to the front of sys.path, or of PYTHONPATH.

    Raises InvalidRequest for fa3_returns_lse without fa3.
    """
    if fa3_returns_lse and not fa3:
        raise InvalidRequest("fa3_returns_lse", "True", "False without fa3, whose functions it is of")
    names = ["flash_attn_2"]
    if fa3:
        names.append("flash_attn_3_with_lse" if fa3_returns_lse else "flash_attn_3")
    return [str(_PACKAGES / name) for name in names]


def check_installed(*, replace: bool, fa3: bool) -> None:
    """Raises InvalidRequest where a real flash_attn is installed that is not to be replaced."""
    if replace:
        return
    for name in _names(fa3):
        where = _real(name)
        if where is not None:
            raise InvalidRequest("replace", "False", f"True, to take the place of {name}, which is installed in {where}")


def _names(fa3: bool) -> "tuple[str, ...]":
    return _FA2_NAMES + _FA3_NAMES if fa3 else _FA2_NAMES


def _real(name: str) -> Any:
    """Where a module of this name is that is not attnsmith's, or None."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, which is in sys.modules
        return getattr(sys.modules[name], "__file__", None) or "sys.modules"
    if spec is None or spec.origin is None or _is_ours(spec.origin):  # without an origin it is a folder without code
        return None
    return spec.origin


def _is_ours(path: Any) -> bool:
    return isinstance(path, str) and os.path.abspath(path).startswith(f"{_PACKAGES}{os.sep}")

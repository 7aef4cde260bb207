"""`python -m attnsmith.compat.flash_attn PROGRAM ARGS`: the program, and the processes that it starts, find attnsmith's
functions as flash_attn."""

from __future__ import annotations

import os
import pathlib
import shutil
import site
import sys
from typing import Dict, List

from ...errors import InvalidRequest
from . import _install

_USAGE = """\
python -m attnsmith.compat.flash_attn [OPTIONS] PROGRAM [ARGS]

Runs a program for which `import flash_attn` and `import flash_attn_interface` find attnsmith's functions, in the
processes that it starts too. PROGRAM is a Python file, `-m MODULE`, `-c CODE`, or a command such as torchrun. Two folders
are put in front of PYTHONPATH, and nothing else is changed.

    python -m attnsmith.compat.flash_attn generate.py --model NAME
    python -m attnsmith.compat.flash_attn torchrun --nproc-per-node 2 generate.py

  --replace          take the place of a flash_attn that is installed
  --no-fa3           leave out flash_attn_interface and flash_attn_3, FlashAttention 3's names
  --fa3-returns-lse  functions of flash_attn_interface give (out, softmax_lse) at each call, as they did until 2025
  -h, --help         this text
"""


def main(arguments: List[str]) -> int:
    """Comes back only where the program cannot be run: 2 for wrong arguments, 1 for a program that does not start."""
    options: Dict[str, bool] = {}
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        option = arguments.pop(0)
        if option in ("-h", "--help"):
            print(_USAGE, end="")
            return 0
        if option not in ("--replace", "--no-fa3", "--fa3-returns-lse"):
            return _fail(f"there is no option {option} (see --help)", 2)
        options[option] = True
    if not arguments or arguments[0] in ("-m", "-c") and len(arguments) == 1:
        return _fail("the program is missing (see --help)", 2)
    fa3 = "--no-fa3" not in options
    try:
        folders = _install.folders(fa3=fa3, fa3_returns_lse="--fa3-returns-lse" in options)
        _install.check_installed(replace="--replace" in options, fa3=fa3)
    except InvalidRequest as error:
        return _fail(str(error), 2)
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *_inherited()])
    command = _command(arguments)
    try:
        os.execv(command[0], command)
    except OSError as error:
        return _fail(f"{arguments[0]} cannot be run: {error.strerror}", 1)


def _inherited() -> List[str]:
    """PYTHONPATH as it is. attnsmith's folder is added where only this process finds it, as from its source folder."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = pathlib.Path(__file__).resolve().parents[3]
    found = [pathlib.Path(path).resolve() for path in (*site.getsitepackages(), site.getusersitepackages(), *paths)]
    return paths if own in found else [*paths, str(own)]


def _command(arguments: List[str]) -> List[str]:
    program = arguments[0]
    if program in ("-m", "-c") or program.endswith(".py"):
        return [sys.executable, *arguments]
    return [shutil.which(program) or program, *arguments[1:]]


def _fail(message: str, code: int) -> int:
    print(f"attnsmith.compat.flash_attn: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

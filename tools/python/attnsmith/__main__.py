"""`attnsmith` and `python -m attnsmith`: the command of the wheel, which takes the place of this process."""

from __future__ import annotations

import os
import pathlib
import sys

from ._c_api import nvrtc

_COMMAND = pathlib.Path(__file__).resolve().parent / "bin/attnsmith"


def main() -> int:
    """Runs the command with sys.argv and, where ATTNSMITH_NVRTC_PATH names none, with the NVRTC of a wheel. Comes back
    only where there is no command."""
    wheel = None if os.environ.get("ATTNSMITH_NVRTC_PATH") else nvrtc.of_a_wheel()
    if wheel is not None:
        os.environ["ATTNSMITH_NVRTC_PATH"] = wheel
    try:
        os.execv(_COMMAND, ["attnsmith", *sys.argv[1:]])
    except OSError as error:
        print(f"attnsmith: the command cannot be run: {_COMMAND}: {error.strerror}; it comes with the wheel (pip "
              "install . in attnsmith's repository), or run that of a build (build/release/bin/attnsmith)",
              file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

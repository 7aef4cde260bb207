"""What the tests of tools/bench/peers.py share: where it is, and cases of it."""

import pathlib
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ENTRY = REPOSITORY / "tools/bench/peers.py"
sys.path.insert(0, str(ENTRY.parent))

from peers import cases  # noqa: E402

EVERY = [case for make in cases.SETS.values() for case in make()]


def small(tokens=64, **fields):
    return cases.Case("prefill", "bf16", (tokens,) * 2, (tokens,) * 2, 4, 2, 64, 64, **fields)

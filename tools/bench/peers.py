#!/usr/bin/env python3
"""attnsmith beside its peers on one GPU, in one run: the same inputs, the same checks, in turn.

    tools/bench/peers.py --cases prefill,decode --json peers.json --plot plots
    tools/bench/peers.py --list

tools/bench/README.md says how to install the peers and how to read the tables.
"""

import sys

from launches import end_with_reader
from peers.main import main  # the package beside this file

if __name__ == "__main__":
    sys.exit(end_with_reader(main))

"""NVRTC as Python packages bring it, which is where PyTorch has it too; the library itself looks in no such place."""

from __future__ import annotations

import os
import pathlib
import re
import sys
from typing import Optional


def of_a_wheel() -> Optional[str]:
    """The file of the newest NVRTC that a wheel on sys.path holds."""
    found = [file for folder in sys.path if os.path.isabs(folder)
             for file in pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.*")]
    return str(max(found, key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)])) if found else None

"""The GPU as the driver tells of it. Clocks are read, never set."""

from __future__ import annotations

import subprocess
from typing import Dict

FIELDS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "power.draw",
          "temperature.gpu")


def read_gpu() -> Dict[str, str]:
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, timeout=20)
        lines = answer.stdout.strip().splitlines() if answer.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        lines = []
    return dict(zip(FIELDS, (value.strip() for value in lines[0].split(",")))) if lines else {}

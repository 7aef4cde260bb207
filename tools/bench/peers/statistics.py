"""Medians, spreads, ratios and geometric means; None stands for what was not measured."""

from __future__ import annotations

import math
from statistics import median
from typing import Dict, Iterable, List, Optional, Tuple


def geomean(values: Iterable[Optional[float]]) -> Optional[float]:
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None


def spread(values: List[float]) -> float:
    """Half of the range over the median: 0.01 reads as plus or minus 1%."""
    return (max(values) - min(values)) / 2 / median(values)


def is_peer(name: str, ours: str) -> bool:
    """Whether it is somebody else's. Our own other ways to do a case are named after us, as attnsmith-bf16 is."""
    return name != ours and not name.startswith(ours + "-")


def best_peer(ms: Dict[str, float], ours: str) -> Optional[Tuple[str, float]]:
    peers = {name: time for name, time in ms.items() if is_peer(name, ours)}
    if not peers:
        return None
    name = min(peers, key=lambda peer: peers[peer])
    return name, peers[name]


def ratio(ms: Dict[str, float], ours: str, peer: Optional[str] = None) -> Optional[float]:
    """How many times as fast we are as `peer`, or as the fastest peer; None where either has no time."""
    if ours not in ms:
        return None
    if peer is None:
        best = best_peer(ms, ours)
        return best[1] / ms[ours] if best else None
    return ms[peer] / ms[ours] if peer in ms else None

"""Shares out a limit on the whole run's time: every case has its turns, shorter ones where time is short."""

from __future__ import annotations

from typing import List, Optional

FIRST_GUESS = 0.2  # seconds of a turn that are not measured: inputs, a first call, checks, a graph
LEAST_SECONDS = 0.03  # of measured launches, over all rounds: less says little


class Pace:
    """Times are those of time.monotonic(); a turn is one provider at one case."""

    def __init__(self, deadline: Optional[float], most: float) -> None:
        self.deadline = deadline
        self.most = most
        self._overheads: List[float] = []

    def seconds(self, now: float, turns_left: int) -> Optional[float]:
        """What each of the next case's turns may measure for; None where no time is left."""
        if self.deadline is None:
            return self.most
        if now >= self.deadline:
            return None
        each = (self.deadline - now) / max(1, turns_left) - self._overhead()
        return max(min(LEAST_SECONDS, self.most), min(self.most, each))

    def took(self, wall: float, turns: int, seconds: float) -> None:
        if turns > 0:
            self._overheads.append(max(0.0, wall / turns - seconds))

    def _overhead(self) -> float:
        # The first case's has what is done once: packages are imported, libraries set up.
        known = self._overheads[1:]
        return sum(known) / len(known) if known else FIRST_GUESS

"""What an adapter served by attnsmith and what it passed on to its framework's own attention, counted by reason."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Dict, List, NoReturn, Optional, Protocol, Tuple

from .._operators.tracing import is_tracing
from ..errors import Unsupported

if TYPE_CHECKING:  # making these types takes 2 ms
    from ..results import AdapterReport, PassedOnCalls


class Elsewhere(Protocol):
    """Counts calls that no Python sees."""

    def served(self) -> Dict[str, int]: ...

    def reset(self) -> None: ...


class Served:
    """The counts of one adapter.

    Calls that torch.compile traces are not counted: a graph that is traced once runs any number of times, and holds
    operators whose names tell what they are.
    """

    def __init__(self, to: str) -> None:
        self._to = to  # whom calls are passed on to
        self._served: Counter[str] = Counter()
        self._passed: Counter[Tuple[str, str]] = Counter()
        self.strict = False
        self.elsewhere: Optional[Elsewhere] = None

    def count(self, function: str) -> None:
        if not is_tracing():
            self._served[function] += 1

    def pass_on(self, function: str, why: str) -> None:
        """Raises Unsupported where the adapter is strict, and warns at the first call for this reason."""
        if self.strict:
            self.refuse(function, why)
        if is_tracing():
            return
        if not self._passed[function, why]:
            warnings.warn(f"attnsmith passes {function} on to {self._to}: {why}", stacklevel=2)
        self._passed[function, why] += 1

    def refuse(self, function: str, why: str) -> NoReturn:
        raise Unsupported(f"{function}: {why}")

    def report(self) -> AdapterReport:
        passed: List[PassedOnCalls] = [{"function": function, "why": why, "to": self._to, "calls": calls}
                                       for (function, why), calls in sorted(self._passed.items())]
        served = self._served + Counter(self.elsewhere.served() if self.elsewhere else {})
        return {"served": dict(sorted(served.items())), "passed_on": passed}

    def reset(self) -> None:
        self._served.clear()
        self._passed.clear()
        if self.elsewhere:
            self.elsewhere.reset()

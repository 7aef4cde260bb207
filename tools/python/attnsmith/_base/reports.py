"""What is told of models' plans and of prewarming, when the work is done."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Iterable, List, Sequence, Type, TypeVar

from ..errors import Unsupported

if TYPE_CHECKING:  # making these types takes 2 ms
    from ..results import ModelWarning, PrewarmReport, Refusal, UnsupportedPart

_Part = TypeVar("_Part")

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn(text: str, category: Type[Warning] = UserWarning) -> None:
    """As of the line that called into this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"attnsmith: {text}", category, stacklevel=level)


def warn_of_failures(report: PrewarmReport) -> None:
    """For those who do not read the report: nothing else would tell them that there is no NVRTC."""
    for state, what in (("failed", "could not be built"), ("missing", "are missing")):
        told = [kernel for kernel in report["kernels"] if kernel["state"] == state]
        if told:
            warn(f"{len(told)} of {report['summary']['total']} kernels {what}: {told[0].get('error')}", RuntimeWarning)


def refuse_doubts(unsupported: Sequence[UnsupportedPart], warnings: Sequence[ModelWarning]) -> None:
    """What strict=True raises when the work is done."""
    refusals: List[Refusal] = [{"candidate": part["name"], "reason": part["reason"]} for part in unsupported]
    refusals += [{"candidate": warning["field"], "reason": warning["text"]} for warning in warnings]
    if refusals:
        listed = ", ".join(f"{refusal['candidate']} ({refusal['reason']})" for refusal in refusals)
        raise Unsupported(f"not all of this model is planned as it is: {listed}", refusals)


def each_once(lists: Iterable[Iterable[_Part]]) -> List[_Part]:
    """What is in any of the lists, which need not be hashable, in the order in which it is met."""
    distinct: List[_Part] = []
    for one in (one for several in lists for one in several):
        if one not in distinct:
            distinct.append(one)
    return distinct

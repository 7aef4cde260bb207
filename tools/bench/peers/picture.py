"""The README's picture: attnsmith's speed relative to each peer, as bars around 1."""

from __future__ import annotations

from typing import Any, Dict, List

from .providers import PROVIDERS
from .svg import COLOURS, words

WIDTH, LEFT, RIGHT = 560, 200, 50
TOP, HEAD, BAR, FOOT = 64, 30, 26, 34
NUMBER = 40  # width of one beside its bar
FASTER, SLOWER = COLOURS[1], COLOURS[0]
GREY = "#666666"


def title(over: str) -> str:
    if over == "best":
        return "the fastest for each case"
    return PROVIDERS[over].title.replace(", through PyTorch's SDPA", "")


def draw(results: Dict[str, Any]) -> str:
    """SVG of all kinds of work, one below the other on one scale."""
    work = results["work"]
    every = [row for kind in work.values() for row in kind["rows"]]
    top = max(row["ratio"] for row in every) * 1.04
    height = TOP + sum(HEAD + BAR * len(kind["rows"]) + FOOT for kind in work.values())

    def at(value: float) -> float:
        return LEFT + value / top * (WIDTH - LEFT - RIGHT)

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" '
             'font-family="sans-serif" font-size="13">' % (WIDTH, height, WIDTH, height),
             '<rect width="100%" height="100%" fill="white"/>',
             words(16, 26, "attnsmith's speed relative to other libraries", "start", 'font-size="16"'),
             words(16, 46, "Geometric mean of one run. Above 1, attnsmith is faster. Circles: the worst case.", "start",
                   'fill="%s"' % GREY)]
    y = TOP
    parts.append('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#000000" stroke-dasharray="4 3"/>'
                 % (at(1), TOP, at(1), height - FOOT))
    for name, kind in work.items():
        parts.append(words(16, y + 18, "%s, %d cases" % (name.capitalize(), kind["cases"]), "start",
                           'font-weight="bold"'))
        y += HEAD
        for row in kind["rows"]:
            parts += bar(row, y, at)
            y += BAR
        parts.append(words(16, y + 14, "%s, %s" % (kind["device"], kind["date"]), "start",
                           'fill="%s" font-size="11"' % GREY))
        y += FOOT
    return "\n".join(parts + ["</svg>"]) + "\n"


def bar(row: Dict[str, Any], y: float, at: Any) -> List[str]:
    colour = FASTER if row["ratio"] >= 1 else SLOWER
    end = at(row["ratio"])
    if end < at(1) < end + NUMBER:
        end = at(1)  # the number is not written over the line
    parts = [words(LEFT - 10, y + 15, title(row["over"]), "end"),
             '<rect x="%d" y="%.1f" width="%.1f" height="18" fill="%s"/>' % (LEFT, y + 1, at(row["ratio"]) - LEFT, colour),
             words(end + 6, y + 15, "%.2f" % row["ratio"], "start")]
    if row["least"]:
        parts.append('<circle cx="%.1f" cy="%.1f" r="4" fill="white" stroke="#000000"/>' % (at(row["least"]), y + 10))
    return parts

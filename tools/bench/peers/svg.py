"""Line charts of speed against sequence length, as SVG."""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 780, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 50, 55
# Colours that stay apart for the colour-blind (Okabe and Ito); the first is ours.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c8c8c")


class Line(NamedTuple):
    name: str
    points: List[Tuple[float, float]]
    colour: str


class Level(NamedTuple):
    """A horizontal line, such as the copy bandwidth."""

    name: str
    value: float


def nice_step(top: float) -> float:
    """The step of 1, 2 or 5 times a power of ten that gives 4 to 8 ticks up to `top`."""
    power = 10.0 ** math.floor(math.log10(top / 4))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if top / (factor * power) <= 8:
            return factor * power
    return 10.0 * power


def short(value: float) -> str:
    if value >= 1024 and value % 1024 == 0:
        return "%dk" % (value // 1024)
    return "%g" % value


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line], level: Optional[Level] = None) -> str:
    xs = sorted({x for line in lines for x, _ in line.points})
    values = [y for line in lines for _, y in line.points] + ([level.value] if level else [])
    step = nice_step(max(values))
    top = step * math.ceil(max(values) / step)
    low, high = math.log2(xs[0]), math.log2(xs[-1])

    def at_x(x: float) -> float:
        share = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" '
             'font-family="sans-serif" font-size="13">' % (WIDTH, HEIGHT, WIDTH, HEIGHT),
             '<rect width="100%" height="100%" fill="white"/>',
             words(LEFT, 28, title, "start", "font-size=\"16\"")]
    for i in range(int(round(top / step)) + 1):
        y = at_y(i * step)
        parts.append('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#dddddd"/>' % (LEFT, y, WIDTH - RIGHT, y))
        parts.append(words(LEFT - 8, y + 4, "%g" % (i * step), "end"))
    for x in xs:
        parts.append('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#888888"/>'
                     % (at_x(x), HEIGHT - BOTTOM, at_x(x), HEIGHT - BOTTOM + 5))
        parts.append(words(at_x(x), HEIGHT - BOTTOM + 20, short(x), "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, "middle"))
    parts.append(words(18, middle, y_label, "middle", 'transform="rotate(-90 18 %.1f)"' % middle))
    if level:
        y = at_y(level.value)
        parts.append('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#888888" stroke-dasharray="6 4"/>'
                     % (LEFT, y, WIDTH - RIGHT, y))
        parts.append(words(LEFT + 6, y - 5, level.name, "start", 'fill="#666666"'))
    for row, line in enumerate(lines):
        at = ["%.1f,%.1f" % (at_x(x), at_y(y)) for x, y in sorted(line.points)]
        parts.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>' % (" ".join(at), line.colour))
        for point in at:
            x_text, y_text = point.split(",")
            parts.append('<circle cx="%s" cy="%s" r="3" fill="%s"/>' % (x_text, y_text, line.colour))
        y = TOP + 10 + 20 * row
        parts.append('<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="3"/>'
                     % (WIDTH - RIGHT + 16, y, WIDTH - RIGHT + 38, y, line.colour))
        parts.append(words(WIDTH - RIGHT + 45, y + 4, line.name, "start"))
    return "\n".join(parts + ["</svg>"]) + "\n"


def words(x: float, y: float, content: str, anchor: str, more: str = "") -> str:
    return '<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>' % (x, y, anchor, " " + more if more else "",
                                                                    escape(content))


def colours(names: Sequence[str]) -> Dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}

"""Draws docs/include_rules.svg from the rules of include_edges.py. `include_picture.py --write` writes it.

An arrow goes to each part that a part may include, where no other arrows lead there: the transitive reduction.
"""

import pathlib
import sys

import include_edges

PICTURE = pathlib.Path(__file__).resolve().parents[3] / "docs/include_rules.svg"
# Left to right, so that no arrow crosses a box; a part that is not here goes to the right.
COLUMNS = {"public": 4, "problem": 2, "ops": 4, "models": 2, "families": 1, "planner": 3, "compiler": 4, "driver": 5, "cache": 3,
           "settings": 3, "cubins": 5, "engine": 5, "reports": 5, "c_api": 5, "abi": 1, "templates": 0, "tools": 2, "tests": 1}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 110, 34, 40, 44, 20


def reaches(start, goal, edges):
    return goal in edges[start] or any(reaches(part, goal, edges) for part in edges[start])


def arrows(edges):
    """Of each part's edges those that no longer way replaces."""
    return {part: {goal for goal in goals if not any(reaches(other, goal, edges) for other in goals - {goal})}
            for part, goals in edges.items()}


def levels(edges):
    """How many arrows lie below a part, at most. One that includes nothing is drawn just below the lowest that includes it."""
    found = {}
    while len(found) < len(edges):
        for part, goals in edges.items():
            if part not in found and goals <= found.keys():
                found[part] = 1 + max((found[goal] for goal in goals), default=-1)
    kept = arrows(edges)
    for part in [part for part, goals in edges.items() if not goals]:
        found[part] = min((found[other] for other, goals in kept.items() if part in goals), default=1) - 1
    return found


def draw(edges):
    level = levels(edges)
    top = max(level.values())
    columns = 1 + max(COLUMNS.get(part, 5) for part in edges)
    width = 2 * MARGIN + columns * (WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + (top + 1) * (HEIGHT + GAP_Y) - GAP_Y

    def corner(part):
        return MARGIN + COLUMNS.get(part, 5) * (WIDTH + GAP_X), MARGIN + (top - level[part]) * (HEIGHT + GAP_Y)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="14">',
             '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0 0L8 4L0 8z" fill="#666666"/></marker></defs>',
             '<rect width="100%" height="100%" fill="white"/>']
    for part, goals in sorted(arrows(edges).items()):
        x, y = corner(part)
        for goal in sorted(goals):
            to_x, to_y = corner(goal)
            lines.append(f'<line x1="{x + WIDTH // 2}" y1="{y + HEIGHT}" x2="{to_x + WIDTH // 2}" y2="{to_y}" '
                         'stroke="#666666" marker-end="url(#head)"/>')
    for part in sorted(edges):
        x, y = corner(part)
        lines.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#eef4fa" stroke="#0072b2"/>')
        lines.append(f'<text x="{x + WIDTH // 2}" y="{y + 22}" text-anchor="middle">{part}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: include_picture.py --write")
    PICTURE.write_text(draw(include_edges.MAY_INCLUDE), encoding="utf-8")

"""One chart for each family of cases of one length each, more than one of them."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Sequence, Tuple

from .cases import Case
from .providers import PROVIDERS
from .report import is_bound_by_memory
from .svg import Level, Line, chart, colours


def charts(document: Dict[str, Any]) -> Dict[str, str]:
    """File name to SVG."""
    families: Dict[Tuple[str, str], List[Dict[str, Any]]] = {}
    for entry in document["cases"]:
        if not entry["case"]["label"]:  # of mixed lengths there is no one to draw it at
            families.setdefault((entry["set"], Case.from_json(entry["case"]).family), []).append(entry)
    device = document["machine"].get("device", "")
    copy_tbps = document["ceilings"].get("copy_tbps")
    found = {}
    for (set_name, family), entries in families.items():
        lengths = [max(entry["case"]["kv_lens"]) for entry in entries]
        if len(set(lengths)) < len(lengths):
            continue  # batches or queries differ, too: these points make no line
        memory = is_bound_by_memory(entries[0])
        lines = lines_of(entries, document["measured"], "tbps" if memory else "tflops")
        if len({x for line in lines for x, _ in line.points}) < 2:
            continue
        title = "%s: %s%s" % ("decode" if memory else set_name, family, ", " + device if device else "")
        level = Level("copy bandwidth, read and write", copy_tbps) if memory and copy_tbps else None
        x_label = "keys a sequence" if memory else "tokens a sequence, 16k tokens in all"
        name = re.sub(r"[^a-z0-9]+", "-", (set_name + " " + family).lower()) + ".svg"
        found[name] = chart(title, x_label, "TB/s" if memory else "TFLOP/s", lines, level)
    return found


def lines_of(entries: Sequence[Dict[str, Any]], providers: Sequence[str], speed: str) -> List[Line]:
    colour = colours(providers)
    lines = []
    for provider in providers:
        points = [(float(max(entry["case"]["kv_lens"])), entry["results"][provider][speed]) for entry in entries
                  if entry["results"].get(provider, {}).get("status") == "ok"]
        if points:
            lines.append(Line(PROVIDERS[provider].title.replace(", through PyTorch's SDPA", " (SDPA)"), points,
                              colour[provider]))
    return lines


def write(document: Dict[str, Any], folder: str) -> int:
    os.makedirs(folder, exist_ok=True)
    made = charts(document)
    for name, content in made.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)
    return len(made)

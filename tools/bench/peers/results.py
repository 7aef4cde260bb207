"""What the repository keeps of runs: a small JSON of ratios by kind of work. From it the README's picture is drawn and the table
in docs/performance.md is written."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Sequence

from . import picture
from .providers import OURS
from .report import geomeans, peers_of, times
from .statistics import ratio

SCHEMA = "attnsmith.peers-results/1"
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RESULTS = os.path.join(REPOSITORY, "tools", "bench", "results", "peers.json")
PICTURE = os.path.join(REPOSITORY, "docs", "peers.svg")
PAGE = os.path.join(REPOSITORY, "docs", "performance.md")
TABLE = "<!-- %s of the table that peers.py --publish writes -->\n"
BEST = "best"  # the fastest peer of each case
# Of cases, by kind of work. The first three are in the picture.
SETS = {"prefill": ("prefill",), "decode": ("decode", "decode-more"), "latent decode": ("mla",),
        "small decode": ("decode-small",), "decode of mixed lengths": ("decode-mixed",), "2 to 16 queries": ("speculative",),
        "1 to 71 query heads per KV head": ("groups",)}
PICTURED = tuple(SETS)[:3]


def row(over: str, ratios: Sequence[float]) -> Dict[str, Any]:
    mean = geomeans([{"set": "all", "ratio": value, "results": {}} for value in ratios], [])["all"]["best_peer"]
    return {"over": over, "ratio": round(mean, 3), "least": round(min(ratios), 2), "cases": len(ratios)}


def rows(entries: Sequence[Dict[str, Any]], providers: Sequence[str]) -> List[Dict[str, Any]]:
    """Our speed over each peer's and over the best one's, where both have a time."""
    found = []
    for over in peers_of(providers) + [BEST]:
        ratios = [ratio(times(entry), OURS, None if over == BEST else over) for entry in entries]
        if any(ratios):
            found.append(row(over, [value for value in ratios if value]))
    return found


def condense(document: Dict[str, Any]) -> Dict[str, Any]:
    """The kinds of work that one run's JSON has, each with its rows and with what it was measured on."""
    kinds = {}
    for kind, sets in SETS.items():
        entries = [entry for entry in document["cases"] if entry["set"] in sets]
        if not entries:
            continue
        versions = {name: " ".join("%s %s" % item for item in document["providers"][name]["versions"].items())
                    for name in document["measured"]}
        kinds[kind] = {"cases": len(entries), "device": document["machine"]["device"],
                       "date": document["started"][:10], "versions": versions,
                       "command": "tools/bench/peers.py --cases " + ",".join(sets),
                       "rows": rows(entries, document["measured"])}
    return kinds


def table(results: Dict[str, Any]) -> str:
    """The rows of all kinds of work, in Markdown."""
    lines = ["| work | relative to | mean | worst case | cases | card | date | command |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, kind in results["work"].items():
        lines += ["| %s | %s | %.2f | %.2f | %d | %s | %s | `%s` |"
                  % (name, picture.title(row["over"]), row["ratio"], row["least"], row["cases"],
                     kind["device"].replace("NVIDIA ", ""), kind["date"], kind["command"]) for row in kind["rows"]]
    return "\n".join(lines) + "\n"


def with_table(page: str, rows_of: str) -> str:
    """The page with these rows between its two marks."""
    begin, end = TABLE % "begin", TABLE % "end"
    before, rest = page.split(begin)
    return before + begin + rows_of + end + rest.split(end)[1]


def pictured(results: Dict[str, Any]) -> Dict[str, Any]:
    return {"work": {kind: work for kind, work in results["work"].items() if kind in PICTURED}}


def load(path: str = RESULTS) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def publish(runs: Sequence[str]) -> List[str]:
    """Replaces the kinds of work that these runs' files have, draws the picture and writes the page's table. Gives the
    paths written."""
    results = load()
    for run in runs:
        results["work"].update(condense(load(run)))
    results["work"] = {kind: results["work"][kind] for kind in SETS if kind in results["work"]}
    with open(RESULTS, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    with open(PICTURE, "w", encoding="utf-8") as file:
        file.write(picture.draw(pictured(results)))
    with open(PAGE, encoding="utf-8") as file:
        page = with_table(file.read(), table(results))
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)
    return [os.path.relpath(path, REPOSITORY) for path in (RESULTS, PICTURE, PAGE)]

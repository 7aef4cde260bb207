"""What is kept of runs in the repository: a small JSON of ratios by kind of work, from which the README's picture is drawn."""

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
BEST = "best"  # the fastest peer of each case
SETS = {"prefill": ("prefill",), "decode": ("decode", "decode-more")}  # of cases, by kind of work


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


def load(path: str = RESULTS) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def publish(runs: Sequence[str]) -> List[str]:
    """Replaces the kinds of work that these runs' files have, and draws the picture. Gives the paths written."""
    results = load()
    for run in runs:
        results["work"].update(condense(load(run)))
    with open(RESULTS, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    with open(PICTURE, "w", encoding="utf-8") as file:
        file.write(picture.draw(results))
    return [os.path.relpath(path, REPOSITORY) for path in (RESULTS, PICTURE)]

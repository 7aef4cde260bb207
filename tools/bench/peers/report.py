"""Tables, geometric means and the JSON of a run."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from .cases import Case
from .providers import OURS, PROVIDERS
from .statistics import geomean, is_peer, ratio

SCHEMA = "attnsmith.peers/1"


def times(entry: Dict[str, Any]) -> Dict[str, float]:
    return {name: result["median_ms"] for name, result in entry["results"].items() if result["status"] == "ok"}


def peers_of(providers: Sequence[str]) -> List[str]:
    return [name for name in providers if is_peer(name, OURS)]


def by_set(entries: Sequence[Dict[str, Any]]) -> Dict[str, List[Dict[str, Any]]]:
    sets: Dict[str, List[Dict[str, Any]]] = {}
    for entry in entries:
        sets.setdefault(entry["set"], []).append(entry)
    return sets


def geomeans(entries: Sequence[Dict[str, Any]], providers: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """For each set and all: our speed over the best peer's and over each peer's, where both have a time."""
    found = {}
    groups = by_set(entries)
    groups["all"] = list(entries)
    for name, group in groups.items():
        ratios = [entry["ratio"] for entry in group if entry["ratio"]]
        row: Dict[str, Any] = {"best_peer": geomean(ratios), "least": min(ratios) if ratios else None,
                               "cases": len(ratios), "peers": {}}
        for peer in peers_of(providers):
            each = [ratio(times(entry), OURS, peer) for entry in group]
            row["peers"][peer] = {"ratio": geomean(each), "cases": len([value for value in each if value])}
        found[name] = row
    return found


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown, aligned: the first row is the head, the first column is words."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        lines.append("| " + " | ".join(cells) + " |")
        if number == 0:
            rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
            lines.append("| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def number(value: Optional[float], form: str) -> str:
    return "-" if value is None else form % value


def is_bound_by_memory(entry: Dict[str, Any]) -> bool:
    return Case.from_json(entry["case"]).has_few_queries


def columns(entries: Sequence[Dict[str, Any]], providers: Sequence[str]) -> List[str]:
    """Those that did not refuse all of these: a column of nothing says no more than their reasons do."""
    return [name for name in providers if any(entry["results"].get(name, {}).get("status", "refused") != "refused"
                                              for entry in entries)]


def cell(entry: Dict[str, Any], provider: str) -> str:
    result = entry["results"].get(provider)
    if result is None:
        return "-"
    if result["status"] != "ok":
        return {"refused": "-", "wrong": "WRONG"}.get(result["status"], result["status"])
    speed = "%.0f" % (result["tbps"] * 1000) if is_bound_by_memory(entry) else "%.0f" % result["tflops"]
    return "%s ±%.1f%%" % (speed, 100 * result["spread"])


def set_table(entries: Sequence[Dict[str, Any]], providers: Sequence[str], copy_tbps: Optional[float]) -> str:
    memory = is_bound_by_memory(entries[0])
    head = ["GB/s" if memory else "TFLOP/s"] + list(providers)
    head += (["of a copy"] if memory else []) + ["ratio", "best peer", "max error", "peers' error"]
    rows = [head]
    for entry in entries:
        row = [entry["name"]] + [cell(entry, provider) for provider in providers]
        if memory:
            ours = entry["results"].get(OURS, {}).get("tbps")
            row.append(number(100 * ours / copy_tbps if ours and copy_tbps else None, "%.0f%%"))
        # A wrong answer's error is shown too: it is what one wants to know of it.
        errors = {name: result["max_error"] for name, result in entry["results"].items()
                  if result.get("max_error") is not None}
        ours = errors.get(OURS)
        others = [errors[name] for name in peers_of(list(errors))]
        row += [number(entry["ratio"], "%.2f"), entry["best_peer"] or "-", number(ours, "%.1e"),
                number(max(others) if others else None, "%.1e")]
        rows.append(row)
    return table(rows)


def without_a_time(entries: Sequence[Dict[str, Any]], providers: Sequence[str]) -> List[str]:
    """One line for each provider and reason, however many cases it is the reason of."""
    lines = []
    for provider in providers:
        reasons: Dict[str, List[str]] = {}
        for entry in entries:
            result = entry["results"].get(provider, {})
            if result and result["status"] != "ok":
                reasons.setdefault("%s: %s" % (result["status"], result["reason"]), []).append(entry["name"])
        for reason, names in reasons.items():
            which = names[0] if len(names) == 1 else "%d cases, such as %s" % (len(names), names[0])
            lines.append("  %s, %s: %s" % (provider, reason, which))
    return lines


def geomean_table(means: Dict[str, Dict[str, Any]], providers: Sequence[str]) -> str:
    peers = peers_of(providers)
    rows = [["geometric mean"] + ["over " + peer for peer in peers] + ["over the best", "least", "cases"]]
    for name, row in means.items():
        cells = []
        for peer in peers:
            value = row["peers"][peer]
            cells.append("%.2f (%d)" % (value["ratio"], value["cases"]) if value["ratio"] else "-")
        rows.append([name] + cells + [number(row["best_peer"], "%.2f"), number(row["least"], "%.2f"),
                                      str(row["cases"])])
    return table(rows)


def text(document: Dict[str, Any]) -> str:
    providers = document["measured"]
    copy_tbps = document["ceilings"].get("copy_tbps")
    parts = []
    for name, entries in by_set(document["cases"]).items():
        asked = [provider for provider in providers if any(provider in entry["results"] for entry in entries)]
        parts += ["", "## " + name, "", set_table(entries, columns(entries, asked), copy_tbps)]
        reasons = without_a_time(entries, asked)
        if reasons:
            parts += ["", "Without a time:"] + reasons
    if document["cases"]:
        parts += ["", "## attnsmith's speed over its peers'", "", geomean_table(document["geomeans"], providers)]
    absent = ["  %s: %s" % (PROVIDERS[name].title, entry["reason"])
              for name, entry in document["providers"].items() if entry["reason"]]
    if absent:
        parts += ["", "Not in this run:"] + absent
    return "\n".join(parts)

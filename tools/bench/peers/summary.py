"""What a run comes to, on one page: attnsmith against its peers, and against itself where the work is the same."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .cases import DECODE_SETS, FP8_SETS, Case, held_to, least_over_bf16
from .providers import OURS, OURS_BF16
from .report import by_set, columns, number, peers_of, table, times
from .statistics import best_peer, geomean, ratio

Entry = Dict[str, Any]


def held(entries: Sequence[Entry]) -> List[Dict[str, Any]]:
    """Our speed at a case over that at the case that it is held to, both for the work they have."""
    speeds = {(entry["set"], entry["name"]): entry["results"][OURS]["tflops"] for entry in entries
              if entry["results"].get(OURS, {}).get("status") == "ok"}
    found = []
    for entry in entries:
        for against in held_to(Case.from_json(entry["case"])):
            mine, other = (speeds.get((entry["set"], name)) for name in (entry["name"], against.against))
            row: Dict[str, Any] = {"set": entry["set"], "name": entry["name"], "kind": against.kind,
                                   "against": against.against, "target": against.target, "speed": None,
                                   "extra_time": None, "met": None}
            if mine and other:
                row.update(speed=mine / other, extra_time=other / mine - 1)
                if against.target is not None:
                    row["met"] = row["extra_time"] <= against.target
            found.append(row)
    return found


def percent(value: Optional[float]) -> str:
    return number(None if value is None else 100 * value, "%+.1f%%")


def short(tokens: int) -> str:
    return str(tokens) if tokens < 1024 else "%dk" % (tokens // 1024)


# ---- prefill ----


def heads_word(case: Case) -> str:
    return "as many KV heads" if case.group == 1 else "%d/%d heads" % (case.q_heads, case.kv_heads)


PREFILL_GROUPS: Tuple[Callable[[Case], str], ...] = (
    lambda case: "all", heads_word, lambda case: case.dtype, lambda case: "hd " + case.head_dims,
    lambda case: "causal" if case.causal else "full", lambda case: "%s tokens" % short(case.q_len))


def prefill(entries: Sequence[Entry], providers: Sequence[str]) -> str:
    """Speeds over each peer's and over the best one's, by group; then the cases where a peer is faster."""
    peers = peers_of(providers)
    groups: Dict[str, List[Entry]] = {}
    for word in PREFILL_GROUPS:
        for entry in entries:
            groups.setdefault(word(Case.from_json(entry["case"])), []).append(entry)
    rows = [["prefill"] + ["over " + peer for peer in peers] + ["over the best", "least", "below 1", "cases"]]
    for name, group in groups.items():
        ratios = [entry["ratio"] for entry in group if entry["ratio"]]
        means = [number(geomean(ratio(times(entry), OURS, peer) for entry in group), "%.3f") for peer in peers]
        rows.append([name] + means + [number(geomean(ratios), "%.3f"), number(min(ratios, default=None), "%.2f"),
                                      str(sum(value < 1 for value in ratios)), str(len(ratios))])
    return "\n".join([table(rows)] + below_the_best(entries))


def below_the_best(entries: Sequence[Entry]) -> List[str]:
    """A line for each family of cases: length, ratio and peer."""
    lines: Dict[str, List[str]] = {}
    for entry in entries:
        if entry["ratio"] and entry["ratio"] < 1:
            case = Case.from_json(entry["case"])
            lines.setdefault(case.family, []).append(
                "%s %.2f %s" % (short(case.q_len), entry["ratio"], entry["best_peer"]))
    if not lines:
        return ["", "No case is below the best peer."]
    return ["", "Below the best peer:"] + ["  %s: %s" % (name, ", ".join(words)) for name, words in lines.items()]


# ---- our own speeds ----


def dims(rows_of: Sequence[Dict[str, Any]], by_name: Dict[str, Case]) -> str:
    """Speeds over those of the larger head dim, each for its own work: 1 where all that is saved is time saved."""
    lengths = sorted({by_name[row["name"]].q_len for row in rows_of})
    columns = [(causal, tokens) for causal in (False, True) for tokens in lengths]
    rows = [["speed, for the work of each"] + ["%s %s" % ("causal" if causal else "full", short(tokens))
                                               for causal, tokens in columns] + ["mean"]]
    for kind, group in by_kind(rows_of).items():
        at = {(by_name[row["name"]].causal, by_name[row["name"]].q_len): row["speed"] for row in group}
        rows.append([kind] + [number(at.get(column), "%.2f") for column in columns]
                    + [number(geomean(row["speed"] for row in group), "%.3f")])
    return table(rows)


def by_kind(rows_of: Sequence[Dict[str, Any]]) -> Dict[str, List[Dict[str, Any]]]:
    kinds: Dict[str, List[Dict[str, Any]]] = {}
    for row in rows_of:
        kinds.setdefault(row["kind"], []).append(row)
    return kinds


def storage(rows_of: Sequence[Dict[str, Any]]) -> str:
    """Time beyond that of dense and unmasked sequences with the same work; then what misses its target."""
    rows = [["time over a dense one's, for the same work", "target", "mean", "most", "met"]]
    for kind, group in by_kind(rows_of).items():
        known = [row for row in group if row["extra_time"] is not None]
        mean = geomean(1 + row["extra_time"] for row in known)
        rows.append([kind, percent(group[0]["target"]), percent(mean - 1 if mean else None),
                     percent(max((row["extra_time"] for row in known), default=None)),
                     "%d of %d" % (sum(bool(row["met"]) for row in known), len(group))])
    missed = ["  %s: %s" % (row["name"], percent(row["extra_time"])) for row in rows_of if row["met"] is False]
    return "\n".join([table(rows)] + (["", "Beyond the target:"] + missed if missed else []))


# ---- decode, and what has it among its sequences ----


def decode(entries: Sequence[Entry], providers: Sequence[str], copy_tbps: Optional[float]) -> str:
    peers = peers_of(providers)
    rows = [[entries[0]["set"], "GB/s", "of a copy"] + ["over " + peer for peer in peers] + ["over the best", "best peer"]]
    for entry in entries:
        ms = times(entry)
        tbps = entry["results"][OURS]["tbps"] if OURS in ms else None
        best = best_peer(ms, OURS)
        rows.append([entry["name"], number(1000 * tbps if tbps else None, "%.0f"),
                     number(100 * tbps / copy_tbps if tbps and copy_tbps else None, "%.0f%%")]
                    + [number(ratio(ms, OURS, peer), "%.2f") for peer in peers]
                    + [number(ratio(ms, OURS), "%.2f"), best[0] if best else "-"])
    return table(rows)


# ---- keys and values of 8 bits ----


def over_own_bf16(entries: Sequence[Entry]) -> List[Dict[str, Any]]:
    """Tokens/s with K and V of 8 bits over those with the same numbers in bf16, of each case that has both times."""
    found = []
    for entry in entries:
        case, speed = Case.from_json(entry["case"]), ratio(times(entry), OURS, OURS_BF16)
        if case.kv_dtype:
            least = least_over_bf16(case)
            found.append({"set": entry["set"], "name": entry["name"], "speed": speed, "target": least,
                          "met": None if speed is None else speed >= least})
    return found


def eight_bits(entries: Sequence[Entry], providers: Sequence[str]) -> str:
    """Tokens/s over those of our own 16-bit KV, and over each peer's; then what misses its target."""
    peers = peers_of(providers)
    rows = [[entries[0]["set"], "tokens/s", "over own bf16", "target"] + ["over " + peer for peer in peers]]
    own = over_own_bf16(entries)
    for entry, row in zip(entries, own):
        ms, tokens = times(entry), sum(entry["case"]["q_lens"])
        rows.append([entry["name"], number(1000 * tokens / ms[OURS] if OURS in ms else None, "%.0f"),
                     number(row["speed"], "%.2f"), "%.2f" % row["target"]]
                    + [number(ratio(ms, OURS, peer), "%.2f") for peer in peers])
    known = [row["speed"] for row in own if row["speed"]]
    missed = ["  %s: %.2f" % (row["name"], row["speed"]) for row in own if row["met"] is False]
    lines = ["", "Over own bf16: mean %s, least %s of %d cases, %d met." % (
        number(geomean(known), "%.3f"), number(min(known, default=None), "%.2f"), len(known),
        sum(bool(row["met"]) for row in own))]
    return "\n".join([table(rows)] + lines + (["Below the target:"] + missed if missed else []))


def text(document: Dict[str, Any]) -> str:
    entries = document["cases"]
    sets = by_set(entries)
    rows_of = held(entries)
    measured = {name: columns(group, document["measured"]) for name, group in sets.items()}
    parts = ["", "## Summary"]
    if "prefill" in sets:
        parts += ["", prefill(sets["prefill"], measured["prefill"])]
    of_dims = [row for row in rows_of if row["set"] == "dims"]
    if of_dims:
        parts += ["", dims(of_dims, {entry["name"]: Case.from_json(entry["case"]) for entry in sets["dims"]})]
    of_storage = [row for row in rows_of if row["set"] != "dims"]
    if of_storage:
        parts += ["", storage(of_storage)]
    for name in DECODE_SETS:
        if name in sets:
            parts += ["", decode(sets[name], measured[name], document["ceilings"].get("copy_tbps"))]
    for name in FP8_SETS:
        if name in sets:
            parts += ["", eight_bits(sets[name], measured[name])]
    without = ["  %s: %s" % (entry["name"], entry["results"].get(OURS, {}).get("reason", "not asked"))
               for entry in entries if entry["results"].get(OURS, {}).get("status") != "ok"]
    if without:
        parts += ["", "Without a time of attnsmith's: %d cases" % len(without)] + without[:8]
    if document.get("left_out"):
        parts += ["", "No time was left for %d cases, from %s on." % (
            len(document["left_out"]), document["left_out"][0])]
    return "\n".join(parts)

#!/usr/bin/env python3
"""How fast vLLM generates with attnsmith, against its own attention, by turns on one GPU.

    vllm_speed.py [--cases REGEX] [--kv-cache-dtype auto,fp8] [--rounds N] [--peer FLASH_ATTN] [--graphs MODE] [--control]
                  [--json FILE] [--logs FOLDER]

The model has the shape of Llama 3.1 8B, but 4 layers, and weights from a seed. Each backend runs in an engine of its own, in a
process of its own, on the same few cores, since cores differ; a round times a case with both, and the order alternates. A ratio
is the peer's time over attnsmith's in the same round, the median over the rounds; "of the least times" is that of the fastest
rounds, since a busy host makes steps slower and none faster. Above 1, attnsmith is faster.

decode BATCHxCONTEXT: a step, of 16 in a row. prefill TOKENS: the time of the first token of one prompt. mixed: 64 requests of 1
to 8192 prompt tokens, 2 new ones a step, so chunks of prompts and decodes share steps.

--control: a second engine of the peer takes part in the turns. Its ratio shows what two equal engines differ by.

"device" is the time in which kernels run in a step, a prefill or the whole mixed load, and "attention" that of the kernels of
attention and of the cache's update, in microseconds by torch's profiler. What overlaps counts once. "metadata" is the host's time
for the attention's metadata of a decode step.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import tempfile

import seeded_models
from vllm_engines import Engine, folder_of_logs, matching, our_name, positive, run_tool

DECODES = [(1, 1024), (1, 8192), (1, 32768), (32, 1024), (32, 8192), (32, 32768), (256, 1024), (256, 8192)]
PREFILLS = [2048, 16384]
STEPS, PROMPTS = 16, 3
CORES = 4
PEER, OURS, CONTROL = "peer", "attnsmith", "control"
OPTIONS = {"max_model_len": 36864, "kv_cache_memory_bytes": 33 << 30, "gpu_memory_utilization": 0.1,
           "max_num_batched_tokens": 8192, "max_num_seqs": 256, "enable_prefix_caching": False}
#: Kernels of a step by their names: all, and those that are attention or write the cache.
PARTS = {"device": "", "attention": r"(?i)attnsmith|attention_|append_|flash|reshape_and_cache|unified_attention|prepare_varlen|merge_"}


@dataclasses.dataclass(frozen=True)
class Case:
    """method: of Worker, which gives seconds; words: its arguments. fill: those of Worker.fill(), before it. rounds: of the rounds
    that are asked for, the part that this takes. repeats: how often `method` does what it gives the seconds of."""

    name: str
    method: str
    words: dict
    fill: dict = dataclasses.field(default_factory=dict)
    rounds: float = 1.0
    repeats: int = 1


def cases():
    for batch, context in DECODES:
        yield Case(f"decode {batch}x{context}", "decode", {"steps": STEPS}, {"batch": batch, "context": context}, repeats=STEPS)
    for tokens in PREFILLS:
        yield Case(f"prefill {tokens}", "prefill", {"tokens": tokens, "repeats": PROMPTS}, repeats=PROMPTS)
    yield Case("mixed", "mixed", {"requests": 64, "tokens": 64, "longest": 8192, "rate": 2}, rounds=1 / 3)


def by_turns(engines, method, words, rounds):
    """Seconds of each round, by engine. What comes before counts nothing: kernels and graphs that a case meets first."""
    times, order = {name: [] for name in engines}, list(engines)
    for name in order:
        getattr(engines[name], method)(**words)
    for _ in range(rounds):
        for name in order:
            times[name].append(getattr(engines[name], method)(**words))
        order.reverse()
    return times


def measured(engines, case, rounds):
    """Seconds of each round, and microseconds of PARTS and, on the host, of a step's metadata, by engine."""
    for engine in engines.values():
        if case.fill:
            engine.fill(**case.fill)
    try:
        times = by_turns(engines, case.method, case.words, math.ceil(case.rounds * rounds))
        totals = {name: engine.profile(method=case.method, parts=PARTS, **case.words) for name, engine in engines.items()}
        host = {name: {"metadata": engine.metadata(steps=STEPS)} if case.fill else {} for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            engine.finish()
    return times, {name: {**{part: total / case.repeats for part, total in found.items()}, **host[name]}
                   for name, found in totals.items()}


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def ratios_of(times, over):
    """The peer's time over that of `over`: the median of the rounds, the least and the largest, and that of the least times."""
    ratios = [peer / own for peer, own in zip(times[PEER], times[over])]
    return {"median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios),
            "of_least_times": min(times[PEER]) / min(times[over])}


def run(options, dtype, folder, report):
    backends = {PEER: options.peer, OURS: our_name(), **({CONTROL: options.peer} if options.control else {})}
    engines = {}
    try:
        for name, backend in backends.items():
            engines[name] = Engine(
                options.logs / f"speed-{dtype}-{name}.log", model=str(folder), backend=backend, kv_cache_dtype=dtype,
                compilation_config={"mode": 0, "cudagraph_mode": options.graphs}, **OPTIONS)
        starts = {name: engine.wait() for name, engine in engines.items()}
        for engine in engines.values():
            engine.pin(cores=sorted(os.sched_getaffinity(0))[-CORES:])
        print(json.dumps(starts), flush=True)
        report["starts"][dtype] = starts
        for case in (case for case in cases() if case.name in options.cases):
            times, device = measured(engines, case, options.rounds)
            row = {"case": case.name, "kv_cache_dtype": dtype, "ratios": {name: ratios_of(times, name) for name in backends},
                   "seconds": {name: statistics.median(values) for name, values in times.items()}, "microseconds": device}
            report["rows"].append(row)
            print(shown(row), flush=True)
    finally:
        for engine in engines.values():
            engine.close()


def shown(row):
    of = row["seconds"]
    text = f"{row['kv_cache_dtype']:5} {row['case']:16}"
    for name in of:
        if name != PEER:
            text += "  {}: {median:.3f} ({least:.3f} to {largest:.3f}), of the least times {of_least_times:.3f}".format(
                name, **row["ratios"][name])
        text += f"  {name} {1e3 * of[name]:.3f} ms"
        for part, value in row["microseconds"].get(name, {}).items():
            text += f", {part} {value:.0f} us"
    return text


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", metavar="REGEX")
    parser.add_argument("--kv-cache-dtype", default="auto,fp8", metavar="LIST")
    parser.add_argument("--rounds", type=positive, default=15, metavar="N")
    parser.add_argument("--peer", default="FLASH_ATTN")
    parser.add_argument("--graphs", default="FULL_DECODE_ONLY", metavar="MODE", help="vLLM's cudagraph_mode")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--logs", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args(arguments)
    options.cases = matching(options.cases, [case.name for case in cases()], "--cases")
    options.logs = folder_of_logs(options.logs)
    report = {"schema": "attnsmith.vllm-speed/2", "rows": [], "starts": {}}
    with tempfile.TemporaryDirectory(prefix="attnsmith-vllm-") as folder:
        model = seeded_models.write("llama-3.1", pathlib.Path(folder) / "model", **seeded_models.LLAMA_8B)
        for dtype in options.kv_cache_dtype.split(","):
            run(options, dtype, model, report)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    for dtype in report["starts"]:
        parts = [row["microseconds"] for row in report["rows"] if row["kv_cache_dtype"] == dtype and "decode" in row["case"]]
        print(f"{dtype}: attention of a decode step: geometric mean "
              f"{geometric_mean([of[PEER]['attention'] / of[OURS]['attention'] for of in parts]):.3f}")
        for name in (OURS, CONTROL)[:1 + options.control]:
            for of in ("median", "of_least_times"):
                ratios = [row["ratios"][name][of] for row in report["rows"] if row["kv_cache_dtype"] == dtype]
                print(f"{dtype}: {name}, {of}: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios, default=math.nan):.3f}")
    return 0


if __name__ == "__main__":
    run_tool(main)

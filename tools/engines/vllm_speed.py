#!/usr/bin/env python3
"""How fast vLLM generates with attnsmith, against its own attention, by turns on one GPU.

    vllm_speed.py [--cases REGEX] [--kv-cache-dtype auto,fp8] [--rounds N] [--peer FLASH_ATTN] [--json FILE] [--logs FOLDER]

The model has the shape of Llama 3.1 8B, but 4 layers, and weights from a seed. Each backend runs in an engine of its own, in a
process of its own; a round times a case with both, and the order alternates. A ratio is the peer's time over attnsmith's in the
same round, the median over the rounds: above 1, attnsmith is faster.

decode BATCHxCONTEXT: the median of the steps of a round. prefill TOKENS: the time of the first token of one prompt. mixed: 64
requests of 1 to 8192 prompt tokens, 2 new ones a step, so chunks of prompts and decodes share steps.

"attention" is the device time of the kernels of attention and of the cache's update in a decode step, by torch's profiler.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
import sys
import tempfile

import seeded_models
from vllm_engines import Engine, our_name

DECODES = [(1, 1024), (1, 8192), (1, 32768), (32, 1024), (32, 8192), (32, 32768), (256, 1024), (256, 8192)]
PREFILLS = [2048, 16384]
STEPS = 24
OPTIONS = {"max_model_len": 36864, "gpu_memory_utilization": 0.45, "max_num_batched_tokens": 8192, "max_num_seqs": 256,
           "enable_prefix_caching": False, "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
#: Kernels of a step that are attention or write the cache, by their names.
_ATTENTION = re.compile(r"attnsmith|attention_|append_|flash|reshape_and_cache|unified_attention|prepare_varlen|merge_", re.IGNORECASE)


def cases():
    for batch, context in DECODES:
        yield f"decode {batch}x{context}", "decode", {"batch": batch, "context": context}
    for tokens in PREFILLS:
        yield f"prefill {tokens}", "prefill", {"tokens": tokens}
    yield "mixed", "mixed", {"requests": 64, "tokens": 64, "longest": 8192, "rate": 2}


def seconds_of(engine, method, words):
    times = getattr(engine, method)(**words)
    return statistics.median(times) / 1e3 if isinstance(times, list) else times


def by_turns(engines, method, words, rounds):
    """Seconds of each round, by backend. What comes before counts nothing: kernels and graphs that a case meets first."""
    times, order = {name: [] for name in engines}, list(engines)
    for name in order:
        seconds_of(engines[name], method, words)
    for _ in range(rounds):
        for name in order:
            times[name].append(seconds_of(engines[name], method, words))
        order.reverse()
    return times


def decode(engines, words, rounds):
    """Seconds of each round, and microseconds of attention in a step, by backend."""
    for engine in engines.values():
        engine.fill(**words)
    try:
        times = by_turns(engines, "decode", {"steps": STEPS}, rounds)
        return times, {name: attention_of(engine.profile()) for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            engine.finish()


def attention_of(kernels):
    return sum(time for name, time in kernels.items() if _ATTENTION.search(name))


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def run(options, dtype, folder, report):
    names = (options.peer, our_name())
    log = (lambda name: None) if options.logs is None else (lambda name: options.logs / f"speed-{dtype}-{name}.log")
    engines, starts = {}, {}
    try:
        for name in names:  # one after the other: a starting engine takes all growth of the device's memory for its own
            engines[name] = Engine(log(name), model=str(folder), backend=name, kv_cache_dtype=dtype, **OPTIONS)
            starts[name] = engines[name].wait()
        print(json.dumps(starts), flush=True)
        report["starts"][dtype] = starts
        for case, method, words in cases():
            if not re.search(options.cases, case):
                continue
            attention = {}
            if method == "decode":
                times, attention = decode(engines, words, options.rounds)
            else:
                times = by_turns(engines, method, words, options.rounds)
            ratios = [peer / own for peer, own in zip(*(times[name] for name in names))]
            row = {"case": case, "kv_cache_dtype": dtype, "ratio": statistics.median(ratios), "least": min(ratios),
                   "largest": max(ratios), "seconds": {name: statistics.median(values) for name, values in times.items()},
                   "attention_us": attention}
            report["rows"].append(row)
            print(f"{dtype:5} {case:20} {row['ratio']:.3f} ({row['least']:.3f} to {row['largest']:.3f})  "
                  + "  ".join(f"{name} {1e3 * value:.3f} ms" for name, value in row["seconds"].items())
                  + "".join(f"  attention {value:.0f} us" for value in attention.values()), flush=True)
    finally:
        for engine in engines.values():
            engine.close()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", metavar="REGEX")
    parser.add_argument("--kv-cache-dtype", default="auto,fp8", metavar="LIST")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--peer", default="FLASH_ATTN")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--logs", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    report = {"schema": "attnsmith.vllm-speed/1", "rows": [], "starts": {}}
    with tempfile.TemporaryDirectory(prefix="attnsmith-vllm-") as folder:
        model = seeded_models.write("llama-3.1", pathlib.Path(folder) / "model", **seeded_models.LLAMA_8B)
        for dtype in options.kv_cache_dtype.split(","):
            run(options, dtype, model, report)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    for dtype in report["starts"]:
        ratios = [row["ratio"] for row in report["rows"] if row["kv_cache_dtype"] == dtype]
        print(f"{dtype}: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios, default=float('nan')):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

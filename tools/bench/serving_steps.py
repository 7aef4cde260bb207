#!/usr/bin/env python3
"""What a step of a serving loop takes: decodes by each kernel of their set, and prefills beside decodes in one launch and in two.

    serving_steps.py [--dtype bf16] [--q-heads 32] [--kv-heads 8] [--head-dim 128] [--page-size 16] [--json]

Sequences have pages in no order, and lengths are read on the device. Each launch is captured into a CUDA graph of its own, with
caches enough that none is found in L2; graphs are replayed by turns, and medians are printed in microseconds. The kernels of a
set are those that pick() gives for any sizes. "chosen" is what pick() gives for the step's own. ATTNSMITH_LIBRARY, or an installed
wheel, is what is measured; torch and a GPU are needed.
"""

import argparse
import json
import statistics
import sys

from launches import SKIPPED, graph_of, import_attnsmith, is_skipped, torch

# The sizes that kernels are picked for: one of each kind that there is.
BATCHES = (1, 32)
QUERY_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048)
KEY_LENGTHS = (512, 4096, 32768)

# Names, query lengths and key lengths of the sequences.
SLOTS = [900 + 37 * i % 400 for i in range(32)]
STEPS = (
    ("32 decodes, 900 to 1300 keys", [1] * 32, SLOTS),
    ("32 decodes, 4096 keys", [1] * 32, [4096] * 32),
    ("32 decodes, 1 to 4096 keys", [1] * 32, [1 + (i * 1327) % 4096 for i in range(32)]),
    ("4 of 512 without keys before, 28 decodes of 4096", [512] * 4 + [1] * 28, [512] * 4 + [4096] * 28),
    ("4 of 512 behind 3584 keys, 28 decodes of 4096", [512] * 4 + [1] * 28, [4096] * 32),
    ("1 of 2048 behind 14336 keys, 63 decodes of 4096", [2048] + [1] * 63, [16384] + [4096] * 63),
    ("1 of 64, 31 decodes of 4096", [64] + [1] * 31, [4096] * 32),
)
FITS_IN_L2 = 128 << 20
REPLAYS = 15


class Step:
    """Tensors of one step, as many times as L2 has room and once more; binds any of its sequences to a kernel."""

    def __init__(self, arguments, q_lens, kv_lens):
        self.q_lens, self.kv_lens = q_lens, kv_lens
        shape = (arguments.page_size, arguments.kv_heads, arguments.head_dim)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[arguments.dtype]
        pages = [-(-length // arguments.page_size) for length in kv_lens]
        self.copies = []
        for _ in range(2 + FITS_IN_L2 // (4 * sum(kv_lens) * arguments.kv_heads * arguments.head_dim)):
            ids = torch.randperm(sum(pages), device="cuda", dtype=torch.int32)
            table = torch.zeros(len(pages), max(pages), dtype=torch.int32, device="cuda")
            for row, some in enumerate(ids.split(pages)):
                table[row, :len(some)] = some
            q = torch.randn(sum(q_lens), arguments.q_heads, arguments.head_dim, device="cuda", dtype=dtype)
            k = torch.randn(sum(pages), *shape, device="cuda", dtype=dtype)
            self.copies.append((q, k, torch.randn_like(k), torch.empty_like(q), table))

    def sizes(self, rows):
        return dict(batch=len(rows), q_len=max(self.q_lens[i] for i in rows), kv_len=max(self.kv_lens[i] for i in rows))

    def calls(self, kernel, rows):
        """A call for each copy, of the sequences of these rows, which are neighbours."""
        first, last = sum(self.q_lens[:rows[0]]), sum(self.q_lens[:rows[-1] + 1])
        indptr = torch.tensor([0] + [self.q_lens[i] for i in rows], device="cuda").cumsum(0).to(torch.int32)
        lens = torch.tensor([self.kv_lens[i] for i in rows], dtype=torch.int32, device="cuda")
        sizes = self.sizes(rows)
        return [kernel.bind(q[first:last], k, v, o[first:last], q_indptr=indptr, kv_lens=lens, page_table=table[rows[0]:rows[-1] + 1],
                            max_q_len=sizes["q_len"], max_kv_len=sizes["kv_len"]) for q, k, v, o, table in self.copies]


def time_by_turns(graphs, steps_of_each):
    """Median microseconds of a step, for each of the graphs."""
    times = {name: [] for name in graphs}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(REPLAYS):
        for name, graph in graphs.items():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1000 / steps_of_each)
    return {name: statistics.median(some) for name, some in times.items()}


def name_of(kernel):
    return kernel.plan()["kernels"][0]["name"]


def kernels_of(kernels):
    """The attention kernels of a set, by their names."""
    found = {}
    for batch in BATCHES:
        for q_len in QUERY_LENGTHS:
            for kv_len in KEY_LENGTHS:
                kernel = kernels.pick(batch, q_len, kv_len)
                found.setdefault(name_of(kernel), kernel)
    return found


def measure(kernels, by_name, arguments, q_lens, kv_lens):
    step = Step(arguments, q_lens, kv_lens)
    rows = list(range(len(q_lens)))
    long = [i for i in rows if q_lens[i] > 1]
    chosen = kernels.pick(**step.sizes(rows))
    calls = {"chosen": step.calls(chosen, rows)}
    for name, kernel in by_name.items():
        calls[name] = step.calls(kernel, rows)
    if long:
        short = rows[len(long):]
        parts = [step.calls(kernels.pick(**step.sizes(some)), some) for some in (long, short)]
        calls["two launches"] = [call for pair in zip(*parts) for call in pair]
    graphs = {name: graph_of([call.launch for call in some]) for name, some in calls.items()}
    times = time_by_turns(graphs, len(step.copies))
    return {"chosen": name_of(chosen), "microseconds": {name: round(us, 2) for name, us in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    for flag, value in (("--q-heads", 32), ("--kv-heads", 8), ("--head-dim", 128), ("--page-size", 16)):
        parser.add_argument(flag, type=int, default=value)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if is_skipped():
        return SKIPPED
    kernels = import_attnsmith().Runtime().prepare_set(dtype=arguments.dtype, q_heads=arguments.q_heads, kv_heads=arguments.kv_heads,
                                              head_dim=arguments.head_dim, mask="causal", kv="paged", page_size=arguments.page_size)
    by_name, results = kernels_of(kernels), {}
    for name, q_lens, kv_lens in STEPS:
        results[name] = measure(kernels, by_name, arguments, q_lens, kv_lens)
        torch.cuda.empty_cache()
        if arguments.json:
            continue
        times = results[name]["microseconds"]
        least = min(us for kernel, us in times.items() if kernel != "chosen")
        print(f"{name}: {times['chosen']:.1f} us, {times['chosen'] / least:.2f} of the least; by {results[name]['chosen']}")
        for kernel, us in sorted(times.items(), key=lambda item: item[1]):
            if kernel != "chosen":
                print(f"    {us:8.1f}  {kernel}", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    sys.exit(main())

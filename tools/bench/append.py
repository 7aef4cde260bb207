#!/usr/bin/env python3
"""What op append takes: new tokens rotated (RoPE, halves), rounded to the cache's dtype and written to its pages, in one launch.

    append.py [--tokens 1,64,8192] [--heads 32/8] [--kv bf16,e4m3] [--json append.json]
    append.py --list

Launches are replayed as CUDA graphs that go round copies of all tensors, and L2 is emptied before each replay, by reading what
is more than twice as large: a launch finds nothing of its own there. Contenders take turns, and medians are printed. GB/s count
what a launch reads and writes, once: q in and out, k and v, the cache, slots, positions and rows of the table. Beside it in the
same rounds: torch's copy_ of as many bytes, read and written; a bare launch, an addition to one element; and FlashInfer where it
can be imported: its rotation and its append, with torch's rounding between, which are kernels of their own, and of 8 bits its fused
kernel as well, which writes q in 8 bits, too. Of 64 tokens the time over that of a bare launch counts, and from 32 MB on the share
of the copy's speed. Every contender's result is checked before it is timed.

ATTNSMITH_LIBRARY, or an installed wheel, is what is measured; torch and a GPU are needed, but for --list.
"""

import argparse
import json
import pathlib
import statistics
import sys
from dataclasses import dataclass

from launches import SKIPPED, end_with_reader, graph_of, import_attnsmith, is_skipped, torch
from peers import report

SCHEMA = "attnsmith.append-bench/1"
TOKENS = (1, 8, 64, 512, 2048, 8192, 32768, 131072)
HEADS = ("32/8", "64/8")
KV = ("bf16", "e4m3")
KV_BYTES = {"bf16": 2, "e4m3": 1}
Q_BYTES = 2
MOST_SEQUENCES = 64
HELD_BEFORE = 5  # tokens in a sequence's first page that are there before
POSITIONS = 40960  # rows of the table of cosines and sines
SCALE = 0.5  # of keys and values of 8 bits; a power of two, so that a product and a quotient by it are the same
MOST_COPIES = 64
L2_TIMES = 2.5  # what is read between replays, over the size of L2
USUAL_L2 = 64 << 20  # where torch does not say
CHECKED_TOKENS = 4096
LARGE_BYTES = 32 << 20  # from here on the copy is the measure
LARGE_SHARE = 0.90
SMALL_TOKENS, SMALL_OVER_US = 64, 2.0


@dataclass(frozen=True)
class Case:
    tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    kv: str

    @property
    def name(self):
        return "%d/%d hd%d kv %s, %d tokens" % (self.q_heads, self.kv_heads, self.head_dim, self.kv, self.tokens)

    @property
    def sequences(self):
        return min(self.tokens, MOST_SEQUENCES)

    @property
    def new_tokens(self):
        """Of each sequence."""
        return self.tokens // self.sequences

    @property
    def pages_a_sequence(self):
        return -(-(HELD_BEFORE + self.new_tokens) // self.page_size)

    @property
    def bytes(self):
        """Read and written, each once: what the copy moves in the same run, half of it each way."""
        of_q = 2 * self.q_heads * Q_BYTES
        of_kv = 2 * self.kv_heads * (Q_BYTES + KV_BYTES[self.kv])
        of_places = 8 + 4 + 4 * self.head_dim  # a slot of int64, a position of int32, a row of fp32
        return self.tokens * ((of_q + of_kv) * self.head_dim + of_places)

    def copies(self, l2_bytes):
        return max(2, min(MOST_COPIES, int(L2_TIMES * l2_bytes) // self.bytes + 1))


def cases(tokens=TOKENS, heads=HEADS, kv=KV, head_dim=128, page_size=16):
    pairs = [tuple(map(int, word.split("/"))) for word in heads]
    return [Case(count, *pair, head_dim, page_size, dtype) for pair in pairs for dtype in kv for count in tokens]


def cache_dtype(kv):
    return {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[kv]


def rope_table(head_dim, device):
    """[positions, head_dim]: cosines and then sines, as engines keep them, in fp32."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)
    angles = torch.arange(POSITIONS, dtype=torch.float64, device=device)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), 1).float()


class Inputs:
    """Tensors of one launch: q, k and v as views of one fused tensor, and pages of a cache that others share."""

    def __init__(self, case, cache, table, pages, generator, device):
        self.case, self.table, (self.k_cache, self.v_cache) = case, table, cache
        columns = case.q_heads + 2 * case.kv_heads
        self.qkv = torch.empty(case.tokens, columns * case.head_dim, dtype=torch.bfloat16, device=device)
        self.qkv.normal_(generator=generator)
        self.pages = pages.view(case.sequences, case.pages_a_sequence)
        sequence = torch.arange(case.sequences, device=device).repeat_interleave(case.new_tokens)
        place = HELD_BEFORE + torch.arange(case.new_tokens, device=device).repeat(case.sequences)
        self.sequence, self.place = sequence.int(), place.int()
        self.slots = self.pages[sequence, place // case.page_size].long() * case.page_size + place % case.page_size
        starts = torch.randint(POSITIONS - case.new_tokens, (case.sequences,), generator=generator, device=device)
        self.positions = (starts.repeat_interleave(case.new_tokens) + place - HELD_BEFORE).int()
        self.scale = torch.full((1,), SCALE, dtype=torch.float32, device=device)
        # As FlashInfer takes pages: a list of all, where each sequence's begin, and how full the last is.
        self.page_indices = self.pages.flatten().int().contiguous()
        self.page_indptr = torch.arange(0, case.sequences + 1, dtype=torch.int32, device=device) * case.pages_a_sequence
        last = HELD_BEFORE + case.new_tokens - (case.pages_a_sequence - 1) * case.page_size
        self.last_page_len = torch.full((case.sequences,), last, dtype=torch.int32, device=device)

    def parts(self, qkv=None):
        """q, k and v of [tokens, heads, head_dim]."""
        case = self.case
        fused = (self.qkv if qkv is None else qkv).view(-1, case.q_heads + 2 * case.kv_heads, case.head_dim)
        return fused.split((case.q_heads, case.kv_heads, case.kv_heads), dim=1)

    def written(self, tokens):
        """What the cache has of the first tokens, as it is stored."""
        return [cache.view(torch.uint8 if cache.element_size() == 1 else cache.dtype)
                .view(-1, *cache.shape[2:])[self.slots[:tokens]].view(cache.dtype) for cache in (self.k_cache, self.v_cache)]


def rotated(x, table, positions):
    """Halves, in fp32, each operation rounded by itself: the bits that docs/numerics.md promises."""
    angles = table[positions.long()][:, None]
    cos, sin = angles.chunk(2, -1)
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def stored(x, kv):
    """In the cache's dtype: of 8 bits over the scale, as large as there is at most."""
    if kv == "bf16":
        return x.to(torch.bfloat16)
    return (x * (1 / SCALE)).clamp(-448, 448).to(torch.float8_e4m3fn)


def expected(inputs, qkv, tokens):
    """q, and the cache's k and v, of the first tokens of these inputs, unfused."""
    q, k, v = (part[:tokens] for part in inputs.parts(qkv))
    positions, kv = inputs.positions[:tokens], inputs.case.kv
    return [rotated(q, inputs.table, positions).to(torch.bfloat16), stored(rotated(k, inputs.table, positions), kv),
            stored(v.float(), kv)]


def make_inputs(case, copies, device="cuda"):
    generator = torch.Generator(device=device)
    generator.manual_seed(17)
    each = case.sequences * case.pages_a_sequence
    shape = (copies * each, case.page_size, case.kv_heads, case.head_dim)
    cache = [torch.zeros(shape, dtype=torch.uint8 if case.kv != "bf16" else torch.bfloat16, device=device)
             .view(cache_dtype(case.kv)) for _ in range(2)]
    order = torch.randperm(copies * each, generator=generator, device=device)  # as a cache in use has them
    table = rope_table(case.head_dim, device)
    return [Inputs(case, cache, table, pages, generator, device) for pages in order.split(each)]


# ---- contenders: each makes the calls of all copies ----


def request_of(case):
    """The words of prepare()."""
    words = dict(op="append", dtype="bf16", head_dim=case.head_dim, q_heads=case.q_heads, kv_heads=case.kv_heads, kv="paged",
                 page_size=case.page_size, slots="mapping", rope="half", q_len=case.tokens)
    if case.kv != "bf16":
        words.update(kv_dtype=case.kv, kv_scale="tensor")
    return words


def own_calls(kernel, every):
    calls = []
    for inputs in every:
        q, k, v = inputs.parts()
        scales = {} if inputs.case.kv == "bf16" else dict(k_scale=inputs.scale, v_scale=inputs.scale)
        call = kernel.bind_append(q=q, k=k, v=v, k_cache=inputs.k_cache, v_cache=inputs.v_cache, q_out=q,
                                  slot_mapping=inputs.slots, positions=inputs.positions, rope_table=inputs.table, **scales)
        calls.append(call.launch)
    return calls


def flashinfer_calls(flashinfer, every):
    """Its rotation in place, torch's rounding to 8 bits where the cache has these, and its append."""
    def one(inputs):
        case = inputs.case
        _, k, v = inputs.parts()
        q_columns, kv_columns = case.q_heads * case.head_dim, case.kv_heads * case.head_dim
        q_rows, k_rows = inputs.qkv[:, :q_columns], inputs.qkv[:, q_columns:q_columns + kv_columns]
        kv = inputs.qkv.view(case.tokens, -1, case.head_dim)[:, case.q_heads:]

        def call():
            flashinfer.apply_rope_with_cos_sin_cache_inplace(inputs.positions, q_rows, k_rows, case.head_dim, inputs.table)
            new_k, new_v = k, v
            if case.kv != "bf16":
                new_k, new_v = stored(kv, case.kv).split(case.kv_heads, dim=1)
            flashinfer.append_paged_kv_cache(new_k, new_v, inputs.sequence, inputs.place,
                                             (inputs.k_cache, inputs.v_cache), inputs.page_indices, inputs.page_indptr,
                                             inputs.last_page_len)
        return call

    return [one(inputs) for inputs in every]


def fused_calls(flashinfer, every):
    """FlashInfer's one kernel for all of it, which has q in 8 bits, and one scale of keys and values."""
    def one(inputs):
        case = inputs.case
        q, k, v = inputs.parts()
        q_out = torch.empty(q.shape, dtype=torch.uint8, device=q.device).view(cache_dtype(case.kv))
        return lambda: flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
            q, k, None, None, v, inputs.table, inputs.positions, (inputs.k_cache, inputs.v_cache), inputs.page_indices,
            inputs.page_indptr, inputs.sequence, inputs.place, quantize_dtype=cache_dtype(case.kv), quant_scale_q=1.0,
            quant_scale_kv=1 / SCALE, page_size=case.page_size, q_rope_out=q_out)

    return [one(inputs) for inputs in every]


def copy_calls(case, every):
    def one(device):
        source = torch.zeros(case.bytes // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return [one(inputs.qkv.device) for inputs in every]


def bare_calls(every):
    element = torch.zeros(1, device=every[0].qkv.device)
    return [lambda: element.add_(1)] * len(every)


def check(inputs, call, exact, names=("q", "k", "v")):
    """None, or what is wrong with the launch of these inputs, of `names`. Ours has to have the reference's bits."""
    tokens = min(inputs.case.tokens, CHECKED_TOKENS)
    before = inputs.qkv[:tokens].clone()
    for cache in (inputs.k_cache, inputs.v_cache):
        cache.view(torch.uint8).fill_(0x7f)  # NaN of e4m3, and of bf16 what no result is
    call()
    found = [inputs.parts()[0][:tokens], *inputs.written(tokens)]
    for name, got, wanted in zip(("q", "k", "v"), found, expected(inputs, before, tokens)):
        if name not in names:
            continue
        # By value, since a NaN or a byte of what was there before is equal to nothing that is expected.
        difference = (got.float() - wanted.float()).abs()
        # A step of the dtype either way where operations are fused otherwise.
        step = {2: 2.0 ** -7, 1: 2.0 ** -2}[got.element_size()]
        limit = 0 * wanted.float() if exact else step * wanted.float().abs() + step / 8
        wrong = float((~(difference <= limit)).float().mean())
        if wrong:
            return "%s: %.3g%% differ" % (name, 100 * wrong)
    return None


# ---- timing ----


def time_by_turns(graphs, launches, rounds, l2_bytes):
    """Median microseconds of a launch, by name. Reading leaves L2 full of what nobody has to write back."""
    much = torch.zeros(int(L2_TIMES * l2_bytes) // 8, dtype=torch.int64, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = {name: [] for name in graphs}
    for number in range(rounds + 1):
        for name, graph in graphs.items():
            much.sum()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number:  # the first wakes the clocks
                times[name].append(1000 * begin.elapsed_time(end) / launches)
    return {name: statistics.median(some) for name, some in times.items()}


def peers_of(case):
    """Name, what makes the calls, and what of the result is comparable."""
    found = [("flashinfer", flashinfer_calls, ("q", "k", "v"))]
    return found + ([("flashinfer fused", fused_calls, ("k", "v"))] if case.kv != "bf16" else [])


def measure(case, runtime, flashinfer, rounds, l2_bytes):
    every = make_inputs(case, case.copies(l2_bytes))
    contenders = {"attnsmith": own_calls(runtime.prepare(**request_of(case)), every), "copy": copy_calls(case, every),
                  "bare": bare_calls(every)}
    problems = {"attnsmith": check(every[0], contenders["attnsmith"][0], True)}
    for name, calls_of, names in peers_of(case) if flashinfer is not None else ():
        try:
            calls = calls_of(flashinfer, every)
            problems[name] = check(every[0], calls[0], False, names)
            contenders[name] = calls
        except Exception as error:  # a kernel that is not built for this is a reason, and no end
            problems[name] = one_line(error)
    graphs = {}
    for name, calls in contenders.items():
        if problems.get(name):
            continue
        try:
            graphs[name] = graph_of(calls)
        except Exception as error:
            if not name.startswith("flashinfer"):
                raise
            problems[name] = one_line(error)
    if "attnsmith" in graphs:  # once more with what it finds in L2, as behind the product that made q, k and v
        graphs["warm"] = graph_of(contenders["attnsmith"][:1] * len(every))
    return row_of(case, len(every), time_by_turns(graphs, len(every), rounds, l2_bytes),
                  {name: problem for name, problem in problems.items() if problem})


def one_line(error):
    return "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:200])


def row_of(case, copies, us, problems):
    """What is printed and kept of a case: `us` are times of a launch by contender."""
    own, copied, bare = (us.get(name) for name in ("attnsmith", "copy", "bare"))
    row = {"name": case.name, "tokens": case.tokens, "heads": "%d/%d" % (case.q_heads, case.kv_heads), "kv": case.kv,
           "head_dim": case.head_dim, "page_size": case.page_size, "bytes": case.bytes, "copies": copies, "us": us,
           "problems": problems, "gbps": {name: case.bytes / us[name] / 1e3 for name in us if name != "bare"},
           "share_of_copy": copied / own if own and copied else None,
           "us_over_bare": own - bare if own and bare else None,
           "over_flashinfer": us["flashinfer"] / own if own and "flashinfer" in us else None,
           "over_fused": us["flashinfer fused"] / own if own and "flashinfer fused" in us else None, "met": None}
    if own and case.bytes >= LARGE_BYTES:
        row["met"] = row["share_of_copy"] >= LARGE_SHARE
    elif own and case.tokens == SMALL_TOKENS:
        row["met"] = row["us_over_bare"] <= SMALL_OVER_US
    return row


COLUMNS = ("case", "MB", "us", "GB/s", "copy GB/s", "of the copy", "over bare us", "warm us", "flashinfer us", "over it",
           "fused us", "over it", "target")


def table(rows):
    def text(value, form):
        return "-" if value is None else form % value

    lines = [COLUMNS]
    for row in rows:
        us = row["us"]
        lines.append((row["name"], "%.2f" % (row["bytes"] / 1e6), text(us.get("attnsmith"), "%.2f"),
                      text(row["gbps"].get("attnsmith"), "%.0f"), text(row["gbps"].get("copy"), "%.0f"),
                      text(row["share_of_copy"], "%.2f"), text(row["us_over_bare"], "%.2f"), text(us.get("warm"), "%.2f"),
                      text(us.get("flashinfer"), "%.2f"), text(row["over_flashinfer"], "%.2f"),
                      text(us.get("flashinfer fused"), "%.2f"), text(row["over_fused"], "%.2f"),
                      {None: "", True: "met", False: "MISSED"}[row["met"]]))
    found = {}
    for row in rows:
        for name, problem in row["problems"].items():
            found.setdefault("%s: %s" % (name, problem), []).append(row["name"])
    return "\n".join([report.table(lines)] + ["%s (%d cases, such as %s)" % (problem, len(names), names[0])
                                for problem, names in found.items()])


def import_flashinfer():
    try:
        import flashinfer
        return flashinfer, None
    except Exception as error:  # not installed, or broken
        return None, one_line(error)


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def words(kind):
        return lambda value: [kind(word) for word in value.split(",") if word]

    def one_of_kv(word):
        if word not in KV:
            raise argparse.ArgumentTypeError("%r is none of %s" % (word, ", ".join(KV)))
        return word

    def heads(word):
        q_heads, _, kv_heads = word.partition("/")
        if not (q_heads.isdigit() and kv_heads.isdigit() and int(kv_heads) and int(q_heads) % int(kv_heads) == 0):
            raise argparse.ArgumentTypeError("%r is not Q/KV heads, such as 32/8" % word)
        return word

    def count(word):
        if not word.isdigit() or not int(word) or (int(word) > MOST_SEQUENCES and int(word) % MOST_SEQUENCES):
            raise argparse.ArgumentTypeError("%r is no number of tokens from 1; from %d on a multiple of it" % (
                word, MOST_SEQUENCES))
        return int(word)

    made.add_argument("--tokens", type=words(count), default=list(TOKENS), metavar="N,...")
    made.add_argument("--heads", type=words(heads), default=list(HEADS), metavar="Q/KV,...")
    made.add_argument("--kv", type=words(one_of_kv), default=list(KV), metavar="DTYPE,...", help=", ".join(KV))
    made.add_argument("--head-dim", type=int, default=128)
    made.add_argument("--page-size", type=int, default=16)
    made.add_argument("--rounds", type=int, default=31, help="replays of each contender, in turn (31)")
    made.add_argument("--json", metavar="FILE", help="write what was measured, %s" % SCHEMA)
    made.add_argument("--list", action="store_true", help="show the cases; needs no GPU and no torch")
    return made


def main(argv=None):
    arguments = parser().parse_args(argv)
    selected = cases(arguments.tokens, arguments.heads, arguments.kv, arguments.head_dim, arguments.page_size)
    if arguments.list:
        for case in selected:
            print("%-48s %10.3f MB" % (case.name, case.bytes / 1e6))
        return 0
    if is_skipped():
        return SKIPPED
    attnsmith = import_attnsmith()
    flashinfer, why_not = import_flashinfer()
    properties = torch.cuda.get_device_properties(0)
    l2_bytes = getattr(properties, "L2_cache_size", 0) or USUAL_L2
    document = {"schema": SCHEMA, "device": properties.name, "l2_bytes": l2_bytes, "torch": torch.__version__,
                "attnsmith": attnsmith.__version__, "flashinfer": getattr(flashinfer, "__version__", why_not), "cases": []}
    print("%s, L2 of %d MB, torch %s, attnsmith %s, flashinfer %s" % (
        properties.name, l2_bytes >> 20, torch.__version__, attnsmith.__version__, document["flashinfer"]))
    runtime = attnsmith.Runtime()
    with torch.no_grad():
        for case in selected:
            document["cases"].append(measure(case, runtime, flashinfer, arguments.rounds, l2_bytes))
            torch.cuda.empty_cache()
            print("  " + case.name, file=sys.stderr, flush=True)
            if arguments.json:  # as it goes: a run that is cut off leaves what it had
                pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    print(table(document["cases"]))
    return 1 if any("attnsmith" in row["problems"] for row in document["cases"]) else 0


if __name__ == "__main__":
    sys.exit(end_with_reader(main))

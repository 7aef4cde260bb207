#!/usr/bin/env python3
"""Whole models, forward and training: attnsmith against torch's SDPA, by turns on one GPU.

    adapters.py [--models REGEX] [--modes forward,training,compile,graph] [--json FILE]
    adapters.py --list                              the models, and which are skipped; needs no GPU and no torch

Models have true widths, few layers and random weights in bf16; nothing is downloaded. A model whose package is not installed
is skipped by name. attnsmith is switched on in two ways: attnsmith.torch.activate() for every model, and
attn_implementation="attnsmith" for those of transformers. In training, the second way has activate(), too.

"forward" runs under no_grad. "training" is forward, loss and backward, without an optimizer and without dropout. "compile"
and "graph", which only some models have, are the forward under torch.compile and as a CUDA graph.

Before timing, the outputs (in training all gradients) are compared: |attnsmith - SDPA| / |SDPA|, as 2-norms, may be at most
0.04, and 0.1 for gradients. The gradients compared with are those of SDPA without cuDNN, whose own can be wrong in torch 2.11
(docs/pytorch.md). "without" is that error with an attention that gives zeros: where it is not far above the bound, the
comparison says little. Then both are timed by turns in the same process on the same weights, SDPA with cuDNN where torch takes
it. A round is the wall time of a few steps of each. A ratio is SDPA's time over attnsmith's in the same round, the median over
the rounds: above 1, attnsmith is faster. "from" and "to" are the interval that holds the true median with a probability of 95%:
a ratio below 1 is more than noise if "to" is below 1. A case in which attnsmith served no call is named and has no ratio. The
exit code is 1 if outputs differ, if SDPA's own are not finite, or if a model fails.

The first run compiles kernels, which takes most of its time: --prepare does that, and times nothing.

The installed wheel is measured, or the build that the variables in tools/python/README.md name.
"""

import argparse
import contextlib
import functools
import gc
import importlib
import json
import math
import pathlib
import re
import statistics
import sys
import time
import warnings

import adapter_models
from launches import SKIPPED, end_with_reader, graph_of, import_attnsmith, is_skipped, torch
from peers.report import number, table

SCHEMA = "attnsmith.adapters/2"
MODES = ("forward", "training", "compile", "graph")
ACTIVATE, BY_NAME = "activate()", "attn_implementation"
# Measured on the CPU: attention in bf16 and in fp32 changes outputs of these models by up to 0.02, gradients by up to 0.06.
BOUNDS = {"forward": 0.04, "training": 0.1, "compile": 0.04, "graph": 0.04}
CLEARLY_ABOVE = 4  # the least "without" over the bound of a comparison that says something
CONFIDENCE = 0.95
DEFAULT_ROUNDS = 30
LEAST_ROUNDS = 6  # of fewer, not even the least and the largest hold the median with this confidence
# Steps are often bound by the host, whose speed changes within a second: a round is short, so that both sides meet the same
# speed. Standard deviation of a ratio with the noisy host of adapters_bench_test.py, in the same time for both:
#   step    time    9 turns of 30 ms, medians of each side    rounds
#   3 ms    0.7 s   0.036                                     0.011
#   13 ms   1.2 s   0.037                                     0.023
#   30 ms   1.6 s   0.044                                     0.041
TURN_SECONDS = 0.01
LEAST_STEPS = 2  # of a turn: it begins and ends with an idle GPU, which a single step would show too much
MOST_STEPS = 200
# Untimed, after each switch: deactivate() forgets the layouts that C++ serves. The first two calls of a new layout run in
# Python, and the first call of a known one after each activate(). The switch itself takes less than 1 ms.
FIRST_SETTLING_STEPS = 3
SETTLING_STEPS = 2
CLEARLY_SLOWER = 0.98  # a case is listed if its whole interval is below


# ---- a step of each mode ----


class Step:
    """What is timed, and the tensors that it leaves. Made and run with one implementation switched on."""

    def __init__(self, program, mode, reset=lambda: None):
        """reset: sets the counts of calls to 0. With "graph" they are those of the capture then."""
        self._program, self._mode, self._reset, self._held = program, mode, reset, None
        self.operators = 0  # attnsmith's in a compiled graph, whose calls no report counts
        self._module = self._compiled() if mode == "compile" else program.module
        if mode in ("compile", "graph"):
            self._program = program.traced()
        self._graph = graph_of([self._counted_forward]) if mode == "graph" else None

    def _compiled(self):
        def backend(graph, inputs):  # another object each time, so that dynamo never takes a graph of the other side
            self.operators += sum(str(node.target).startswith("attnsmith.") for node in graph.graph.nodes)
            return torch._inductor.compile_fx.compile_fx(graph, inputs)

        importlib.import_module("torch._inductor.compile_fx")
        return torch.compile(self._program.module, backend=backend, dynamic=False)

    def _forward(self):
        with torch.no_grad():
            self._held = self._program.forward(self._module)

    def _counted_forward(self):
        """graph_of() makes a call before it captures it. transformers may take other ways in a capture, such as a mask, so what
        was served before says nothing."""
        self._reset()
        self._forward()

    def run(self):
        if self._graph is not None:
            self._graph.replay()
        elif self._mode == "training":
            self._module.zero_grad(set_to_none=True)
            self._program.loss().backward()
        else:
            self._forward()

    def tensors(self):
        """The output, or the gradients, by name: copies."""
        if self._mode != "training":
            return {"the output": self._held.detach().clone()}
        return {name: weight.grad.clone() for name, weight in self._module.named_parameters() if weight.grad is not None}


def watched_attention(watch):
    """Calls `watch` with each result of torch's SDPA, and gives the model what that returns."""
    sdpa = torch.nn.functional.scaled_dot_product_attention

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), words=None):
            result = function(*arguments, **(words or {}))
            return watch(result) if function is sdpa else result

    return Mode()


def look_at(program):
    """How many calls of SDPA a forward has, and the error of its output if attention gives zeros."""
    results = []

    def count(result):
        results.append(None)
        return result

    def forward(watch):
        with torch.no_grad(), watched_attention(watch):
            return {"the output": program.forward().clone()}

    wanted = forward(count)
    return len(results), compare(forward(torch.zeros_like), wanted)[0]


# ---- numbers ----


def norm(tensor):
    """Its 2-norm, summed up in fp64, so that it is finite if the tensor is."""
    return float(torch.linalg.vector_norm(tensor.float(), dtype=torch.float64))


def compare(found, wanted):
    """|found - wanted| / |wanted| of all the tensors together, and None. Where there is no such number: None, and why.
    found: attnsmith's tensors by name. wanted: SDPA's."""
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (found, wanted)]
    others = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
    if others:
        return None, "WRONG: attnsmith leaves other tensors than SDPA, such as %s" % others[0][0]
    sizes = {name: norm(tensor) for name, tensor in wanted.items()}
    off = {name: norm(found[name].float() - tensor.float()) for name, tensor in wanted.items()}
    for what, norms in (("failed: SDPA's own result", sizes), ("WRONG: attnsmith's result", off)):
        bad = [name for name, value in norms.items() if not math.isfinite(value)]
        if bad:
            return None, "%s is not finite: %d of %d tensors, such as %s" % (what, len(bad), len(norms), bad[0])
    size = math.hypot(*sizes.values())
    return (math.hypot(*off.values()) / size, None) if size else (None, "failed: SDPA's own result is 0")


def interval_of_median(values):
    """The least and the largest of the ordered values that hold the median of what they come from with CONFIDENCE, whatever its
    distribution: the number of values below it is binomial. None where they are too few."""
    ordered, outside, cut = sorted(values), 0.0, 0
    while True:
        outside += 2 * math.comb(len(ordered), cut) / 2 ** len(ordered)
        if outside > 1 - CONFIDENCE:
            return (ordered[cut - 1], ordered[-cut]) if cut else None
        cut += 1


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def merged(reports):
    """How many calls were served, and the reasons of those passed on, of several report()s."""
    reasons = {}
    for report in reports:
        for passed in report["passed_on"]:
            reasons[passed["why"]] = reasons.get(passed["why"], 0) + passed["calls"]
    return sum(calls for report in reports for calls in report["served"].values()), reasons


def problem_of(row):
    """Why this case has no ratio, or None."""
    if not row["served"]:
        reasons = "; ".join(row["passed_on"]) or "torch did not send the calls to its flash attention"
        return "not served: " + reasons
    if row["fault"]:
        return row["fault"]
    if not row["error"] <= row["bound"]:
        return "WRONG: relative error %.3g, the bound is %g" % (row["error"], row["bound"])
    return None


def with_times(row, times):
    """The row with what was timed: seconds of a step in each round, by implementation."""
    ratios = [sdpa / own for sdpa, own in zip(times["sdpa"], times["attnsmith"])]
    sdpa, own = (statistics.median(times[name]) for name in ("sdpa", "attnsmith"))
    return {**row, "sdpa_ms": sdpa * 1e3, "attnsmith_ms": own * 1e3, "ratio": statistics.median(ratios),
            "interval": interval_of_median(ratios), "rounds": len(ratios)}


def is_partly_served(row):
    return 0 < row["served"] < row["calls"]


def is_clearly_slower(row):
    return row["interval"] is not None and row["interval"][1] < CLEARLY_SLOWER


def summary(rows):
    """Of the cases with a ratio: the geometric mean, the least and its case, and those that are clearly slower; for each mode,
    way and all. Cases that were served in part are apart."""
    groups = {"all": [], "partly served": []}
    for key in ("mode", "way"):
        groups.update({row[key]: [] for row in rows})
    for row in rows:
        for name in ("partly served",) if is_partly_served(row) else ("all", row["mode"], row["way"]):
            groups[name].append(row)
    return {name: summary_of([row for row in group if row["ratio"] is not None]) for name, group in groups.items()}


def summary_of(rows):
    least = min(rows, key=lambda row: row["ratio"], default=None)
    slower = [case_name(row) for row in rows if is_clearly_slower(row)]
    return {"cases": len(rows), "geomean": geometric_mean([row["ratio"] for row in rows]),
            "least": least and least["ratio"], "least_case": least and case_name(least),
            "clearly_slower": len(slower), "clearly_slower_cases": slower}


def case_name(row):
    return "%s, %s, %s" % (row["model"], row["way"], row["mode"])


# ---- measuring ----


@contextlib.contextmanager
def switched_on(attnsmith, program, way, mode):
    if way == BY_NAME:
        program.module.set_attn_implementation("attnsmith")
    if way == ACTIVATE or mode == "training":
        attnsmith.torch.activate()
    try:
        yield
    finally:
        attnsmith.torch.deactivate()
        if way == BY_NAME:
            program.module.set_attn_implementation("sdpa")


@contextlib.contextmanager
def without_cudnn(is_needed):
    backends = torch.backends.cuda
    before = backends.cudnn_sdp_enabled()
    backends.enable_cudnn_sdp(before and not is_needed)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(before)


def seconds_of(step, count, wait):
    wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - start) / count


@contextlib.contextmanager
def turns_of(sides, wait):
    """Gives turn(name, steps, settling): seconds of a step of that side. A side that is not on is switched on before, and makes
    `settling` steps untimed."""
    on = None
    with contextlib.ExitStack() as stack:
        def turn(name, steps, settling=SETTLING_STEPS):
            nonlocal on
            around, step = sides[name]
            if name != on:
                stack.close()
                on = None
                stack.enter_context(around())
                on = name
                seconds_of(step, settling, wait)
            return seconds_of(step, steps, wait)

        yield turn


def time_by_turns(sides, rounds, allowance, wait):
    """Seconds of a step in each round, by name, and how many steps a turn has. sides: by name, what switches it on, and a step.
    Rounds are cut where they would take more than `allowance` seconds, but never to fewer than LEAST_ROUNDS. Each round begins
    with the side that the round before ended with: it costs one switch, and the order alternates."""
    begin = time.perf_counter()
    times = {name: [] for name in sides}
    gc.disable()
    try:
        with turns_of(sides, wait) as turn:
            longest = max([turn(name, LEAST_STEPS, FIRST_SETTLING_STEPS) for name in sides])
            steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(TURN_SECONDS / max(longest, 1e-9))))
            first, order = time.perf_counter(), list(sides)
            for done in range(rounds):
                now = time.perf_counter()
                if done >= LEAST_ROUNDS and now - begin + (now - first) / done > allowance:
                    break
                order.reverse()
                for name in order:
                    times[name].append(turn(name, steps))
    finally:
        gc.enable()
    return times, steps


def measure(attnsmith, program, looked_at, row, rounds, allowance):
    """The row of a case, filled in. Without rounds it is not timed."""
    way, mode = row["way"], row["mode"]
    own = functools.partial(switched_on, attnsmith, program, way, mode)
    adapters = [attnsmith.torch] + ([attnsmith.transformers] if way == BY_NAME else [])

    def reset():
        for adapter in adapters:
            adapter.reset()

    wanted_step = Step(program, mode)
    with without_cudnn(mode == "training"):
        wanted_step.run()
    wanted = wanted_step.tensors()
    with own():
        reset()
        step = Step(program, mode, reset)
        if mode == "compile":
            step.run()  # compiles
            reset()
        step.run()
        served, passed_on = merged([adapter.report() for adapter in adapters])
        found = step.tensors()
    row["calls"], row["without"] = looked_at
    row["error"], row["fault"] = compare(found, wanted)
    row.update(served=served or step.operators, passed_on=passed_on)
    del wanted, found
    row["problem"] = problem_of(row)
    if row["problem"] or not rounds:
        return row
    times, row["steps"] = time_by_turns({"sdpa": (contextlib.nullcontext, wanted_step.run), "attnsmith": (own, step.run)},
                                        rounds, allowance, torch.cuda.synchronize)
    return with_times(row, times)


def one_line(error):
    return "%s: %s" % (type(error).__name__, (str(error).strip() or "no message").split("\n")[0][:200])


def empty_row(model, way, mode):
    return {"model": model.name, "way": way, "mode": mode, "calls": 0, "served": 0, "passed_on": {}, "error": None,
            "fault": None, "bound": BOUNDS[mode], "without": None, "sdpa_ms": None, "attnsmith_ms": None, "ratio": None,
            "interval": None, "rounds": 0, "steps": 0, "problem": None}


def cases_of(model, modes):
    return [(way, mode) for mode in modes if mode in model.modes for way in model.ways]


def measure_model(attnsmith, model, cases, rounds, allowance):
    """Rows of its cases. allowance(): seconds for timing the next of them. A model that fails is a reason, and no end."""
    rows = []
    try:
        program = adapter_models.build(model, "cuda").with_target()
        looked_at = look_at(program)
    except Exception as error:
        return [{**empty_row(model, way, mode), "problem": "failed: " + one_line(error)} for way, mode in cases]
    for way, mode in cases:
        row = empty_row(model, way, mode)
        try:
            row = measure(attnsmith, program, looked_at, row, rounds, allowance())
        except Exception as error:
            row["problem"] = "failed: " + one_line(error)
        program.module.zero_grad(set_to_none=True)
        rows.append(row)
        print("  %s: %s" % (case_name(row), row["problem"] or ratio_text(row)), file=sys.stderr, flush=True)
    return rows


class Allowances:
    """Shares what is left of the budget among the cases that are left."""

    def __init__(self, seconds, cases, clock=time.monotonic):
        self._clock, self._end, self._left = clock, clock() + seconds, cases

    def next(self):
        share = max(0.0, self._end - self._clock()) / max(1, self._left)
        self._left -= 1
        return share


# ---- output ----


COLUMNS = ("case", "SDPA ms", "attnsmith ms", "ratio", "from", "to", "rounds", "served", "of", "error", "without")


def ratio_text(row):
    if row["ratio"] is None:
        return "not timed"
    return "%.3f" % row["ratio"] + (", from %.3f to %.3f" % row["interval"] if row["interval"] else "")


def tables(document):
    lines = [COLUMNS]
    for row in document["cases"]:
        times = (*(row[name] for name in ("sdpa_ms", "attnsmith_ms", "ratio")), *(row["interval"] or (None, None)))
        lines.append((case_name(row), *(number(value, "%.3f") for value in times), "%d" % row["rounds"],
                      "%d" % row["served"], "%d" % row["calls"], number(row["error"], "%.1e"), number(row["without"], "%.2g")))
    groups = [("cases", "number", "geometric mean", "clearly slower", "least", "its case")]
    for name, group in document["summary"].items():
        groups.append((name, "%d" % group["cases"], number(group["geomean"], "%.3f"), "%d" % group["clearly_slower"],
                       number(group["least"], "%.3f"), group["least_case"] or "-"))
    text = [table(lines), "", table(groups), ""] if document["cases"] else []
    text += ["%s: clearly slower: %s" % (case_name(row), ratio_text(row))
             for row in document["cases"] if is_clearly_slower(row)]
    text += ["%s: %s" % (case_name(row), row["problem"]) for row in document["cases"] if row["problem"]]
    text += ["%s: served %d of %d calls%s" % (case_name(row), row["served"], row["calls"],
                                             "".join("; passed on: " + why for why in row["passed_on"]))
             for row in document["cases"] if is_partly_served(row)]
    text += ["%s: its comparison says little: without attention the error is only %.2g" % (model, without)
             for model, without in sorted({(row["model"], row["without"]) for row in document["cases"] if is_blind(row)})]
    text += skipped_lines(document["skipped"])
    return "\n".join(text)


def is_blind(row):
    return row["without"] is not None and not row["without"] >= CLEARLY_ABOVE * BOUNDS["forward"]


def skipped_lines(skipped):
    return ["%s: skipped: %s" % (one["model"], one["why"]) for one in skipped]


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def modes(text):
        words = [word for word in text.split(",") if word]
        if not words:
            raise argparse.ArgumentTypeError("no mode is given; there are %s" % ", ".join(MODES))
        for word in words:
            if word not in MODES:
                raise argparse.ArgumentTypeError("%r is none of %s" % (word, ", ".join(MODES)))
        return words

    def pattern(text):
        try:
            return re.compile(text, re.IGNORECASE)
        except re.error as error:
            raise argparse.ArgumentTypeError("%r is no regular expression: %s" % (text, error)) from error

    def at_least(least, kind):
        def value(text):
            if not (text.isdigit() and kind(text) >= least):
                raise argparse.ArgumentTypeError("%r is no whole number from %d on" % (text, least))
            return kind(text)
        return value

    made.add_argument("--models", type=pattern, default=pattern(""), metavar="REGEX", help="those with a match in their names")
    made.add_argument("--modes", type=modes, default=list(MODES), metavar="MODE,...", help=", ".join(MODES))
    made.add_argument("--rounds", type=at_least(LEAST_ROUNDS, int), default=DEFAULT_ROUNDS,
                      help="turns of each implementation (%d)" % DEFAULT_ROUNDS)
    made.add_argument("--seconds", type=at_least(1, int), default=220,
                      help="budget of the run: rounds are cut, down to %d, and no models (220)" % LEAST_ROUNDS)
    made.add_argument("--prepare", action="store_true", help="run and compare each case without timing, which fills the caches")
    made.add_argument("--json", metavar="FILE", help="write what was measured, %s" % SCHEMA)
    made.add_argument("--list", action="store_true", help="show the models; needs no GPU and no torch")
    return made


def select(pattern, modes):
    """Models that can be measured with their cases, and those that are skipped, with the reason."""
    chosen, skipped = [], []
    for model in adapter_models.MODELS:
        cases = cases_of(model, modes)
        if not pattern.search(model.name) or not cases:
            continue
        why = model.missing()
        if why:
            skipped.append({"model": model.name, "why": why})
        else:
            chosen.append((model, cases))
    return chosen, skipped


def listing(chosen, skipped):
    return ["%-40s %s; %s" % (model.name, ", ".join(model.ways), ", ".join(dict.fromkeys(mode for _, mode in cases)))
            for model, cases in chosen] + skipped_lines(skipped)


def import_packages(chosen):
    """Those of the chosen models whose package can be imported, and the others, which are skipped."""
    errors = {}
    for name in dict.fromkeys(model.module for model, _ in chosen):
        try:
            importlib.import_module(name)
        except Exception as error:  # it is installed without something that it needs
            errors[name] = "import %s: %s" % (name, one_line(error))
    skipped = [{"model": model.name, "why": errors[model.module]} for model, _ in chosen if model.module in errors]
    return [(model, cases) for model, cases in chosen if model.module not in errors], skipped


def adapters_of(chosen):
    """attnsmith with the adapters that the models need."""
    attnsmith = import_attnsmith()
    importlib.import_module("attnsmith.torch")
    if any(BY_NAME in model.ways for model, _ in chosen):
        importlib.import_module("attnsmith.transformers").register()
    return attnsmith


def main(argv=None):
    made = parser()
    options = made.parse_args(argv)
    chosen, skipped = select(options.models, options.modes)
    if not chosen and not skipped:
        made.error("no model has %r in its name and one of the modes %s: see --list" % (
            options.models.pattern, ", ".join(options.modes)))
    if options.list:
        print("\n".join(listing(chosen, skipped)))
        return 0
    if is_skipped():
        return SKIPPED
    chosen, broken = import_packages(chosen)
    skipped += broken
    allowances = Allowances(options.seconds, sum(len(cases) for _, cases in chosen))
    attnsmith = adapters_of(chosen)
    gc.freeze()  # so that collecting between models does not look at all the packages again
    warnings.filterwarnings("ignore", "attnsmith passes")  # the rows say it
    document = {"schema": SCHEMA, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                "attnsmith": attnsmith.__version__, "versions": adapter_models.versions(), "skipped": skipped, "cases": []}
    print("%s, torch %s, attnsmith %s, %s" % (
        document["device"], torch.__version__, attnsmith.__version__,
        ", ".join("%s %s" % (package, version or "not installed") for package, version in document["versions"].items())))
    rounds = 0 if options.prepare else options.rounds
    for model, cases in chosen:
        document["cases"] += measure_model(attnsmith, model, cases, rounds, allowances.next)
        document["summary"] = summary(document["cases"])
        gc.collect()
        torch.cuda.empty_cache()
        if options.json:  # as it goes: a run that is cut off leaves what it had
            pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(tables(document))
    return 1 if any((row["problem"] or "").startswith(("WRONG", "failed")) for row in document["cases"]) else 0


if __name__ == "__main__":
    sys.exit(end_with_reader(main))

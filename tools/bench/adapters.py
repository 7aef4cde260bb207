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
0.04, and 0.1 for gradients. "without" is that error with an attention that gives zeros: where it is not far above the bound,
the comparison says little. Then both are timed by turns in the same process on the same weights: wall time of a number of
steps, the median over the rounds. A ratio is SDPA's time over attnsmith's: above 1, attnsmith is faster. A case in which
attnsmith served no call is named and has no ratio. The exit code is 1 if outputs differ or a model fails.

ATTNSMITH_LIBRARY, or an installed wheel, is what is measured.
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

SCHEMA = "attnsmith.adapters/1"
MODES = ("forward", "training", "compile", "graph")
ACTIVATE, BY_NAME = "activate()", "attn_implementation"
# Measured on the CPU: attention in bf16 and in fp32 changes outputs of these models by up to 0.02, gradients by up to 0.06.
BOUNDS = {"forward": 0.04, "training": 0.1, "compile": 0.04, "graph": 0.04}
CLEARLY_ABOVE = 4  # the least "without" over the bound of a comparison that says something
LEAST_ROUNDS = 3
TURN_SECONDS = 0.03
SETTLING_STEPS = 2  # untimed, after each switch
MOST_STEPS = 200


# ---- a step of each mode ----


class Step:
    """What is timed, and the tensors that it leaves. Made and run with one implementation switched on."""

    def __init__(self, program, mode):
        self._program, self._mode, self._held = program, mode, None
        self.operators = 0  # attnsmith's in a compiled graph, whose calls no report counts
        self._module = self._compiled() if mode == "compile" else program.module
        if mode in ("compile", "graph"):
            self._program = program.traced()
        self._graph = graph_of([self._forward]) if mode == "graph" else None

    def _compiled(self):
        def backend(graph, inputs):  # another object each time, so that dynamo never takes a graph of the other side
            self.operators += sum(str(node.target).startswith("attnsmith.") for node in graph.graph.nodes)
            return torch._inductor.compile_fx.compile_fx(graph, inputs)

        importlib.import_module("torch._inductor.compile_fx")
        return torch.compile(self._program.module, backend=backend, dynamic=False)

    def _forward(self):
        with torch.no_grad():
            self._held = self._program.forward(self._module)

    def run(self):
        if self._graph is not None:
            self._graph.replay()
        elif self._mode == "training":
            self._module.zero_grad(set_to_none=True)
            self._program.loss().backward()
        else:
            self._forward()

    def tensors(self):
        """The output, or the gradients: copies."""
        if self._mode != "training":
            return [self._held.detach().clone()]
        return [weight.grad.clone() for weight in self._module.parameters() if weight.grad is not None]


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
            return [program.forward().clone()]

    wanted = forward(count)
    return len(results), relative_error(forward(torch.zeros_like), wanted)


# ---- numbers ----


def relative_error(found, wanted):
    """|found - wanted| / |wanted| of all the tensors together. Infinite if there are other tensors, or NaN."""
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in wanted]:
        return math.inf
    off = sum(float((a.float() - b.float()).square().sum()) for a, b in zip(found, wanted))
    size = sum(float(b.float().square().sum()) for b in wanted)
    error = math.sqrt(off / size) if size > 0 and off >= 0 else math.inf
    return error if math.isfinite(error) else math.inf


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
    if not row["error"] <= row["bound"]:
        return "WRONG: relative error %.3g, the bound is %g" % (row["error"], row["bound"])
    return None


def with_times(row, times):
    """The row with what was timed: seconds of a step in each round, by implementation."""
    sdpa, own = (statistics.median(times[name]) for name in ("sdpa", "attnsmith"))
    return {**row, "sdpa_ms": sdpa * 1e3, "attnsmith_ms": own * 1e3, "ratio": sdpa / own, "rounds": len(times["sdpa"])}


def summary(rows):
    """Of the cases with a ratio: the geometric mean, the least and its case, for each mode, way and all; and those without."""
    groups = {"all": rows}
    for key in ("mode", "way"):
        for row in rows:
            groups.setdefault(row[key], []).append(row)
    for row in rows:
        if row["served"] and row["served"] < row["calls"]:
            groups.setdefault("partly served", []).append(row)
    found = {}
    for name, group in groups.items():
        timed = [row for row in group if row["ratio"] is not None]
        least = min(timed, key=lambda row: row["ratio"], default=None)
        found[name] = {"cases": len(timed), "geomean": geometric_mean([row["ratio"] for row in timed]),
                       "least": least and least["ratio"], "least_case": least and case_name(least)}
    return found


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


def seconds_of(step, count, wait):
    wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - start) / count


def time_by_turns(sides, rounds, allowance, wait):
    """Seconds of a step in each round, by name, and how many steps a turn has. sides: by name, what switches it on, and a step.
    Rounds are cut where they would take more than `allowance` seconds, but never to fewer than LEAST_ROUNDS. The order changes
    from round to round, so that each follows the other at the same clocks."""
    begin = time.perf_counter()
    longest = 0.0
    for around, step in sides.values():
        with around():
            seconds_of(step, SETTLING_STEPS, wait)
            longest = max(longest, seconds_of(step, SETTLING_STEPS, wait))
    steps = min(MOST_STEPS, max(1, math.ceil(TURN_SECONDS / max(longest, 1e-9))))
    times = {name: [] for name in sides}
    gc.disable()
    try:
        for turn in range(rounds):
            spent = time.perf_counter() - begin
            if turn >= LEAST_ROUNDS and spent + spent / (turn + 1) > allowance:
                break
            for name in list(sides)[::1 if turn % 2 else -1]:
                around, step = sides[name]
                with around():
                    seconds_of(step, SETTLING_STEPS, wait)
                    times[name].append(seconds_of(step, steps, wait))
    finally:
        gc.enable()
    return times, steps


def measure(attnsmith, program, looked_at, row, rounds, allowance):
    """The row of a case, filled in."""
    way, mode = row["way"], row["mode"]
    own = functools.partial(switched_on, attnsmith, program, way, mode)
    adapters = [attnsmith.torch] + ([attnsmith.transformers] if way == BY_NAME else [])
    wanted_step = Step(program, mode)
    wanted_step.run()
    wanted = wanted_step.tensors()
    with own():
        for adapter in adapters:
            adapter.reset()
        step = Step(program, mode)
        if mode == "compile":
            step.run()  # compiles
            for adapter in adapters:
                adapter.reset()
        step.run()
        served, passed_on = merged([adapter.report() for adapter in adapters])
        found = step.tensors()
    if mode == "graph":  # which made the calls once before it was captured
        served //= 2
    calls, without = looked_at
    row.update(calls=calls, without=without, served=served or step.operators, passed_on=passed_on,
               error=relative_error(found, wanted))
    del wanted, found
    row["problem"] = problem_of(row)
    if row["problem"]:
        return row
    times, row["steps"] = time_by_turns({"sdpa": (contextlib.nullcontext, wanted_step.run), "attnsmith": (own, step.run)},
                                        rounds, allowance, torch.cuda.synchronize)
    return with_times(row, times)


def one_line(error):
    return "%s: %s" % (type(error).__name__, (str(error).strip() or "no message").split("\n")[0][:200])


def empty_row(model, way, mode):
    return {"model": model.name, "way": way, "mode": mode, "calls": 0, "served": 0, "passed_on": {}, "error": None,
            "bound": BOUNDS[mode], "without": None, "sdpa_ms": None, "attnsmith_ms": None, "ratio": None, "rounds": 0, "steps": 0,
            "problem": None}


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
        print("  %s: %s" % (case_name(row), row["problem"] or "%.3f" % row["ratio"]), file=sys.stderr, flush=True)
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


COLUMNS = ("case", "SDPA ms", "attnsmith ms", "ratio", "served", "of", "error", "without")


def tables(document):
    lines = [COLUMNS]
    for row in document["cases"]:
        lines.append((case_name(row), *(number(row[name], "%.3f") for name in ("sdpa_ms", "attnsmith_ms", "ratio")),
                      "%d" % row["served"], "%d" % row["calls"], number(row["error"], "%.1e"), number(row["without"], "%.2g")))
    groups = [("cases", "number", "geometric mean", "least", "its case")]
    for name, group in document["summary"].items():
        groups.append((name, "%d" % group["cases"], number(group["geomean"], "%.3f"), number(group["least"], "%.3f"),
                       group["least_case"] or "-"))
    text = [table(lines), "", table(groups), ""] if document["cases"] else []
    text += ["%s: %s" % (case_name(row), row["problem"]) for row in document["cases"] if row["problem"]]
    text += ["%s: served %d of %d calls%s" % (case_name(row), row["served"], row["calls"],
                                             "".join("; passed on: " + why for why in row["passed_on"]))
             for row in document["cases"] if 0 < row["served"] < row["calls"]]
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
    made.add_argument("--rounds", type=at_least(LEAST_ROUNDS, int), default=9, help="turns of each implementation (9)")
    made.add_argument("--seconds", type=at_least(1, int), default=220,
                      help="budget of the run: rounds are cut, down to %d, and no models (220)" % LEAST_ROUNDS)
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
    options = parser().parse_args(argv)
    chosen, skipped = select(options.models, options.modes)
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
    # torch's cache of traced graphs does not know which backend of SDPA was chosen when they were traced.
    importlib.import_module("torch._functorch.config").enable_autograd_cache = False
    document = {"schema": SCHEMA, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                "attnsmith": attnsmith.__version__, "versions": adapter_models.versions(), "skipped": skipped, "cases": []}
    print("%s, torch %s, attnsmith %s, %s" % (
        document["device"], torch.__version__, attnsmith.__version__,
        ", ".join("%s %s" % (package, version or "not installed") for package, version in document["versions"].items())))
    for model, cases in chosen:
        document["cases"] += measure_model(attnsmith, model, cases, options.rounds, allowances.next)
        document["summary"] = summary(document["cases"])
        gc.collect()
        torch.cuda.empty_cache()
        if options.json:  # as it goes: a run that is cut off leaves what it had
            pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(tables(document))
    return 1 if any((row["problem"] or "").startswith(("WRONG", "failed")) for row in document["cases"]) else 0


if __name__ == "__main__":
    sys.exit(end_with_reader(main))
